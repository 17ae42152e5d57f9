"""Shared fixtures: isolation from the user's caches, small models, small runs."""

import gc
import hashlib
import os
import shutil
import signal
import tempfile
import threading

# Set before the libraries are imported, since they read these once.
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="hf-home-")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Only tests/gpu uses GPUs (make test-gpu); all other tests run the same way on every machine.
os.environ.update({} if os.environ.get("TEST_ON_GPU") else {"CUDA_VISIBLE_DEVICES": ""})
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ACCELERATE_MIXED_PRECISION", "no")

import atexit
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState, GradientState, PartialState
from loopback_client import client, copied_run, hub, hub_and_client, push  # noqa: F401
from safetensors.torch import load_file
from waiting import LONGEST

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.commands import evaluate, train
from modeling_scratch.commands.cli import STOPPED
from modeling_scratch.data.corpus import write_corpus
from modeling_scratch.run import curves
from modeling_scratch.training.step import TrainingStep

ROOT = Path(__file__).resolve().parent.parent
if not os.environ.get("TEST_ON_GPU"):
    collect_ignore = ["gpu"]
elif not torch.cuda.is_available():
    raise pytest.UsageError("TEST_ON_GPU is set, but torch finds no GPU here")
# Tests send these signals, which a background job and nohup ignore.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def keep_a_core_busy() -> None:
    """Hash without end: a thread that takes processor time beside the tests, mostly without the interpreter lock."""
    block = bytes(2**20)
    while True:
        hashlib.sha256(block)


if os.environ.get("TEST_BESIDE_BUSY_THREAD"):
    threading.Thread(target=keep_a_core_busy, daemon=True).start()
torch.set_num_threads(1)  # even if OMP_NUM_THREADS differs: workers forked beside OpenMP threads would deadlock
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the folders with the slowest files first, so that parallel workers finish together."""
    items.sort(key=lambda item: item.path.parent.name not in ("web", "training"))


def pytest_collection_finish() -> None:
    """Exempt everything imported so far from garbage collection, which makes the tests faster."""
    gc.freeze()


SMALL_MODEL = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 48,
}

# The embedded recipe, small enough for a test: 20 updates of a model of 30,000 parameters.
SMALL_RUN = [
    "data.embedded_size=600",
    "data.max_source_tokens=64",
    "data.max_target_tokens=64",
    "tokenizer.vocab_size=418",  # 400, and those for reserved characters
    "model.overrides={d_model: 32, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 64, dropout: 0.1}",
    "optimization.max_epochs=null",
    "optimization.max_steps=20",
    "optimization.tokens_per_batch=512",
    "optimization.warmup_steps=10",
    "evaluation.every=10",
    "evaluation.num_beams=2",
    "evaluation.max_new_tokens=8",
    "checkpoints.every=10",
    "logging_steps=1",
]


# Configs that together make every choice there is.
CHOICES = {
    "default": {},
    "post-norm": {"norm_position": "post", "final_norm": False},
    "rotary, rms, gated": {
        "position_embedding_type": "rotary",
        "norm_type": "rms_norm",
        "gated_ffn": True,
        "activation_function": "silu",
        "attention_bias": False,
        "ffn_bias": False,
    },
    "learned": {"position_embedding_type": "learned", "scale_embedding": False, "activation_function": "gelu"},
    "alibi": {"position_embedding_type": "alibi"},
    "shared layers, decoder's norm": {"share_layers": True, "final_norm": "decoder"},
    "two vocabularies": {"decoder_vocab_size": 70, "share_encoder_decoder_embeddings": False},
    "shared, untied, bias": {"tie_word_embeddings": False, "lm_head_bias": True},
    "nothing shared": {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False, "init_std": 0.05},
}
every_choice = pytest.mark.parametrize("fields", CHOICES.values(), ids=CHOICES)

# The shipped model files without their sizes.
VARIANTS = {
    path.stem: {name: value for name, value in yaml.safe_load(path.read_text()).items() if name not in SMALL_MODEL}
    for path in sorted((ROOT / "configuration" / "models").glob("*.yaml"))
}
for variant in VARIANTS.values():
    if variant.get("share_encoder_decoder_embeddings") is False:
        variant["decoder_vocab_size"] = 70
# Choices and variants that differ in evaluation mode, where there is no dropout.
DISTINCT: dict[str, dict] = {}
for name, fields in (CHOICES | VARIANTS).items():
    computes = {field: value for field, value in fields.items() if "dropout" not in field}
    if computes not in DISTINCT.values():
        DISTINCT[name] = computes
every_choice_and_variant = pytest.mark.parametrize("fields", DISTINCT.values(), ids=DISTINCT)
every_choice_and_slowly_every_variant = pytest.mark.parametrize(
    "fields",
    [pytest.param(DISTINCT[name], id=name, marks=[] if name in CHOICES else pytest.mark.slow) for name in DISTINCT],
)

# For tests whose time grows with the number of layers, such as those that compile.
SHALLOW = {"encoder_layers": 1, "decoder_layers": 1}
# For tests of searches: two decoder layers show whether their caches are kept apart.
FEW_LAYERS = {"encoder_layers": 1, "decoder_layers": 2}


@pytest.fixture
def make_model():
    """A small model in evaluation mode with weights of a fixed seed; keyword arguments change its config."""

    def make(**fields) -> ScratchForConditionalGeneration:
        torch.manual_seed(0)
        return ScratchForConditionalGeneration(ScratchConfig(**(SMALL_MODEL | fields))).eval()

    return make


@pytest.fixture
def make_wide_model(make_model):
    """
    Like make_model, in float64. For claims about algorithms: tokens can be compared on every processor, because no two
    hypotheses are as close as the rounding of float64.
    """
    return lambda **fields: make_model(**fields).double()


@pytest.fixture
def sentences():
    """Ids of three sentences of different lengths, without padding: a list of (length,) tensors."""
    torch.manual_seed(1)
    return [torch.randint(4, 61, (length,)) for length in (7, 4, 5)]


def padded(sentences, length, side="right", pad=0):
    """Ids and attention mask, each (sentences, length)."""
    ids, mask = torch.full((len(sentences), length), pad), torch.zeros(len(sentences), length, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        place = slice(0, len(sentence)) if side == "right" else slice(length - len(sentence), length)
        ids[row, place], mask[row, place] = sentence, 1
    return ids, mask


def located(embed_positions, position_ids, width=32) -> list[torch.Tensor]:
    """What a stack's position embedding adds to embeddings of zeros, its rotation and its bias, if it has them."""
    zeros = torch.zeros(*position_ids.shape, width)
    rotation = embed_positions.rotation(zeros, position_ids) or ()
    bias = embed_positions.bias(zeros, position_ids, position_ids)
    return [embed_positions.add(zeros, position_ids), *rotation, *([] if bias is None else [bias])]


def forget_accelerator() -> None:
    """Let the next Accelerator of this process be the first."""
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()


def run_training(*overrides: str, **options) -> None:
    """Run train.py in this process, without converting its model for CTranslate2."""
    forget_accelerator()
    with patch.object(train, "keep_converted", lambda folder: None):
        train.main(list(overrides), **options)


def run_evaluation(*arguments: str, **options) -> None:
    """Run `scratch evaluate` in this process, by default in PyTorch, with models and overrides."""
    forget_accelerator()
    evaluate.main(arguments[0], list(arguments[1:]), **{"engine": "torch"} | options)


@cache
def few_sentences(train_pairs: int = 600) -> list[str]:
    """Overrides that train on text files of the embedded corpus, with 40 validation and 40 test sentences."""
    folder = Path(tempfile.mkdtemp(prefix="few-sentences-", dir=os.environ["HF_HOME"]))
    write_corpus(folder, train_pairs)
    for held_out in (*folder.glob("validation.*"), *folder.glob("test.*")):
        held_out.write_text("".join(held_out.read_text().splitlines(keepends=True)[:40]))
    return [f"data.{split}_files={folder / split}" for split in ("train", "validation", "test")]


def quick_run(output_dir: Path, *overrides: str, **options) -> Path:
    """Train SMALL_RUN on few sentences and return its folder. Its curves are an empty file, since plotting is slow."""
    with patch.object(curves, "plot_curves", lambda metrics, path: path.touch()):
        run_training(*SMALL_RUN, *few_sentences(), f"output_dir={output_dir}", *overrides, **options)
    return output_dir


def read_metrics(run: Path, split: str | None = None) -> list[dict]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if split in (None, record["split"])]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def equal_weights(first: Path, second: Path) -> bool:
    return all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(first).items())


def updates(run: Path) -> list[tuple]:
    """The losses and learning rate of every update, which must not depend on interruptions."""
    names = ("step", "epoch", "loss", "cross_entropy", "learning_rate")
    return [tuple(record[name] for name in names) for record in read_metrics(run, "train")]


def mixed_in(weight: float) -> str:
    """An override that mixes in tagged pairs of the embedded corpus."""
    return f"data.mix=[{{name: embedded, weight: {weight}, tag: <new>}}]"


def train_losses(run: Path) -> list[float]:
    """The loss of every update of a run that logs them all."""
    records = read_metrics(run, "train")
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record["loss"] for record in records]


class Killed(BaseException):
    """Stands for a signal that ends the process at once: nothing catches it."""


def kill_at_update(patch: pytest.MonkeyPatch, number: int) -> None:
    """Raise Killed instead of making the n-th update from now."""
    update, calls = TrainingStep.__call__, count(1)

    def killed(self, *arguments, **options):
        if next(calls) == number:
            raise Killed
        return update(self, *arguments, **options)

    patch.setattr(TrainingStep, "__call__", killed)


def killed_run(number: int, output_dir: Path, *overrides: str, **options) -> Path:
    """The folder of a quick run that is killed in place of its n-th update."""
    with pytest.MonkeyPatch.context() as patch:
        kill_at_update(patch, number)
        with pytest.raises(Killed):
            quick_run(output_dir, *overrides, **options)
    return output_dir


@pytest.fixture
def fails(capsys) -> Callable[..., str]:
    """Runs what must end with exit code 2 and nothing but a log and one error line, which it returns."""

    def fails(*arguments, run=quick_run, **options) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(*arguments, **options)
        output = capsys.readouterr()
        assert (ended.value.code, output.out) == (2, ""), output.err
        (line,) = [line for line in output.err.splitlines() if line.startswith("error: ")]
        return line

    return fails


@pytest.fixture
def stops(capsys) -> Callable[..., str]:
    """Trains a quick run that must end with the exit code of a stopped run, and returns its log."""

    def stops(output_dir: Path, *overrides: str, **options) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            quick_run(output_dir, *overrides, **options)
        assert ended.value.code == STOPPED == 75
        return capsys.readouterr().err

    return stops


@contextmanager
def unchanged(*folders: Path) -> Iterator[None]:
    """Fails if something in these folders is written or deleted."""

    def times() -> dict[Path, int]:
        return {path: path.lstat().st_mtime_ns for folder in folders for path in folder.rglob("*")}

    before = times()
    yield
    assert times() == before


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder of a small finished run, for tests that only read it."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    run_training(*SMALL_RUN, *few_sentences(), f"output_dir={folder}")
    return folder


def run_command(*command: str, **environment: str) -> subprocess.CompletedProcess:
    """Run Python in a new process, in the project's root."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )

"""Check a model folder before it is shared: a stranger who loads it must get what its author has."""

import json
import logging
import os
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers.utils import HF_MODULES_CACHE

from ..errors import UserError, as_user_error, beginning, redact
from ..files import read_json, temporary_folder
from ..inference.translate import Translator
from ..loading import load_tokenizers, load_translator
from ..model import ScratchTranslationPipeline
from ..model.translations import best_texts
from ..recipe.schema import FEATURES
from ..run.records import RECIPE, RunRecords
from . import probe
from .allowed_files import copy_files
from .model_files import open_weights

logger = logging.getLogger(__name__)

TOLERANCE = 1e-6  # of float32 logits; both sides run the same code on the same machine
# Translations must be at least this similar, on average, to those in the run's records. These may have been made on
# another machine or in bfloat16, where rounding changes a word here and there; damage changes the whole text.
ALIKE = 0.8
# Sentences that tokenizers stumble over, tried besides the run's own samples.
PROBES = ["Hello, world!", "Grüße aus Köln, naïve café.", "3.14 = 22/7?", "日本語 🙂", "<s> </s> <pad>", "a"]


def check_model(folder: Path, copy: Path, run: RunRecords | None, endpoint_handler: bool = False) -> list[str]:
    """
    Copy the files to push, except the card, to an empty folder, and check them there.

    Args:
        run: the run whose folder it is, if any; its samples are translated.
        endpoint_handler: see `copy_files`.

    Returns:
        A line for each check that passed.

    Raises:
        UserError: what is wrong, where, and what to do.
    """
    files = copy_files(folder, copy, endpoint_handler)
    samples = run.samples if run else []
    try:
        return _check_files(files, copy, samples)
    except ValueError as error:  # name the user's folder, not the copy
        raise UserError(str(error).replace(str(copy), str(folder))) from error


def _check_files(files: dict[str, Path], copy: Path, samples: list[dict[str, str]]) -> list[str]:
    check_texts(files)
    parameters = check_weights(files)
    agreement, sentences = check_translations(copy, samples), [sample["source"] for sample in samples] + PROBES
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with as_user_error(f"{copy} cannot be loaded here: "), torch.random.fork_rng(devices):  # training may continue
        author = probe.observe(str(copy), sentences, False, ScratchTranslationPipeline)
    check_loading("with this project", author)
    code = ", ".join(name for name in files if name.endswith(".py"))
    logger.info(f"running the folder's Python files, as whoever loads the model would: {code}")
    stranger = observe_as_a_stranger(copy, sentences)
    check_loading("in a clean process", stranger)
    compare_results(author, stranger)
    same = "output of random ids; there is no tokenizer"
    if "tokenizer_config.json" in files:
        same = f"outputs for {len(sentences)} inputs"
    return [
        f"weights: safetensors, {parameters:,} numbers, all finite, none missing",
        agreement,
        f"a clean process without this project: the same ids, logits (within {TOLERANCE:.0e}) and {same}",
    ]


def check_conversion(folder: Path, converted: Path, run: RunRecords | None, tolerance: float) -> list[str]:
    """
    Check a model that was converted to an architecture of Transformers' own: a process without this project must get
    from it what the model in `folder`, which `check_model` has checked, gives.

    Args:
        run: the run whose folder it is, if any; its samples are translated by both.
        tolerance: the largest difference of float32 logits.

    Returns:
        A line for each check that passed.

    Raises:
        UserError: what differs.
    """
    sentences = [sample["source"] for sample in (run.samples if run else [])] + PROBES
    files = {path.relative_to(converted).as_posix(): path for path in converted.rglob("*") if path.is_file()}
    check_texts(files)
    check_weights(files)
    with as_user_error(f"{folder} cannot be loaded here: "):
        original = probe.observe(str(folder), sentences, False, ScratchTranslationPipeline)
    stranger = observe_as_a_stranger(converted, sentences)
    check_loading("in a clean process", stranger)
    # Transformers has no pipeline for it.
    if differing := differences(original | {"pipeline": []}, stranger, tolerance):
        raise UserError(f"the converted model gives other {', '.join(differing)} than the one in {folder}")
    inputs = f"{len(sentences)} inputs" if (converted / "tokenizer_config.json").is_file() else "random ids"
    return [f"Marian model, in a clean process: the same ids and outputs for {inputs}"]


# -- what is in the files ----------------------------------------------------------------------------------------------


def check_weights(files: dict[str, Path]) -> int:
    """The number of parameters. Raises UserError if a file cannot be read, or holds a number that is not finite."""
    count = 0
    for path in (path for name, path in files.items() if name.endswith(".safetensors")):
        with open_weights(path) as weights:
            for name in weights.keys():  # noqa: SIM118
                tensor = weights.get_tensor(name)
                count += tensor.numel()
                if not torch.isfinite(tensor).all():
                    raise UserError(f"{path}: {name} holds NaN or infinite values; push an earlier checkpoint")
    return count


def check_texts(files: dict[str, Path]) -> None:
    """Raise UserError for a text file that is damaged, or that holds what looks like a token."""
    for name, path in files.items():
        if name.endswith(".json"):
            read_json(path)
        if path.suffix not in (".safetensors", ".png", ".spm", ".model"):
            text = path.read_bytes().decode("utf-8", errors="replace")
            if redact(text) != text:
                raise UserError(f"{path}: it holds what looks like a token (hf_...): remove it, and revoke it")


def check_translations(folder: Path, samples: list[dict[str, str]]) -> str:
    """
    Compare what the model in a folder makes of the samples with what its run recorded when it scored the model: only
    then do the scores on the card belong to these weights, tokenizers and settings.

    Returns:
        A line that says whether they were compared.

    Raises:
        UserError: they differ by more than rounding explains.
    """
    if not samples:
        return "translations: NOT compared, since no run has recorded any with this model"
    sources = [sample["source"] for sample in samples]
    features = [sample.get(FEATURES, "") for sample in samples]
    with as_user_error(f"{folder} cannot be loaded here: "):
        # Not on a GPU, which may be busy with training.
        translator = Translator(load_translator(str(folder)).eval(), *load_tokenizers(str(folder)))
        found = best_texts(translator.translate(sources, features=features, do_sample=False))
    pairs = [(text.strip(), sample["translation"]) for text, sample in zip(found, samples, strict=True)]
    alike = [SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in pairs]
    if mean(alike) < ALIKE:
        place = min(range(len(alike)), key=alike.__getitem__)
        gives, gave = pairs[place]
        raise UserError(
            f"{folder}: this is not the model that the run has scored: {beginning(sources[place])} gives "
            f"{beginning(gives)}, but gave {beginning(gave)} then. The weights, tokenizers or generation settings "
            f"have been changed or damaged: restore them; or move {RECIPE} away, to push without the run's scores"
        )
    same = sum(gives == gave for gives, gave in pairs)
    return f"translations: of {len(pairs)} from the run, {same} are the same"


# -- what a stranger gets ----------------------------------------------------------------------------------------------


def observe_as_a_stranger(folder: Path, sentences: list[str]) -> dict[str, Any]:
    """
    Run `probe.observe` in a process that cannot import this project and makes no connections. If it fails, raise
    UserError with the last line of its stderr.
    """
    with temporary_folder() as temporary:
        asked, answered = temporary / "sentences.json", temporary / "observed.pt"
        asked.write_text(json.dumps(sentences), encoding="utf-8")
        secret = ("HF_", "HUGGING", "PYTHON", "TRANSFORMERS_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(secret)}
        environment |= {"HF_HOME": str(temporary / "home"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        environment["CUDA_VISIBLE_DEVICES"] = ""  # a handler.py would use a GPU
        environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # rounding depends on it
        # Where this process finds its packages, but not the code of models that it has loaded.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path not in ("", HF_MODULES_CACHE))
        command = [sys.executable, "-P", "-B", probe.__file__, str(folder), str(asked), str(answered)]
        result = subprocess.run(command, cwd=temporary, env=environment, capture_output=True, text=True)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"a process without this project cannot load the folder: {last}")
        return torch.load(answered, weights_only=True)


def check_loading(who: str, observed: dict[str, Any]) -> None:
    """Raise UserError if weights are missing or unexpected, or logits not finite."""
    if observed["loading"]:
        raise UserError(
            f"loaded {who}, weights are missing or unexpected: {', '.join(observed['loading'][:5])}; save the model "
            "again"
        )
    if not torch.isfinite(observed["logits"]).all():
        raise UserError("the model's logits are not finite: its training has diverged; push an earlier checkpoint")


def differences(author: dict[str, Any], stranger: dict[str, Any], tolerance: float = TOLERANCE) -> list[str]:
    """What differs between the author's results and a stranger's; logits may differ by the tolerance."""
    differing = [name for name in ("input_ids", "outputs", "pipeline", "decoded") if author[name] != stranger[name]]
    differing += ["answers of handler.py"] if stranger["handler"] != stranger["pipeline"] else []
    difference = float("inf")
    if author["logits"].shape == stranger["logits"].shape:
        difference = (author["logits"] - stranger["logits"]).abs().max().item()
    if not difference <= tolerance:
        differing.append(f"logits (by {difference:.1e})")
    return differing


def compare_results(author: dict[str, Any], stranger: dict[str, Any]) -> None:
    """Raise UserError if a stranger's results differ from the author's."""
    if differing := differences(author, stranger):
        raise UserError(
            f"a clean process without this project gives other {', '.join(differing)}: the code or the files in the "
            "folder are not what this version of modeling_scratch would save; load the model with it, save it there "
            "again, and check again"
        )

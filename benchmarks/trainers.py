"""
Training speed of whole trainers, by their own commands: this project's train.py in float32 and in bf16, Marian in C++,
JoeyNMT and Eole. Each of the others is installed into an environment of its own; all read the same tokens, this
project's, written out as words, and train the shape of the recipe multi30k-en-de in batches of at most as many tokens.

    python benchmarks/trainers.py TRAINING_FILES --work FOLDER    # a prefix, as data.train_files takes it

A trainer's speed is that of the epochs beyond the first: the time of a run of some epochs less that of a run of one, so
that starting, and the first compilation of anything, do not count. The trainers take turns, several rounds.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import peers
import yaml
from transformers import PreTrainedTokenizerBase

from modeling_scratch.data.sources import load_pairs
from modeling_scratch.data.tokenization import texts
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.recipe.reading import load_recipe, model_fields
from modeling_scratch.recipe.schema import DataSection

RECIPE = peers.ROOT / "configuration" / "recipes" / "multi30k-en-de.yaml"
MANY = 10**9  # for intervals of what is not wanted
EOLE_UPDATES = 15


@dataclass(frozen=True)
class Work:
    """Where a trainer finds its data, as words, and the shape that it trains."""

    folder: Path
    shape: dict  # ScratchConfig's fields
    tokens_per_batch: int
    learning_rate: float
    pairs: int
    target_tokens: int  # an epoch
    tokenizer: PreTrainedTokenizerBase

    def text(self, split: str, side: str) -> str:
        return str(self.folder / f"{split}.{side}")


@dataclass(frozen=True)
class Trainer:
    """
    Args:
        packages: for pip; none: this project's own environment.
        command: the command, after the environment's Python, of a run of this many epochs; may write files.
        epochs: of the long run: about a minute more than the first alone.
        tokens: the target tokens of a run, from its log; None: those of its epochs.
    """

    packages: tuple[str, ...]
    command: Callable[[Work, int], list[str]]
    epochs: int
    tokens: Callable[[str], int] | None = None


def ours(precision: str) -> Callable[[Work, int], list[str]]:
    def command(work: Work, epochs: int) -> list[str]:
        overrides = {
            "output_dir": work.folder / "ours",
            "data.train_files": work.folder / "plain",
            "data.validation_files": work.folder / "few",
            "data.test_files": "null",
            "tokenizer.existing": work.folder / "tokenizer",
            "optimization.max_epochs": epochs,
            "model.config": "tiny",  # as the others
            "optimization.optimizer": "adamw",
            "evaluation.every": MANY,
            "evaluation.num_beams": 1,
            "evaluation.max_new_tokens": 2,
            "checkpoints.every": MANY,
            "logging_steps": MANY,
            "precision": precision,
        }
        changes = [f"{key}={value}" for key, value in overrides.items()]
        return [str(peers.ROOT / "train.py"), "--config", str(RECIPE), "--overwrite", *changes]

    return command


def marian_options(work: Work) -> dict:
    """Options for training until it is stopped."""
    shape = work.shape
    vocabulary = work.folder / "vocabulary.yml"
    return {
        "type": "transformer",
        "train-sets": [work.text("train", "source"), work.text("train", "target")],
        "vocabs": [str(vocabulary), str(vocabulary)],
        "model": str(work.folder / "marian.npz"),
        "dim-emb": shape["d_model"],
        "enc-depth": shape["encoder_layers"],
        "dec-depth": shape["decoder_layers"],
        "transformer-heads": shape["encoder_attention_heads"],
        "transformer-dim-ffn": shape["encoder_ffn_dim"],
        "transformer-dropout": shape["dropout"],
        "tied-embeddings-all": True,
        "label-smoothing": 0.1,
        "learn-rate": work.learning_rate,
        "lr-warmup": "1000",
        "optimizer-params": [0.9, 0.98, 1e-09],
        "mini-batch": 10_000,
        "mini-batch-words": work.tokens_per_batch,
        "maxi-batch": 1000,
        "max-length": 256,
        "cpu-threads": 2,
        "sync-sgd": True,
        "save-freq": f"{MANY}u",
        "shuffle-in-ram": True,
        "overwrite": True,
        "no-reload": True,
        "workspace": 1024,
        "tempdir": str(work.folder),
        "seed": 1,
    }


def marian(work: Work, epochs: int) -> list[str]:
    options = marian_options(work) | {"after": f"{epochs}e", "quiet": True}
    config = work.folder / f"marian-{epochs}.yml"
    config.write_text(yaml.safe_dump(options))
    return ["-m", "pymarian", "train", "--config", str(config)]


def joeynmt(work: Work, epochs: int) -> list[str]:
    shape = work.shape
    sides = {
        name: {
            "lang": side,
            "level": "word",
            "max_length": 256,
            "voc_file": str(work.folder / "vocabulary.joeynmt"),
        }
        for name, side in (("src", "source"), ("trg", "target"))
    }
    stacks = {
        stack: {
            "type": "transformer",
            "num_layers": shape[f"{stack}_layers"],
            "num_heads": shape[f"{stack}_attention_heads"],
            "embeddings": {"embedding_dim": shape["d_model"], "scale": True},
            "hidden_size": shape["d_model"],
            "ff_size": shape[f"{stack}_ffn_dim"],
            "dropout": shape["dropout"],
            "layer_norm": "pre",
        }
        for stack in ("encoder", "decoder")
    }
    config = {
        "name": "benchmark",
        "model_dir": str(work.folder / "joeynmt"),
        "use_cuda": False,
        "data": {
            "train": str(work.folder / "train"),
            "dev": str(work.folder / "dev"),
            "dataset_type": "plain",
            **sides,
        },
        "testing": {"beam_size": 1, "max_output_length": 2, "batch_size": 1000, "batch_type": "token"},
        "training": {
            "overwrite": True,
            "optimizer": "adamw",
            "adam_betas": [0.9, 0.98],
            "learning_rate": work.learning_rate,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 1000,
            "label_smoothing": 0.1,
            "clip_grad_norm": 1.0,
            "batch_size": work.tokens_per_batch,
            "batch_type": "token",
            "normalization": "tokens",
            "epochs": epochs,
            "validation_freq": MANY,
            "logging_freq": MANY,
            "early_stopping_metric": "ppl",
        },
        "model": {"tied_embeddings": True, "tied_softmax": True, "initializer": "xavier_uniform", **stacks},
    }
    path = work.folder / f"joeynmt-{epochs}.yaml"
    path.write_text(yaml.safe_dump(config))
    return ["-m", "joeynmt", "train", str(path), "--skip-test"]


def eole(work: Work, epochs: int) -> list[str]:
    """Eole has no epochs: each becomes a number of updates."""
    shape = work.shape
    stacks = {
        stack: {
            f"{stack}_type": "transformer",
            "layers": shape[f"{stack}_layers"],
            "heads": shape[f"{stack}_attention_heads"],
            "transformer_ff": shape[f"{stack}_ffn_dim"],
        }
        for stack in ("encoder", "decoder")
    }
    config = {
        "seed": 1,
        "overwrite": True,
        "report_every": 1,
        "src_vocab": str(work.folder / "vocabulary.eole"),
        "tgt_vocab": str(work.folder / "vocabulary.eole"),
        "share_vocab": True,
        "vocab_size_multiple": 1,
        "data": {"corpus": {"path_src": work.text("train", "source"), "path_tgt": work.text("train", "target")}},
        "training": {
            "model_path": str(work.folder / "eole"),
            "world_size": 0,
            "gpu_ranks": [],
            "num_workers": 0,
            "compute_dtype": "fp32",
            "bucket_size": work.pairs,
            "train_steps": EOLE_UPDATES * epochs,
            "valid_steps": MANY,
            "save_checkpoint_steps": MANY,
            "batch_size": work.tokens_per_batch,
            "batch_type": "tokens",
            "normalization": "tokens",
            "optim": "adamw",
            "adam_beta2": 0.98,
            "learning_rate": work.learning_rate,
            "decay_method": "rsqrt",
            "warmup_steps": 1000,
            "label_smoothing": 0.1,
            "max_grad_norm": 1.0,
            "dropout": [shape["dropout"]],
            "attention_dropout": [0.0],
            "param_init_method": "xavier_uniform",
        },
        "model": {
            "architecture": "transformer",
            "hidden_size": shape["d_model"],
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {"word_vec_size": shape["d_model"], "position_encoding_type": "SinusoidalInterleaved"},
            **stacks,
        },
    }
    path = work.folder / f"eole-{epochs}.yaml"
    path.write_text(yaml.safe_dump(config))
    return ["-m", "eole.bin.main", "train", "--config", str(path)]


def eole_tokens(log: str) -> int:
    """The target tokens of all updates, from the logged batch sizes (source tokens, target tokens, pairs)."""
    return sum(int(found) for found in re.findall(r"bsz: *\d+/ *(\d+)/", log))


TRAINERS = {
    "modeling_scratch, bf16": Trainer((), ours("bf16"), 11),
    "modeling_scratch, float32": Trainer((), ours("float32"), 7),
    "Marian in C++": Trainer(("pymarian==1.12.42",), marian, 5),
    "JoeyNMT": Trainer(("joeynmt==2.3.0", "torch==2.13.0", "importlib_metadata", "setuptools<81"), joeynmt, 2),
    "Eole": Trainer(("eole==0.6.4", "torch==2.13.0", "aiohttp"), eole, 2, eole_tokens),
}


def write_words(path: Path, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> int:
    """Write the tokens of each line, and return their number, counting the end token that every trainer adds."""
    rows = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(lines).input_ids]
    path.write_text("".join(" ".join(row[:-1]) + "\n" for row in rows), encoding="utf-8")
    return sum(map(len, rows))


def prepare(prefix: str, folder: Path, pairs: int | None) -> Work:
    """Write the data and vocabularies that all trainers read, from this many pairs (None: all)."""
    recipe = load_recipe(RECIPE)
    section = DataSection(train_files=prefix, source_language="en", target_language="de")
    sources, targets = texts(load_pairs(section, 0, only="train")["train"])
    tokenizer = train_tokenizer(iter([sources, targets]), recipe.tokenizer.vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    count = 0
    for side, language, lines in (("source", "en", sources), ("target", "de", targets)):
        count = write_words(folder / f"train.{side}", tokenizer, lines[:pairs])
        write_words(folder / f"dev.{side}", tokenizer, lines[:10])
        for name, part in (("plain", slice(pairs)), ("few", slice(10))):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines[part]), encoding="utf-8")
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    ordinary = [token for token in tokens if token not in ("<pad>", "<s>", "</s>", "<unk>")]
    words = ["</s>", "<unk>", *ordinary]
    vocabulary = "".join(f"{json.dumps(word)}: {index}\n" for index, word in enumerate(words))
    (folder / "vocabulary.yml").write_text(vocabulary, encoding="utf-8")
    for name, padding in (("joeynmt", "<pad>"), ("eole", "<blank>")):
        words = ["<unk>", padding, "<s>", "</s>", *ordinary]
        (folder / f"vocabulary.{name}").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    how, size = recipe.optimization, len(sources[:pairs])
    return Work(folder, model_fields(recipe.model), how.tokens_per_batch, how.learning_rate, size, count, tokenizer)


def install(name: str, trainer: Trainer, folder: Path) -> str:
    """The Python of the trainer's environment, which is created if it does not exist."""
    if not trainer.packages:
        return sys.executable
    environment = folder / re.sub(r"\W+", "-", name.lower())
    python = environment / "bin" / "python"
    if not (environment / "installed").exists():
        print(f"installing {name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *trainer.packages], check=True)
        (environment / "installed").touch()
    return str(python)


def run(name: str, python: str, work: Work, epochs: int) -> tuple[float, int]:
    """The seconds of a run, and the target tokens that it processes."""
    trainer, log = TRAINERS[name], work.folder / "log.txt"
    command = [python, *trainer.command(work, epochs)]
    began = time.perf_counter()
    with log.open("w") as file:
        if subprocess.run(command, stdout=file, stderr=file, cwd=work.folder).returncode:
            raise SystemExit(f"{' '.join(command)} failed; its output is in {log}")
    seconds = time.perf_counter() - began
    return seconds, trainer.tokens(log.read_text()) if trainer.tokens else epochs * work.target_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="prefix of the training files, in English and German")
    parser.add_argument("--work", type=Path, required=True, help="a folder for environments, data and models")
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    parser.add_argument("--pairs", type=int, default=8000, help="of the training files, in an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    pythons = {name: install(name, TRAINERS[name], options.work.resolve()) for name in options.trainers}
    work = prepare(options.train, options.work.resolve() / "data", options.pairs)
    print(
        f"{peers.describe_machine()}; {work.pairs:,} pairs, {work.target_tokens:,} target tokens an epoch", flush=True
    )
    rates: dict[str, list[float]] = {name: [] for name in options.trainers}
    for _ in range(options.rounds):
        for name, python in pythons.items():
            (short, few), (long, many) = (run(name, python, work, epochs) for epochs in (1, TRAINERS[name].epochs))
            rates[name].append((many - few) / (long - short))
            print(f"  {name}: {rates[name][-1]:,.0f} target tokens a second", flush=True)
    print("\n| | target tokens a second | the first is times as fast (lowest to highest) |\n|---|---|---|")
    first = rates[options.trainers[0]]
    for name, each in rates.items():
        print(f"| {name} | {statistics.median(each):,.0f} | {peers.spread(peers.quotients(first, each))} |")
    peers.write_json(rates, options.json)


if __name__ == "__main__":
    main()

"""The packages of each whole trainer, and its command and config for the same shape and the same data."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import peers
import yaml
from transformers import PreTrainedTokenizerBase

RECIPE = peers.ROOT / "configuration" / "recipes" / "multi30k-en-de.yaml"
MANY = 10**9  # as the interval of what should not happen
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
        command: the command line, after the environment's Python, for a run of this many epochs; may write files.
        epochs: of the long run, which takes about a minute longer than one of a single epoch.
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
            "optimization.weight_decay": 0,
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
    "Marian in C++": Trainer(("pymarian==1.12.42", "tokenizers==0.23.3"), marian, 5),
    "JoeyNMT": Trainer(("joeynmt==2.3.0", "torch==2.13.0", "importlib_metadata", "setuptools<81"), joeynmt, 2),
    "Eole": Trainer(("eole==0.6.4", "torch==2.13.0", "aiohttp"), eole, 2, eole_tokens),
}

"""Small models that tests translate with, trained once for all that only read them; the command beside the tests."""

import os
import re
import shutil
import signal
import sys
import tempfile
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from forked import start
from search_cases import decided
from test_translation_pipeline import make_folder

from modeling_scratch.commands import translate
from modeling_scratch.loading import load_tokenizers, load_translator, save_tokenizers


@cache
def one_vocabulary() -> Path:
    """A model from English to German, as its tokenizer says."""
    folder = make_folder(Path(tempfile.mkdtemp(dir=os.environ["HF_HOME"])) / "model")
    save_tokenizers(*load_tokenizers(str(folder)), folder, 60, ("en", "de"))
    return folder


@cache
def two_vocabularies() -> Path:
    """A model that does not say its languages."""
    return make_folder(Path(tempfile.mkdtemp(dir=os.environ["HF_HOME"])) / "model", target_size=330)


def widened(run: Path, folder: Path) -> Path:
    """A copy of a run in float64, whose translations do not depend on the batch, the process or the processor."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints"))
    load_translator(str(run)).double().save_pretrained(folder)
    return folder


def sure_of(folder: Path, sentences: list[str], rounding: float = 1e-3, **settings) -> list[bool]:
    """Which sentences another runtime, in float32, must translate as `generate` does (see `decided`)."""
    model, (source, _) = load_translator(str(folder)).double(), load_tokenizers(str(folder))
    batch = source(sentences, padding=True, return_tensors="pt")
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    rows = decided(partial(model.generate, **inputs, **settings), rounding)
    sure = rows.view(len(sentences), -1).all(dim=1).tolist()
    assert sum(sure) > len(sentences) / 2
    return sure


def same_rows(found: bytes, expected: bytes) -> None:
    """Assert equal cells, and scores that are equal but for rounding before they were printed."""
    cells, others = (output.decode().replace("\n", "\t\n\t").split("\t") for output in (found, expected))
    assert len(cells) == len(others)
    for cell, other in zip(cells, others, strict=True):
        is_score = re.fullmatch(r"-?\d+\.\d{4}", other)
        assert float(cell) == pytest.approx(float(other), abs=1.5e-4) if is_score else cell == other


class Translating:
    """
    The command in a forked process, with pipes to and from it.

    Args:
        file: for what it says on stderr.
        terminal: takes the place of the pipe to it, and of its stderr.
    """

    def __init__(self, file: Path, folder: Path, terminal: int | None = None, **options):
        given, write = (terminal, None) if terminal is not None else os.pipe()
        read, taken = os.pipe()
        # Connections, since these can be sent to another process.
        ends = Connection(given, writable=False), Connection(taken, readable=False)
        self.child = start(file, _translate, *ends, str(folder), options)
        for end in ends:
            end.close()
        self.stdin = None if write is None else os.fdopen(write, "wb", buffering=0)
        self.stdout = os.fdopen(read, "rb")


def _translate(given: Connection, taken: Connection, folder: str, options: dict) -> None:
    os.dup2(given.fileno(), 0)
    os.dup2(taken.fileno(), 1)
    if os.isatty(0):
        os.dup2(0, 2)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    translate.main(folder, **options)

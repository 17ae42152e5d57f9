"""Small models that tests translate with, trained once for all that only read them; the command beside the tests."""

import os
import signal
import sys
import tempfile
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

from forked import start
from test_translation_pipeline import make_folder

from modeling_scratch.commands import translate
from modeling_scratch.loading import load_tokenizers, save_tokenizers


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

"""The lines of a text to translate: those of a file all at once, those of standard input as they arrive."""

import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from ..errors import UserError
from ..model.translation_pipeline import SENTENCES_AHEAD

_CHUNK = 2**16  # bytes, as much as a pipe holds


class TextInput:
    """
    Lines without their line feed, in windows: those that wait at a time, at most 1,024. Only a line feed ends a line.

    Args:
        path: a file; None: standard input.

    Raises:
        UserError: standard input is closed.
    """

    def __init__(self, path: Path | None):
        if path is None and sys.stdin is None:
            raise UserError("standard input is closed; give a file with --input")
        self.name = "standard input" if path is None else str(path)
        self._descriptor = _descriptor_to_wait_for() if path is None else None
        self.is_terminal = self._descriptor is not None and os.isatty(self._descriptor)
        self._lines: list[bytes] | None = None
        if self._descriptor is None:
            self._lines = _split(sys.stdin.buffer.read() if path is None else path.read_bytes())

    @property
    def total(self) -> int | None:
        """The number of lines; None if they are read as they arrive."""
        return None if self._lines is None else len(self._lines)

    def windows(self, before_waiting: Callable[[], None] = lambda: None) -> Iterator[list[bytes]]:
        """
        All lines, some at a time.

        Args:
            before_waiting: called before there may be nothing to read for a while.
        """
        if self._lines is not None:
            for first in range(0, len(self._lines), SENTENCES_AHEAD):
                yield self._lines[first : first + SENTENCES_AHEAD]
            return
        # Read ahead without limit: a program that writes all its text before it reads anything must not be blocked.
        chunks: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=_read, args=(self._descriptor, chunks), daemon=True).start()
        rest, ended = b"", False
        while not ended:
            before_waiting()
            while not ended and b"\n" not in rest:
                chunk = chunks.get()
                rest, ended = rest + chunk, not chunk
            while not ended and rest.count(b"\n") < SENTENCES_AHEAD:
                try:
                    chunk = chunks.get_nowait()
                except Empty:
                    break
                rest, ended = rest + chunk, not chunk
            whole, _, rest = (rest, b"", b"") if ended else rest.rpartition(b"\n")
            lines = _split(whole) if ended else whole.split(b"\n")
            for first in range(0, len(lines), SENTENCES_AHEAD):
                yield lines[first : first + SENTENCES_AHEAD]


def _descriptor_to_wait_for() -> int | None:
    """Standard input's, if lines arrive there one after another; None for a file."""
    try:
        descriptor = sys.stdin.buffer.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except (io.UnsupportedOperation, OSError):  # something in place of a file
        return None


def _read(descriptor: int, chunks: SimpleQueue) -> None:
    """
    Put what arrives into a queue, then b"". By `os.read`, since a thread that waits within `sys.stdin` would hold its
    lock while Python exits.
    """
    chunk = None
    while chunk != b"":
        try:
            chunk = os.read(descriptor, _CHUNK)
        except OSError:  # the terminal is gone
            chunk = b""
        chunks.put(chunk)


def _split(text: bytes) -> list[bytes]:
    lines = text.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return lines


def decode(line: bytes, number: int) -> str:
    """
    A line's text without surrounding whitespace, nor a byte order mark in the first.

    Args:
        number: of the line, from 1.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(f"line {number}: not valid UTF-8 ({error.reason})") from None

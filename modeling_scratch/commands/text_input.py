"""Reads the lines to translate: those of a file all at once, those of standard input as they arrive."""

import io
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from ..errors import UserError
from ..model.translation_pipeline import SENTENCES_AHEAD
from ..pipelines import CommandPipeline

logger = logging.getLogger(__name__)

# Warnings about translations that were cut off.
CUT = "were cut at the greatest length"
CUT_ADVICE = "the translation was cut at its greatest length (--max-new-tokens)"

_TOLD = 3  # warnings shown of each kind
_CHUNK = 2**16  # bytes: the capacity of a pipe
_LARGE = 2**14  # bytes


class TextInput:
    """
    Lines without their line feeds, in windows of those available at once, at most 1,024. Only a line feed ends a line.

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
        Yield the lines window by window.

        Args:
            before_waiting: called before a read that may block.
        """
        if self._lines is not None:
            for first in range(0, len(self._lines), SENTENCES_AHEAD):
                yield self._lines[first : first + SENTENCES_AHEAD]
            return
        # Read ahead without limit: a program that writes all its text before it reads any output must not deadlock.
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
            end = len(rest) if ended else rest.rindex(b"\n") + 1
            lines, rest = _split(rest[:end]), rest[end:]
            for first in range(0, len(lines), SENTENCES_AHEAD):
                yield lines[first : first + SENTENCES_AHEAD]


def workers_for(path: Path | None) -> int | None:
    """How many workers a file, or standard input (None), is worth; None: the default number."""
    try:
        status = path.stat() if path is not None else os.fstat(sys.stdin.fileno())
    except (AttributeError, ValueError, OSError):  # standard input is closed or not a file, or the file does not exist
        return 0
    return None if stat.S_ISREG(status.st_mode) and status.st_size >= _LARGE else 0


def _descriptor_to_wait_for() -> int | None:
    """Standard input's file descriptor if lines may arrive one by one (a pipe, a terminal); None for a regular file."""
    try:
        descriptor = sys.stdin.buffer.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except (io.UnsupportedOperation, OSError):  # replaced by an object without a descriptor
        return None


def _read(descriptor: int, chunks: SimpleQueue) -> None:
    """
    Put chunks into a queue as they arrive, then b"". Uses `os.read`, since a thread blocked in `sys.stdin` would hold
    its lock while Python exits.
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


def _decode(line: bytes, number: int) -> str:
    """
    Decode a line, dropping a byte order mark from the first.

    Args:
        number: line number, from 1.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"not valid UTF-8 ({error.reason})") from None


class Remarks:
    """
    Warnings about lines or other units of a text: the first few of each kind at once, the total of each at the end.

    Args:
        unit: what the numbers count.
    """

    def __init__(self, unit: str = "line"):
        self.unit = unit
        self.numbers: dict[str, set[int]] = {}

    def add(self, kind: str, number: int, what: str) -> None:
        """Record a warning about a line, and log it if it is among the first of its kind."""
        told = self.numbers.setdefault(kind, set())
        if number in told:  # a text may be read twice, to check and to translate it
            return
        told.add(number)
        if len(told) <= _TOLD:
            logger.warning(f"{self.unit} {number}: {what}")

    def close(self) -> None:
        """Log the total of each kind whose warnings were not all logged."""
        for kind, told in self.numbers.items():
            if len(told) > _TOLD:
                logger.warning(f"{len(told):,} {self.unit}s {kind}, the last of them {self.unit} {max(told)}")


def remark_lengths(remarks: Remarks, pipeline: CommandPipeline, lengths: list[int], first: int = 0) -> None:
    """
    Warn about sentences longer than any in training, if the model's generation config records the longest.

    Args:
        lengths: of the sentences, in tokens.
        first: how many sentences precede these.
    """
    longest = getattr(pipeline.model.generation_config, "longest_training_source", None)
    for number, length in enumerate(lengths, start=first + 1):
        if longest is not None and length > longest:
            what = f"{length} tokens, and the longest sentence in training had {longest}: its translation may be poor"
            remarks.add("are longer than anything in training", number, what)


class LineReader:
    """
    Decodes lines into sentences that the model can translate.

    Args:
        name: of the text, for messages.
        keep_going: leave a line that cannot be translated empty, with a warning; otherwise it is an error.
    """

    def __init__(self, pipeline: CommandPipeline, name: str, keep_going: bool = False):
        self.pipeline, self.name, self.keep_going = pipeline, name, keep_going
        self.remarks = Remarks()

    def check(self, text: "TextInput") -> None:
        """UserError for the first line that cannot be translated. Tokenizes one window at a time, to save memory."""
        first = 0
        for lines in text.windows():
            if (error := self.read(lines, first)[1]) is not None:
                raise error
            first += len(lines)

    def read(self, lines: list[bytes], first: int) -> tuple[list[str], UserError | None]:
        """
        The sentence on each line, and None. Without `keep_going`, if a line cannot be translated: the sentences before
        it, and its error.

        Args:
            first: how many lines precede these.
        """
        sentences: list[str] = []
        for number, line in enumerate(lines, start=first + 1):
            try:
                sentences.append(_decode(line, number).strip())
            except UserError as error:
                if not self.keep_going:
                    return self._fitting(sentences, first, self._error(number, str(error)))
                sentences.append(self._left_empty(number, str(error)))
        return self._fitting(sentences, first, None)

    def _fitting(self, sentences: list[str], first: int, error: UserError | None) -> tuple[list[str], UserError | None]:
        """Blank sentences that are too long for the model; without `keep_going`, stop before the first of them."""
        lengths = self.pipeline.lengths(sentences)
        for place, length in enumerate(lengths):
            if length > self.pipeline.limit:
                what = f"{length} tokens, but the model takes {self.pipeline.limit}"
                if not self.keep_going:
                    return sentences[:place], self._error(first + place + 1, what)
                sentences[place], lengths[place] = self._left_empty(first + place + 1, what), 0
        remark_lengths(self.remarks, self.pipeline, lengths, first)
        return sentences, error

    def _error(self, number: int, what: str) -> UserError:
        return UserError(f"{self.name}, line {number}: {what}")

    def _left_empty(self, number: int, what: str) -> str:
        self.remarks.add("could not be translated and are empty", number, f"{what}; left empty")
        return ""

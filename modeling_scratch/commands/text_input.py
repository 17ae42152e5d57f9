"""Reads the lines to translate: those of a file all at once, those of standard input as they arrive."""

import io
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from ..errors import UserError
from ..model.translation_pipeline import SENTENCES_AHEAD
from ..pipelines import CommandPipeline

logger = logging.getLogger(__name__)

# Kinds of warnings.
CUT = "were cut at the greatest length"
CUT_ADVICE = "the translation was cut at its greatest length (--max-new-tokens)"
UNUSUAL = "are longer than anything in training"

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
        self.name = "standard input" if path is None else str(path)
        self._descriptor = _descriptor_to_wait_for() if path is None else None
        self.is_terminal = self._descriptor is not None and os.isatty(self._descriptor)
        self._lines = _split(whole_input(path)) if self._descriptor is None else None

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
            # Wait for a line, but not for more of them.
            while not ended and (b"\n" not in rest or (rest.count(b"\n") < SENTENCES_AHEAD and not chunks.empty())):
                chunk = chunks.get()
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


def whole_input(path: Path | None) -> bytes:
    """The content of a file, or of standard input (None). UserError if standard input is closed."""
    if path is not None:
        return path.read_bytes()
    if sys.stdin is None:
        raise UserError("standard input is closed; give a file with --input")
    return sys.stdin.buffer.read()


def _descriptor_to_wait_for() -> int | None:
    """Standard input's file descriptor if lines may arrive one by one (a pipe, a terminal); None for a regular file."""
    try:
        descriptor = sys.stdin.buffer.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except (AttributeError, io.UnsupportedOperation, OSError):  # closed, or an object without a descriptor
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


def check_lengths(pipeline: CommandPipeline, sentences: Sequence[str]) -> tuple[dict[int, str], dict[int, str]]:
    """
    What is wrong with each sentence that has too many tokens for the model, and what to remark on others that are
    longer than any in training, if the model's generation config records the longest; both by index.
    """
    longest = getattr(pipeline.model.generation_config, "longest_training_source", None)
    problems, unusual = {}, {}
    for place, length in enumerate(pipeline.lengths(sentences)):
        if length > pipeline.limit:
            problems[place] = f"{length} tokens, but the model takes {pipeline.limit}"
        elif longest is not None and length > longest:
            what = f"{length} tokens, and the longest sentence in training had {longest}: its translation may be poor"
            unusual[place] = what
    return problems, unusual


@dataclass(frozen=True)
class LineReader:
    """
    Decodes lines into sentences that the model can translate.

    Args:
        name: of the text, for messages.
        keep_going: leave a line that cannot be translated empty, with a warning; otherwise it is an error.
    """

    pipeline: CommandPipeline
    name: str
    keep_going: bool
    remarks: Remarks = field(default_factory=Remarks)

    def check(self, text: TextInput) -> None:
        """UserError for the first line that cannot be translated. Tokenizes one window at a time, to save memory."""
        first = 0
        for lines in text.windows():
            if (error := self.read(lines, first)[1]) is not None:
                raise error
            first += len(lines)

    def read(self, lines: list[bytes], first: int) -> tuple[list[str], UserError | None]:
        """
        The sentence on each line, and None. Without `keep_going`, if a line cannot be translated: the sentences before
        it, and its error. A byte order mark at the beginning of the text is dropped.

        Args:
            first: how many lines precede these.
        """
        sentences, problems = [], {}
        for place, line in enumerate(lines):
            try:
                sentences.append(line.decode("utf-8-sig" if first + place == 0 else "utf-8").strip())
            except UnicodeDecodeError as error:
                sentences.append("")
                problems[place] = f"not valid UTF-8 ({error.reason})"
        too_long, unusual = check_lengths(self.pipeline, sentences)
        problems |= too_long
        for place, what in sorted(problems.items()):
            number = first + place + 1
            if not self.keep_going:
                return sentences[:place], UserError(f"{self.name}, line {number}: {what}")
            self.remarks.add("could not be translated and are empty", number, f"{what}; left empty")
            sentences[place] = ""
        for place, what in unusual.items():
            self.remarks.add(UNUSUAL, first + place + 1, what)
        return sentences, None

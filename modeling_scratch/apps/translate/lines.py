"""
Reads the lines to translate: those of a file all at once, those of standard input as they arrive.

Translates lines for `scratch translate`, and writes each as soon as it is done, to a file or standard output.
"""

import io
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TextIO

from tqdm.auto import tqdm

from ...errors import UserError, as_user_error
from ...files import one_line, written_whole
from ...inference.alignments import Aligner, pharaoh
from ...inference.ensemble import first_member
from ...model.translation_pipeline import SENTENCES_AHEAD
from .pipeline import CommandPipeline

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


_ALIGNED_AT_ONCE = 64  # sentences


def with_alignments(
    results: Iterable[list[dict[str, Any]]], sentences: Iterable[str], aligner: Aligner
) -> Iterator[list[dict[str, Any]]]:
    """Add an "alignment" to each of the pipeline's translations, reading ahead to align them in batches."""
    pairs = zip(sentences, results, strict=True)
    while ahead := list(islice(pairs, _ALIGNED_AT_ONCE)):
        translations = [(source, each) for source, several in ahead for each in several]
        links = aligner.align(
            [source for source, _ in translations], [each["translation_text"] for _, each in translations]
        )
        for (_, translation), found in zip(translations, links, strict=True):
            translation["alignment"] = found
        yield from (several for _, several in ahead)


def write_rows(translations: list[dict[str, Any]], number: int, n_best: bool, scores: bool) -> Iterator[str]:
    """
    The rows written for a line, without line feeds: its translation, or its n best. `translate.main` documents the
    columns; the "alignment" of a translation, if any, is the last.
    """
    for rank, translation in enumerate(translations, start=1):
        columns = [number, rank] if n_best else []
        columns += [f"{translation['score']:.4f}"] if n_best or scores else []
        columns.append(one_line(translation["translation_text"]))
        columns += [pharaoh(translation["alignment"])] if "alignment" in translation else []
        yield "\t".join(map(str, columns))


@contextmanager
def opened_output(path: Path | None) -> Iterator[TextIO]:
    """
    Open the output before anything is translated: standard output, a device or named pipe, or a file. A file appears
    only when it is complete, with the permissions of the one it replaces.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed; give a file with --output")
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # whatever the locale
        yield sys.stdout
        sys.stdout.flush()
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"--output {path}: it must be a file, in a folder that exists")
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    path = path.resolve()  # writes to the target of a symbolic link, and keeps the link
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(written_whole(path, only_writer=False))
        except OSError as error:
            raise UserError(f"--output {path}: nothing can be written to {path.parent} ({error.strerror})") from error
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file


def pipeline_options(
    pipeline: CommandPipeline, settings: dict[str, Any], n_best: int | None, scores: bool
) -> dict[str, Any]:
    """
    The pipeline's arguments: the settings that are not None, and what n-best lists and scores need. UserError if there
    are fewer beams than `n_best`.
    """
    options = {name: value for name, value in settings.items() if value is not None}
    if n_best is not None:
        beams = options.get("num_beams") or max(n_best, pipeline.model.generation_config.num_beams or 1)
        if n_best > beams:
            raise UserError(f"--n-best {n_best}: --num-beams is {beams}; it must be at least as large")
        options["num_beams"] = beams
    return options | {"num_return_sequences": n_best or 1, "return_scores": scores or n_best is not None}


def make_aligner(pipeline: CommandPipeline) -> Aligner:
    with as_user_error(kinds=ValueError):  # for alignment_heads that the model does not have
        return Aligner(first_member(pipeline.model), pipeline.tokenizer, pipeline.target_tokenizer)


def languages_of(pipeline: CommandPipeline, format: str, language: str | None) -> tuple[str, str | None]:
    """The source language (default: the tokenizer's) and the target language. UserError if the source is unknown."""
    named = pipeline.tokenizer.init_kwargs
    source = language or named.get("source_lang")
    if source is None:
        raise UserError(
            f"--format {format}: the model does not say what it translates from; add --language, such as en"
        )
    return source, named.get("target_lang")


@as_user_error(kinds=ValueError)
def translate_lines(
    path: Path | None,
    pipeline: CommandPipeline,
    options: dict[str, Any],
    rows: Callable[..., Iterator[str]],
    file: TextIO,
    keep_going: bool,
    quiet: bool,
    aligner: Aligner | None,
) -> None:
    """
    Translate the lines of a file, or of standard input as they arrive.

    Args:
        path: a file; None: standard input.
        options: passed to the pipeline.
        rows: formats a line's translations, given its number, as rows.
        keep_going: see `LineReader`.
        quiet: show no progress bar and no prompt.
        aligner: aligns each line with its translations; None: nothing is aligned.

    Raises:
        UserError: a line cannot be translated. In a file, this is found before anything is translated.
    """
    text = TextInput(path)
    reader = LineReader(pipeline, text.name, keep_going)
    if text.total is not None and not keep_going:
        reader.check(text)
    prompt = text.is_terminal and sys.stderr.isatty() and not quiet
    if prompt:
        print("A line at a time; Ctrl-D ends.", file=sys.stderr)
    number = 0
    with tqdm(total=text.total, unit=" lines", disable=quiet or prompt or None) as bar:  # None: shown on a terminal
        for lines in text.windows(lambda: print("> ", end="", file=sys.stderr, flush=True) if prompt else None):
            sentences, error = reader.read(lines, number)
            results = pipeline(iter(sentences), **options)
            if aligner is not None:
                results = with_alignments(results, sentences, aligner)
            for translations in results:
                number += 1
                if translations[0].get("cut"):
                    reader.remarks.add(CUT, number, CUT_ADVICE)
                for row in rows(translations, number):
                    if file.isatty():
                        bar.clear()
                    print(row, file=file)
                bar.update()
            file.flush()
            if error is not None:
                raise error
    reader.remarks.close()

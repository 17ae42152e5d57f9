"""Translates lines for `scratch translate`: a file's, or those of standard input as they arrive."""

import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TextIO, TypeVar

from tqdm.auto import tqdm

from ...errors import UserError, as_user_error
from ...files import check_not_protected, one_line, written_whole
from ...inference.engine import Engine
from ...model.kept_words import KeptWords
from ...model.text import Reading, Sentences
from ...model.translations import Translation, Translations, distinct
from .placement import confidence_of, is_doubtful, read_texts

logger = logging.getLogger(__name__)

WINDOW = 1024  # lines that are translated together
_CHUNK = 2**16  # bytes; the capacity of a pipe
_LARGE = 2**14  # bytes; for smaller files, starting workers takes longer than it saves
_SHOWN = 3  # warnings of each kind that are logged

Item = TypeVar("Item")


class TextInput:
    """
    Lines without their line feeds, in windows. Only line feeds end lines.

    Args:
        path: a file; None: standard input.
    """

    def __init__(self, path: Path | None):
        self.name = "standard input" if path is None else str(path)
        self.is_terminal = path is None and sys.stdin.isatty()
        is_whole = path is not None or _size_of_stdin() is not None
        self._lines = _split(whole_input(path)) if is_whole else None

    @property
    def total(self) -> int | None:
        """The number of lines; None if they are read as they arrive."""
        return None if self._lines is None else len(self._lines)

    def windows(self, size: int, before_waiting: Callable[[], None] = lambda: None) -> Iterator[list[bytes]]:
        """
        Yield the lines of a file `size` at a time; those of a stream as they arrive, at most `size` at a time.

        Args:
            before_waiting: called before a read that may block.
        """
        arriving = [self._lines] if self._lines is not None else _arriving(sys.stdin.fileno(), size, before_waiting)
        for lines in arriving:
            for first in range(0, len(lines), size):
                yield lines[first : first + size]


def _arriving(descriptor: int, size: int, before_waiting: Callable[[], None]) -> Iterator[list[bytes]]:
    # Read ahead without limit, so that a program that writes all its text before it reads any output does not deadlock.
    chunks: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read, args=(descriptor, chunks), daemon=True).start()
    rest, ended = b"", False
    while not ended:
        before_waiting()
        # Wait until there is one line, and take what else has arrived.
        while not ended and (b"\n" not in rest or (rest.count(b"\n") < size and not chunks.empty())):
            chunk = chunks.get()
            rest, ended = rest + chunk, not chunk
        end = len(rest) if ended else rest.rindex(b"\n") + 1
        yield _split(rest[:end])
        rest = rest[end:]


def _read(descriptor: int, chunks: SimpleQueue[bytes]) -> None:
    """
    Put chunks into a queue as they arrive, and b"" at the end. Uses `os.read`, since a thread that waits in `sys.stdin`
    holds its lock, which Python needs at exit.
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


def _size_of_stdin() -> int | None:
    """
    The size in bytes of standard input if it is a regular file; None if its lines may arrive one by one. 0 for an
    object without a descriptor in place of `sys.stdin`, which is read as a whole.
    """
    try:
        status = os.fstat(sys.stdin.fileno())
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def whole_input(path: Path | None) -> bytes:
    """The content of a file, or of standard input (None)."""
    return sys.stdin.buffer.read() if path is None else path.read_bytes()


def is_large(path: Path | None) -> bool:
    """Whether a file, or standard input (None), is large enough for workers."""
    size = path.stat().st_size if path is not None and path.is_file() else _size_of_stdin() if path is None else None
    return (size or 0) >= _LARGE


@contextmanager
def opened_output(path: Path | None) -> Iterator[TextIO]:
    """
    Open the output: standard output (None), a device, a named pipe, or a file. A file appears when it is complete, with
    the permissions of the one that it replaces.

    Raises:
        UserError: the path is a folder, or its folder does not exist, or the file is write-protected.
    """
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # in any locale
        yield sys.stdout
        sys.stdout.flush()
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"--output {path}: name a file in an existing folder")
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    check_not_protected(path)  # before it is resolved, which hides some links to themselves
    # Resolved, so that a symbolic link stays and its target is replaced.
    whole = written_whole(path.resolve(), only_writer=False)
    with whole as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        yield file


class Warnings:
    """
    Logs the first few warnings of each kind about lines or sentences and, at the end, how many there were.

    Args:
        unit: "line" or "sentence".
    """

    def __init__(self, unit: str):
        self.unit = unit
        self.numbers: dict[str, list[int]] = {}

    def add(self, kind: str, number: int, message: str) -> None:
        """
        Count a warning, and log it if it is among the first of its kind.

        Args:
            kind: the message at the end, with {} in place of the number of lines or sentences.
            number: of the line or sentence, from 1.
        """
        numbers = self.numbers.setdefault(kind, [])
        numbers.append(number)
        if len(numbers) <= _SHOWN:
            logger.warning(f"{self.unit} {number}: {message}")

    def add_cut(self, number: int) -> None:
        """Warn about an output that reached the maximum length."""
        message = "the output was cut at the maximum length (--max-new-tokens)"
        self.add("the outputs of {} were cut at the maximum length", number, message)

    def add_unusual(self, number: int, message: str) -> None:
        """Warn about a sentence that is longer than any in training."""
        self.add("{} are longer than any sentence in training", number, message)

    def add_doubtful(self, number: int, translation: Translation) -> None:
        """Warn about an output if it is doubtful."""
        if is_doubtful(translation):
            why = f"the {self.unit} is unlike what the model has learnt"
            if translation.lost_words:
                why = "the model left out a kept word, whose place is a guess, or wrote one too many"
            elif translation.is_short:
                why = "the output is short for its source: a part may be missing"
            sure = translation.confidence
            told = "" if sure is None else f" (confidence {sure:.2f})"
            message = f"the output is doubtful{told}: {why}"
            self.add("the outputs of {} are doubtful", number, message)

    def add_unknown(self, number: int, count: int) -> None:
        """Warn about symbols, or features, that the vocabulary lacks."""
        symbols = "1 symbol or feature is" if count == 1 else f"{count} symbols or features are"
        self.add(
            "{} have symbols or features that are not in the vocabulary", number, f"{symbols} not in the vocabulary"
        )

    def close(self) -> None:
        """Log how many warnings there were of each kind that had more than were logged."""
        for kind, numbers in self.numbers.items():
            if len(numbers) > _SHOWN:
                total = kind.format(f"{len(numbers):,} {self.unit}s")
                logger.warning(f"{total}; the last is {self.unit} {numbers[-1]}")


def check_lengths(translator: Engine, tokens: list[list[int]]) -> tuple[dict[int, str], dict[int, str]]:
    """
    Compare the lengths of sentences with the model's limit and with the longest in training, if it is known.

    Returns:
        By index, an error message for each sentence that is too long for the model, and a warning for each other one
        that is longer than any in training.
    """
    longest = translator.longest_source
    too_long, unusual = {}, {}
    for index, length in enumerate(map(len, tokens)):
        if length > translator.limit:
            too_long[index] = f"{length} tokens, but the model takes {translator.limit}"
        elif longest is not None and length > longest:
            unusual[index] = f"{length} tokens; no training sentence had more than {longest}, so the output may be poor"
    return too_long, unusual


@dataclass(frozen=True)
class Features:
    """
    The conditions on the translations: the same `text` for all lines, or a `column` of each line. Tabs separate the
    columns, which count from 1; the first is the sentence.
    """

    text: str = ""
    column: int | None = None


def _decoded(lines: Sequence[bytes], first: int, features: Features) -> tuple[list[str], list[str], dict[int, str]]:
    """
    The sentence on each line, without a byte order mark, its features, and by index an error message for each line that
    is not UTF-8 or lacks the column of features.

    Args:
        first: the index of the first line in the text.
    """
    sentences, found, problems = [""] * len(lines), [features.text] * len(lines), {}
    for index, line in enumerate(lines):
        try:
            text = line.decode("utf-8-sig" if first + index == 0 else "utf-8")
        except UnicodeDecodeError as error:
            problems[index] = f"not valid UTF-8 ({error.reason})"
            continue
        if features.column is not None and text.strip():
            cells = text.split("\t")
            if len(cells) < features.column:
                problems[index] = f"there is no column {features.column} of features (--features-column)"
                continue
            text, found[index] = cells[0], cells[features.column - 1]
        sentences[index] = text.strip()
    return sentences, found, problems


def _check_file(
    text: TextInput,
    translator: Engine,
    features: Features,
    kept: KeptWords | None,
    sentences: Sentences | None,
) -> None:
    """
    Raise UserError for the first line that cannot be translated. Lines with fewer bytes than the model takes tokens are
    not tokenized: each token except the end token is at least one byte.
    """
    first, most = 0, translator.limit - len(features.text.encode()) - bool(features.text)
    for lines in text.windows(WINDOW):
        texts, found, problems = _decoded(lines, first, features)
        long = [text if len(line) >= most else "" for text, line in zip(texts, lines, strict=True)]
        reading = read_texts(long, translator.rules, kept, sentences)
        tokens = translator.tokenize(reading.inputs, features=reading.of_inputs(found))
        problems |= {reading.owners[place]: problem for place, problem in check_lengths(translator, tokens)[0].items()}
        if problems:
            index = min(problems)
            raise UserError(f"{text.name}, line {first + index + 1}: {problems[index]}")
        first += len(lines)


def translated_texts(
    translator: Engine, reading: Reading, tokens: list[list[int]], progress: Callable[[int], Any], **settings
) -> Translations:
    """
    The translations of texts that have been read. Those that need weights to be restored are aligned, even if the
    settings do not ask for it.

    Args:
        tokens: of each input.
        settings: for `Engine.translate`.
    """
    aligned = {"align": settings.get("num_return_sequences", 1)}
    others = [place for place in range(len(reading.inputs)) if place not in reading.to_align]
    found: dict[int, list[Translation]] = {}
    for places, more in ((others, {}), (reading.to_align, aligned)):
        if places:
            inputs, rows = [reading.inputs[place] for place in places], [tokens[place] for place in places]
            made = translator.translate(inputs, rows, progress=progress, **settings | more)
            found |= zip(places, made, strict=True)
    return reading.restored([found[place] for place in range(len(reading.inputs))])


def _rows(
    translations: list[Translation], number: int | None, scores: bool, alignments: bool, confidence: bool
) -> Iterator[str]:
    """
    The rows to write for a line: its translation, or its n best that differ. `scratch translate --help` describes the
    columns.

    Args:
        number: of the line, from 1, to write the n best; None: the best.
    """
    for rank, translation in enumerate(distinct(translations), start=1):
        columns = [] if number is None else [str(number), str(rank)]
        columns += [f"{translation.score:.4f}"] if number is not None or scores else []
        columns += [f"{confidence_of(translation):.4f}"] if confidence else []
        columns.append(one_line(translation.text))
        if alignments:
            from ...inference.alignments import links_of, pharaoh

            columns.append(pharaoh([] if translation.weights is None else links_of(translation.weights)))
        yield "\t".join(columns)


def _one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items, none of them None, while a thread makes the next one."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


@as_user_error(kinds=ValueError)
def translate_lines(
    path: Path | None,
    file: TextIO,
    translator: Engine,
    settings: dict[str, Any],
    n_best: bool = False,
    scores: bool = False,
    alignments: bool = False,
    keep_going: bool = False,
    quiet: bool = False,
    windows_at_once: int = 1,
    features: Features = Features(),
    confidence: bool = False,
    kept: KeptWords | None = None,
    split: Sentences | None = None,
) -> None:
    """
    Translate the lines of a file, or of standard input as they arrive.

    Args:
        path: a file; None: standard input.
        settings: for `Engine.translate`.
        n_best, scores, alignments, confidence: the columns to write.
        keep_going: write an empty line, with a warning, for a line that cannot be translated; otherwise it is an error.
        quiet: show no progress bar and no prompt.
        windows_at_once: how many windows of a file are translated together.
        features: the conditions on the translations, for models that were trained with features.
        kept: what stays as it is; None: nothing.
        split: whether lines are split into sentences, as `Reading` takes it.

    Raises:
        UserError: a line cannot be translated. In a file, this is found before translating.
    """
    text, warnings = TextInput(path), Warnings("line")
    prompt = text.is_terminal and sys.stderr.isatty() and not quiet
    size = WINDOW if text.total is None else WINDOW * windows_at_once

    def read(sentences: list[str], conditions: list[str]) -> tuple[Reading, list[list[int]]]:
        reading = read_texts(sentences, translator.rules, kept, split)
        return reading, translator.tokenize(reading.inputs, features=reading.of_inputs(conditions))

    def windows() -> Iterator[tuple[Reading, list[list[int]], set[int], UserError | None]]:
        """Texts that have been read, the places of unusual ones, and an error to raise after translating them."""
        first = 0
        for lines in text.windows(size, lambda: print("> ", end="", file=sys.stderr, flush=True) if prompt else None):
            sentences, conditions, problems = _decoded(lines, first, features)
            reading, tokens = read(sentences, conditions)
            too_long, unusual = (
                {reading.owners[place]: problem for place, problem in found.items()}
                for found in check_lengths(translator, tokens)
            )
            problems, error = dict(sorted((problems | too_long).items())), None
            for index, problem in problems.items():
                if not keep_going:
                    error = UserError(f"{text.name}, line {first + index + 1}: {problem}")
                    sentences, conditions = sentences[:index], conditions[:index]
                    break
                warnings.add("{} are too long or not UTF-8, and are empty", first + index + 1, f"{problem}; left empty")
                sentences[index] = ""
            if problems:
                reading, tokens = read(sentences, conditions)
            for index in sorted(unusual.keys() & range(len(sentences))):
                warnings.add_unusual(first + index + 1, unusual[index])
            if translator.unknown is not None:
                for index, row in zip(reading.owners, tokens, strict=True):
                    if count := row.count(translator.unknown):
                        warnings.add_unknown(first + index + 1, count)
            if (more := len(reading.inputs) - len(sentences)) and bar.total is not None:
                bar.total += more
            first += len(lines)
            yield reading, tokens, set(unusual), error

    if text.total is not None and not keep_going:
        _check_file(text, translator, features, kept, split)
    if prompt:
        print("Type one input per line; press Ctrl-D to quit.", file=sys.stderr)
    number = 0
    bar = tqdm(total=text.total, unit=" sentences", disable=quiet or prompt or None)  # None: shown on a terminal
    with closing(warnings), bar:
        for reading, tokens, unusual, error in windows() if text.total is None else _one_ahead(windows()):
            found = translated_texts(translator, reading, tokens, bar.update, **settings)
            if file.isatty():
                bar.clear()
            for place, translations in enumerate(found):
                number += 1
                if translations[0].is_cut:
                    warnings.add_cut(number)
                if place not in unusual:
                    warnings.add_doubtful(number, translations[0])
                for row in _rows(translations, number if n_best else None, scores, alignments, confidence):
                    print(row, file=file)
            file.flush()
            if error is not None:
                raise error

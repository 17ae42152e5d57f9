"""
Splits texts and files into sentences, and writes them with their translations, in separate processes: a regular
expression or a parser holds the interpreter lock until it is done, which would block all other requests. These
processes do not import torch.
"""

import asyncio
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import chain
from typing import TypeVar

from ...errors import UserError
from ...languages import base_language
from ...model.kept_words import ADDRESSES, KeptWords
from ...model.text import Reading, TextRules
from ..documents.document import read_document
from ..translate.paragraphs import Paragraphs, Translated, cut
from ..translate.placement import read_texts

CLEARLY = 10  # a text is in a language that is this many times as likely as others; single words often reach less
LEAST_LIKELY = 0.001  # ratios of smaller probabilities are noise
_SHORT = 5_000  # characters
_MOST_DETECTED = 20_000  # characters of a text, which say what language it is in
_MEMORY = 2**30  # bytes; reading 2 MB of Markdown takes a fifth of it, and 25 seconds

Result = TypeVar("Result")
Texts = Sequence[str] | Sequence[bytes]


def reading_cost(texts: Texts) -> float:
    """The characters of texts; infinitely many for the bytes of files, which may be compressed."""
    return math.inf if isinstance(next(iter(texts), ""), bytes) else sum(map(len, texts))


def sentences_of(
    texts: Texts,
    format: str,
    languages: tuple[str | None, str | None],
    rules: TextRules,
    kept: KeptWords | None,
    most: int,
) -> Reading:
    """
    The different sentences of texts, or of the bytes of files, as a model reads them.

    Args:
        format: a key of `documents.FORMATS`.
        languages: of the texts, as in `Paragraphs`, and of their translations.
        rules: the model's.
        kept: what stays in them; None: the model is not a translator.
        most: the most characters of text in all of them.

    Raises:
        UserError: a text is not in this format, or there is too much text.
    """
    rows, length = [], 0
    for text in texts:
        paragraphs = read_document(text, format, kept or ADDRESSES, languages[1]).paragraphs
        length += sum(map(len, paragraphs))
        if length > most:
            raise UserError(f"Invalid request: request ({length}) exceeds text limit ({most})")
        rows.append(Paragraphs(paragraphs, languages[0], kept or ADDRESSES).sentences)
    return read_texts(list(dict.fromkeys(chain.from_iterable(rows))), rules, kept, "line")


def write_documents(
    texts: Texts,
    format: str,
    languages: tuple[str | None, str | None],
    kept: KeptWords | None,
    known: dict[str, list[Translated]],
    count: int,
) -> list[tuple[list[str] | list[bytes], list[str]]]:
    """
    Each text or file with its sentences replaced by their first, second, ... translation; and its sentences. They are
    read again, since keeping the parsed documents would take memory for as long as the translation takes.

    Args:
        languages, kept: as in `sentences_of`.
        known: the translations of each sentence that `sentences_of` returned, best first.
        count: how many translations of each text to write.
    """
    found = []
    for text in texts:
        document = read_document(text, format, kept or ADDRESSES, languages[1])
        paragraphs = Paragraphs(document.paragraphs, languages[0], kept or ADDRESSES)
        ranks = ((known[sentence][rank] for sentence in paragraphs.sentences) for rank in range(count))
        written = [document.write(paragraphs.translated(rank, languages[1])) for rank in ranks]
        found.append((written, paragraphs.sentences))
    return found


def cut_into_sentences(text: str, language: str | None, kept: KeptWords | None) -> list[tuple[str, bool]]:
    """
    Split a text into parts, each with whether it is a sentence. Joined, the parts are the text. `kept` is as in
    `sentences_of`.
    """
    parts: list[tuple[str, bool]] = []
    for line in text.splitlines(keepends=True):
        for piece in cut(line, language, kept or ADDRESSES):
            parts += [(piece.before, False), (piece.sentence, True), (piece.after, False)]
    return [part for part in parts if part[0]]


def language_probabilities(texts: Texts, format: str) -> list[dict[str, float]]:
    """
    For each text or file, the probability of each language that the detector knows, the most likely one first. Markup
    does not count.

    Args:
        format: a key of `documents.FORMATS`.

    Raises:
        UserError: a text is not in this format.
    """
    found = []
    for text in texts:
        if format != "text" or isinstance(text, bytes):
            text = "\n".join(read_document(text, format).paragraphs)
        ranked = _detector().rank(text[:_MOST_DETECTED])
        found.append({language: float(probability) for language, probability in ranked})
    return found


def are_foreign(texts: Sequence[str], language: str) -> list[bool]:
    """Whether each text is clearly in another language than this one; never if the detector does not know it."""
    found = []
    for text in texts:
        (likely, most), *_ = ranked = _detector().rank(text)
        own = dict(ranked).get(base_language(language), most)
        found.append(likely != base_language(language) and most > CLEARLY * max(own, LEAST_LIKELY))
    return found


@cache
def _detector():
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # takes 100 MB

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


class ReaderLost(Exception):
    """A reader process died without a result, or could not be started: the client should retry."""


class Readers:
    """
    Three reader processes, for short texts, long ones and files, so that short texts do not wait for others. Each
    starts when it is first needed, and again if it died. Use it in an `async with` block: leaving the block ends the
    processes.

    Args:
        seconds: the processor time that a call may take.
    """

    def __init__(self, seconds: float):
        self._all = {name: _Reader(seconds) for name in ("short", "long", "files")}

    async def __aenter__(self) -> "Readers":
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=f"reader-{name}") for name in self._all}
        return self

    async def __aexit__(self, *_) -> None:
        for reader in self._all.values():
            reader.kill()
        for threads in self._threads.values():
            threads.shutdown(cancel_futures=True)
        for reader in self._all.values():
            reader.close()

    async def __call__(self, function: Callable[..., Result], *arguments) -> Result:
        """
        Call one of this module's functions, whose first argument is one or more texts, and return its result. If this
        call is cancelled before the process is free, the function is not called.

        Raises:
            UserError: the function raised one, or took too long.
            ReaderLost: the process died, or could not be started.
        """
        cost = reading_cost(arguments[0]) if arguments and isinstance(arguments[0], Sequence) else 0
        name = "short" if cost <= _SHORT else "long" if cost < math.inf else "files"
        work = partial(self._all[name], function, *arguments)
        found = await asyncio.get_running_loop().run_in_executor(self._threads[name], work)
        if isinstance(found, Exception):
            raise found
        return found


class _Reader:
    """A process that calls functions, one at a time. A call starts it if it is not running."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._process: subprocess.Popen | None = None
        self._is_closed = False

    def __call__(self, function: Callable, *arguments):
        try:
            if self._process is None:
                self._process = _started()
            if self._is_closed:  # while the process was starting
                self._process.kill()
            pickle.dump((self._seconds, function, arguments), self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            if self.close() == -signal.SIGPROF:
                too_slow = f"this takes more than {self._seconds:g} seconds to read; send less at once"
                raise UserError(too_slow) from None
            raise ReaderLost("the process that reads texts died or could not be started; try again") from error

    def kill(self) -> None:
        """Kill the process, whether or not it is reading. May be called from another thread."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> int | None:
        """Kill the process. Returns its exit status, or None if it was not running."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        process.communicate()  # waits, and closes the pipes
        return process.returncode


def _started() -> subprocess.Popen:
    # With this process's sys.path, but (-P) without the current folder, whose files might shadow modules.
    command = [sys.executable, "-P", "-m", __name__]
    # A thread of OpenBLAS, which NumPy loads, takes memory whether or not it is used.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _work() -> None:
    # A terminal sends Ctrl-C to all of its processes, and systemd sends SIGTERM; the parent decides when this one ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly if the parent is gone
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get into the answers
    while jobs.peek(1):
        seconds, function, arguments = pickle.load(jobs)
        if function in (language_probabilities, are_foreign):
            _detector()  # loading it takes longer than a service may allow for reading
        signal.setitimer(signal.ITIMER_PROF, seconds)  # ends the process, even inside a regular expression
        try:
            found = function(*arguments)
        except UserError as error:
            found = error
        except MemoryError:
            found = UserError(f"this takes more than {_MEMORY:,} bytes of memory to read; send less at once")
        except Exception:
            found = RuntimeError(traceback.format_exc())  # some errors cannot be pickled
        signal.setitimer(signal.ITIMER_PROF, 0)
        pickle.dump(found, answers)
        answers.flush()


if __name__ == "__main__":
    _work()

"""
Splits texts into sentences, and writes them with their translations, in separate processes: a regular expression or a
parser holds the interpreter lock until it is done, which would block all other requests. These processes do not import
torch.
"""

import asyncio
import os
import pickle
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
from ..documents.document import Document, read_document
from ..translate.kept_words import ADDRESSES, KeptWords
from ..translate.paragraphs import Paragraphs, Translated, cut
from ..translate.placement import PlainTexts

CLEARLY = 10  # a text is in a language that is this many times as likely as others; single words often reach less
LEAST_LIKELY = 0.001  # ratios of smaller probabilities are noise
_SHORT = 5_000  # characters

Result = TypeVar("Result")


def sentences_of(texts: Sequence[str], format: str, language: str | None, kept: KeptWords | None) -> PlainTexts:
    """
    The different sentences of texts.

    Args:
        format: a key of `documents.FORMATS`.
        language: as in `Paragraphs`.
        kept: what stays in them; None: the model is not a translator.

    Raises:
        UserError: a text is not in this format.
    """
    rows = (_read(text, format, language, kept)[1].sentences for text in texts)
    return PlainTexts(list(dict.fromkeys(chain.from_iterable(rows))), kept)


def _read(text: str, format: str, language: str | None, kept: KeptWords | None) -> tuple[Document, Paragraphs]:
    document = read_document(text, format, kept or ADDRESSES)
    return document, Paragraphs(document.paragraphs, language, kept or ADDRESSES)


def write_documents(
    texts: Sequence[str],
    format: str,
    languages: tuple[str | None, str | None],
    kept: KeptWords | None,
    known: dict[str, list[Translated]],
    count: int,
) -> list[tuple[list[str], list[str]]]:
    """
    Each text with its sentences replaced by their first, second, ... translation; and its sentences. The texts are read
    again, since keeping the parsed documents would take memory for as long as the translation takes.

    Args:
        languages: the language of the texts, and that of the translations.
        kept: as in `sentences_of`.
        known: the translations of each sentence that `sentences_of` returned, best first.
        count: how many translations of each text to write.
    """
    found = []
    for text in texts:
        document, paragraphs = _read(text, format, languages[0], kept)
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


def language_probabilities(texts: Sequence[str], languages: Sequence[str]) -> list[dict[str, float]]:
    """
    For each text, the probability of each of the given languages among all that the detector knows. Languages that it
    does not know are left out.
    """
    found = []
    for text in texts:
        row = dict(_detector().rank(text))
        found.append({each: float(row[base]) for each in languages if (base := base_language(each)) in row})
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
    Two reader processes, one of which takes only short texts, so that these do not wait for long ones. Each starts when
    it is first needed, and again if it died. Use it in an `async with` block: leaving the block ends the processes.

    Args:
        seconds: the processor time that a call may take.
    """

    def __init__(self, seconds: float):
        self._all = {name: _Reader(seconds) for name in ("short", "long")}

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
        texts = arguments[0] if arguments and isinstance(arguments[0], Sequence) else ""
        name = "short" if sum(map(len, texts)) <= _SHORT else "long"
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
                too_slow = f"the text takes more than {self._seconds:g} seconds to read; send less at once"
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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _work() -> None:
    # A terminal sends Ctrl-C to all of its processes, and systemd sends SIGTERM; the parent decides when this one ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly if the parent is gone
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
        except Exception:
            found = RuntimeError(traceback.format_exc())  # some errors cannot be pickled
        signal.setitimer(signal.ITIMER_PROF, 0)
        pickle.dump(found, answers)
        answers.flush()


if __name__ == "__main__":
    _work()

"""Translates a request's texts: as documents for API clients, sentence by sentence for the page."""

import asyncio
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..alignments import links_of
from ..documents import read_document
from ..errors import UserError, beginning
from ..files import one_line
from ..paragraphs import Paragraphs, Translated, cut, guessed_links
from .batcher import Batcher
from .directions import Direction
from .engines import Engine, Hypothesis, Search

_LEAST = 0.02  # smaller weights are not sent
_LONG = 1_000  # characters, which take some milliseconds to read
_EACH = 50  # characters that take as long to read as an empty text

Result = TypeVar("Result")


async def translate_texts(
    texts: Sequence[str], format: str, direction: Direction, search: Search, batcher: Batcher
) -> list[list[str]]:
    """
    The translations of each text, best first, with its structure. A text's n-th best translation consists of the n-th
    best of each sentence.

    Args:
        format: a key of `documents.FORMATS`.

    Raises:
        UserError: a text is not in this format, or a sentence has too many tokens.
        Busy: as in `Batcher.translate`.
    """
    read = await aside_if_long(texts, 1, _read, texts, format, direction)
    sentences = list(dict.fromkeys(itertools.chain.from_iterable(each.sentences for each in read)))
    hypotheses = await batcher.translate(direction.engine, sentences, search)
    known = dict(zip(sentences, hypotheses, strict=True))
    return await aside_if_long(texts, search.several, _written, read, known, search.several)


class _Read:
    """A text that has been read and cut into sentences."""

    def __init__(self, text: str, format: str, direction: Direction):
        self.direction, self.document = direction, read_document(text, format)
        self.paragraphs = Paragraphs(self.document.paragraphs, direction.source)
        self.sentences = self.paragraphs.sentences

    def written(self, known: dict[str, list[Hypothesis]], rank: int) -> str:
        """The text with the translation of this rank in place of each sentence."""
        sentences = (_translated(sentence, known[sentence][rank]) for sentence in self.sentences)
        return self.document.write(self.paragraphs.translated(sentences, self.direction.target))


def _read(texts: Sequence[str], format: str, direction: Direction) -> list[_Read]:
    read = [_Read(text, format, direction) for text in texts]
    for each in read:
        for problem in _too_long(direction.engine, each.sentences).values():
            raise UserError(problem)
    return read


def _written(read: list[_Read], known: dict[str, list[Hypothesis]], several: int) -> list[list[str]]:
    return [[each.written(known, rank) for rank in range(several)] for each in read]


async def aside_if_long(texts: Sequence[str], times: int, work: Callable[..., Result], *arguments) -> Result:
    """
    What `work` returns. It is called in a thread if it takes long, so that the event loop can answer other requests.

    Args:
        texts, times: `work` goes through these texts, this many times.
    """
    is_long = times * sum(len(text) + _EACH for text in texts) > _LONG
    return await asyncio.to_thread(work, *arguments) if is_long else work(*arguments)


def _too_long(engine: Engine, sentences: Sequence[str]) -> dict[int, str]:
    """What is wrong with each sentence that has too many tokens for the model, by its index."""
    return {
        place: f"a sentence has {length} tokens, and the model takes {engine.limit}; split it: {beginning(sentence)}"
        for place, (sentence, length) in enumerate(zip(sentences, engine.lengths(sentences), strict=True))
        if length > engine.limit
    }


def _translated(sentence: str, hypothesis: Hypothesis) -> Translated:
    weights = hypothesis.weights
    links = guessed_links(sentence, hypothesis.text) if weights is None else links_of(weights)
    return Translated(one_line(hypothesis.text), links)


def cut_into_sentences(text: str, language: str) -> list[tuple[str, bool]]:
    """Split a text into parts, each with whether it is a sentence. Joined, they are the text."""
    parts: list[tuple[str, bool]] = []
    for line in text.splitlines(keepends=True):
        for piece in cut(line, language):
            parts += [(piece.before, False), (piece.sentence, True), (piece.after, False)]
    return [part for part in parts if part[0]]


async def translate_sentences(
    sentences: Sequence[str], direction: Direction, search: Search, batcher: Batcher
) -> list[list[dict[str, Any]]]:
    """
    The translations of each sentence, best first, in the page's format. A sentence that cannot be translated has a
    problem instead of a text.

    Raises:
        Busy: as in `Batcher.translate`.
    """
    problems = await aside_if_long(sentences, 1, _too_long, direction.engine, sentences)
    fine = [sentence for place, sentence in enumerate(sentences) if place not in problems]
    hypotheses = await batcher.translate(direction.engine, fine, search)
    return await aside_if_long(sentences, search.several, _all_described, sentences, problems, hypotheses)


def _all_described(
    sentences: Sequence[str], problems: dict[int, str], hypotheses: list[list[Hypothesis]]
) -> list[list[dict[str, Any]]]:
    found = iter(hypotheses)
    return [
        [{"text": "", "words": [], "problem": problems[place]}]
        if place in problems
        else _described(sentence, next(found))
        for place, sentence in enumerate(sentences)
    ]


def _described(sentence: str, hypotheses: list[Hypothesis]) -> list[dict[str, Any]]:
    described = [{"text": each.text, "score": each.score, "isCut": each.is_cut} for each in hypotheses]
    described[0]["words"] = _words(sentence, hypotheses[0])
    return described


def _words(sentence: str, hypothesis: Hypothesis) -> list[dict[str, Any]]:
    """
    The words of a translation and the spaces between them, each word with the weights of its source words. Positions
    count UTF-16 units, as JavaScript does.
    """
    units = [0, *itertools.accumulate(len(character.encode("utf-16-le")) // 2 for character in sentence)]
    read = [(units[match.start()], units[match.end()]) for match in re.finditer(r"\S+", sentence)]
    weights = None if hypothesis.weights is None else iter(hypothesis.weights.tolist())
    found = []
    for part in re.findall(r"\S+|\s+", hypothesis.text):
        is_word = weights is not None and not part.isspace()
        spans = zip(read, next(weights), strict=True) if is_word else []
        made_from = [
            {"start": start, "end": end, "weight": weight} for (start, end), weight in spans if weight > _LEAST
        ]
        found.append({"text": part, "isWord": is_word, "from": made_from})
    return found

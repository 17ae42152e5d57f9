"""Translates a request's texts: as documents for API clients, sentence by sentence for the page."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..alignments import links_of
from ..documents import translate_document
from ..errors import beginning
from ..files import one_line
from ..paragraphs import Translated, TranslateParagraphs, cut, guessed_links, translate_paragraphs
from .batcher import Batcher, TooMuch
from .directions import Direction
from .engines import Engine, Hypothesis, Search

_LEAST = 0.02  # smaller weights are not sent
_LONG = 1_000  # characters, which take some milliseconds to read
_EACH = 50  # characters that take as long as a text with none

Result = TypeVar("Result")


class CannotTranslate(Exception):
    """A text that its sender must change before it can be translated."""


async def translate_texts(
    texts: Sequence[str], format: str, directions: Sequence[Direction], search: Search, batcher: Batcher
) -> list[list[str]]:
    """
    The translations of each text, best first, with its structure. A text's n-th best translation consists of the n-th
    best of each sentence.

    Args:
        format: a key of `documents.FORMATS`.
        directions: one for each text.

    Raises:
        CannotTranslate: a text is not in this format, or a sentence has too many tokens.
        Busy, TooMuch: as Batcher.translate says.
    """
    if len(texts) > batcher.longest_queue:
        raise TooMuch(f"{len(texts):,} texts in a request; there may be {batcher.longest_queue:,}")
    size = sum(len(text) + _EACH for text in texts)
    found = await _aside_if_long(size, _sentences_of, texts, format, directions)
    for direction, sentences in found.items():  # of all texts together
        hypotheses = await batcher.translate(direction.engine, list(sentences), search)
        sentences.update(zip(sentences, hypotheses, strict=True))
    return await _aside_if_long(size * search.several, _written, texts, format, directions, found, search.several)


_Found = dict[Direction, dict[str, list[Hypothesis]]]  # for each direction, sentences and their translations


def _sentences_of(texts: Sequence[str], format: str, directions: Sequence[Direction]) -> _Found:
    """The sentences of all texts, without translations."""
    found: _Found = {}
    for text, direction in zip(texts, directions, strict=True):
        sentences = found.setdefault(direction, {})

        def note(each: list[str], sentences: dict = sentences) -> list[Translated]:
            sentences.update((sentence, []) for sentence in each)
            return [Translated(sentence) for sentence in each]

        try:
            _rendered(text, format, direction, note)
        except ValueError as error:
            raise CannotTranslate(str(error)) from error
    for direction, sentences in found.items():
        for problem in _too_long(direction.engine, list(sentences)).values():
            raise CannotTranslate(problem)
    return found


def _written(
    texts: Sequence[str], format: str, directions: Sequence[Direction], found: _Found, several: int
) -> list[list[str]]:
    def written(text: str, direction: Direction, rank: int) -> str:
        known = found[direction]
        return _rendered(text, format, direction, lambda each: [_translated(one, known[one][rank]) for one in each])

    return [
        [written(text, direction, rank) for rank in range(several)]
        for text, direction in zip(texts, directions, strict=True)
    ]


def _rendered(text: str, format: str, direction: Direction, translate: TranslateParagraphs) -> str:
    def paragraphs(found: list[str]) -> list[Translated]:
        return translate_paragraphs(found, translate, direction.source, direction.target)

    return translate_document(text, format, paragraphs)


async def _aside_if_long(size: int, work: Callable[..., Result], *arguments) -> Result:
    """What `work` returns, called in a thread if it takes long: the event loop has other requests to answer."""
    return await asyncio.to_thread(work, *arguments) if size > _LONG else work(*arguments)


def _too_long(engine: Engine, sentences: Sequence[str]) -> dict[int, str]:
    """By their places, what is to be said of sentences with too many tokens for the model."""
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
    """Cut a text into parts, each with whether it is a sentence. Joined, they are the text."""
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
        Busy, TooMuch: as Batcher.translate says.
    """
    if len(sentences) > batcher.longest_queue:
        raise TooMuch(f"{len(sentences):,} sentences in a request; at most {batcher.longest_queue:,} may wait")
    size = sum(len(sentence) + _EACH for sentence in sentences)
    problems = await _aside_if_long(size, _too_long, direction.engine, sentences)
    fine = [sentence for place, sentence in enumerate(sentences) if place not in problems]
    hypotheses = await batcher.translate(direction.engine, fine, search)
    return await _aside_if_long(size * search.several, _all_described, sentences, problems, hypotheses)


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
    """The words of a translation and the spaces between them, each word with the weights of its source words."""
    read = [match.span() for match in re.finditer(r"\S+", sentence)]
    found, number = [], 0
    for part in re.findall(r"\S+|\s+", hypothesis.text):
        is_word = hypothesis.weights is not None and not part.isspace()
        made_from = []
        if is_word:
            weights = hypothesis.weights[number].tolist()
            spans = zip(read, weights, strict=True)
            made_from = [
                {"start": start, "end": end, "weight": weight} for (start, end), weight in spans if weight > _LEAST
            ]
            number += 1
        found.append({"text": part, "isWord": is_word, "from": made_from})
    return found

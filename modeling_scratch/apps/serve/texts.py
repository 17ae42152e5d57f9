"""Translates a request's texts: as documents for API clients, sentence by sentence for the page."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ...errors import UserError, beginning
from ...files import one_line
from ...inference.alignments import links_of
from ..translate.paragraphs import Translated, guessed_links
from .batcher import Batcher
from .engines import Direction, Engine, Hypothesis, Search
from .readers import Readers, sentences_of, written

_LEAST = 0.02  # smaller weights are not sent
_LONG = 1_000  # characters, which take some milliseconds to read
_EACH = 50  # characters that take as long to read as an empty text

Result = TypeVar("Result")


async def translate_texts(
    texts: Sequence[str], format: str, direction: Direction, search: Search, batcher: Batcher, readers: Readers
) -> list[list[str]]:
    """
    The translations of each text, best first, with its structure. A text's n-th best translation consists of the n-th
    best of each sentence.

    Args:
        format: a key of `documents.FORMATS`.

    Raises:
        UserError: a text is not in this format, takes too long to read, or a sentence has too many tokens.
        Busy: as in `Batcher.translate`.
        ReaderLost: as in `Readers`.
    """
    engine, languages, several = direction.engine, (direction.source, direction.target), search.several
    read = await aside_if_long(texts, 1, readers, sentences_of, texts, format, direction.source)
    sentences = list(dict.fromkeys(itertools.chain.from_iterable(read)))
    for problem in (await aside_if_long(sentences, 1, asyncio.to_thread, _too_long, engine, sentences)).values():
        raise UserError(problem)
    hypotheses = await batcher.translate(engine, sentences, search)
    known = await aside_if_long(sentences, several, asyncio.to_thread, _linked, sentences, hypotheses)
    return await aside_if_long(texts, several, readers, written, texts, format, languages, known, several)


async def aside_if_long(
    texts: Sequence[str], times: int, aside: Callable[..., Awaitable[Result]], work: Callable[..., Result], *arguments
) -> Result:
    """
    What `work` returns. It is called elsewhere if it takes long, so that the event loop can answer other requests.

    Args:
        texts, times: `work` goes through these texts, this many times.
        aside: calls it elsewhere: `Readers`, or `asyncio.to_thread` for what does not hold the interpreter.
    """
    is_long = times * sum(len(text) + _EACH for text in texts) > _LONG
    return await aside(work, *arguments) if is_long else work(*arguments)


def _too_long(engine: Engine, sentences: Sequence[str]) -> dict[int, str]:
    """What is wrong with each sentence that has too many tokens for the model, by its index."""
    return {
        place: f"a sentence has {length} tokens, and the model takes {engine.limit}; split it: {beginning(sentence)}"
        for place, (sentence, length) in enumerate(zip(sentences, engine.lengths(sentences), strict=True))
        if length > engine.limit
    }


def _linked(sentences: Sequence[str], hypotheses: list[list[Hypothesis]]) -> dict[str, list[Translated]]:
    """The translations of each sentence, with links between their words."""
    return {
        sentence: [_translated(sentence, each) for each in row]
        for sentence, row in zip(sentences, hypotheses, strict=True)
    }


def _translated(sentence: str, hypothesis: Hypothesis) -> Translated:
    weights = hypothesis.weights
    links = guessed_links(sentence, hypothesis.text) if weights is None else links_of(weights)
    return Translated(one_line(hypothesis.text), links)


async def translate_sentences(
    sentences: Sequence[str], direction: Direction, search: Search, batcher: Batcher
) -> list[list[dict[str, Any]]]:
    """
    The translations of each sentence, best first, in the page's format. A sentence that cannot be translated has a
    problem instead of a text.

    Raises:
        Busy: as in `Batcher.translate`.
    """
    problems = await aside_if_long(sentences, 1, asyncio.to_thread, _too_long, direction.engine, sentences)
    fine = [sentence for place, sentence in enumerate(sentences) if place not in problems]
    hypotheses = await batcher.translate(direction.engine, fine, search)
    described = (_all_described, sentences, problems, hypotheses)
    return await aside_if_long(sentences, search.several, asyncio.to_thread, *described)


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

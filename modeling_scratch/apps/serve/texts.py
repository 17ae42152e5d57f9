"""Translates a request's texts: as documents for API clients, sentence by sentence for the page."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from ...errors import UserError, beginning
from ...inference.engine import Engine
from ...model.text import Sentences
from ...model.translations import Translation, Translations, distinct
from ..translate.paragraphs import Translated
from ..translate.placement import as_translated, confidence_of, is_doubtful, read_texts
from .batcher import Batcher
from .engines import Direction
from .readers import Readers, Texts, are_foreign, reading_cost, sentences_of, write_documents

_LEAST = 0.02  # smaller weights are not sent
_LONG = 1_000  # characters, which take some milliseconds to read
_PER_TEXT = 50  # the overhead of a text, in characters
_LOWEST = -1e6  # JSON has no minus infinity
DIGITS = 4  # of a confidence
# Reasons to doubt a translation.
KEPT_WORD, LANGUAGE, LENGTH, SHORT, UNLIKE = "kept-word", "language", "length", "short", "unlike"

Result = TypeVar("Result")


@dataclass(frozen=True)
class TranslatedText:
    """
    Args:
        versions: the translations of a text, or of a file's bytes, best first.
        confidence: the lowest of its sentences'; None: the model has none.
        doubt: the reason to doubt that sentence's translation (see `reasons_to_doubt`); None: there is none.
    """

    versions: list[str] | list[bytes]
    confidence: float | None = None
    doubt: str | None = None


async def translate_texts(
    texts: Texts,
    format: str,
    direction: Direction,
    count: int,
    align: bool,
    most: int,
    batcher: Batcher,
    readers: Readers,
    features: str = "",
    keep: tuple[str, ...] = (),
    sentences: Sentences = "split",
) -> list[TranslatedText]:
    """
    The translations of each text or file, best first, with its structure, and the confidence in the best. The n-th best
    translation of a text consists of the n-th best translation of each sentence.

    Args:
        format: a key of `documents.FORMATS`.
        count: how many translations of each text.
        align: place tags within sentences by word alignments, in the best translation.
        most: the most characters of text in all of them.
        features: of each sentence; see `with_features`.
        keep: what a translator keeps as it is, besides the patterns that it knows.
        sentences: "split" paragraphs into sentences, or translate each as one "line".

    Raises:
        UserError: a text is not in this format, too long, or takes too long to read, or a sentence has too many tokens.
        Busy: as in `Batcher.translate`.
        ReaderLost: as in `Readers`.
    """
    engine, languages = direction.engine, direction.languages
    if sentences == "line":
        languages = None, languages[1]
    kept = direction.kept and replace(direction.kept, literals=keep, are_read=engine.rules.reserved > 0)
    arguments = texts, format, languages, engine.rules, kept, most
    read = await aside_if_long(texts, 1, readers, sentences_of, *arguments)
    tokenize = partial(engine.tokenize, features=[features] * len(read.inputs))
    tokens = await aside_if_long(read.inputs, 1, asyncio.to_thread, tokenize, read.inputs)
    for problem in _too_long(engine, read.sentences, tokens).values():
        raise UserError(problem)
    beams = max(engine.num_beams, count)
    settings = {"num_beams": beams, "num_return_sequences": count, "align": count if read.to_align else int(align)}
    settings["scores"] = None if engine.confidence else False  # None: if the search provides them
    translations = await batcher.translate(engine, read.inputs, tokens, settings)
    translations = await aside_if_long(read.inputs, count, asyncio.to_thread, read.restored, translations)
    known = await aside_if_long(read.inputs, count, asyncio.to_thread, _linked, read.texts, translations)
    write = texts, format, languages, kept, known, count
    written = await aside_if_long(texts, count, readers, write_documents, *write)
    doubts = await reasons_to_doubt(read.inputs, tokens, translations, direction, readers)
    places = {sentence: place for place, sentence in enumerate(read.texts)}
    found = []
    for versions, parts in written:
        # A sentence that does not go to the model stays as it is, for certain.
        sure = [(confidence_of(translations[place][0]), place) for place in map(places.__getitem__, parts)]
        confidence, lowest = min(sure, default=(1.0, None))
        doubt = doubts.get(lowest) or next((doubts[place] for _, place in sure if place in doubts), None)
        found.append(TranslatedText(versions, confidence if engine.confidence else None, doubt))
    return found


async def reasons_to_doubt(
    sentences: Sequence[str],
    tokens: list[list[int]],
    translations: Translations,
    direction: Direction,
    readers: Readers,
) -> dict[int, str]:
    """
    Why the best translations of some sentences are doubtful, by the sentence's index. `LANGUAGE`: it is clearly not in
    the source language, and so may have many tokens; `KEPT_WORD`: a kept word was left out or written twice, so its
    place is a guess; `LENGTH`: it has more tokens than any in training; `SHORT`: its translation is short for it, so a
    part may be missing; `UNLIKE`: it is unlike what the model has learnt.
    """
    found, language = {}, direction.languages[0]
    for place, (best, *_) in enumerate(translations):
        if is_doubtful(best):
            longest = direction.engine.confidence and direction.engine.confidence.longest_source
            is_longer = longest is not None and len(tokens[place]) > longest
            other = LENGTH if is_longer else SHORT if best.is_short else UNLIKE
            found[place] = KEPT_WORD if best.lost_words else other
    if found and language is not None:
        foreign = await readers(are_foreign, [sentences[place] for place in found], language)
        found |= dict.fromkeys(list(itertools.compress(found, foreign)), LANGUAGE)
    return found


async def aside_if_long(
    texts: Texts, times: int, aside: Callable[..., Awaitable[Result]], work: Callable[..., Result], *arguments
) -> Result:
    """
    Call `work` and return its result. If that takes long, it is called through `aside`, so that the event loop can
    handle other requests.

    Args:
        texts, times: `work` processes these texts, this many times.
        aside: `Readers`, or `asyncio.to_thread` for work that does not hold the interpreter lock for long.
    """
    is_long = times * (reading_cost(texts) + _PER_TEXT * len(texts)) > _LONG
    return await aside(work, *arguments) if is_long else work(*arguments)


def _too_long(engine: Engine, sentences: Sequence[str], tokens: list[list[int]]) -> dict[int, str]:
    """A message for each sentence with more tokens than the model takes, by the sentence's index."""
    limit = f"the model takes at most {engine.limit}"
    return {
        place: f"a sentence has {len(row)} tokens, but {limit}; split it: {beginning(sentence)}"
        for place, (sentence, row) in enumerate(zip(sentences, tokens, strict=True))
        if len(row) > engine.limit
    }


def _linked(texts: Sequence[str], translations: Translations) -> dict[str, list[Translated]]:
    """The translations of each text, with links between their words."""
    return {
        text: [as_translated(text, translation) for translation in row]
        for text, row in zip(texts, translations, strict=True)
    }


async def translate_sentences(
    sentences: Sequence[str], direction: Direction, beams: int, batcher: Batcher, readers: Readers
) -> list[list[dict[str, Any]]]:
    """
    All different translations in the beam of each sentence, best first, in the page's format. The best has a
    "confidence", if the model has one, and a "doubt", if there is a reason. A sentence with too many tokens has a
    "problem" instead of a text.

    Raises:
        Busy: as in `Batcher.translate`.
        ReaderLost: as in `Readers`.
    """
    engine = direction.engine
    arguments = sentences, engine.rules, direction.kept, "line"
    read = await aside_if_long(sentences, 1, readers, read_texts, *arguments)
    tokens = await aside_if_long(read.inputs, 1, asyncio.to_thread, engine.tokenize, read.inputs)
    problems = _too_long(engine, read.sentences, tokens)
    tokens = [[] if place in problems else row for place, row in enumerate(tokens)]
    align = beams if read.to_align else 1
    settings = {"num_beams": beams, "num_return_sequences": beams, "scores": True, "align": align}
    translations = await batcher.translate(engine, read.inputs, tokens, settings)
    translations = await aside_if_long(sentences, beams, asyncio.to_thread, read.restored, translations)
    described = await aside_if_long(sentences, beams, asyncio.to_thread, _described, sentences, problems, translations)
    for place, doubt in (await reasons_to_doubt(read.inputs, tokens, translations, direction, readers)).items():
        described[place][0]["doubt"] = doubt
    return described


def _described(
    sentences: Sequence[str], problems: dict[int, str], translations: Translations
) -> list[list[dict[str, Any]]]:
    described = []
    for place, row in enumerate(translations):
        if place in problems:
            described.append([{"text": "", "words": [], "problem": problems[place]}])
            continue
        whole = distinct(row)
        beam = [{"text": made.text, "score": max(made.score, _LOWEST), "isCut": made.is_cut} for made in whole]
        beam[0]["words"] = _words(sentences[place], whole[0])
        if row[0].confidence is not None:
            beam[0]["confidence"] = round(row[0].confidence, DIGITS)
        described.append(beam)
    return described


def _words(sentence: str, translation: Translation) -> list[dict[str, Any]]:
    """
    The words of a translation and the spaces between them, each word with the weights of its source words. Positions
    count UTF-16 code units, as JavaScript does.
    """
    units = [0, *itertools.accumulate(len(character.encode("utf-16-le")) // 2 for character in sentence)]
    read = [(units[match.start()], units[match.end()]) for match in re.finditer(r"\S+", sentence)]
    weights = None if translation.weights is None else iter(translation.weights.tolist())
    found = []
    for part in re.findall(r"\S+|\s+", translation.text):
        is_word = weights is not None and not part.isspace()
        spans = zip(read, next(weights), strict=True) if is_word else []
        made_from = [
            {"start": start, "end": end, "weight": weight} for (start, end), weight in spans if weight > _LEAST
        ]
        found.append({"text": part, "isWord": is_word, "from": made_from})
    return found

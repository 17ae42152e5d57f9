"""Translates the texts of a request: as documents for clients, by sentences for the page."""

import re
from collections.abc import Sequence
from typing import Any

from ..alignments import links_of
from ..documents import translate_document
from ..files import one_line
from ..model.batched_generation import SourceTooLong
from ..paragraphs import Translated, TranslateParagraphs, guessed_links, translate_paragraphs
from .batcher import Ticket
from .directions import Direction
from .engines import Hypothesis, Search

_LEAST = 0.02  # weights below it are not sent


def translate_texts(
    texts: Sequence[str], format: str, direction: Direction, search: Search, ticket: Ticket
) -> list[list[str]]:
    """
    The translations of each text, best first, with its structure. The next best of a text is made of the next best of
    its sentences.

    Args:
        format: of `documents.FORMATS`.

    Raises:
        ValueError: a text is of another format, or a sentence has too many tokens.
    """
    languages = direction.source, direction.target

    def rendered(translate: TranslateParagraphs) -> list[str]:
        def paragraphs(found: list[str]) -> list[Translated]:
            return translate_paragraphs(found, translate, *languages)

        return [translate_document(text, format, paragraphs) for text in texts]

    sentences: dict[str, None] = {}

    def note(found: list[str]) -> list[Translated]:
        sentences.update(dict.fromkeys(found))
        return [Translated(sentence) for sentence in found]

    def ranked(rank: int) -> TranslateParagraphs:
        return lambda found: [_translated(sentence, hypotheses[sentence][rank]) for sentence in found]

    rendered(note)  # first, so that the sentences of all texts are translated together
    direction.engine.check(list(sentences))
    found = ticket.translate(direction.engine, list(sentences), search)
    hypotheses = dict(zip(sentences, found, strict=True))
    ranks = [rendered(ranked(rank)) for rank in range(search.several)]
    return [list(several) for several in zip(*ranks, strict=True)]


def _translated(sentence: str, hypothesis: Hypothesis) -> Translated:
    weights = hypothesis.weights
    links = guessed_links(sentence, hypothesis.text) if weights is None else links_of(weights)
    return Translated(one_line(hypothesis.text), links)


def translate_sentences(
    sentences: Sequence[str], direction: Direction, search: Search, ticket: Ticket
) -> list[list[dict[str, Any]]]:
    """
    The translations of each sentence, best first, as the page takes them. One that cannot be translated has a problem
    in place of a text.
    """
    problems: dict[int, str] = {}
    for place, sentence in enumerate(sentences):
        try:
            direction.engine.check([sentence])
        except SourceTooLong as error:
            problems[place] = (
                f"The sentence has {error.length} tokens, and the model takes {error.limit}. Split it into shorter "
                "sentences."
            )
    fine = [sentence for place, sentence in enumerate(sentences) if place not in problems]
    found = iter(ticket.translate(direction.engine, fine, search))
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
    """The words of a translation and the spaces between them; with each, the words that it was made from."""
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

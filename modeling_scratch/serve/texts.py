"""Translates the texts of a request: by paragraphs for clients, by sentences for the page."""

import re
from collections.abc import Sequence
from typing import Any

from ..model.batched_generation import SourceTooLong
from ..paragraphs import Piece, cut, join
from .batcher import Ticket
from .directions import Direction
from .engines import Hypothesis, Search

_LEAST = 0.02  # weights below it are not sent


def translate_texts(texts: Sequence[str], direction: Direction, search: Search, ticket: Ticket) -> list[list[str]]:
    """
    The translations of each text, best first, with its line breaks and spacing. The next best of a text is made of the
    next best of its sentences.

    Raises:
        ValueError: a sentence has too many tokens.
    """
    rows = [_pieces(text, direction.source) for text in texts]
    sentences = [piece.sentence for row in rows for piece in row if piece.sentence]
    direction.engine.check(sentences)
    found = iter(ticket.translate(direction.engine, sentences, search))
    made = []
    for row in rows:
        blank = [Hypothesis("", 0.0, False)] * search.several
        hypotheses = [next(found) if piece.sentence else blank for piece in row]
        ranks = zip(*hypotheses, strict=True) if row else [()] * search.several
        made.append([join(row, [each.text for each in rank], direction.target) for rank in ranks])
    return made


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


def _pieces(text: str, language: str) -> list[Piece]:
    """The sentences of all lines of a text."""
    pieces: list[Piece] = []
    for line in text.splitlines(keepends=True):
        pieces += cut(line, language)
    return pieces


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

"""Splits text into sentences by the rules of its language, and puts their translations in their place."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ...model.kept_words import KEPT, KeptWords
from ...model.sentences import beginnings, space_between
from ...model.text import is_translatable

NUMBER = re.compile(r"[\s]*\d+(?:\.\d+)*\.[\s]+(?=[^\s])")  # of a heading or a list item


class Piece(NamedTuple):
    """A sentence, and the white space around it. The sentence is empty if there is nothing to translate."""

    before: str
    sentence: str
    after: str


@dataclass(frozen=True)
class Translated:
    """
    A translation, and which of its words translate which source words. Words are what `str.split()` returns, from 0.

    Args:
        links: pairs of a source word and a target word. Empty if unknown.
        starts: for each sentence of a paragraph, its first source word and its first target word. Empty if unknown.
        is_doubtful: whether the model's confidence in it is too low, or it was cut.
        confidence: the lowest of its sentences'; 1 if nothing was translated, or the model has no confidence.
    """

    text: str
    links: list[tuple[int, int]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    is_doubtful: bool = False
    confidence: float = 1.0


def guessed_links(source: str, target: str) -> list[tuple[int, int]]:
    """Link words at the same relative positions, where links are unknown."""
    sources, targets = len(source.split()), len(target.split())
    return [((2 * index + 1) * sources // (2 * targets), index) for index in range(targets)]


TranslateParagraphs = Callable[[list[str]], list[Translated]]


def cut(text: str, language: str | None, kept: KeptWords = KEPT) -> list[Piece]:
    """
    Split a text into sentences; the pieces, joined, are the text. A part without a letter or digit is not a sentence,
    nor is a number before a heading or list item ("1.").

    Args:
        language: a language tag; None: the text is not in a language, and stays whole.
        kept: parts that are not cut.
    """
    if language is None:
        whole = text.strip()
        before, _, after = text.partition(whole) if whole else (text, "", "")
        return [Piece(before, whole, after)]
    pieces, places = list[Piece](), [0, *beginnings(text, language, kept.spans(text)), len(text)]
    for start, end in pairwise(places):
        if (number := NUMBER.match(text, start, end)) and text[start - 1 : start] in ("", "\n"):
            pieces.append(Piece(number[0], "", ""))
            start = number.end()
        part = text[start:end]
        sentence = part.strip() if is_translatable(part) else ""
        before, _, after = part.partition(sentence) if sentence else (part, "", "")
        pieces.append(Piece(before, sentence, after))
    return pieces


def _spaced(pieces: Sequence[Piece], translations: Sequence[str], language: str) -> list[Piece]:
    """The translated pieces, with a space between sentences or none, as the target language requires."""
    space, written = space_between(language), list[Piece]()
    for index, (piece, translation) in enumerate(zip(pieces, translations, strict=True)):
        after = piece.after
        if piece.sentence and index + 1 < len(pieces) and (after == " " or not after + pieces[index + 1].before):
            after = space
        written.append(Piece(piece.before, translation, after))
    return written


class Paragraphs:
    """
    Paragraphs, split into sentences.

    Args:
        language: a language tag; None: they are not in a language, and stay whole.
        kept: parts that are not cut.
    """

    def __init__(self, paragraphs: Sequence[str], language: str | None, kept: KeptWords = KEPT):
        self.rows = [cut(paragraph, language, kept) for paragraph in paragraphs]
        self.sentences = [piece.sentence for row in self.rows for piece in row if piece.sentence]

    def translated(self, sentences: Iterable[Translated], language: str | None) -> list[Translated]:
        """
        The translation of each paragraph, whose links count words from the beginning of the paragraph. White space
        stays, except that a space between sentences is added or removed as the target language requires.

        Args:
            sentences: the translation of each sentence.
            language: the target's language tag; None: unknown, so sentences are separated by spaces.
        """
        found = iter(sentences)
        return [self._joined(row, found, language or "") for row in self.rows]

    @staticmethod
    def _joined(row: list[Piece], found: Iterator[Translated], language: str) -> Translated:
        translations = [next(found) if piece.sentence else Translated("") for piece in row]
        written = _spaced(row, [translation.text for translation in translations], language)
        starts = list(zip(_first_words(row), _first_words(written), strict=True))
        links = [
            (source + first_source, target + first_target)
            for (first_source, first_target), translation in zip(starts, translations, strict=True)
            for source, target in translation.links
        ]
        if links:  # untranslated words are linked to themselves
            for (first_source, first_target), piece in zip(starts, row, strict=True):
                words = range(0 if piece.sentence else len(piece.before.split()))
                links += [(first_source + word, first_target + word) for word in words]
        is_doubtful = any(translation.is_doubtful for translation in translations)
        confidence = min((translation.confidence for translation in translations), default=1.0)
        return Translated("".join(map("".join, written)), links, starts, is_doubtful, confidence)


def translate_paragraphs(
    paragraphs: list[str],
    translate: TranslateParagraphs,
    source_language: str | None,
    target_language: str | None,
    kept: KeptWords = KEPT,
) -> list[Translated]:
    """
    Translate paragraphs sentence by sentence. Languages are tags or None. See `Paragraphs`.

    Args:
        translate: called once, with the sentences of all paragraphs.
    """
    split = Paragraphs(paragraphs, source_language, kept)
    return split.translated(translate(split.sentences), target_language)


def _first_words(pieces: Sequence[Piece]) -> list[int]:
    """The index of the word in which each piece's sentence begins (its text, if it has none)."""
    text = "".join(map("".join, pieces))
    words = [match.start() for match in re.finditer(r"\S+", text)]
    numbers, start = [], 0
    for before, sentence, after in pieces:
        leading = before if sentence else before[: len(before) - len(before.lstrip())]
        numbers.append(bisect_right(words, start + len(leading)) - 1)
        start += len(before) + len(sentence) + len(after)
    return numbers

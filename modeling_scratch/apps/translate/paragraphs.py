"""Splits text into sentences by the rules of its language, and puts their translations in their place."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...languages import base_language, has_spaces
from ...model.text import is_translatable
from .kept_words import KEPT, KeptWords

# Where sentencex cuts but should not: in names such as .NET or System.IO.File, before parameters in addresses, and
# after German ordinals ("Im 19. Jahrhundert"), which follow these words.
_REST_OF_NAME = re.compile(r"[A-Z]{2}|[A-Za-z_]+[=./]\w")
_BEFORE_ORDINALS = r"am|beim|das|dem|den|der|des|die|ihr\w*|im|ins|sein\w*|vom|zum|zur"
_ORDINAL = re.compile(rf"\b(?:{_BEFORE_ORDINALS})[ \t]+\d{{1,2}}\.[ \t]+\Z", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)*\.[^\S\n]+")  # of a heading or a list item
_BLOCK = 5_000  # characters that sentencex gets at once; a longer sentence is cut
_CLOSING = ",;:)]}»…–—-，；："  # noqa: RUF001


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
    nor is a number before a heading or list item ("1."). Punctuation that directly follows a sentence, such as the
    colon after "Why?:", is not part of the next one.

    Args:
        language: a language tag. sentencex has rules for some 240 languages, and general ones for others. None: the
            text is not in a language, and stays whole.
        kept: parts that are not cut.
    """
    if language is None:
        whole = text.strip()
        before, _, after = text.partition(whole) if whole else (text, "", "")
        return [Piece(before, whole, after)]
    # sentencex fails on some white space, such as a no-break space before a full stop. This copy has the same length.
    plain = re.sub(r"[^\S\n\r\t]", " ", kept.masked(text))
    pieces, start = [], 0
    for part in _rejoined(_segments(plain, base_language(language)), base_language(language)):
        begins, follows = text[start - 1 : start] in ("", "\n"), text[start - 1 : start].strip() != ""
        part = text[start : start + len(part)]
        start += len(part)
        is_number = begins and start < len(text) and _NUMBER.fullmatch(part)
        sentence = part.strip() if is_translatable(part) and not is_number else ""
        sentence = sentence.lstrip(_CLOSING).lstrip() if follows else sentence
        before, _, after = part.partition(sentence) if sentence else (part, "", "")
        pieces.append(Piece(before, sentence, after))
    return pieces


def _segments(text: str, language: str) -> Iterator[str]:
    """
    The sentences that sentencex finds in a text, each with the white space after it. Its time grows with the square of
    the number of quotation marks, so it gets long texts in blocks. Each block begins with the last sentences of the one
    before, which may have been cut.
    """
    from sentencex import segment  # from an extra of this package

    start = 0
    while start < len(text):
        block = text[start : start + _BLOCK]
        sentences = list(segment(language, block))
        again = 0 if start + _BLOCK < len(text) else _BLOCK
        while again < _BLOCK // 10 and len(sentences) > 1:
            again += len(sentences.pop())
        yield from sentences
        start += sum(map(len, sentences))


def _rejoined(parts: Iterable[str], language: str) -> Iterator[str]:
    """Join parts that were cut within a name or after an ordinal."""
    held = ""
    for part in parts:
        is_name = held.endswith((".", "?")) and has_spaces(language) and _REST_OF_NAME.match(part)
        is_ordinal = language == "de" and _ORDINAL.search(held[-40:])
        if held and not (is_name or is_ordinal):
            yield held
            held = ""
        held += part
    if held:
        yield held


def _spaced(pieces: Sequence[Piece], translations: Sequence[str], language: str) -> list[Piece]:
    """The translated pieces, with a space between sentences or none, as the target language requires."""
    space, written = " " * has_spaces(language), list[Piece]()
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

"""Finds the paragraphs in those regions of a document that contain text, and writes their translations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...model.kept_words import KeptWords
from ...model.text import is_translatable
from ..translate.marked_text import Paragraph, Token, paragraph_of, split_white_space, units
from ..translate.paragraphs import Translated
from ..translate.placement import Write, placed
from .document import Content, Document

_AFTER_LABELS = {":", "-", "–", "—", "=", "->", "=>", "→", "⇒"}  # noqa: RUF001


@dataclass(frozen=True)
class Region:
    """
    A part of a document.

    Args:
        tokens: all of its content.
        write: escapes text that would be markup here; see `Write`.
        begin: given a paragraph's source and its written translation, escapes a beginning that would be markup.
    """

    tokens: Sequence[Token]
    write: Write
    begin: Callable[[str, str], str] = lambda source, written: written


@dataclass(frozen=True)
class _Unit:
    """The tokens between two breaks: a paragraph, its source text, and the tokens around it; or no paragraph."""

    before: list[Token]
    paragraph: Paragraph | None = None
    source: str = ""
    after: Sequence[Token] = ()


def read_regions(
    regions: Sequence[Region], joined: Callable[[list[str]], Content], kept: KeptWords
) -> Document[Content]:
    """
    Make a document of regions. Its paragraphs are the regions' paragraphs, followed by the texts in slots.

    Args:
        joined: makes the content of the document from the texts of the regions.
        kept: what stays as it is in paragraphs.
    """
    rows = [[_unit(tokens, kept) for tokens in units(region.tokens)] for region in regions]
    paragraphs = [unit.paragraph.text for row in rows for unit in row if unit.paragraph]
    slots = list(dict.fromkeys(slot.plain for region in regions for token in region.tokens for slot in token.slots))

    def write(translations: Sequence[Translated]) -> Content:
        found = iter(translations[: len(paragraphs)])
        slot_texts = {slot: made.text for slot, made in zip(slots, translations[len(paragraphs) :], strict=True)}
        return joined(
            [
                "".join(part for unit in row for part in _written(region, unit, found, slot_texts))
                for region, row in zip(regions, rows, strict=True)
            ]
        )

    return Document(paragraphs + slots, write, [sum(unit.paragraph is not None for unit in row) for row in rows])


def _written(region: Region, unit: _Unit, found: Iterator[Translated], slot_texts: dict[str, str]) -> Iterator[str]:
    """
    Write a unit with its translation.

    Args:
        found: the translations of paragraphs; a unit with a paragraph takes the next one.
        slot_texts: the translation of each text in a slot.
    """

    def raw(token: Token) -> str:
        text = token.raw
        for slot in reversed(token.slots):
            text = text[: slot.start] + slot.write(slot_texts[slot.plain]) + text[slot.end :]
        return text

    yield from map(raw, unit.before)
    if unit.paragraph is not None:
        yield region.begin(unit.source, placed(unit.paragraph, next(found), region.write, raw))
    yield from map(raw, unit.after)


def _label(tokens: Sequence[Token]) -> int:
    """How many tokens at the beginning are a label that is not translated, such as an option in code and a colon."""
    ends = 0
    for index, token in enumerate(tokens):
        if token.kind == "atom":
            continue
        if token.kind != "text" or any(map(str.isalnum, token.plain)) or index == 0:
            break
        ends = index + 1 if token.plain in _AFTER_LABELS or (ends == index and token.plain.isspace()) else 0
    return ends


def _unit(tokens: list[Token], kept: KeptWords) -> _Unit:
    before, within, after = split_white_space(tokens)
    label = _label(within)
    paragraph = paragraph_of(within[label:], kept)
    if not is_translatable(paragraph.text):
        return _Unit(tokens)
    return _Unit([*before, *within[:label]], paragraph, "".join(token.raw for token in within[label:]), after)

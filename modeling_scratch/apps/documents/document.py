"""Reads a document of any format into paragraphs of plain text, and writes it with their translations."""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from ..translate.kept_words import KEPT, KeptWords
from ..translate.paragraphs import Translated, TranslateParagraphs
from . import FORMATS

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Document:
    """
    A document that has been read.

    Args:
        paragraphs: its text, without markup.
        write: returns the document with each paragraph replaced by its translation. May be called several times.
    """

    paragraphs: list[str]
    write: Callable[[Sequence[Translated]], str]


def read_document(text: str, format: str, kept: KeptWords = KEPT) -> Document:
    """
    Read a document. Writing it restores its byte order mark and its line breaks.

    Args:
        format: a key of FORMATS.
        kept: what stays as it is.

    Raises:
        UserError: the document is not in this format, or too damaged to read.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    ends = _LINE_END.findall(text)
    name = FORMATS[format]
    read: Callable[[str, KeptWords], Document] = getattr(import_module(f".{name}", __package__), f"read_{name}")
    document = read(_LINE_END.sub("\n", text), kept)

    def write(translations: Sequence[Translated]) -> str:
        return mark + _with_ends(document.write(translations), ends)

    return Document(document.paragraphs, write)


def _with_ends(text: str, ends: list[str]) -> str:
    """A text with these line breaks instead of "\\n"; if it has more or fewer lines, with the most frequent one."""
    if len(set(ends)) < 2 or text.count("\n") != len(ends):
        return text.replace("\n", statistics.mode(ends)) if ends else text
    parts = text.split("\n")
    return "".join(map("".join, zip(parts, [*ends, ""], strict=True)))


def translate_document(text: str, format: str, translate: TranslateParagraphs, kept: KeptWords = KEPT) -> str:
    """
    Translate a document. The other arguments, and errors, are those of `read_document`.

    Args:
        translate: called once, with all paragraphs of the document as plain text.
    """
    document = read_document(text, format, kept)
    return document.write(translate(document.paragraphs))

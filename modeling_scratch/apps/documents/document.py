"""Reads a document of any format into paragraphs of plain text, and writes it with their translations."""

import codecs
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Generic, TypeVar

from ...errors import UserError
from ...model.kept_words import KEPT, KeptWords
from ..translate.paragraphs import Translated, TranslateParagraphs
from . import FORMATS

_LINE_END = re.compile(r"\r\n|\r|\n")


Content = TypeVar("Content", str, bytes)


@dataclass(frozen=True)
class Document(Generic[Content]):
    """
    A document that has been read.

    Args:
        paragraphs: its text, without markup.
        write: returns the document with each paragraph replaced by its translation. May be called several times.
        sizes: how many paragraphs each of its regions has, if it consists of regions.
    """

    paragraphs: list[str]
    write: Callable[[Sequence[Translated]], Content]
    sizes: Sequence[int] = ()


def read_document(
    content: Content, format: str, kept: KeptWords = KEPT, target: str | None = None, confidence: bool = False
) -> Document[Content]:
    """
    Read a document. Writing it restores its encoding, its byte order mark and its line breaks.

    Args:
        content: a text, or the bytes of a file: UTF-8, or UTF-16 with a byte order mark, unless the format is binary.
        format: a key of FORMATS.
        kept: what stays as it is.
        target: the language tag of the translation, which some formats name; None: unknown.
        confidence: write that of each line before it; of the format "text" alone.

    Raises:
        UserError: the document is not in this format, or too damaged to read.
    """
    described = FORMATS[format]
    module = import_module(f".{described.module}", __package__)
    read = getattr(module, f"read_{described.module}")
    if described.names_target:
        read = partial(read, target=target)
    if confidence:
        read = partial(read, confidence=True)
    if described.is_binary and isinstance(content, str):
        raise UserError(f"a document in the format {format} is a file, not a text")
    if described.is_binary:
        return read(content, kept)
    if isinstance(content, str):
        return _read_text(content, read, kept)
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    try:
        document = _read_text(content.decode(encoding), read, kept)
    except UnicodeDecodeError as error:
        raise UserError(f"not valid {encoding.upper()} ({error.reason} at byte {error.start:,})") from None
    return Document(document.paragraphs, lambda translations: document.write(translations).encode(encoding))


def _read_text(text: str, read: Callable[[str, KeptWords], Document[str]], kept: KeptWords) -> Document[str]:
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    ends = _LINE_END.findall(text)
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


def translate_document(
    content: Content,
    format: str,
    translate: TranslateParagraphs,
    kept: KeptWords = KEPT,
    target: str | None = None,
    confidence: bool = False,
) -> Content:
    """
    Translate a document. See `read_document` for the other arguments and the errors.

    Args:
        translate: called once, with all paragraphs of the document as plain text.
    """
    document = read_document(content, format, kept, target, confidence)
    return document.write(translate(document.paragraphs))

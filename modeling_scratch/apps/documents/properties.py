"""Java's .properties: the values of its keys."""

import re
from collections.abc import Iterator

from ...errors import UserError
from ...model.kept_words import KeptWords
from ..translate.marked_text import Text
from .catalogs import JAVA_LINE_END, SOFT, Entry, error_at, read_entries, read_message, unescaped, utf_16
from .document import Document

_CONTINUED = r"\\\n[ \t\f]*+"
_LINE = re.compile(
    rf"[ \t\f]*+(?:[#!][^\n]*+|(?P<key>(?:[^\\ \t\f\n=:]|\\[^\n]|{_CONTINUED})*+)"  # a comment, or a key ...
    rf"(?:[ \t\f]|{_CONTINUED})*+(?:[=:](?:[ \t\f]|{_CONTINUED})*+)?"  # ... and what separates it from its value
    r"(?P<value>(?:[^\\\n]|\\(?s:.))*+)\\?)(?:\n|\Z)"
)
_ESCAPE = re.compile(
    rf"(?<![ \t\f])[ \t\f]++{_CONTINUED}|{_CONTINUED}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^\n]"
)
_CONTROLS = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def read_properties(text: str, kept: KeptWords) -> Document:
    r"""
    Read the values. Keys, separators and comments stay. In a text of ASCII, which may be read as ISO-8859-1,
    translations have escapes such as \u00e4 for all other characters.

    Raises:
        UserError: a value has an escape that cannot be read.
    """
    escape = _escape_all if text.isascii() else _escape
    entries = []
    for line, texts in _values(text):
        region = read_message(texts, kept, escape, is_java=True, placeholders=JAVA_LINE_END)
        entries.append(Entry(*line.span("value"), region=region))
    return read_entries(text, entries, kept)


def properties_texts(text: str) -> Iterator[tuple[str, str]]:
    """The keys and values, without escapes. See `read_properties` for the errors."""
    for line, texts in _values(text):
        key = unescaped(line["key"], _ESCAPE, _plain)
        yield "".join(part.plain for part in key), "".join(part.plain for part in texts).replace(SOFT, " ")


def _values(text: str) -> Iterator[tuple[re.Match[str], list[Text]]]:
    """The lines with a value, and the parts of it."""
    at = 0
    while at < len(text) and (line := _LINE.match(text, at)):
        at = line.end()
        if not line["value"]:
            continue
        try:
            yield line, unescaped(line["value"], _ESCAPE, _plain)
        except UserError as error:
            raise error_at(text, line.start("value"), str(error)) from None


def _plain(escape: str) -> str:
    if escape.endswith("\\u"):
        raise UserError(r"\u without four hexadecimal digits")
    if "\\\n" in escape:
        return "" if escape[0] == "\\" else SOFT
    return utf_16(escape) if escape[1] == "u" else _CONTROLS.get(escape[1], escape[1])


def _escape(character: str) -> str:
    return "\\\\" if character == "\\" else character


def _escape_all(character: str) -> str:
    return _escape(character) if character.isascii() else "".join(rf"\u{unit}" for unit in _units(character))


def _units(character: str) -> list[str]:
    """The hexadecimal digits of the units of UTF-16."""
    return re.findall("....", character.encode("utf-16-be").hex())

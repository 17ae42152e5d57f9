"""Apple's .strings: the values of its keys."""

import re
from collections.abc import Iterator

from ...errors import UserError
from ...model.kept_words import KeptWords
from ..translate.marked_text import Text
from .catalogs import Entry, error_at, read_entries, read_message, unescaped, utf_16
from .document import Document

_SPACE = re.compile(r"(?:\s|//[^\n]*+|/\*(?:(?!\*/)(?s:.))*+\*/)*+")
_STRING = re.compile(r"\"((?:[^\"\\]|\\(?s:.))*+)\"|'((?:[^'\\]|\\(?s:.))*+)'|(?!/\*)[\w.$:/+-]++")
_SEMICOLON = re.compile(";")
_ESCAPE = re.compile(
    r"\\[uU][dD][89abAB][0-9a-fA-F]{2}\\[uU][dD][c-fC-F][0-9a-fA-F]{2}|\\[uU][0-9a-fA-F]{4}|\\[0-7]{1,3}|\\(?s:.)"
)
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def read_apple(text: str, kept: KeptWords) -> Document:
    """
    Read the values. Keys and comments stay, as do values that are not in quotation marks.

    Raises:
        UserError: the text is not in this format.
    """
    entries = [_entry(text, value, kept) for _, value in _strings(text) if value.lastindex]
    return read_entries(text, entries, kept)


def apple_texts(text: str) -> Iterator[tuple[str, str]]:
    """The keys and values, without escapes. See `read_apple` for the errors."""
    for strings in _strings(text):
        key, value = ("".join(part.plain for part in _unescaped(text, string)) for string in strings)
        yield key, value


def _strings(text: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """The keys and values; keys without a value are left out."""
    at = _space(text, 0)
    while at < len(text):
        key = _expect(text, at, _STRING, "a key")
        at = _space(text, key.end())
        if text.startswith("=", at):
            value = _expect(text, _space(text, at + 1), _STRING, "a value")
            at = _space(text, value.end())
            yield key, value
        at = _space(text, _expect(text, at, _SEMICOLON, "a semicolon").end())


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()


def _expect(text: str, at: int, pattern: re.Pattern[str], what: str) -> re.Match[str]:
    if (match := pattern.match(text, at)) is None:
        raise error_at(text, at, f"expected {what}")
    return match


def _entry(text: str, value: re.Match[str], kept: KeptWords) -> Entry:
    quote = value[0][0]
    region = read_message(_unescaped(text, value), kept, lambda sign: f"\\{sign}" if sign in ("\\", quote) else sign)
    return Entry(*value.span(value.lastindex), region=region)


def _unescaped(text: str, string: re.Match[str]) -> list[Text]:
    """The parts of a string, with or without quotation marks."""
    if not string.lastindex:
        return [Text(string[0], string[0])]
    try:
        return unescaped(string[string.lastindex], _ESCAPE, _plain)
    except UserError as error:
        raise error_at(text, string.start(string.lastindex), str(error)) from None


def _plain(escape: str) -> str:
    if escape[1] in "uU" and len(escape) > 2:
        return utf_16(escape)
    if escape[1] in "01234567":
        return chr(int(escape[1:], 8))
    return _CONTROLS.get(escape[1], escape[1])

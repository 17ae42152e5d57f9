"""JSON: the texts of applications and pages, among them Flutter's ARB and the messages of browser extensions."""

import json
import re
from collections.abc import Iterator
from typing import Any

from ...errors import UserError
from ..translate.kept_words import KeptWords
from .catalogs import Entry, error_at, message, read_entries, unescaped, utf_16
from .document import Document

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*+)"(\s*+:)?|[{}\[\]]')
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.")


def read_json_values(text: str, kept: KeptWords, target: str | None) -> Document:
    """
    Read the values that are strings. Keys, numbers and white space stay, as do the keys of the top level that begin
    with "@" (metadata of ARB) and their values, except that "@@locale" becomes the target. If each value of the top
    level is an object with a "message" (browser extensions) or a "defaultMessage" (FormatJS), only these are read.

    Raises:
        UserError: the text is not JSON.
    """
    try:
        found = json.loads(text, parse_int=str, parse_float=str) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise error_at(text, error.pos, f"not valid JSON ({error.msg})") from None
    except RecursionError:
        raise UserError("JSON that is nested too deeply") from None
    name, escape = _read_key(found), _escape_all if text.isascii() and "\\u" in text else _escape
    entries = []
    for start, end, keys in _strings(text):
        if keys == ("@@locale",) and target:
            locale = target.replace("-", "_")
            entries.append(Entry(start, end, lambda _, locale=locale: locale))
        if (keys[0] or "").startswith("@") or (name and keys[1:] != (name,)):
            continue
        try:
            texts = unescaped(text[start:end], _ESCAPE, _plain)
        except UserError as error:
            raise error_at(text, start, str(error)) from None
        entries.append(Entry(start, end, region=message(texts, kept, escape)))
    return read_entries(text, entries, kept)


def _read_key(found: Any) -> str:
    """The only key of inner objects that is read; empty: all are."""
    values = list(found.values()) if isinstance(found, dict) else []
    for name in ("message", "defaultMessage"):
        if values and all(isinstance(value, dict) and isinstance(value.get(name), str) for value in values):
            return name
    return ""


def _strings(text: str) -> Iterator[tuple[int, int, tuple[str | None, ...]]]:
    """Where values that are strings start and end, without quotes, and the first three of the keys to each."""
    keys: list[str | None] = []  # None: in an array
    for match in _TOKEN.finditer(text):
        if match[0] in ("{", "["):
            keys.append(None)
        elif match[0] in ("}", "]"):
            keys.pop()
        elif match[2]:
            keys[-1] = match[1]
        else:
            yield *match.span(1), tuple(keys[:3]) or (None,)


def _plain(escape: str) -> str:
    return utf_16(escape) if escape[1] == "u" else json.loads(f'"{escape}"')


def _escape(character: str) -> str:
    return json.dumps(character, ensure_ascii=False)[1:-1]


def _escape_all(character: str) -> str:
    return json.dumps(character)[1:-1]

"""
JSON: the texts of applications and pages, among them Flutter's ARB, the messages of browser extensions, FormatJS,
vue-i18n, Angular and Jed.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from ...errors import UserError
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Markup, Token
from .catalogs import ANGULAR_BREAK, ANGULAR_SPAN, Entry, error_at, read_entries, read_message, unescaped, utf_16
from .document import Document
from .jed import Keys, jed_entries, stated_language
from .regions import Region

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*+)"(\s*+:)?|[{}\[\]]')
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.")

_INNER = ("message", "defaultMessage")  # keys of which one is read, in browser extensions and FormatJS
# What messages have besides kept words. ICU's quotes are read first, since one brace of theirs begins like a literal of
# vue-i18n: '{'name'}' and {'@'}.
_BROWSER = re.compile(r"\$[A-Za-z_@][A-Za-z0-9_@]*\$|\$[1-9]|\$(?P<text>\$)(?!\$)|\$\$+")
_ICU = re.compile(r"'#'|'\{'[\w.-]*'\}'|'[{}<](?:[^']|'')*+(?:'|\Z)")
_OTHER = re.compile(
    r"'\{'[\w.-]*'\}'|'[{}#]'|'\{[\w.-]*\}'|'</?\w[^<>']*>'"
    r"|(?:(?<![\w.+-])[\w.+-]++)?\{\s*'@'\s*\}(?:[\w-]+(?:\.[\w-]+)*+)?|\{\s*'(?:[^'\\\n]|\\.)*+'\s*\}|\\[|@]"
    rf"|\{{\$(?:(?P<break>{ANGULAR_BREAK})|{ANGULAR_SPAN})\}}"
)
# Texts for ranges of numbers, as in (1)[one item];(2-inf)[items]; (i18next-intervalplural-postprocessor 3.0).
_RANGE = r"\([0-9]++(?:-(?:[0-9]++|inf))?\)\s*+\["
_RANGES = re.compile(rf"\s*+(?:{_RANGE}(?:(?!\)\[)[^;])*\]\s*+(?:;\s*+|\Z))++")
_BESIDE_TEXTS = re.compile(rf"((?:\A|(?<=;))\s*+{_RANGE}|\]\s*+(?:;|\Z))")
# A link of vue-i18n, whose key goes on to the next space, bracket or bar (message-compiler 11.4).
_LINK = re.compile(r"@(?:\.[A-Za-z]\w*+)?:\w++(?:[./-]++\w++)*+(?=[^\s|{}@()])")


def read_json_values(text: str, kept: KeptWords, target: str | None) -> Document:
    """
    Read the values that are strings. Keys, numbers and white space stay, as do the keys of the top level that begin
    with "@" (metadata of ARB) and their values. If each value of the top level is an object with a "message" (browser
    extensions) or a "defaultMessage" (FormatJS), only these are read; in files of Angular and Jed, only what is in
    "translations" and "locale_data". The language that a file of ARB, Angular or Jed names becomes the target, and so
    do Jed's plural forms, if they are known.

    Raises:
        UserError: the text is not JSON.
    """
    try:
        found = json.loads(text, parse_int=str, parse_float=str) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise error_at(text, error.pos, f"not valid JSON ({error.msg})") from None
    except RecursionError:
        raise UserError("JSON that is nested too deeply") from None
    kind, escape = _kind(found), _escape_all if text.isascii() and "\\u" in text else _escape

    def region(start: int, end: int) -> Region:
        has_ranges = not kind and _RANGES.fullmatch(text, start, end) is not None
        try:
            raws = _BESIDE_TEXTS.split(text[start:end]) if has_ranges else [text[start:end]]
            tokens: list[Token] = []
            for index, raw in enumerate(raws):
                tokens += [Markup("break", raw)] if index % 2 else unescaped(raw, _ESCAPE, _plain)
        except UserError as error:
            raise error_at(text, start, str(error)) from None
        doubles = kind == "message" and "$$" in text[start:end]
        own = {"$": "$$"} if doubles else {";": ","} if has_ranges else {}  # a semicolon ends a text for a range

        def write(character: str) -> str:
            return own.get(character) or escape(character)

        placeholders = {"message": _BROWSER, "defaultMessage": _ICU}.get(kind, _OTHER)
        # By default, neither Angular nor Flutter (ARB) has ICU's quotes.
        is_icu, quotes = kind == "defaultMessage", kind in ("", "defaultMessage")
        return read_message(tokens, kept, write, is_icu=is_icu, quotes=quotes, placeholders=placeholders)

    if kind == "jed":
        messages = jed_entries(text, found["locale_data"], _strings(text), region, target, kept)
        return read_entries(text, list(messages), kept)
    entries = []
    for start, end, keys in _strings(text):
        if keys == (("locale",) if kind == "angular" else ("@@locale",)):
            name = stated_language(text[start:end], target, "-" if kind == "angular" else "_")
            entries.append(Entry(start, end, lambda _, name=name: name))
        elif _has_text(kind, keys):
            entries.append(Entry(start, end, partial(_with_links, text[start:end]), region(start, end)))
    return read_entries(text, entries, kept)


def _kind(found: Any) -> str:
    """The kind of a file: the only key that is read in inner objects, "jed", "angular" or "arb"; empty: another."""
    top = found if isinstance(found, dict) else {}
    values = [value for key, value in top.items() if key != "$schema"]
    for name, inner in zip(_INNER, (values, found if isinstance(found, list) else values), strict=True):
        if inner and all(isinstance(value, dict) and isinstance(value.get(name), str) for value in inner):
            return name
    if isinstance(top.get("locale_data"), dict):
        return "jed"
    if isinstance(top.get("translations"), dict) and isinstance(top.get("locale"), str):
        return "angular"
    return "arb" if any(key.startswith("@@") for key in top) else ""


def _has_text(kind: str, keys: Keys) -> bool:
    """Whether the string at these keys is translated."""
    first = keys[0] or ""
    if kind == "angular":
        return first == "translations"
    return keys[1:] == (kind,) if kind in _INNER else first != "$schema" and not first.startswith("@")


def _with_links(source: str, written: str) -> str:
    """End links of vue-i18n before the text after them, as in "@:save.", unless the source has such links."""
    return written if _LINK.search(source) else _LINK.sub(lambda match: f"{match.group()}{{''}}", written)


def _strings(text: str) -> Iterator[tuple[int, int, Keys]]:
    """The strings that are values: where each starts and ends, without quotes, and the keys on the way to it."""
    keys: list[str | None] = []  # None: in an array
    for match in _TOKEN.finditer(text):
        if match[0] in ("{", "["):
            keys.append(None)
        elif match[0] in ("}", "]"):
            keys.pop()
        elif match[2]:
            keys[-1] = json.loads(f'"{match[1]}"') if "\\" in match[1] else match[1]
        else:
            yield *match.span(1), tuple(keys[:4]) or (None,)


def _plain(escape: str) -> str:
    return utf_16(escape) if escape[1] == "u" else json.loads(f'"{escape}"')


def _escape(character: str) -> str:
    return json.dumps(character, ensure_ascii=False)[1:-1]


def _escape_all(character: str) -> str:
    return json.dumps(character)[1:-1]

"""
JSON: the texts of applications and pages, among them Flutter's ARB, the messages of browser extensions, FormatJS,
vue-i18n, Angular and Jed.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any

from ...errors import UserError
from ...languages import is_same_language
from ...model.kept_words import KeptWords
from ..translate.marked_text import Markup, Token
from .catalogs import ANGULAR_BREAK, ANGULAR_SPAN, Entry, error_at, read_entries, read_message, unescaped, utf_16
from .document import Document
from .plural_forms import count_of, is_value, numbers_of, plural_forms_of, translated_text
from .regions import Region

logger = logging.getLogger(__name__)

_Keys = tuple[str | None, ...]  # the first four keys on the way to a string; None: an index of an array

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
# Names of the plural forms in a header of Jed, as jed 1.1 looks for them.
_PLURALS = ("plural_forms", "Plural-Forms", "plural-forms")
_FORMS = re.compile(r"nplurals\s*=\s*([1-9])\s*;\s*plural\s*=([^;]+)")


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
    found = _parsed(text)
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
        messages = _jed_entries(text, found["locale_data"], region, target, kept)
        return read_entries(text, list(messages), kept)
    entries = []
    for start, end, keys in _strings(text):
        if keys == (("locale",) if kind == "angular" else ("@@locale",)):
            name = _stated_language(text[start:end], target, "-" if kind == "angular" else "_")
            entries.append(Entry(start, end, lambda _, name=name: name))
        elif _has_text(kind, keys):
            entries.append(Entry(start, end, partial(_with_links, text[start:end]), region(start, end)))
    return read_entries(text, entries, kept)


def json_texts(text: str) -> Iterator[tuple[str, str]]:
    """
    The strings that `read_json_values` reads, by the keys on the way to each: "menu.items[0]". Objects in an array that
    all have an "id" or "key" of their own go by it, wherever they stand.
    """
    found = _parsed(text)
    kind, left = _kind(found), list[tuple[str, _Keys, Any]]([("", (), found)])
    while left:
        path, keys, value = left.pop()
        if isinstance(value, dict):
            inner = [(f"{path}.{key}" if path else key, (*keys, key), child) for key, child in value.items()]
            left += reversed(inner)
        elif isinstance(value, list):
            name = _name_of_entries(value)
            places = [f"{path}[{name}={child[name]}]" if name else f"{path}[{n}]" for n, child in enumerate(value)]
            if name:
                value = [{key: inner for key, inner in child.items() if key != name} for child in value]
            left += reversed([(place, (*keys, None), child) for place, child in zip(places, value, strict=True)])
        elif isinstance(value, str) and _has_text(kind, keys[:4] or (None,)):
            yield path, value


def _name_of_entries(entries: list[Any]) -> str:
    """The key by which the objects in an array are told apart; empty: there is none."""
    for name in ("id", "key"):
        names = [entry.get(name) if isinstance(entry, dict) else None for entry in entries]
        if names and all(isinstance(found, str) and found for found in names) and len(set(names)) == len(names):
            return name
    return ""


def _parsed(text: str) -> Any:
    """What a file holds, without its numbers."""
    try:
        return json.loads(text, parse_int=bool, parse_float=bool) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise error_at(text, error.pos, f"not valid JSON ({error.msg})") from None
    except RecursionError:
        raise UserError("JSON that is nested too deeply") from None


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


def _has_text(kind: str, keys: _Keys) -> bool:
    """Whether the string at these keys is translated."""
    first = keys[0] or ""
    if kind == "angular":
        return first == "translations"
    return keys[1:] == (kind,) if kind in _INNER else first != "$schema" and not first.startswith("@")


def _with_links(source: str, written: str) -> str:
    """End links of vue-i18n before the text after them, as in "@:save.", unless the source has such links."""
    return written if _LINK.search(source) else _LINK.sub(lambda match: f"{match.group()}{{''}}", written)


def _strings(text: str) -> Iterator[tuple[int, int, _Keys]]:
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


# -- Jed: gettext's messages for programs in JavaScript ----------------------------------------------------------------


def _jed_entries(
    text: str,
    domains: dict[str, Any],
    region: Callable[[int, int], Region],
    target: str | None,
    kept: KeptWords,
) -> Iterator[Entry]:
    """
    The messages of all domains. A header gets the language and, if they are known, its plural forms, and each message
    with a plural as many strings as there are forms. Everything else stays. `region` reads a string, given its place.
    """
    within = (string for string in _strings(text) if string[2][0] == "locale_data" and len(string[2]) > 2)
    for (_, domain, *keys), group in groupby(within, lambda string: string[2]):
        places, found = [(start, end) for start, end, _ in group], domains.get(domain or "")
        forms = _plural_forms(found.get("") if isinstance(found, dict) else None, target)
        if keys[0] != "" and len(places) > 1 and forms:
            yield from _plural(text, places, forms, region, kept)
        elif keys[0] != "":
            yield from (Entry(start, end, region=region(start, end)) for start, end in places)
        elif keys[1:] == ["lang"] or (forms and keys[-1] in _PLURALS):
            for start, end in places:
                value = _stated_language(text[start:end], target, "_") if keys[1:] == ["lang"] else forms
                yield Entry(start, end, lambda _, value=value: value)


def _stated_language(old: str, target: str | None, separator: str) -> str:
    """The language that a translated file names: the target, or the old one if this is the target in some country."""
    is_kept = target is None or (target.isalpha() and is_same_language(old, target))
    return old if is_kept else re.sub("[-_]", separator, target or "")


def _plural_forms(header: Any, target: str | None) -> str:
    """The plural forms of a domain in translation, as a header declares them; empty: unknown."""
    if not isinstance(header, dict) or not target:
        return ""
    declared, language = next((header[name] for name in _PLURALS if name in header), ""), header.get("lang")
    if isinstance(language, str) and is_same_language(language, target) and _FORMS.fullmatch(f"{declared}".strip(" ;")):
        return declared
    return plural_forms_of(target) or ""


def _plural(
    text: str, places: list[tuple[int, int]], forms: str, region: Callable[[int, int], Region], kept: KeptWords
) -> Iterator[Entry]:
    """
    The strings of a message with a plural: the first is for the number 1, and the last for many. They stay as they are
    if a form would say a wrong number; see `translated_text`.
    """
    raws, last = [text[start:end] for start, end in places], places[-1]
    shown = [[raw[start:end] for start, end in kept.spans(raw)] for raw in (raws[0], raws[-1])]
    values = [[word for word in found if is_value(word)] for found in shown]
    count = count_of(forms) or 2
    sources = [translated_text(numbers_of(forms).get(number, set()), *values) for number in range(count)]
    if None in sources:
        line = text.count("\n", 0, places[0][0]) + 1
        logger.info(f"line {line:,}: left as it is: a plural form stands for several numbers, and no text shows which")
        return
    for number, source in enumerate(sources):
        found = region(*(places[0] if source == "singular" else last))
        if number < len(places):
            yield Entry(*places[number], region=found)
        else:
            yield Entry(last[1] + 1, last[1] + 1, lambda written: f', "{written}"', found)
    if count < len(places):
        yield Entry(places[count - 1][1] + 1, last[1] + 1)

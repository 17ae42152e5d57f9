"""Jed's JSON: gettext's messages for programs in JavaScript, as jed 1.1 reads them."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from ...languages import is_same_language
from ..translate.kept_words import KeptWords
from .catalogs import Entry
from .plural_forms import count_of, is_value, numbers_of, plural_forms_of, translated_text
from .regions import Region

logger = logging.getLogger(__name__)

Keys = tuple[str | None, ...]  # the first four keys on the way to a string; None: an index of an array

_PLURALS = ("plural_forms", "Plural-Forms", "plural-forms")  # names in a header, as Jed looks for them
_FORMS = re.compile(r"nplurals\s*=\s*([1-9])\s*;\s*plural\s*=([^;]+)")


def jed_entries(
    text: str,
    domains: dict[str, Any],
    strings: Iterable[tuple[int, int, Keys]],
    region: Callable[[int, int], Region],
    target: str | None,
    kept: KeptWords,
) -> Iterator[Entry]:
    """
    The messages of all domains. A header gets the language and, if they are known, its plural forms, and each message
    with a plural as many strings as there are forms. Everything else stays.

    Args:
        strings: all of the file, as `json_values` finds them.
        region: reads one.
    """
    within = (string for string in strings if string[2][0] == "locale_data" and len(string[2]) > 2)
    for (_, domain, *keys), group in groupby(within, lambda string: string[2]):
        places, found = [(start, end) for start, end, _ in group], domains.get(domain or "")
        forms = _plural_forms(found.get("") if isinstance(found, dict) else None, target)
        if keys[0] != "" and len(places) > 1 and forms:
            yield from _plural(text, places, forms, region, kept)
        elif keys[0] != "":
            yield from (Entry(start, end, region=region(start, end)) for start, end in places)
        elif keys[1:] == ["lang"] or (forms and keys[-1] in _PLURALS):
            for start, end in places:
                value = stated_language(text[start:end], target, "_") if keys[1:] == ["lang"] else forms
                yield Entry(start, end, lambda _, value=value: value)


def stated_language(old: str, target: str | None, separator: str) -> str:
    """What a file names as its language in translation: the target, unless the old one is that of a country of it."""
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
    The strings of a message with a plural, of which the first is for the number 1 and the last for many. They stay if a
    form would say a wrong number, see `translated_text`.
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

"""Files in one language: two are read side by side, key by key, line by line, segment by segment or by time."""

import re
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from itertools import chain, zip_longest

from ...errors import UserError
from ..documents.android import android_texts
from ..documents.apple import apple_texts
from ..documents.json_values import json_texts
from ..documents.plural_forms import form_of_most
from ..documents.properties import properties_texts
from .corpus_files import CorpusFile
from .gettext_catalogs import gettext_texts
from .units import NO_SOURCE, NO_TARGET, OTHER_LENGTH, PLURAL_FORMS, Request, Unit

Texts = Callable[[CorpusFile], Iterable[tuple[str, str]]]  # the texts of a file by their keys

_SEGMENT = re.compile(r"<doc\b([^>]*)>|<seg\b([^>]*)>(.*?)</seg\s*>", re.IGNORECASE | re.DOTALL)
_INDEX = re.compile(r"\[([0-9]+)\]")  # of an array in a key
# The quantity that a text is for: Android's files[many], and files_many of i18next.
_FORM = re.compile(r"(.*(?:\[|_))(zero|one|two|few|many|other)(\]?)", re.DOTALL)
_ATTRIBUTE = re.compile(r"""\b(docid|id)\s*=\s*(?:"([^"]*)"|'([^']*)'|(\S+))""", re.IGNORECASE)


def _of_text(read: Callable[[str], Iterable[tuple[str, str]]], *encodings: str) -> Texts:
    """A reader of files, from one of their text."""

    def texts(file: CorpusFile) -> Iterator[tuple[str, str]]:
        try:
            yield from read(file.text(encodings or ("utf-8",)))
        except UserError as error:
            raise error if str(error).startswith(file.name) else UserError(f"{file.name}: {error}") from None

    return texts


def _sgm_texts(text: str) -> Iterator[tuple[str, str]]:
    """The segments of WMT's and NIST's test sets by the ids of their documents and theirs."""
    document, number, seen = "", 0, set()
    if not re.search(r"<(srcset|refset|tstset)\b", text[:4000], re.IGNORECASE):
        raise UserError("not a test set: it has no <srcset> and no <refset>")
    for match in _SEGMENT.finditer(text):
        attributes = {name.lower(): "".join(values) for name, *values in _ATTRIBUTE.findall(match[1] or match[2] or "")}
        if match[3] is None:
            document, number = attributes.get("docid", ""), 0
            continue
        number += 1
        key = f"{document} {attributes.get('id', number)}".strip()
        if key not in seen:  # a file of references may have several for each source
            seen.add(key)
            yield key, unescape(re.sub("<[^<>]*>", "", match[3]))


TEXTS: dict[str, Texts] = {
    "json": _of_text(json_texts),
    # Java reads UTF-8 and, if a file is not that, ISO-8859-1 (PropertyResourceBundle, since Java 9).
    "properties": _of_text(properties_texts, "utf-8", "iso-8859-1"),
    "apple": _of_text(apple_texts),
    "android": _of_text(android_texts),
    "sgm": _of_text(_sgm_texts),
    "gettext": gettext_texts,
}


def read_by_keys(kind: str, source: CorpusFile, target: CorpusFile, request: Request) -> Iterator[Unit]:
    """
    The texts with the same key. Of a key that comes twice, the last text counts, as in programs. Of a plural, the text
    for most numbers counts as that for all others. Arrays of different lengths are left out.
    """
    texts = [dict(TEXTS[kind](file)) for file in (source, target)]
    others: set[str] = set()
    if kind in ("android", "json"):
        for side, language in zip(texts, (request.source, request.target), strict=True):
            others |= _use_form_of_most(side, language)
    lengths = [_lengths(side) for side in texts]
    for key, text in texts[0].items():
        place = key.replace("\4", " ").strip() if kind == "gettext" else key
        translated = texts[1].pop(key, None)
        if any(lengths[0][array] != lengths[1].get(array) for array, _ in _arrays(key)):
            yield Unit(place, skipped=OTHER_LENGTH)
        else:
            yield Unit(place, text, translated or "", "" if translated else NO_TARGET)
    for key in texts[1]:
        yield Unit(key, skipped=PLURAL_FORMS if key in others else NO_SOURCE)


def _use_form_of_most(texts: dict[str, str], language: str) -> set[str]:
    """
    Put the text for most whole numbers in place of that for "other", which in Polish is the one for fractions. Returns
    the keys of the other forms but those for one.
    """
    most = form_of_most(language)
    forms = set()
    for key in list(texts):
        form = _FORM.fullmatch(key)
        if form and form[2] not in ("one", "other") and f"{form[1]}other{form[3]}" in texts:
            forms.add(key)
            if form[2] == most:
                texts[f"{form[1]}other{form[3]}"] = texts[key]
    return forms


def _arrays(key: str) -> list[tuple[str, int]]:
    """The arrays that a text is in, by their keys, and its place in each."""
    return [(key[: match.start()], int(match[1])) for match in _INDEX.finditer(key)]


def _lengths(texts: Iterable[str]) -> dict[str, int]:
    """How many entries each array has."""
    found: dict[str, int] = {}
    for array, place in chain.from_iterable(map(_arrays, texts)):
        found[array] = max(found.get(array, 0), place + 1)
    return found


def read_lines_of_both(_: str, source: CorpusFile, target: CorpusFile, request: Request) -> Iterator[Unit]:
    """Line by line. UserError: one file has more lines."""
    for number, (one, other) in enumerate(zip_longest(source.lines(), target.lines()), start=1):
        if one is None or other is None:
            shorter, longer = (source, target) if one is None else (target, source)
            raise UserError(
                f"{shorter.name} has {number - 1:,} lines, and {longer.name} has more; they must belong together"
            )
        yield Unit(f"{number}", one, other)

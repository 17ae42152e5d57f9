"""gettext's catalogs: PO and MO."""

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...errors import UserError
from ...languages import base_language
from ...model.kept_words import KEPT
from ..documents.catalogs import is_program_name
from ..documents.plural_forms import is_value, numbers_of, translated_text
from ..documents.po import PoMessage, named_language, po_messages
from .corpus_files import CorpusFile, decoded, tag_of_path
from .units import FUZZY, NO_TARGET, OBSOLETE, OTHER_LANGUAGES, PLURAL_FORMS, Request, Unit

_CHARSET = re.compile(rb"charset=([\w.:-]+)", re.IGNORECASE)
# The first entry without a message; its translation is the header.
_HEADER = re.compile(rb'^msgid\s+""\s*^msgstr\s+"(.*?)"\s*?(?:^\s*$|\Z)', re.MULTILINE | re.DOTALL)
_OBSOLETE = re.compile(r"^#~\s*msgid\s", re.MULTILINE)
_IS_SWAPPED = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}  # by the number that MO files begin with
# Words of which nearly every longer English text has one, and texts in other languages few.
_ENGLISH = re.compile(
    r"\b(?:all|and|are|be|by|cannot|could|does|each|failed|for|from|has|have|if|into|it|its|more|must|not|only|other|should"
    r"|such|than|the|their|this|to|use|used|using|were|when|which|with|without|you|your)\b",
    re.IGNORECASE,
)
_LETTER = re.compile(r"(?![ -~])[^\W\d_]")  # other than those of English


@dataclass(frozen=True)
class CatalogMessage:
    """
    A message of a catalog.

    Args:
        place: in its file.
        context: None: it has none.
        sources: its text or, if it has a plural, two.
        forms: its translation, or that in all plural forms.
        skipped: why it is no pair; empty: it is one.
    """

    place: str
    context: str | None
    sources: list[str]
    forms: list[str]
    skipped: str = ""


# -- reading -----------------------------------------------------------------------------------------------------------


def po_catalog(file: CorpusFile) -> tuple[str, list[CatalogMessage]]:
    """The header, and the messages. UserError: the file is not a PO file, or not in the encoding that it declares."""
    content = file.content()
    header_of_file = _HEADER.search(content)
    text = decoded(content, file.name, [_charset(header_of_file[1] if header_of_file else b"")])
    try:
        found = list(po_messages(text))
    except UserError as error:
        raise UserError(f"{file.name}, {error}") from None
    header = found[0].forms["msgstr"].text if found and found[0].is_header and "msgstr" in found[0].forms else ""
    messages, line, at = [], 1, 0
    for message in found:
        line += text.count("\n", at, message.start)
        at = message.start
        if not message.is_header:
            messages.append(_po_message(message, f"{line}"))
    messages += [CatalogMessage("", None, [""], [""], OBSOLETE) for _ in _OBSOLETE.finditer(text)]
    return header, messages


def _charset(header: bytes) -> str:
    """The encoding that a header declares. That of a template, "CHARSET", is none."""
    declared = _CHARSET.search(header)
    name = declared[1].decode() if declared else "utf-8"
    return "utf-8" if name.lower() in ("charset", "ascii", "us-ascii", "utf8") else name


def _po_message(message: PoMessage, place: str) -> CatalogMessage:
    texts = {name: field.text for name, field in message.fields.items()}
    sources = [texts[name] for name in ("msgid", "msgid_plural") if name in texts]
    forms = [form.text for form in message.forms.values()]
    return CatalogMessage(place, texts.get("msgctxt"), sources, forms, FUZZY if "fuzzy" in message.flags else "")


def mo_catalog(file: CorpusFile) -> tuple[str, list[CatalogMessage]]:
    """As `po_catalog`. MO files have finished translations only."""
    content = file.content()
    order = _IS_SWAPPED.get(content[:4])
    if order is None or len(content) < 20:
        raise UserError(f"{file.name}: not an MO file")
    revision, count, sources_at, targets_at = struct.unpack(f"{order}4I", content[4:20])
    if revision >> 16 > 1:
        raise UserError(f"{file.name}: an MO file of the unknown version {revision >> 16}")

    def string(table: int, number: int) -> bytes:
        size, start = struct.unpack_from(f"{order}2I", content, table + 8 * number)
        if start + size > len(content):
            raise UserError(f"{file.name}, message {number:,}: beyond the end of the file; is it cut off?")
        return content[start : start + size]

    if max(sources_at, targets_at) + 8 * count > len(content):
        raise UserError(f"{file.name}: its {count:,} messages go beyond the end of the file; is it cut off?")

    header, charset, messages = "", "utf-8", []
    for number in range(count):
        source, target = string(sources_at, number), string(targets_at, number)
        if not number and not source:
            charset = _charset(target)
        try:
            key, translation = source.decode(charset), target.decode(charset)
        except (UnicodeDecodeError, LookupError):
            raise UserError(f"{file.name}, message {number:,}: not in the encoding {charset}, as it declares") from None
        if not source:
            header = translation
            continue
        context, separator, texts = key.rpartition("\4")
        sources, forms = texts.split("\0"), translation.split("\0")
        if len(sources) > 1 and set(forms) <= set(sources):
            forms = [""]  # Babel 2.19 fills plurals without a translation with the English texts
        messages.append(CatalogMessage(f"{number}", context if separator else None, sources, forms))
    return header, messages


# -- pairs -------------------------------------------------------------------------------------------------------------


def read_gettext(file: CorpusFile, request: Request) -> Iterator[Unit]:
    """
    The translated messages of a catalog whose messages are English, as gettext's manual asks for. The other language is
    what the header names, or else the path, or else what the user asked for.

    Raises:
        UserError: neither language is English, or the messages of a file that the user named are names, such as
            "button.save".
    """
    header, messages = _catalog(file)
    named = named_language(header) or tag_of_path(file.plain_name)
    english = [base_language(tag) for tag in (request.source, request.target)]
    if "en" not in english:
        raise UserError(
            f"{file.name}: messages of catalogs are English; for {request.source} and {request.target}, name two "
            "catalogs as SOURCE:TARGET"
        )
    side = english.index("en")
    if named and request.side(named) != 1 - side:
        yield from (Unit(message.place, skipped=OTHER_LANGUAGES) for message in messages)
        return
    problem = not_english(messages)
    if problem is not None and not file.is_named:
        yield from (Unit(message.place, skipped=f"whose messages are {problem}") for message in messages)
        return
    if problem is not None:
        raise UserError(f"{file.name}: its messages are {problem}; name the English catalog too, as SOURCE:TARGET")
    for unit in catalog_units(header, messages):
        yield unit if side == 0 else unit._replace(source=unit.target, target=unit.source)


def _catalog(file: CorpusFile) -> tuple[str, list[CatalogMessage]]:
    return (mo_catalog if file.plain_name.lower().endswith(".mo") else po_catalog)(file)


def gettext_texts(file: CorpusFile) -> Iterator[tuple[str, str]]:
    """The translations of a catalog by their messages, for a pair of catalogs whose messages are names."""
    for message in _catalog(file)[1]:
        for number, form in enumerate(message.forms):
            if not message.skipped and form:
                yield "\4".join([message.context or "", message.sources[0], f"{number}"]), form


def catalog_units(header: str, messages: Iterable[CatalogMessage]) -> Iterator[Unit]:
    """
    Messages and their translations. Of a plural, the singular is paired with the form that is for 1, and the plural
    with the one that is for most numbers, if the texts show that they say the same; see `translated_text`.
    """
    numbers = numbers_of(header)
    for message in messages:
        if message.skipped or not any(message.forms):
            yield Unit(message.place, skipped=message.skipped or NO_TARGET)
        elif len(message.sources) == 1:
            yield Unit(message.place, message.sources[0], message.forms[0])
        else:
            yield from _plural_units(message, numbers)


def _plural_units(message: CatalogMessage, numbers: dict[int, set[int]]) -> Iterator[Unit]:
    values = [[word for word in map(text.__getitem__, _slices(text)) if is_value(word)] for text in message.sources]
    chosen: dict[str | None, int] = {}
    for number in range(len(message.forms)):
        source = translated_text(numbers.get(number, set()), *values)
        if source not in chosen or len(numbers.get(number, ())) > len(numbers.get(chosen[source], ())):
            chosen[source] = number
    for number, form in enumerate(message.forms):
        source = next((source for source, best in chosen.items() if best == number and source), None)
        place = f"{message.place} [{number}]"
        if source is None or not form:
            yield Unit(place, skipped=PLURAL_FORMS if form else NO_TARGET)
        else:
            yield Unit(place, message.sources[source == "plural"], form)


def _slices(text: str) -> list[slice]:
    return [slice(*span) for span in KEPT.spans(text)]


def not_english(messages: Iterable[CatalogMessage]) -> str | None:
    """What most messages of a catalog are instead of English, in words; None: they are English, as far as one sees."""
    texts = [message.sources[0] for message in messages if message.sources[0]]
    names = sum(is_program_name(text) for text in texts)
    if 2 * names > len(texts):
        return "names in a program"
    longer = [text for text in texts if len(set(re.findall("[A-Za-z]+", text))) >= 5]
    english = sum(_ENGLISH.search(text) is not None for text in longer)
    foreign = sum(_LETTER.search(text) is not None for text in texts)
    # Measured on 88 German and 87 Japanese catalogs of Debian 12: of the longer English messages, at least 40 % have
    # such a word, but in lists of names; of their translations into German, at most 35 %.
    if 2 * foreign > len(texts):
        return "not English"
    if (10 * foreign > len(texts) and english < 0.4 * len(longer)) or (
        len(longer) >= 100 and english < 0.2 * len(longer)
    ):
        return "not English"
    return None

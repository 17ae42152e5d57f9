"""XLIFF 1.2 and 2: sources without a translation get one."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ...errors import UserError
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .catalogs import SOFT, Entry, message, read_entries, unescaped
from .document import Document
from .regions import Region
from .xml_parts import XmlElement, XmlPiece, read_xml, with_attribute, xml_escape, xml_texts

_SPANS = {"g", "mrk", "pc"}
# Elements at the two ends of a span: whether each begins it, and the attributes of which the first names the span.
_ENDS = {"bpt": (True, "rid", "id"), "ept": (False, "rid", "id"), "bx": (True, "rid", "id"), "ex": (False, "rid", "id")}
_ENDS |= {"sc": (True, "id"), "ec": (False, "startRef", "id"), "sm": (True, "id"), "em": (False, "startRef")}
_ANGULAR = re.compile(r"(START|CLOSE)_(\w+?)(?:_\d+)?")  # the id of an <x/> that stands for a tag
_SPACE = re.compile(r"[ \t\n]+")


def read_xliff(text: str, kept: KeptWords, target: str | None) -> Document:
    """
    Read the sources without a translation, except those with translate="no". Each gets a target, with the state
    "needs-review-translation" or, in XLIFF 2, "translated". If the file does not name the target's language, it will.

    Raises:
        UserError: the text is not in this format.
    """
    parts, elements = read_xml(text)
    root = elements[0]
    version = root.attributes.get("version", "")
    if root.name != "xliff" or version[:2] not in ("1.", "2."):
        raise UserError(f'not XLIFF 1 or 2, but <{root.name} version="{version}">')
    is_2 = version[0] == "2"
    places = {element.first: element for element in elements} | {element.last: element for element in elements}
    children: dict[int, dict[str, XmlElement]] = defaultdict(dict)  # of units or segments
    for element in elements:
        if element.parent is not None and element.parent.name == ("segment" if is_2 else "trans-unit"):
            children[element.parent.first].setdefault(element.name, element)
    entries = []
    for element in elements:
        names_target = element is root if is_2 else element.name == "file"
        attribute = "trgLang" if is_2 else "target-language"
        if names_target and target and not element.attributes.get(attribute):
            entries.append(_with_attribute(parts[element.first], attribute, target.replace("_", "-")))
        if element.first not in children or element.inherited.get("translate") == "no":
            continue
        within = children[element.first]
        source, old = within.get("source"), within.get("target")
        content = within.get("seg-source", source)
        if source is None or _is_empty(parts, content) or (old is not None and not _is_empty(parts, old)):
            continue
        if is_2 and element.attributes.get("state", "initial") == "initial":
            entries.append(_with_attribute(parts[element.first], "state", "translated"))
        preserves = content.inherited.get("xml:space") == "preserve"
        tokens = _tokens(parts, content.first + 1, content.last, places, preserves)
        entries.append(_target(parts, source, content, old, is_2, message(tokens, kept, xml_escape)))
    return read_entries(text, sorted(entries, key=lambda entry: entry.start), kept)


def _is_empty(parts: Sequence[XmlPiece], element: XmlElement) -> bool:
    return not any(part.raw.strip() for part in parts[element.first + 1 : element.last])


def _with_attribute(part: XmlPiece, name: str, value: str) -> Entry:
    return Entry(part.start, part.end, lambda _: with_attribute(part.raw, name, value))


def _target(
    parts: Sequence[XmlPiece],
    source: XmlElement,
    content: XmlElement,
    old: XmlElement | None,
    is_2: bool,
    region: Region,
) -> Entry:
    """
    An element with the translation.

    Args:
        content: the source, or its copy in segments.
        old: the empty element that it replaces; None: it is new, and has a line of its own if the source has.
    """
    if old is not None:
        tag, indent = re.sub(r"\s*/?>\Z", ">", parts[old.first].raw), ""
        start, end = parts[old.first].start, parts[old.last].end
    else:
        tag = f"<{_prefix(parts[source.first])}target>"
        if space := source.attributes.get("xml:space"):
            tag = with_attribute(tag, "xml:space", space)
        before = re.search(r"\n[ \t]*\Z", parts[source.first - 1].raw)
        indent, start = before.group() if before else "", parts[content.last].end
        end = start
    if not is_2:
        tag = with_attribute(tag, "state", "needs-review-translation")
    closing = f"</{tag[1:].split()[0].rstrip('>')}>"
    return Entry(start, end, lambda written: f"{indent}{tag}{written}{closing}", region)


def _prefix(tag: XmlPiece) -> str:
    return re.match(r"<([^\s>/:]*:)?", tag.raw)[1] or ""


def _tokens(
    parts: Sequence[XmlPiece], first: int, last: int, places: dict[int, XmlElement], preserves: bool
) -> Iterator[Token]:
    """
    The tokens of a range of parts.

    Args:
        places: the element of each part that is a tag.
        preserves: whether line ends and indentation are part of the text.
    """
    index = first
    while index < last:
        part, following = parts[index], index + 1
        if part.kind == "data":
            yield from (Text(xml_escape(character), character) for character in part.raw)
        elif part.kind == "text":
            for text in xml_texts(part.raw):
                is_written = text.raw != text.plain or preserves
                yield from [text] if is_written else unescaped(text.raw, _SPACE, _collapsed)
        elif part.kind != "other":
            element = places[index]
            kind, name = _kind(element)
            if kind == "span" and parts[element.last].raw:
                kind = "open" if part.kind == "start" else "close"
            elif part.kind == "start" and kind != "break":
                following = element.last + 1
            raw = "".join(each.raw for each in parts[index:following])
            yield Markup("atom" if kind == "span" else kind, raw, name)
        index = following


def _collapsed(space: str) -> str:
    return SOFT if "\n" in space else " "


def _kind(element: XmlElement) -> tuple[str, str]:
    """The kind and name of a token; a "span" is text between two tags, and everything else stands for code."""
    attributes, name = element.attributes, element.name
    if name in _ENDS:
        begins, *keys = _ENDS[name]
        number = next((attributes[key] for key in keys if key in attributes), "")
        return "open" if begins else "close", f"{name[1:]} {number}"
    if attributes.get("mtype") == "seg" or attributes.get("ctype") == "lb":
        return "break", ""
    if name == "x" and (match := _ANGULAR.fullmatch(attributes.get("id", ""))):
        return "open" if match[1] == "START" else "close", match[2]
    is_text = name in _SPANS and attributes.get("mtype") != "protected" and attributes.get("translate") != "no"
    return "span" if is_text else "atom", name

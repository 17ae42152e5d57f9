"""XML as it is written: where its elements, text and everything else are. Entities and other files are not read."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from typing import Literal
from xml.parsers import expat

from ...errors import UserError
from ..translate.marked_text import Text

_INHERITED = ("translate", "xml:space")
_REFERENCE = re.compile(r"&[^;]*;")


@dataclass(frozen=True, slots=True)
class XmlPiece:
    """
    A part of a document.

    Args:
        kind: "start" or "end" of an element (an empty element has an "end" without text), "text", "data" (text without
            references, between the marks of CDATA), or "other", such as comments and these marks.
        raw: the part as it is written.
        start: its position in the document.
    """

    kind: Literal["start", "end", "text", "data", "other"]
    raw: str
    start: int

    @property
    def end(self) -> int:
        """The position after it."""
        return self.start + len(self.raw)


@dataclass(slots=True)
class XmlElement:
    """
    An element.

    Args:
        name: without prefix.
        attributes: by their names with prefixes.
        inherited: those of it and its parents that also hold for the elements in them: `translate` and `xml:space`.
        parent: the element that contains it.
        first, last: the indices of the parts that are its start tag and its end tag.
    """

    name: str
    attributes: dict[str, str]
    inherited: dict[str, str]
    parent: "XmlElement | None"
    first: int
    last: int = -1


def read_xml(text: str) -> tuple[list[XmlPiece], list[XmlElement]]:
    """
    The parts of a document, and its elements in the order of their start tags.

    Raises:
        UserError: it is not well-formed, declares entities, or declares an encoding other than UTF-8 and UTF-16.
    """
    parser = expat.ParserCreate("utf-8")
    content = text.encode("utf-8", "surrogatepass")
    found: list[tuple[int, str]] = []  # where each part starts in the bytes, and its kind
    elements: list[XmlElement] = []
    opened: list[XmlElement] = []
    is_data = False

    def add(kind: str) -> None:
        if not (found and kind == found[-1][1] in ("text", "data", "other")):  # these come in pieces
            found.append((parser.CurrentByteIndex, kind))

    def start(name: str, attributes: dict[str, str]) -> None:
        add("start")
        parent = opened[-1] if opened else None
        inherited = parent.inherited if parent else {}
        if own := {name: attributes[name] for name in _INHERITED if name in attributes}:
            inherited = inherited | own
        element = XmlElement(name.rpartition(":")[2], attributes, inherited, parent, len(found) - 1)
        elements.append(element)
        opened.append(element)

    def end(_) -> None:
        add("end")
        opened.pop().last = len(found) - 1

    def mark(begins: bool) -> None:
        nonlocal is_data
        found.append((parser.CurrentByteIndex, "other"))
        is_data = begins

    def refuse(*_) -> None:
        raise UserError(f"line {parser.CurrentLineNumber:,}: declarations of entities are not read; remove them")

    def check(_, encoding: str | None, __) -> None:
        add("other")
        if encoding is not None and encoding.lower() not in ("utf-8", "utf-16"):
            raise UserError(f"line 1: declares the encoding {encoding}; convert it to UTF-8, also in this line")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = lambda _: add("data" if is_data else "text")
    parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = lambda: mark(True), lambda: mark(False)
    parser.CommentHandler = parser.ProcessingInstructionHandler = parser.DefaultHandler = lambda *_: add("other")
    parser.EntityDeclHandler, parser.XmlDeclHandler = refuse, check
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise UserError(f"line {error.lineno:,}: not valid XML ({expat.ErrorString(error.code)})") from None
    parts, position = [], 0
    for (begin, kind), (after, _) in zip(found, [*found[1:], (len(content), "")], strict=True):
        parts.append(XmlPiece(kind, content[begin:after].decode(), position))
        position = parts[-1].end
    return parts, elements


def xml_texts(raw: str) -> Iterator[Text]:
    """Text as it is written, in pieces: references, and what is between them."""
    done = 0
    for match in _REFERENCE.finditer(raw):
        yield Text(raw[done : match.start()], raw[done : match.start()])
        yield Text(match.group(), unescape(match.group()))
        done = match.end()
    yield Text(raw[done:], raw[done:])


def xml_escape(character: str) -> str:
    """A character of text as it is written."""
    return {"&": "&amp;", "<": "&lt;"}.get(character, character)


def with_attribute(tag: str, name: str, value: str) -> str:
    """A start tag with this value of an attribute."""
    value = "".join(map(xml_escape, value)).replace('"', "&quot;")
    pattern = re.compile(rf"""(\s{re.escape(name)}\s*=\s*)(?:"[^"]*"|'[^']*')""")
    if pattern.search(tag):
        return pattern.sub(lambda match: f'{match[1]}"{value}"', tag, count=1)
    end = re.search(r"\s*/?>\Z", tag)
    return f'{tag[: end.start()]} {name}="{value}"{tag[end.start() :]}'

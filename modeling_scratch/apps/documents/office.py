"""What office documents share: XML of which the text is translated, and of which the rest stays as it is written."""

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import UserError
from ...languages import likely_locale
from ...model.kept_words import KeptWords
from ...model.text import is_translatable
from ..translate.marked_text import Markup, Text, Token
from .document import Document
from .html import unescape
from .regions import Region, read_regions
from .xml_tree import XmlNode, read_xml, write_xml

_MAX_DEPTH = 100  # of nested elements
# Characters that XML cannot contain enclose the number of a hole (\0), the number of a format (\1), and markup (\2).
_HOLE = re.compile("\0([0-9]+)\0")
_MARK = re.compile("(\1[0-9]+\1|\2[^\2]*\2)")

_PREFIXES = {
    "http://purl.org/dc/elements/1.1/": "dc",
    "http://schemas.openxmlformats.org/package/2006/content-types": "ct",
    "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing": "wp",
    "http://purl.oclc.org/ooxml/drawingml/wordprocessingDrawing": "wp",
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "http://www.daisy.org/z3986/2005/ncx/": "ncx",
    "http://www.idpf.org/2007/opf": "opf",
    "http://www.w3.org/2001/04/xmlenc#": "enc",
    "urn:oasis:names:tc:opendocument:xmlns:container": "container",
}
_OPEN_DOCUMENT = re.compile(r"urn:oasis:names:tc:opendocument:xmlns:(?:([\w-]+)-compatible|([\w-]+)):1\.0")
_EAST_ASIAN = {"Hans", "Hant", "Jpan", "Kore"}
_COMPLEX = {"Arab", "Beng", "Deva", "Gujr", "Guru", "Hebr", "Khmr", "Knda", "Laoo", "Mlym", "Mymr", "Orya", "Sinh"}
_COMPLEX |= {"Syrc", "Taml", "Telu", "Thaa", "Thai", "Tibt"}


def _write_attribute(text: str, written: dict[str, str]) -> str:
    return write_xml(text, written | {'"': "&quot;", "'": "&apos;"})


def script_and_locale(tag: str | None) -> tuple[str, str, str] | None:
    """
    What office documents say of a language: the kind of its script ("western", "asian" or "complex"), its code, and the
    code of a country, which may be empty. None: the tag names no language.
    """
    if tag is None or (locale := likely_locale(tag)) is None:
        return None
    language, script, country = locale
    return "asian" if script in _EAST_ASIAN else "complex" if script in _COMPLEX else "western", language, country


def _named(name: str) -> str:
    """An expanded name with the prefix that is usual for its namespace."""
    address, _, local = name.rpartition(" ")
    match = _OPEN_DOCUMENT.fullmatch(address)
    prefix = (match[1] or match[2]) if match else _PREFIXES.get(address, address)
    return f"{prefix}:{local}" if prefix else local


class XmlPart:
    """
    XML of which some elements have text that is translated. It is written with holes, whose text comes from regions.

    Args:
        content: in UTF-8, or UTF-16 with a byte order mark.
        texts: the names of elements whose content is a text.

    Raises:
        UserError: it is not well-formed, declares entities, or is too large or nested too deeply.
    """

    opaque: frozenset[str] = frozenset()  # elements that stay with all their content
    attributes: dict[str, str] = {}  # {element: regular expression for its attributes that are translated}

    def __init__(self, content: bytes, texts: Iterable[str] = ()):
        is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        self._encoding = "utf-16" if is_wide else "utf-8"
        try:
            text = content.decode(self._encoding)
        except UnicodeDecodeError as error:
            raise UserError(f"not valid {self._encoding.upper()} ({error.reason})") from None
        self._text, self._whole, self._regions = text.removeprefix("\ufeff"), set(texts), list[Region]()
        self.root = read_xml(self._text, _named, _MAX_DEPTH)

    def document(self, kept: KeptWords, change: Callable[[str], str] = str) -> Document[bytes]:
        """The part as a document. `change` is applied to the text of the whole translated part."""
        whole, holes = self.written(self.root), self._regions

        def joined(found: list[str]) -> bytes:
            filled = [self.finished(text) for text in found]
            for number in reversed(range(len(filled))):  # holes within holes come later
                filled[number] = _HOLE.sub(lambda hole: filled[int(hole[1])], filled[number])
            return change(_HOLE.sub(lambda hole: filled[int(hole[1])], whole)).encode(self._encoding)

        del self.root
        return read_regions(holes, joined, kept)

    def finished(self, text: str) -> str:
        """What a region is in the part, given its translation."""
        return text

    def source(self, start: int, end: int) -> str:
        """The content between two positions."""
        return self._text[start:end]

    def hole(self, read: Callable[[], Region]) -> str:
        """A hole with what is read."""
        number = len(self._regions)
        self._regions.append(Region([], write_xml))  # takes the number now, since `read` may add holes
        self._regions[number] = read()
        return f"\0{number}\0"

    def written(self, node: XmlNode) -> str:
        """A node as it is written, with holes for its text."""
        if node.name in ("", "!") or node.name in self.opaque:
            return self.raw(node)
        return self.opening(node) + self.inner(node) + self.source(node.last, node.end)

    def raw(self, node: XmlNode) -> str:
        return self.source(node.start, node.end)

    def opening(self, node: XmlNode) -> str:
        """The start tag of an element, with holes for the attributes that are texts."""
        tag = self.source(node.start, node.first)
        if node.name not in self.attributes:
            return tag

        def value(match: re.Match) -> str:
            raw, plain = match[2][1:-1], unescape(match[2][1:-1])
            if not is_translatable(plain):
                return match[0]
            region = Region([Text(raw, plain)], _write_attribute)
            return f"{match[1]}{match[2][0]}{self.hole(lambda: region)}{match[2][0]}"

        return re.sub(rf"""(\s(?:{self.attributes[node.name]})\s*=\s*)("[^"]*"|'[^']*')""", value, tag)

    def inner(self, node: XmlNode) -> str:
        """The content of an element."""
        if node.name in self._whole and all(not child.name for child in node.children):
            return self.hole(lambda: Region(self.text_tokens(node), write_xml))
        return "".join(map(self.written, node.children))

    def text_tokens(self, node: XmlNode) -> list[Text]:
        """The text directly within an element."""
        texts = [child for child in node.children if not child.name]
        if len(texts) < len(node.children):  # with comments or CDATA
            plain = "".join(text.plain for text in texts)
            return [Text(write_xml(plain, {}), plain)]
        return [Text(self.raw(text), text.plain) for text in texts]


@dataclass
class Inline:
    """
    A part of a paragraph.

    Args:
        kind: "text"; an "atom" between words; a "break", which ends a sentence; "open" and "close" of an element that
            formats nothing itself, such as a link; "start" and "stop" of a range, which may cross elements.
        raw: as it is written.
        texts: of text.
        format: of text: a number from `FormattedPart.format`.
        name: of ranges: the same for "start" and "stop".
    """

    kind: str
    raw: str
    texts: Sequence[Text] = ()
    format: int = 0
    name: str = ""


def paired(inlines: Sequence[Inline]) -> dict[int, int]:
    """The ranges that cross no element and no other range: {index of the "start": index of the "stop"}."""
    ends, frames = {}, [dict[str, int]()]
    for index, inline in enumerate(inlines):
        if inline.kind == "open":
            frames.append({})
        elif inline.kind == "close":
            frames.pop()
        elif inline.kind == "start":
            frames[-1].setdefault(inline.name, index)
        elif inline.kind == "stop" and inline.name in frames[-1]:
            name = None
            while name != inline.name:
                name, start = frames[-1].popitem()
            ends[start] = index
    return ends


class FormattedPart(XmlPart):
    """
    XML with paragraphs of formatted text. A format is markup before and after text. Most of the text of a paragraph, or
    of an element in it, has one format; text in another format becomes an element, which is placed as markup is.
    """

    paragraphs: frozenset[str]  # the names of elements

    def __init__(self, content: bytes, texts: Iterable[str] = ()):
        super().__init__(content, texts)
        self._formats, self._numbers = list[tuple[str, str]](), dict[str, int]()

    def has_text(self, node: XmlNode) -> bool:
        """Whether an element contains text of its own to translate."""
        raise NotImplementedError

    def inlines(self, node: XmlNode) -> list[Inline]:
        """The parts of a paragraph."""
        raise NotImplementedError

    def inner(self, node: XmlNode) -> str:
        if node.name not in self.paragraphs or not self.has_text(node):
            return super().inner(node)
        properties = "".join(self.written(child) for child in node.children if child.name.endswith("Pr"))
        return properties + self.hole(lambda: Region(list(self._tokens(self.inlines(node))), write_xml))

    def format(self, key: str, before: str, after: str) -> int:
        """The number of a format. Those with the same key are the same."""
        if key not in self._numbers:
            self._numbers[key] = len(self._formats)
            self._formats.append((before, after))
        return self._numbers[key]

    def finished(self, text: str) -> str:
        parts, before, after = [], "", ""
        for part in _MARK.split(text):
            if part[:1] == "\1":
                before, after = self._formats[int(part[1:-1])]
            elif part[:1] == "\2":
                parts.append(part[1:-1])
            elif part:
                parts += [before, part, after]
        return "".join(parts)

    def _tokens(self, inlines: Sequence[Inline]) -> Iterator[Token]:
        ends, main = paired(inlines), _main_formats(inlines)
        partners = ends.keys() | set(ends.values())
        formats = [main[-1]]  # the main format of the paragraph, and of each element that is open
        opened: list[str] = []  # the names of elements and ranges that are open
        current, is_edge = formats[-1], True  # whether nothing has followed the last break
        held: list[Token] = []  # tokens that may belong to the text before them or after them
        yield Markup("break", f"\1{current}\1")
        for index, inline in enumerate([*inlines, Inline("break", "")]):
            if inline.kind == "text" and not any(text.plain.strip() for text in inline.texts):
                held += inline.texts
                continue
            if inline.kind == "atom" or (inline.kind in ("start", "stop") and index not in partners):
                held.append(Markup("atom", f"\2{inline.raw}\2"))
                continue
            wanted = inline.format if inline.kind == "text" else formats[-1]
            if wanted != current and current != formats[-1]:
                yield Markup("close", f"\1{formats[-1]}\1", "format")
                current = formats[-1]
            # At the edge of a paragraph, atoms such as bookmarks are in no sentence.
            if not opened and current == formats[-1] and (is_edge or inline.kind == "break"):
                held = [replace(token, kind="break") if token.kind == "atom" else token for token in held]
            yield from held
            held, is_edge = [], inline.kind == "break"
            if wanted != current:
                yield Markup("open", f"\1{wanted}\1", "format", is_optional=True)
                current = wanted
            if inline.kind == "text":
                yield from inline.texts
            elif inline.kind == "break":
                yield Markup("break", f"\2{inline.raw}\2")
            elif inline.kind == "open":
                current = main[index]
                formats.append(current)
                opened.append(f"element {index}")
                yield Markup("open", f"\2{inline.raw}\2\1{current}\1", opened[-1])
            elif inline.kind == "close":
                formats.pop()
                current = formats[-1]
                yield Markup("close", f"\2{inline.raw}\2\1{current}\1", opened.pop())
            elif inline.kind == "start":
                opened.append(inline.name)
                yield Markup("open", f"\2{inline.raw}\2", inline.name)
            else:
                yield Markup("close", f"\2{inline.raw}\2", opened.pop())


def _main_formats(inlines: Sequence[Inline]) -> dict[int, int]:
    """The format of most characters directly within each element, by the index of its "open"; of the paragraph: -1."""
    main, opened = {}, [(-1, Counter[int]())]
    for index, inline in enumerate(inlines):
        if inline.kind == "text":
            opened[-1][1][inline.format] += sum(len(text.plain.strip()) for text in inline.texts)
        elif inline.kind == "open":
            opened.append((index, Counter()))
        elif inline.kind == "close":
            start, counts = opened.pop()
            main[start] = max(counts, key=counts.__getitem__, default=0)
    main[-1] = max(opened[0][1], key=opened[0][1].__getitem__, default=0)
    return main

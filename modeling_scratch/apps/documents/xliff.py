"""XLIFF 1.2 and 2: sources without a translation get one."""

import logging
import re
from collections.abc import Iterable, Iterator
from unicodedata import east_asian_width

from ...errors import UserError
from ...model.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .catalogs import ANGULAR_BREAK, ANGULAR_SPAN, SOFT, Entry, check_language, read_entries, read_message, unescaped
from .document import Document
from .html import BLOCKS
from .regions import Region
from .xml_tree import CDATA, XmlNode, escape_xml, read_xml, write_xml

logger = logging.getLogger(__name__)

# Attributes that also hold for the elements within an element.
_INHERITED = ("translate", "xml:space", "target-language", "trgLang")
_SPANS = {"g", "mrk", "pc"}
# Elements at the two ends of a span: whether each begins it, and the attributes of which the first names the span.
_ENDS = {"bpt": (True, "rid", "id"), "ept": (False, "rid", "id"), "bx": (True, "rid", "id"), "ex": (False, "rid", "id")}
_ENDS |= {"sc": (True, "id"), "ec": (False, "startRef", "id"), "sm": (True, "id"), "em": (False, "startRef")}
_ANGULAR = re.compile(ANGULAR_SPAN)  # the id of an <x/> that stands for a tag
_SPACE = re.compile(r"[ \t\n]+")
_UNTRANSLATED = {"new", "needs-translation"}  # states of targets in XLIFF 1.2, which may repeat the source
# What tells which code an element stands for, and the code of a line end or of a block.
_CODES = ("id", "ctype", "subType", "equiv", "equivStart", "equivEnd", "equiv-text", "disp", "dispStart", "dispEnd")
_DATA = ("dataRef", "dataRefStart", "dataRefEnd")
LINE_BREAK_CODE = re.compile(
    rf"\s*(?:(?:xlf:)?[lp]b|{ANGULAR_BREAK}|x-(?:{'|'.join(sorted(BLOCKS))})|</?(?:{'|'.join(sorted(BLOCKS))})\b[^<>]*>"
    r"|\\[nr])\s*|[ \t]*[\n\r][ \t]*",
    re.IGNORECASE,
)
_BREAK_CHARACTERS = {"9", "A", "B", "C", "D", "85", "2028", "2029"}  # hexadecimal, of <cp>
_APPLE = re.compile(r"%arg(?!\w)")
_QT = re.compile(r"%L?(?:[0-9]{1,2}|n)|&(?P<text>&)")
_SUB_STATE = re.compile(r"""\ssubState\s*=\s*(?:"[^"]*"|'[^']*')""")


def read_xliff(text: str, kept: KeptWords, target: str | None) -> Document:
    """
    Read the sources without a translation (in XLIFF 1.2, also if the target's state says so), except those with
    translate="no". Each gets a target, with the state "needs-review-translation" or, in XLIFF 2, "translated". In a
    target in segments, those without a translation get one. If the file does not name the target's language, it will.

    Raises:
        UserError: the text is not in this format, or would get translations in another language than it names.
    """
    root = read_xml(text).elements[0]
    version = root.attributes.get("version", "")
    if root.local_name != "xliff" or version[:2] not in ("1.", "2."):
        raise UserError(f'not XLIFF 1 or 2, but <{root.local_name} version="{version}">')
    is_2 = version[0] == "2"
    attribute, unit = ("trgLang", "segment") if is_2 else ("target-language", "trans-unit")
    reader = _Reader(text, kept, _QT if "xmlns:trolltech" in root.attributes else _APPLE)
    entries = []
    for element, inherited in _elements(root):
        names_target = element is root if is_2 else element.local_name == "file"
        if names_target and target and not element.attributes.get(attribute):
            entries.append(_with_attribute(text, element, attribute, target.replace("_", "-")))
        if element.local_name == "unit":
            reader.read_data(element)
        elif element.local_name == unit and inherited.get("translate") != "no":
            if found := reader.entries(element, inherited.get("xml:space")):
                check_language(text, element.start, inherited.get(attribute), target)
            entries += found
    if missing := reader.missing:
        line = text.count("\n", 0, missing[0].start) + 1
        logger.warning(
            f"segments that are missing in their targets stay without a translation: {len(missing):,}, the first in "
            f"line {line:,}"
        )
    return read_entries(text, sorted(entries, key=lambda entry: entry.start), kept)


def _elements(root: XmlNode) -> Iterator[tuple[XmlNode, dict[str, str]]]:
    """All elements in order, and what each has or inherits of `_INHERITED`."""
    left = [(root, dict[str, str]())]
    while left:
        element, inherited = left.pop()
        if own := {name: element.attributes[name] for name in _INHERITED if name in element.attributes}:
            inherited = inherited | own
        yield element, inherited
        left += ((child, inherited) for child in reversed(element.elements))


def _is_empty(text: str, element: XmlNode) -> bool:
    return not text[element.first : element.last].strip()


def _has_text(element: XmlNode) -> bool:
    return any(node.plain.strip() for node, _, _ in element.parts(lambda _: False))


def _segments(element: XmlNode) -> dict[str, XmlNode]:
    """The segments of a source or target of XLIFF 1.2, by their numbers or, without these, by their places."""
    found = [segment for segment, _ in _elements(element) if segment.attributes.get("mtype") == "seg"]
    return {part.attributes.get("mid") or f"at place {place}": part for place, part in enumerate(found, start=1)}


def _with_attribute(text: str, element: XmlNode, name: str, value: str) -> Entry:
    tag = text[element.start : element.first]
    return Entry(element.start, element.first, lambda _: _attributed(tag, name, value))


def _attributed(tag: str, name: str, value: str) -> str:
    """A start tag with this value of an attribute."""
    value = write_xml(value, {'"': "&quot;"})
    pattern = re.compile(rf"""(\s{re.escape(name)}\s*=\s*)(?:"[^"]*"|'[^']*')""")
    if pattern.search(tag):
        return pattern.sub(lambda match: f'{match[1]}"{value}"', tag, count=1)
    begin = tag.removesuffix(">").removesuffix("/").rstrip()
    return f'{begin} {name}="{value}"{tag[len(begin) :]}'


class _Reader:
    """
    Reads the units of a file.

    Args:
        placeholders: matches what stays in its messages besides kept words.
    """

    def __init__(self, text: str, kept: KeptWords, placeholders: re.Pattern[str]):
        self._text, self._kept, self._placeholders = text, kept, placeholders
        self.missing: list[XmlNode] = []  # segments of sources that their targets, which have others, do not have
        self._breaks: set[str] = set()  # code of the current unit of XLIFF 2 that ends lines, by its name

    def read_data(self, unit: XmlNode) -> None:
        """Read the code that a unit of XLIFF 2 refers to."""
        data = (code for within in unit.elements if within.local_name == "originalData" for code in within.elements)
        self._breaks = {code.attributes.get("id", "") for code in data if LINE_BREAK_CODE.fullmatch(_plain(code))}

    def entries(self, unit: XmlNode, space: str | None) -> list[Entry]:
        """
        What is written anew of a unit of XLIFF 1.2 or a segment of XLIFF 2; nothing, if it has a translation.

        Args:
            space: the value of xml:space that it inherits.
        """
        within = {child.local_name: child for child in reversed(unit.elements)}
        source, old = within.get("source"), within.get("target")
        content = within.get("seg-source", source)
        if source is None or content is None or _is_empty(self._text, content):
            return []
        preserves = content.attributes.get("xml:space", space) == "preserve"
        if old is not None and old.attributes.get("state") not in _UNTRANSLATED and _has_text(old):
            return self._missing_segments(content, old, preserves)
        entry = self._target(unit, source, content, old, self._region(content, preserves))
        if unit.local_name == "segment" and unit.attributes.get("state", "initial") == "initial":
            tag = _SUB_STATE.sub("", self._text[unit.start : unit.first])  # it belongs to the old state
            tag = _attributed(tag, "state", "translated")
            return [Entry(unit.start, unit.first, lambda _: tag), entry]
        return [entry]

    def _missing_segments(self, content: XmlNode, old: XmlNode, preserves: bool) -> list[Entry]:
        """
        The segments without a translation in a target that has some. One that is not in the target is left and noted.
        """
        entries, targets = [], _segments(old)
        for number, segment in _segments(content).items() if targets else ():
            found = targets.get(number)
            if not _has_text(segment) or (found is not None and _has_text(found)):
                continue
            if found is None:
                self.missing.append(segment)
                continue
            entries.append(self._filled(found, self._region(segment, preserves)))
        if entries:
            entries.append(_with_attribute(self._text, old, "state", "needs-review-translation"))
        return entries

    def _region(self, content: XmlNode, preserves: bool) -> Region:
        tokens = _apart(self._tokens(content, preserves))
        doubles = self._placeholders is _QT and "&amp;&amp;" in self._text[content.first : content.last]
        write = _escape_label if doubles else escape_xml
        return read_message(tokens, self._kept, write, placeholders=self._placeholders)

    def _filled(self, old: XmlNode, region: Region, state: str = "") -> Entry:
        """An element with a translation in place of its content."""
        tag = self._text[old.start : old.first].removesuffix(">").removesuffix("/").rstrip() + ">"
        tag = _attributed(tag, "state", state) if state else tag
        return Entry(old.start, old.end, lambda written: f"{tag}{written}</{old.name}>", region)

    def _target(self, unit: XmlNode, source: XmlNode, content: XmlNode, old: XmlNode | None, region: Region) -> Entry:
        """
        A target with the translation.

        Args:
            content: the source, or its copy in segments.
            old: the target without a translation that it replaces; None: it is new, and has a line of its own if the
                source has.
        """
        state = "needs-review-translation" if unit.local_name == "trans-unit" else ""
        if old is not None:
            return self._filled(old, region, state)
        name = f"{source.name.removesuffix('source')}target"
        tag = f"<{name}>"
        if space := source.attributes.get("xml:space"):
            tag = _attributed(tag, "xml:space", space)
        tag = _attributed(tag, "state", state) if state else tag
        before = re.search(r"\n[ \t]*\Z", self._text[unit.first : source.start])
        indent = before.group() if before else ""
        return Entry(content.end, content.end, lambda written: f"{indent}{tag}{written}</{name}>", region)

    def _tokens(self, content: XmlNode, preserves: bool) -> Iterator[Token]:
        """The tokens of the content of an element."""
        is_data = False  # whether the text is in CDATA
        for node, start, end in content.parts(self._is_whole):
            raw = self._text[start:end]
            if node.name == "!":
                is_data = raw == CDATA
            elif is_data:
                yield from (Text(escape_xml(character), character) for character in raw)
            elif node.is_verbatim:
                yield from [Text(raw, raw)] if preserves else unescaped(raw, _SPACE, _collapsed)
            elif not node.name:
                yield Text(raw, node.plain)
            else:
                kind, name = self._kind(node)
                if kind == "span":
                    kind = "atom" if self._is_whole(node) else "open" if start == node.start else "close"
                yield Markup(kind, raw, name)

    def _is_whole(self, element: XmlNode) -> bool:
        """Whether an element is one token."""
        return element.last == element.end or element.local_name not in _SPANS or self._kind(element)[0] == "atom"

    def _kind(self, element: XmlNode) -> tuple[str, str]:
        """The kind and name of a token; a "span" is text between two tags, and everything else stands for code."""
        attributes, name = element.attributes, element.local_name
        is_text = name in _SPANS and attributes.get("mtype") != "protected" and attributes.get("translate") != "no"
        if name in _SPANS and not is_text:
            return "atom", name
        if attributes.get("mtype") == "seg" or self._is_break(element):
            return "break", ""
        if name in _ENDS:
            begins, *keys = _ENDS[name]
            number = next((attributes[key] for key in keys if key in attributes), "")
            return "open" if begins else "close", f"{name[1:]} {number}"
        if name == "x" and (match := _ANGULAR.fullmatch(attributes.get("id", ""))):
            return match.lastgroup or "", match[match.lastindex or 0]
        return "span" if is_text else "atom", name

    def _is_break(self, element: XmlNode) -> bool:
        """Whether an element stands for a line end or the edge of a block."""
        attributes = element.attributes
        if element.local_name == "cp":
            return attributes.get("hex", "").lstrip("0").upper() in _BREAK_CHARACTERS
        codes = [attributes[key] for key in _CODES if key in attributes]
        codes += [_plain(element)] if element.local_name not in _SPANS else []
        return any(map(LINE_BREAK_CODE.fullmatch, codes)) or any(attributes.get(key) in self._breaks for key in _DATA)


def _plain(element: XmlNode) -> str:
    """The text within an element."""
    return "".join(node.plain for node, _, _ in element.parts(lambda _: False))


def _apart(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens, with a space in the text after code between two letters, which would be one word without it."""
    after_letter, after_code = False, False
    for token in tokens:
        if token.kind == "text" and token.plain:
            if after_letter and after_code and _is_letter(token.plain[0]):
                yield Text("", " ")
            after_letter, after_code = _is_letter(token.plain[-1]), False
        elif token.kind == "atom" and token.name != "it":  # which is half of a span
            after_code = True
        elif token.kind == "break":
            after_letter = False
        yield token


def _is_letter(character: str) -> bool:
    """Whether it is a letter, other than those of Chinese and Japanese, which need no space between words."""
    return character.isalpha() and east_asian_width(character) not in "FW"


def _escape_label(character: str) -> str:
    """In Qt's labels, "&" is written twice, since once it marks a key."""
    return escape_xml(character) * (1 + (character == "&"))


def _collapsed(space: str) -> str:
    return SOFT if "\n" in space else " "

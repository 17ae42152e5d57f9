"""XLIFF 1.2 and 2: sources without a translation get one."""

import re
from collections.abc import Iterator

from ...errors import UserError
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .catalogs import SOFT, Entry, message, read_entries, unescaped
from .document import Document
from .regions import Region
from .xml_tree import CDATA, XmlNode, escape_xml, read_xml, write_xml

_INHERITED = ("translate", "xml:space")  # attributes that also hold for the elements within an element
_SPANS = {"g", "mrk", "pc"}
# Elements at the two ends of a span: whether each begins it, and the attributes of which the first names the span.
_ENDS = {"bpt": (True, "rid", "id"), "ept": (False, "rid", "id"), "bx": (True, "rid", "id"), "ex": (False, "rid", "id")}
_ENDS |= {"sc": (True, "id"), "ec": (False, "startRef", "id"), "sm": (True, "id"), "em": (False, "startRef")}
_ANGULAR = re.compile(r"(START|CLOSE)_(\w+?)(?:_\d+)?")  # the id of an <x/> that stands for a tag
_SPACE = re.compile(r"[ \t\n]+")
_UNTRANSLATED = {"new", "needs-translation"}  # states of targets in XLIFF 1.2, which may repeat the source


def read_xliff(text: str, kept: KeptWords, target: str | None) -> Document:
    """
    Read the sources without a translation (in XLIFF 1.2, also if the target's state says so), except those with
    translate="no". Each gets a target, with the state "needs-review-translation" or, in XLIFF 2, "translated". If the
    file does not name the target's language, it will.

    Raises:
        UserError: the text is not in this format.
    """
    root = read_xml(text).elements[0]
    version = root.attributes.get("version", "")
    if root.local_name != "xliff" or version[:2] not in ("1.", "2."):
        raise UserError(f'not XLIFF 1 or 2, but <{root.local_name} version="{version}">')
    is_2 = version[0] == "2"
    attribute, unit = ("trgLang", "segment") if is_2 else ("target-language", "trans-unit")
    entries = []
    for element, inherited in _elements(root):
        attributes = element.attributes
        names_target = element is root if is_2 else element.local_name == "file"
        if names_target and target and not attributes.get(attribute):
            entries.append(_with_attribute(text, element, attribute, target.replace("_", "-")))
        if element.local_name != unit or inherited.get("translate") == "no":
            continue
        within = {child.local_name: child for child in reversed(element.elements)}
        source, old = within.get("source"), within.get("target")
        content = within.get("seg-source", source)
        if source is None or _is_empty(text, content) or not _is_untranslated(old):
            continue
        if is_2 and attributes.get("state", "initial") == "initial":
            entries.append(_with_attribute(text, element, "state", "translated"))
        preserves = (inherited | content.attributes).get("xml:space") == "preserve"
        region = message(_tokens(text, content, preserves), kept, escape_xml)
        entries.append(_target(text, element, source, content, old, region))
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


def _is_untranslated(target: XmlNode | None) -> bool:
    if target is None or target.attributes.get("state") in _UNTRANSLATED:
        return True
    return not any(node.plain.strip() for node, _, _ in target.parts(lambda _: False))


def _with_attribute(text: str, element: XmlNode, name: str, value: str) -> Entry:
    tag = text[element.start : element.first]
    return Entry(element.start, element.first, lambda _: _attributed(tag, name, value))


def _attributed(tag: str, name: str, value: str) -> str:
    """A start tag with this value of an attribute."""
    value = write_xml(value, {'"': "&quot;"})
    pattern = re.compile(rf"""(\s{re.escape(name)}\s*=\s*)(?:"[^"]*"|'[^']*')""")
    if pattern.search(tag):
        return pattern.sub(lambda match: f'{match[1]}"{value}"', tag, count=1)
    end = re.search(r"\s*/?>\Z", tag)
    return f'{tag[: end.start()]} {name}="{value}"{tag[end.start() :]}'


def _target(text: str, unit: XmlNode, source: XmlNode, content: XmlNode, old: XmlNode | None, region: Region) -> Entry:
    """
    An element with the translation.

    Args:
        content: the source, or its copy in segments.
        old: the target without a translation that it replaces; None: it is new, and has a line of its own if the
            source has.
    """
    if old is not None:
        name, indent, start, end = old.name, "", old.start, old.end
        tag = re.sub(r"\s*/?>\Z", ">", text[start : old.first])
    else:
        name = f"{source.name.removesuffix('source')}target"
        tag = f"<{name}>"
        if space := source.attributes.get("xml:space"):
            tag = _attributed(tag, "xml:space", space)
        before = re.search(r"\n[ \t]*\Z", text[unit.first : source.start])
        indent, start = before.group() if before else "", content.end
        end = start
    if unit.local_name == "trans-unit":
        tag = _attributed(tag, "state", "needs-review-translation")
    return Entry(start, end, lambda written: f"{indent}{tag}{written}</{name}>", region)


def _tokens(text: str, content: XmlNode, preserves: bool) -> Iterator[Token]:
    """
    The tokens of the content of an element.

    Args:
        preserves: whether line ends and indentation are part of the text.
    """
    is_data = False  # whether the text is that of CDATA
    for node, start, end in content.parts(_is_whole):
        raw = text[start:end]
        if node.name == "!":
            is_data = raw == CDATA
        elif is_data:
            yield from (Text(escape_xml(character), character) for character in raw)
        elif node.is_verbatim:
            yield from [Text(raw, raw)] if preserves else unescaped(raw, _SPACE, _collapsed)
        elif not node.name:
            yield Text(raw, node.plain)
        else:
            kind, name = _kind(node)
            if kind == "span":
                kind = "atom" if _is_whole(node) else "open" if start == node.start else "close"
            yield Markup(kind, raw, name)


def _is_whole(element: XmlNode) -> bool:
    """Whether an element is one token."""
    return element.last == element.end or _kind(element)[0] not in ("span", "break")


def _collapsed(space: str) -> str:
    return SOFT if "\n" in space else " "


def _kind(element: XmlNode) -> tuple[str, str]:
    """The kind and name of a token; a "span" is text between two tags, and everything else stands for code."""
    attributes, name = element.attributes, element.local_name
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

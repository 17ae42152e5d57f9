"""Android's string resources (strings.xml): strings, arrays of strings, plurals."""

import re
from collections.abc import Iterator, Sequence

from ...errors import UserError
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .catalogs import SOFT, Entry, error_at, message, read_entries, unescaped, utf_16
from .document import Document
from .xml_parts import XmlElement, XmlPiece, read_xml, xml_escape, xml_texts

_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\(?s:.)|\"|[ \t\n]+"
)
_CONTROLS = {"n": "\n", "t": "\t"}
_RESOURCE = re.compile(r"\s*[@?](?:\+?[\w.]+:)?(?:\w+/)?[\w.]+\s*")  # refers to another one


def read_android(text: str, kept: KeptWords) -> Document:
    """
    Read the strings, except those with translatable="false" and references such as @string/name.

    Raises:
        UserError: the text is not in this format.
    """
    parts, elements = read_xml(text)
    if elements[0].name != "resources":
        raise UserError(f"not Android's <resources>, but <{elements[0].name}>")
    entries, ends = [], {element.first: element.last for element in elements}
    for element in elements:
        first, last = element.first + 1, element.last
        if not _is_read(element) or _RESOURCE.fullmatch("".join(part.raw for part in parts[first:last])):
            continue
        quoted = False
        for start, end in _runs(parts, first, last):
            try:
                tokens, quoted = _tokens(parts, start, end, ends, quoted)
            except UserError as error:
                raise error_at(text, parts[start].start, str(error)) from None
            escape = _escape_data if parts[start].kind == "data" else _escape
            region = message(tokens, kept, escape, begin=_begin)
            entries.append(Entry(parts[start].start, parts[end - 1].end, region=region))
    return read_entries(text, entries, kept)


def _is_read(element: XmlElement) -> bool:
    whole = element.parent if element.name == "item" else element  # the resource
    if whole is None or whole.parent is None or whole.parent.name != "resources":
        return False
    is_text = element.name == "string" or (element.name == "item" and whole.name in ("string-array", "plurals"))
    return is_text and "false" not in (element.attributes.get("translatable"), whole.attributes.get("translatable"))


def _runs(parts: Sequence[XmlPiece], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Split a range of parts before and after data, which is escaped in another way than text."""
    start = first
    for index in range(first, last):
        if parts[index].kind == "data":
            yield from ((start, index),) if start < index else ()
            yield index, index + 1
            start = index + 1
    if start < last:
        yield start, last


def _tokens(
    parts: Sequence[XmlPiece], first: int, last: int, ends: dict[int, int], quoted: bool
) -> tuple[list[Token], bool]:
    """
    The tokens of a range of parts.

    Args:
        ends: the index of each element's end by that of its start.
        quoted: whether quotation marks are open, between which white space is not collapsed.
    """
    tokens: list[Token] = []
    index = first
    while index < last:
        part, name = parts[index], re.match(r"</?(?:[^\s>/:]*:)?([^\s>/]*)", parts[index].raw)
        following = index + 1
        if part.kind in ("text", "data"):
            pieces = xml_texts(part.raw) if part.kind == "text" else [Text(part.raw, part.raw)]
            for piece in pieces:
                if piece.raw != piece.plain:
                    tokens.append(piece)
                    continue
                for text in unescaped(piece.raw, _ESCAPE, _plain):
                    if text.raw == '"':
                        tokens.append(Markup("close" if quoted else "open", '"', '"'))
                        quoted = not quoted
                    elif quoted and text.raw.isspace():
                        tokens.append(Text(text.raw, text.raw))
                    else:
                        tokens.append(text)
        elif part.kind == "start" and (name[1] == "g" or not parts[index + 1].raw):
            following = ends[index] + 1
            raw = "".join(each.raw for each in parts[index:following])
            tokens.append(Markup("break" if name[1] == "br" else "atom", raw))
        elif part.kind == "other":
            tokens.append(Markup("break" if "CDATA" in part.raw else "atom", part.raw))
        else:
            tokens.append(Markup("open" if part.kind == "start" else "close", part.raw, name[1]))
        index = following
    return tokens, quoted


def _plain(escape: str) -> str:
    if escape.isspace():
        return SOFT if "\n" in escape else " "
    if escape == "\\u":
        raise UserError(r"\u without four hexadecimal digits")
    if escape[0] != "\\":
        return escape
    return utf_16(escape) if escape[1] == "u" else _CONTROLS.get(escape[1], escape[1])


def _escape_data(character: str) -> str:
    return f"\\{character}" if character in "\\'\"" else character


def _escape(character: str) -> str:
    return xml_escape(_escape_data(character))


def _begin(source: str, written: str) -> str:
    """A string that begins with one of these would be a reference to a resource."""
    return f"\\{written}" if written.startswith(("@", "?")) else written

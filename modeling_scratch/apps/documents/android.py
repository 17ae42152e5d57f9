"""Android's string resources (strings.xml): strings, arrays of strings, plurals."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from ...errors import UserError
from ...model.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .catalogs import JAVA_LINE_END, SOFT, Entry, error_at, read_entries, read_message, unescaped, utf_16
from .document import Document
from .html import unescape
from .xml_tree import CDATA, XmlNode, escape_xml, read_xml

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
    entries = []
    for _, element in _strings(text):
        is_data, quoted = False, False
        for mark, run in groupby(element.parts(_is_whole), lambda part: _mark(text, *part)):
            if mark:
                is_data = mark == CDATA
                continue
            parts = list(run)
            start, end = parts[0][1], parts[-1][2]
            try:
                tokens, quoted = _tokens(text, parts, quoted)
            except UserError as error:
                raise error_at(text, start, str(error)) from None
            tokens = _within_quotes(tokens)
            escape = _escape_data if is_data else _escape
            region = read_message(tokens, kept, escape, placeholders=JAVA_LINE_END, begin=_begin)
            entries.append(Entry(start, end, region=region))
    return read_entries(text, entries, kept)


def android_texts(text: str) -> Iterator[tuple[str, str]]:
    """The strings that `read_android` reads, by name and number or quantity, without tags and escapes."""
    for name, element in _strings(text):
        parts, quoted = [], False
        for mark, run in groupby(element.parts(_is_whole), lambda part: _mark(text, *part)):
            if mark:
                continue
            tokens, quoted = _tokens(text, run, quoted)
            parts += [token.plain if isinstance(token, Text) else _plain_atom(token) for token in tokens]
        yield name, "".join(parts)


def _plain_atom(token: Markup) -> str:
    """What markup is in plain text: placeholders in <xliff:g> stay."""
    return " " if token.kind == "break" else unescape(re.sub("<[^<>]*>", "", token.raw)).strip('"')


def _strings(text: str) -> Iterator[tuple[str, XmlNode]]:
    """The strings, with the name of each and, of an item, its number or quantity: name, name[0], name[one]."""
    root = read_xml(text).elements[0]
    if root.local_name != "resources":
        raise UserError(f"not Android's <resources>, but <{root.local_name}>")
    for resource in root.elements:
        name, items = resource.local_name, [child for child in resource.elements if child.local_name == "item"]
        is_string = name == "string" or (name == "item" and resource.attributes.get("type") == "string")
        found = [resource] if is_string else items if name in ("string-array", "plurals") else []
        for number, string in enumerate(found):
            is_fixed = "false" in (string.attributes.get("translatable"), resource.attributes.get("translatable"))
            if not is_fixed and not _RESOURCE.fullmatch(text[string.first : string.last]):
                place = "" if is_string else f"[{string.attributes.get('quantity', number)}]"
                yield f"{resource.attributes.get('name', '')}{place}", string


def _is_whole(element: XmlNode) -> bool:
    """Whether an element is one token."""
    return element.local_name == "g" or element.last == element.end


def _mark(text: str, node: XmlNode, start: int, end: int) -> str | None:
    """The mark of CDATA, in which text is escaped in another way than elsewhere; None: something else."""
    return text[start:end] if node.name == "!" and text[start:end] in (CDATA, "]]>") else None


def _tokens(text: str, parts: Iterable[tuple[XmlNode, int, int]], quoted: bool) -> tuple[list[Token], bool]:
    """
    The tokens of parts of a string, and whether quotation marks are open after them.

    Args:
        quoted: whether they are open before, so that white space is not collapsed.
    """
    tokens: list[Token] = []
    for node, start, end in parts:
        raw, name = text[start:end], node.local_name
        if name == "!":
            tokens.append(Markup("atom", raw))
        elif name and _is_whole(node):
            tokens.append(Markup("break" if name == "br" else "atom", raw))
        elif name:
            tokens.append(Markup("open" if start == node.start else "close", raw, name))
        elif not node.is_verbatim:
            tokens.append(Text(raw, node.plain))
        else:
            for piece in unescaped(raw, _ESCAPE, _plain):
                if piece.raw == '"':
                    tokens.append(Markup("close" if quoted else "open", '"', '"'))
                    quoted = not quoted
                elif quoted and piece.raw.isspace():
                    tokens.append(Text(piece.raw, piece.raw))
                else:
                    tokens.append(piece)
    return tokens, quoted


def _within_quotes(tokens: list[Token]) -> list[Token]:
    """Of a string that is in quotation marks as a whole, these and the white space beside them are not its text."""
    tokens = [token for token in tokens if token.raw]
    quotes = [index for index, token in enumerate(tokens) if token.kind != "text" and token.raw == '"']
    if len(tokens) < 3 or quotes != [0, len(tokens) - 1]:
        return tokens
    first, last = 1, len(tokens) - 1
    while first < last and tokens[first].raw.isspace():
        first += 1
    while last > first and tokens[last - 1].raw.isspace():
        last -= 1
    before, after = ("".join(token.raw for token in part) for part in (tokens[:first], tokens[last:]))
    return [Markup("break", before), *tokens[first:last], Markup("break", after)]


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
    return "".join(map(escape_xml, _escape_data(character)))


def _begin(source: str, written: str) -> str:
    """A string that begins with one of these would be a reference to a resource."""
    return f"\\{written}" if written.startswith(("@", "?")) else written

"""XML as a tree of nodes that know where they are written. Entities and other files are not read."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn
from xml.parsers.expat import ErrorString, ExpatError, ParserCreate

from ...errors import UserError

CDATA = "<![CDATA["
_MOST_NODES = 1_000_000
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_xml(text: str, written: dict[str, str]) -> str:
    """Escape text, leave out what XML cannot contain, and write characters as entities that were so in the source."""
    escapes = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | written
    return "".join(escapes.get(character, character) for character in _NOT_XML.sub("", text))


def escape_xml(character: str) -> str:
    """A character of text as catalogs write it: they leave ">" as it is."""
    return write_xml(character, {">": ">"})


@dataclass(slots=True)
class XmlNode:
    """
    An element, text (named ""), or other markup, such as a comment or a mark of CDATA (named "!"). The node named "/"
    is around everything.

    Args:
        name: as it is written, or as `read_xml` is told to name elements.
        start, end: where it is in the document.
        first, last: of an element: where its content starts and ends. Without an end tag, `last` is `end`.
        plain: of text: what it stands for. A reference is a node of its own, and so is a line, and the end of one.
    """

    name: str
    start: int
    plain: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    children: list["XmlNode"] = field(default_factory=list)
    first: int = 0
    last: int = 0
    end: int = 0

    @property
    def local_name(self) -> str:
        """The name without its prefix."""
        return self.name.rpartition(":")[2]

    @property
    def is_verbatim(self) -> bool:
        """Whether it is text and no reference."""
        return not self.name and len(self.plain) == self.end - self.start

    @property
    def elements(self) -> list["XmlNode"]:
        """The elements directly within it."""
        return [child for child in self.children if child.name not in ("", "!")]

    def find(self, name: str) -> Iterator["XmlNode"]:
        """All elements of this name within it."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.find(name)

    def parts(self, is_whole: Callable[["XmlNode"], bool]) -> Iterator[tuple["XmlNode", int, int]]:
        """
        Everything within the node, in order: a node, and where it starts and ends. An element that is not whole comes
        twice, for its start tag and its end tag. Lines of text that touch come once: the first, with the place of all.
        """
        left = [(child, False) for child in reversed(self.children)]
        while left:
            node, is_open = left.pop()
            if is_open:
                yield node, node.last, node.end
            elif node.name in ("", "!") or is_whole(node):
                end = node.end
                while node.is_verbatim and left and left[-1][0].is_verbatim:
                    end = left.pop()[0].end
                yield node, node.start, end
            else:
                yield node, node.start, node.first
                left.append((node, True))
                left += ((child, False) for child in reversed(node.children))


def read_xml(text: str, named: Callable[[str], str] | None = None, most_depth: int | None = None) -> XmlNode:
    """
    Read a document. The result is around everything.

    Args:
        named: returns the name of an element or attribute, given its namespace, a space and its local name, or only its
            local name; None: names are as they are written.
        most_depth: of nested elements; None: any.

    Raises:
        UserError: it is not well-formed, is too large or nested too deeply, declares entities, or declares an encoding
            other than UTF-8 and UTF-16.
    """
    return _Reader(text, named, most_depth).root


class _Reader:
    """Makes nodes of what the parser finds. Only the next event tells where a node, or a start tag, has ended."""

    def __init__(self, text: str, named: Callable[[str], str] | None, most_depth: int | None):
        self._content = text.encode("utf-8", "surrogatepass")
        self._named, self._most_depth = cache(named or str), most_depth
        self.root = XmlNode("/", 0, last=len(text), end=len(text))
        self._open, self._count = [self.root], 0
        self._last = self.root, "first"  # the node and the attribute that the next event's position belongs to
        self._byte, self._position = 0, 0  # one position, counted in bytes and in characters
        self._parser = parser = ParserCreate("utf-8", " " if named else None)
        parser.XmlDeclHandler, parser.EntityDeclHandler = self._check_encoding, self._refuse_entity
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = lambda text: self._add("", text)
        for kind in ("Comment", "ProcessingInstruction", "StartCdataSection", "EndCdataSection", "SkippedEntity"):
            setattr(parser, f"{kind}Handler", self._add_other)
        try:
            parser.Parse(self._content, True)
        except ExpatError as error:
            raise UserError(f"line {error.lineno:,}: not valid XML ({ErrorString(error.code)})") from None
        self._tell(len(text))
        del self._parser  # which refers to this object, so that neither would be freed soon

    def _refuse(self, problem: str) -> NoReturn:
        raise UserError(f"line {self._parser.CurrentLineNumber:,}: {problem}")

    def _check_encoding(self, _: str, encoding: str | None, __: int) -> None:
        if encoding is not None and encoding.lower() not in ("utf-8", "utf-16"):
            self._refuse(f"declares the encoding {encoding}; convert it to UTF-8, also in this line")

    def _refuse_entity(self, *_: Any) -> None:
        self._refuse("declarations of entities are not read; remove them")

    def _now(self) -> int:
        """The position of the current event."""
        byte = self._parser.CurrentByteIndex
        self._position += len(self._content[self._byte : byte].decode())
        self._byte = byte
        return self._position

    def _tell(self, position: int) -> None:
        setattr(*self._last, position)

    def _add(self, name: str, plain: str = "", told: str = "end") -> XmlNode:
        node = XmlNode(name, self._now(), plain)
        self._tell(node.start)
        self._last = node, told
        self._open[-1].children.append(node)
        self._count += 1
        if self._count > _MOST_NODES:
            self._refuse(f"too large: it has more than {_MOST_NODES:,} elements and pieces of text")
        return node

    def _add_other(self, *_: Any) -> None:
        self._add("!")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        node = self._add(self._named(name), told="first")
        node.attributes = {self._named(key): value for key, value in attributes.items()}
        self._open.append(node)
        if self._most_depth is not None and len(self._open) > self._most_depth:
            self._refuse(f"elements are nested more than {self._most_depth} deep")

    def _end(self, _: str) -> None:
        node = self._open.pop()
        node.last = self._now()
        self._tell(node.last)
        self._last = node, "end"

"""
XML of any size, element by element. Entities are not declared and nothing outside the file is read, so that no file can
grow; only one unit is in memory.
"""

from collections.abc import Collection, Iterator
from html import unescape
from typing import NoReturn
from xml.parsers.expat import ErrorString, ExpatError, ParserCreate

from ...errors import UserError
from .corpus_files import CorpusFile

_CHUNK = 2**16
_MOST_ELEMENTS = 100_000  # within a unit
_MOST_CHARACTERS = 2**24  # within a unit, or a tag
_MOST_DEPTH = 200


class XmlElement:
    """
    An element, its attributes and what is in it, all without prefixes of names.

    Args:
        line: where it begins.
    """

    __slots__ = ("attributes", "children", "line", "name")

    def __init__(self, name: str, attributes: dict[str, str], line: int):
        self.name, self.attributes, self.line = name, attributes, line
        self.children: list[XmlElement | str] = []

    def find(self, *names: str) -> Iterator["XmlElement"]:
        """The elements of these names directly within it."""
        return (child for child in self.children if isinstance(child, XmlElement) and child.name in names)

    def get(self, name: str) -> str:
        """An attribute, or nothing."""
        return self.attributes.get(name, "")

    @property
    def text(self) -> str:
        """All text within it."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


def character_of(code: str) -> str:
    """The character of a hexadecimal number, for what XML cannot contain; nothing: it is no such number."""
    try:
        return chr(int(code, 16))
    except (ValueError, OverflowError):
        return ""


def stream_elements(file: CorpusFile, names: Collection[str]) -> Iterator[tuple[XmlElement, list[XmlElement]]]:
    """
    The elements of these names, in order, and what each is in, from the root on. Those within another one are a part of
    it; of all others, only attributes are kept.

    Raises:
        UserError: the file is not well-formed or declares entities, or an element is too large.
    """
    stream = _Stream(file.name, names)
    with file.opened() as content:
        while chunk := content.read(_CHUNK):
            yield from stream.feed(chunk)
        yield from stream.feed(b"", is_last=True)


def root_of(file: CorpusFile) -> str:
    """The name of the root, in small letters; empty: it is not XML."""
    found: list[str] = []
    parser = ParserCreate()
    parser.StartElementHandler = lambda name, _: found.append(name.rpartition(":")[2].lower())
    try:
        with file.opened() as content:
            while not found and (chunk := content.read(4096)):
                parser.Parse(chunk)
    except ExpatError:
        pass
    return found[0] if found else ""


class _Stream:
    def __init__(self, name: str, names: Collection[str]):
        self._name, self._names = name, names
        self._open: list[XmlElement] = []
        self._unit_depth = 0  # of the open unit; 0: there is none
        self._done: list[tuple[XmlElement, list[XmlElement]]] = []
        self._fed = self._elements = self._characters = 0
        self._parser = parser = ParserCreate()
        parser.buffer_text = True
        parser.EntityDeclHandler = lambda *_: self._refuse("declarations of entities are not read; remove them")
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._add
        # Expat calls this for entities that the file's DTD may declare, which is not read.
        parser.SkippedEntityHandler = lambda name, _: self._add(unescape(f"&{name};"))

    def feed(self, chunk: bytes, is_last: bool = False) -> list[tuple[XmlElement, list[XmlElement]]]:
        self._done = []
        self._fed += len(chunk)
        try:
            self._parser.Parse(chunk, is_last)
        except ExpatError as error:
            problem = f"not valid XML ({ErrorString(error.code)})"
            problem += "; is the file cut off?" if is_last else ""
            raise UserError(f"{self._name}, line {error.lineno:,}: {problem}") from None
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            # Python's own error about an encoding, such as Shift JIS
            raise UserError(f"{self._name}: {error}; convert it to UTF-8, also in its first line") from None
        except LookupError as error:
            raise UserError(f"{self._name}: {error}; convert it to UTF-8, also in its first line") from None
        if self._fed - self._parser.CurrentByteIndex > _MOST_CHARACTERS and not is_last:
            self._refuse("a tag without an end")
        return self._done

    def _refuse(self, problem: str) -> NoReturn:
        raise UserError(f"{self._name}, line {self._parser.CurrentLineNumber:,}: {problem}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        if any(":" in key for key in attributes):
            in_order = sorted(attributes, key=lambda key: ":" not in key)  # a name without a prefix wins
            attributes = {key.rpartition(":")[2]: attributes[key] for key in in_order}
        element = XmlElement(name, attributes, self._parser.CurrentLineNumber)
        if self._unit_depth:
            self._open[-1].children.append(element)
            self._elements += 1
            if self._elements > _MOST_ELEMENTS:
                self._refuse(f"more than {_MOST_ELEMENTS:,} elements in one unit")
        elif name in self._names:
            self._unit_depth, self._elements, self._characters = len(self._open) + 1, 0, 0
        self._open.append(element)
        if len(self._open) > _MOST_DEPTH:
            self._refuse(f"elements are nested more than {_MOST_DEPTH} deep")

    def _add(self, text: str) -> None:
        if self._unit_depth:
            self._open[-1].children.append(text)
            self._characters += len(text)
            if self._characters > _MOST_CHARACTERS:
                self._refuse(f"more than {_MOST_CHARACTERS:,} characters in one unit")

    def _end(self, _: str) -> None:
        element = self._open.pop()
        if self._unit_depth > len(self._open):
            self._unit_depth = 0
            self._done.append((element, list(self._open)))

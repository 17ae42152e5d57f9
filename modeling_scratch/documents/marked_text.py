"""Text with markup between its words: into paragraphs of plain text, and their translations back between the markup."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

# What is no language: addresses, references to footnotes, boxes of task lists.
_PROTECTED = re.compile(
    r"""(?:(?:https?|ftp)://|www\.)[^\s<>"]*[\w/]|[\w.+-]+@[\w-]+\.[\w.-]*\w|\[\^[^\]\s]+\]:?|\[[ xX]\](?=\s)"""
)
_CLOSING = ".,;:!?)]}»”…"
_OPENING = ("(", "[", "{", "«", "„")


@dataclass(frozen=True)
class Text:
    """Text as it is written, and as it is read, which differ for entities and escapes."""

    raw: str
    plain: str


@dataclass(frozen=True)
class Slot:
    """A part of markup that people read, such as the description of a picture."""

    start: int  # in the markup
    end: int
    plain: str
    write: Callable[[str], str]


@dataclass(frozen=True)
class Markup:
    """
    Something that is not text.

    Args:
        kind: "open" and "close" are around words; an "atom" is between words; a "break" ends a paragraph; a "fold" may
            be between any two words, where there is a space, as the end of a line.
        raw: as it is written.
        name: what an opening and its closing have in common.
        is_optional: left out if no word is within, which some markup cannot be without.
        ends_elements: of a fold: what is open ends before it and begins again behind it.
        is_before_letter: of a fold: other characters may not follow it, since they could be markup there.
    """

    kind: Literal["open", "close", "atom", "break", "fold"]
    raw: str
    name: str = ""
    slots: tuple[Slot, ...] = ()
    is_optional: bool = False
    ends_elements: bool = False
    is_before_letter: bool = False


Token = Text | Markup


@dataclass
class Atom:
    """Markup between words."""

    markup: list[Markup]
    at: int  # in the plain text
    space_before: bool
    space_after: bool = False


@dataclass
class Element:
    """Markup around words: from the first character under it to after the last."""

    open: Markup
    close: Markup | None = None
    start: int = -1
    end: int = -1
    nodes: list["Atom | Element"] = field(default_factory=list)


@dataclass
class Paragraph:
    """The plain text of some tokens, with single spaces, and where the markup was in it."""

    text: str = ""
    nodes: list[Atom | Element] = field(default_factory=list)
    folds: list[tuple[int, Markup]] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)  # the entities that stood for characters


def units(tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """What is between breaks, and each break for itself. In a unit, what opens closes; other tags are breaks."""
    tokens = list(tokens)
    while loose := _loose(tokens):
        for place in loose:
            tokens[place] = replace(tokens[place], kind="break")
    unit: list[Token] = []
    for token in tokens:
        if isinstance(token, Markup) and token.kind == "break":
            yield unit
            yield [token]
            unit = []
        else:
            unit.append(token)
    yield unit


def _loose(tokens: Sequence[Token]) -> list[int]:
    """Tags without a partner before the next break."""
    loose, opened = [], []
    for place, token in enumerate(tokens):
        if isinstance(token, Text):
            continue
        if token.kind == "open":
            opened.append(place)
        elif token.kind == "break":
            loose += opened
            opened = []
        elif token.kind == "close":
            if not any(tokens[each].name == token.name for each in opened):
                loose.append(place)
                continue
            while tokens[opened[-1]].name != token.name:
                loose.append(opened.pop())
            opened.pop()
    return loose + opened


def split_white_space(tokens: Sequence[Token]) -> tuple[list[Token], list[Token], list[Token]]:
    """The white space that a unit begins with, what is between, and the white space that it ends with."""
    tokens, before, after = list(tokens), [], []
    while tokens and _is_white(tokens[0]):
        before.append(tokens.pop(0))
    while tokens and _is_white(tokens[-1]):
        after.insert(0, tokens.pop())
    if tokens and isinstance(first := tokens[0], Text) and first.plain[0].isspace():
        rest = first.plain.lstrip()
        white = first.plain[: -len(rest)]
        before.append(Text(white, white))
        tokens[0] = Text(rest, rest)
    if tokens and isinstance(last := tokens[-1], Text) and last.plain[-1].isspace():
        rest = last.plain.rstrip()
        white = last.plain[len(rest) :]
        after.insert(0, Text(white, white))
        tokens[-1] = Text(rest, rest)
    return before, tokens, after


def _is_white(token: Token) -> bool:
    return not token.plain.strip() if isinstance(token, Text) else token.kind == "fold"


def paragraph_of(tokens: Iterable[Token]) -> Paragraph:
    """The paragraph that the tokens of a unit make."""
    builder = _Builder()
    for token in tokens:
        if isinstance(token, Markup):
            builder.add_markup(token)
            continue
        if token.raw != token.plain:
            if token.raw.startswith("&"):
                builder.paragraph.written[token.plain] = token.raw
            builder.add_text(token.plain)
            continue
        end = 0
        for match in _PROTECTED.finditer(token.plain):
            builder.add_text(token.plain[end : match.start()])
            builder.add_markup(Markup("atom", match.group()))
            end = match.end()
        builder.add_text(token.plain[end:])
    return builder.paragraph


class _Builder:
    """Collects the text of a paragraph, and where its markup is."""

    def __init__(self):
        self.paragraph = Paragraph()
        self._open: list[Element] = []
        self._has_space = False  # since the last character or atom
        self._atom: Atom | None = None  # the last, if no character has followed
        self._had_space = False  # before the atoms since the last character

    def add_text(self, text: str) -> None:
        for character in text:
            if character.isspace():
                self._has_space = True
            else:
                self._add(character)

    def _add(self, character: str) -> None:
        paragraph, has_space = self.paragraph, self._has_space or self._had_space
        if self._atom is not None:
            self._atom.space_after = self._has_space
            # Without the atom, there would be a space before a full stop or behind a bracket.
            if not self._has_space and character in _CLOSING:
                has_space = False
            if not self._had_space and paragraph.text.endswith(_OPENING):
                has_space = False
        if has_space and paragraph.text:
            paragraph.text += " "
        for element in self._open:
            element.start = len(paragraph.text) if element.start < 0 else element.start
        paragraph.text += character
        self._has_space, self._atom, self._had_space = False, None, False

    def add_markup(self, markup: Markup) -> None:
        if markup.kind == "open":
            element = Element(markup)
            self._nodes().append(element)
            self._open.append(element)
        elif markup.kind == "close":
            self._close(markup)
        elif markup.kind == "fold":
            self.paragraph.folds.append((len(self.paragraph.text), markup))
            self._has_space = True
        else:
            self._add_atom([markup])

    def _nodes(self) -> list[Atom | Element]:
        return self._open[-1].nodes if self._open else self.paragraph.nodes

    def _add_atom(self, markup: list[Markup]) -> None:
        if self._atom is not None:
            self._atom.space_after = self._has_space
        self._atom = Atom(markup, len(self.paragraph.text), self._has_space)
        self._nodes().append(self._atom)
        self._had_space, self._has_space = self._had_space or self._has_space, False

    def _close(self, markup: Markup) -> None:
        element = self._open.pop()
        element.close, element.end = markup, len(self.paragraph.text)
        if element.start >= 0:
            return
        # Around no character: an atom, with the atoms in it.
        self._nodes().pop()
        inner = [node for node in element.nodes if isinstance(node, Atom)]
        whole = [element.open, *(each for node in inner for each in node.markup), markup]
        if inner:
            self._atom = Atom(whole, inner[0].at, inner[0].space_before)
            self._nodes().append(self._atom)
        else:
            self._add_atom(whole)

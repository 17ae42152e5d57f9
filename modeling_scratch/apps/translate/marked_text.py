"""Turns text with inline markup into paragraphs of plain text, with the positions of the markup."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import ClassVar, Literal

from ...model.kept_words import ADDRESSES, RESERVED, KeptWords
from ...model.text import is_translatable

_MAX_DEPTH = 50  # of nested elements
_CLOSING = ".,;:!?)]}»”…"
_OPENING = "([{«„"
BEFORE_WORD = "before a word"  # the name of an atom that directly precedes a word
KEPT_WORD = "kept word"  # the name of an atom that is a kept word or a placeholder
_FIXED_SPACE = re.compile(r"[^\S \t\n\r\f]")  # such as no-break spaces; browsers show each


def has_language(text: str) -> bool:
    """Whether a text has letters or digits outside addresses, references to footnotes and checkboxes."""
    done, spans = 0, ADDRESSES.spans(text)
    for start, end in [*spans, (len(text), len(text))]:
        if is_translatable(text[done:start]):
            return True
        done = end
    return False


@dataclass(frozen=True)
class Text:
    """Text as it is written and as it is read: `&amp;` and `&`. The two differ in entities and escapes."""

    raw: str
    plain: str
    kind: ClassVar = "text"
    name: ClassVar = ""
    slots: ClassVar = ()


@dataclass(frozen=True)
class Slot:
    """Text within markup that is translated, such as the description of an image."""

    start: int  # position in the markup
    end: int
    plain: str
    write: Callable[[str], str]


@dataclass(frozen=True)
class Markup:
    """
    Anything other than text.

    Args:
        kind: "open" and "close" enclose words; an "atom" stands between words; a "break" ends a paragraph; a "fold",
            such as a line break, can replace the space between any two words; what is "dropped" is in no translation.
        raw: the markup as it is written.
        name: the same for "open" and the matching "close"; BEFORE_WORD or KEPT_WORD for some atoms.
        is_optional: leave it out rather than enclose no words, since some markup must not be empty.
        ends_elements: for a fold: close open elements before it and reopen them after it.
        stays: for a fold: write it even if the translation has no space that it can replace.
        is_before_letter: for a fold: put it only before a letter, since other characters could become markup.
    """

    kind: Literal["open", "close", "atom", "break", "fold", "dropped"]
    raw: str
    name: str = ""
    slots: tuple[Slot, ...] = ()
    is_optional: bool = False
    ends_elements: bool = False
    is_before_letter: bool = False
    stays: bool = False


Token = Text | Markup


@dataclass
class Atom:
    """Markup between words. White space beside it is as it is written, but one space if browsers would show one."""

    markup: list[Markup]
    at: int  # position in the plain text
    space_before: str
    space_after: str = ""

    @property
    def is_before_word(self) -> bool:
        """Whether it directly precedes the word that it is in or before."""
        return self.markup[0].name == BEFORE_WORD


@dataclass
class Element:
    """Markup around words. Positions are those in the plain text."""

    open: Markup
    close: Markup | None = None
    start: int = -1
    end: int = -1  # the position after the last character
    nodes: list["Atom | Element"] = field(default_factory=list)


@dataclass
class Paragraph:
    """The plain text of a unit, in which all white space is single spaces, and the positions of its markup."""

    text: str = ""
    nodes: list[Atom | Element] = field(default_factory=list)
    folds: list[tuple[int, Markup]] = field(default_factory=list)
    spaces: list[tuple[int, str]] = field(default_factory=list)  # white space that browsers show as more than one space
    written: dict[str, str] = field(default_factory=dict)  # characters that were entities in the source
    copied: list[tuple[str, Markup]] = field(default_factory=list)  # reserved characters in the text, and what they are


def units(tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """
    Split tokens at breaks; each break becomes a unit by itself. Tags that have no partner within their unit, and tags
    of elements that are nested too deeply, become breaks.
    """
    tokens = list(tokens)
    while unpaired := _unpaired(tokens):
        for index in unpaired:
            tokens[index] = replace(tokens[index], kind="break")
    unit: list[Token] = []
    for token in tokens:
        if token.kind == "break":
            yield unit
            yield [token]
            unit = []
        else:
            unit.append(token)
    yield unit


def _unpaired(tokens: Sequence[Token]) -> list[int]:
    """The indices of tags that have no partner before the next break, or are nested too deeply."""
    unpaired, opened = [], []
    for index, token in enumerate(tokens):
        if token.kind == "break" or (token.kind == "open" and len(opened) == _MAX_DEPTH):
            unpaired += [*opened, index] if token.kind == "open" else opened
            opened = []
        elif token.kind == "open":
            opened.append(index)
        elif token.kind == "close":
            if all(tokens[start].name != token.name for start in opened):
                unpaired.append(index)
                continue
            while tokens[last := opened.pop()].name != token.name:
                unpaired.append(last)
    return unpaired + opened


def split_white_space(tokens: Sequence[Token]) -> tuple[list[Token], list[Token], list[Token]]:
    """Split a unit into leading white space, the rest, and trailing white space."""
    tokens = [part for token in tokens for part in _words(token)]
    shown = [index for index, token in enumerate(tokens) if not _is_white(token)]
    first, last = (shown[0], shown[-1] + 1) if shown else (len(tokens), len(tokens))
    return tokens[:first], tokens[first:last], tokens[last:]


def _words(token: Token) -> list[Token]:
    """Split text, unless it is an entity, into words and the white space between them."""
    if token.kind != "text" or len(token.raw) != len(token.plain):
        return [token]
    return [Text(token.raw[slice(*match.span())], match.group()) for match in re.finditer(r"\s+|\S+", token.plain)]


def _is_white(token: Token) -> bool:
    return token.kind == "fold" or (token.kind == "text" and not token.plain.strip())


def paragraph_of(tokens: Iterable[Token], kept: KeptWords | None = ADDRESSES) -> Paragraph:
    """
    Make a paragraph of a unit's tokens, in which kept words are atoms or, if models read them, reserved characters.
    `kept` is None if they already are atoms.
    """
    builder = _Builder()
    if kept is not None:
        tokens = _with_kept_words(tokens, kept, builder.paragraph.written)
        tokens = tokens if kept.are_read else joined_kept_words(tokens)
    for token in tokens:
        if token.kind == "text":
            builder.add_text(token.plain)
        elif kept is not None and kept.are_read and _is_kept(token):
            builder.add_copied(token)
        else:
            builder.add_markup(token)
    return builder.finished()


def _with_kept_words(tokens: Iterable[Token], kept: KeptWords, written: dict[str, str]) -> Iterator[Token]:
    """Make atoms of kept words in adjacent texts: an address that contains entities or escapes consists of several."""
    for is_text, run in groupby(tokens, lambda token: token.kind == "text"):
        if not is_text:
            yield from run
            continue
        texts = list(run)
        raws: list[str] = []  # as each character of the plain text is written
        for text in texts:
            is_same = text.raw == text.plain
            raws += text.plain if is_same else [text.raw, *[""] * (len(text.plain) - 1)]
            is_common = text.plain.isascii() and (text.plain.isalnum() or text.plain.isspace())
            if not is_same and text.raw.startswith("&") and not is_common:
                # Without a semicolon, a letter or digit after it would become part of it.
                written[text.plain] = text.raw.removesuffix(";") + ";"
        plain = "".join(text.plain for text in texts)
        yield from cut_kept_words(plain, raws, kept.spans(plain))


def cut_kept_words(plain: str, raws: Sequence[str], spans: Iterable[tuple[int, int]]) -> Iterator[Token]:
    """
    Cut a text into kept words, which are atoms, and other text.

    Args:
        raws: how each character is written.
        spans: where the kept words are.
    """
    done = 0
    for start, end in spans:
        yield Text("".join(raws[done:start]), plain[done:start])
        yield Markup("atom", "".join(raws[start:end]), KEPT_WORD)
        done = end
    yield Text("".join(raws[done:]), plain[done:])


def joined_kept_words(tokens: Iterable[Token]) -> list[Token]:
    """
    Tokens in which kept words with only punctuation between them, as in "{a}/{b}", are one. A comma after the first, as
    in "{name}, come!", or before the last, as in "Come, {name}!", is part of it: without the word, there would be no
    comma.
    """
    runs: list[list[Token]] = []  # of tokens that are one
    for token in tokens:
        if _is_kept(token):
            between = runs.pop() if len(runs) > 1 and runs[-1][0].kind == "text" else []
            if (
                runs
                and _is_kept(runs[-1][0])
                and not any(_divides(letter) for text in between for letter in text.plain)
            ):
                runs[-1] += [*between, token]
                continue
            runs += [between] * bool(between)
        if token.raw:
            runs.append([token])
    joined = [replace(run[0], raw="".join(part.raw for part in run)) if len(run) > 1 else run[0] for run in runs]
    _take_commas(joined)
    return joined


def _take_commas(tokens: list[Token]) -> None:
    """Make a comma that only the first or the last kept word has part of it."""
    found = [index for index, token in enumerate(tokens) if _is_kept(token)]
    if not found:
        return
    first, last = found[0], found[-1]
    after = tokens[first + 1] if first + 1 < len(tokens) else tokens[first]
    if all(map(_is_white, tokens[:first])) and after.kind == "text" and after.raw.startswith((",", ";", ":")):
        tokens[first] = replace(tokens[first], raw=tokens[first].raw + after.raw[0])
        tokens[first + 1] = Text(after.raw[1:], after.plain[1:])
    before = tokens[max(last - 1, 0)]
    is_end = not any(is_translatable(token.plain) for token in tokens[last + 1 :] if token.kind == "text")
    if is_end and before.kind == "text" and before.plain.rstrip().endswith(","):
        space = len(before.plain.rstrip()) - 1 - len(before.plain)  # and the comma, from the end
        if before.raw[space:] == before.plain[space:]:
            tokens[last - 1] = Text(before.raw[:space], before.plain[:space])
            tokens[last] = replace(tokens[last], raw=before.raw[space:] + tokens[last].raw)


def _is_kept(token: Token) -> bool:
    return token.kind == "atom" and token.name == KEPT_WORD


def _divides(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LNZC" or category in ("Ps", "Pe", "Pi", "Pf") or character == '"'


class _Builder:
    """Collects a paragraph's text and the positions of its markup."""

    def __init__(self):
        self.paragraph = Paragraph()
        self._parts: list[str] = []  # words and spaces
        self._length = 0
        self._open: list[Element] = []
        self._empty: list[Element] = []  # open elements without a character yet
        self._space = ""  # white space after the last character or atom
        self._atom: Atom | None = None  # the last atom, if no character has followed it
        self._had_space = False  # before one of the atoms since the last character

    def finished(self) -> Paragraph:
        """The paragraph, when everything has been added."""
        self.paragraph.text = "".join(self._parts)
        return self.paragraph

    def add_text(self, text: str) -> None:
        for part in re.findall(r"\s+|\S+", text):
            if _FIXED_SPACE.search(part):
                self._space = "".join(self.paragraph.written.get(character, character) for character in part)
            elif part.isspace():
                self._space = self._space or " "
            else:
                self._add(part)

    def _add(self, word: str) -> None:
        has_space = bool(self._space) or self._had_space
        if self._atom is not None:
            self._atom.space_after = self._space
            # In the text without the atom, there is no space before a full stop or after a bracket.
            if not self._space and word[0] in _CLOSING and not self._empty:
                has_space = False
            if not self._had_space and self._parts and self._parts[-1][-1] in _OPENING:
                has_space = False
        if has_space and self._length:
            if self._space.strip(" "):
                self.paragraph.spaces.append((self._length, self._space))
            self._parts.append(" ")
            self._length += 1
        for element in self._empty:
            element.start = self._length
        self._parts.append(word)
        self._length += len(word)
        self._empty, self._space, self._atom, self._had_space = [], "", None, False

    def add_copied(self, markup: Markup) -> None:
        character = RESERVED[len(self.paragraph.copied) % len(RESERVED)]
        self.paragraph.copied.append((character, markup))
        self._add(character)

    def add_markup(self, markup: Markup) -> None:
        if markup.kind == "open":
            element = Element(markup)
            self._nodes().append(element)
            self._open.append(element)
            self._empty.append(element)
        elif markup.kind == "close":
            self._close(markup)
        elif markup.kind == "fold":
            self.paragraph.folds.append((self._length, markup))
            self._space = self._space or " "
        elif markup.kind != "dropped":
            self._add_atom([markup])

    def _nodes(self) -> list[Atom | Element]:
        return self._open[-1].nodes if self._open else self.paragraph.nodes

    def _add_atom(self, markup: list[Markup]) -> None:
        if self._atom is not None:
            self._atom.space_after = self._space
            nodes, names = self._nodes(), (self._atom.markup[-1].name, markup[0].name)
            if not self._space and nodes and nodes[-1] is self._atom and BEFORE_WORD not in names:
                self._atom.markup += markup  # %d%%
                return
        self._atom = Atom(markup, self._length, self._space)
        self._nodes().append(self._atom)
        self._had_space, self._space = self._had_space or bool(self._space), ""

    def _close(self, markup: Markup) -> None:
        element = self._open.pop()
        element.close, element.end = markup, self._length
        if element.start >= 0:
            return
        # An element without characters, and the atoms in it, become one atom.
        self._empty.pop()
        self._nodes().pop()
        inner = [node for node in element.nodes if isinstance(node, Atom)]
        whole = [element.open]
        for index, node in enumerate(inner):
            whole += [Markup("fold", node.space_before)] * (index > 0) + node.markup
        whole.append(markup)
        if inner:
            self._atom = Atom(whole, inner[0].at, inner[0].space_before)
            self._nodes().append(self._atom)
        else:
            self._add_atom(whole)

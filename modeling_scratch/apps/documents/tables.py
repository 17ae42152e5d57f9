"""Pandoc's tables, whose columns are those of a line of dashes, or a grid: read cell by cell, and laid out again."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from textwrap import dedent

from markdown_it.rules_block import StateBlock

_COLUMNS = re.compile(r" {0,3}--+(?: +--+)+ *")
_RULE = re.compile(r" {0,3}-{3,} *")
_GRID = re.compile(r" {0,3}\+(?:[:=-]{3,}\+)+ *")
_OTHER_BLOCK = re.compile(r" {0,3}(?:>|(?:[-+*]|\d{1,9}[.)]|#{1,6})(?:\s|\Z))")  # a quote, list item or heading
_CELLS_PER_CHARACTER = 2  # at most, since every short line has as many cells as there are columns
# Whether the text that shows the alignment of a column touches the left and the right end of the dashes.
_RIGHT, _CENTER, _DEFAULT = (False, True), (False, False), (True, True)


@dataclass
class Table:
    """
    A table.

    Args:
        rows: of cells, each a text in Markdown.
        lines: as it is written.
        layout: given other cells, returns the lines of the table.
    """

    rows: list[list[str]]
    lines: list[str]
    layout: Callable[[list[list[str]]], list[str]]

    def write(self, rows: list[list[str]]) -> list[str]:
        """The lines of the table with these cells."""
        return self.lines if rows == self.rows else self.layout(rows)


class _Lines:
    """The lines of a block and those after it, from the left edge of what contains it."""

    def __init__(self, state: StateBlock, first: int, last: int):
        self._state, self._first, self._count = state, first, last - first

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> str:
        return self._state.src[self.begin(number) : self._state.eMarks[self._first + number]]

    def begin(self, number: int) -> int:
        """Where a line begins: after the indentation of the list that contains it."""
        line = self._first + number
        return self._state.bMarks[line] + min(self._state.tShift[line], self._state.blkIndent)

    def find(self, first: int, is_wanted: Callable[[str], bool]) -> int:
        """The number of the next line of a kind, or how many lines there are."""
        return next((number for number in range(first, self._count) if is_wanted(self[number])), self._count)

    def part(self, first: int, last: int) -> list[str]:
        return [self[number] for number in range(first, last)]


def layout_table(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """A rule of the parser for tokens of the type "layout", whose `meta` has the table."""
    if state.src[state.bMarks[first] : state.bMarks[first] + state.tShift[first]].strip():  # the mark of a list item
        return False
    lines = _Lines(state, first, last)
    table = _read(lines)
    if table is None or silent:
        return table is not None
    token = state.push("layout", "", 0)
    token.map = [first, first + len(table.lines)]
    token.meta = {"table": table, "begin": lines.begin(0)}
    state.line = first + len(table.lines)
    return True


def _read(lines: _Lines) -> Table | None:
    if _GRID.fullmatch(lines[0]):
        return _grid(lines)
    if _COLUMNS.fullmatch(lines[0]):
        return _dashed(lines, 0)
    if _RULE.fullmatch(lines[0]):
        head = lines.find(1, lambda line: not line.strip() or _is_dashes(line))
        is_table = 1 < head < len(lines) and _COLUMNS.fullmatch(lines[head])
    else:
        head, is_table = 1, len(lines) > 2 and _COLUMNS.fullmatch(lines[1]) and not _OTHER_BLOCK.match(lines[0])
    return _dashed(lines, head) if is_table else None


def _is_dashes(line: str) -> bool:
    return (_COLUMNS.fullmatch(line) or _RULE.fullmatch(line)) is not None


def _dashed(lines: _Lines, head: int) -> Table | None:
    """
    A table with columns of dashes: simple, with a row on each line; or with rows of several lines, and empty lines
    between the rows. `head` is the line of dashes under the header; 0: there is no header. One of far more cells than
    characters has no rows, and stays.
    """
    dashes = [match.span() for match in re.finditer("-+", lines[head])]
    is_simple = head == 1  # such a table ends at an empty line, and others at a line of dashes before one
    last = lines.find(head + 1, lambda line: _is_dashes(line) or (is_simple and not line.strip()))
    is_closed = last < len(lines) and _is_dashes(lines[last])
    count = last + is_closed
    if is_closed == is_simple or (count < len(lines) and lines[count].strip()):
        return None
    block = lines.part(0, count)
    if len(dashes) * count > _CELLS_PER_CHARACTER * len("\n".join(block)):
        return Table([], block, lambda _: block)
    body = lines.part(head + 1, last)
    ending = [""] * len(list(takewhile(lambda line: not line.strip(), reversed(body))))
    has_gaps = head > 1 or any(not line.strip() for line in body)
    groups = [lines.part(int(head > 1), head)] * (head > 0) + (_groups(body) if has_gaps else [[line] for line in body])
    cut = [[_parts(line, [start for start, _ in dashes]) for line in group] for group in groups]
    edges = [pair for group in cut for line in group for pair in pairwise(line)]
    if len(groups) <= (head > 0) or any(one[-1:].strip() and other[:1].strip() for one, other in edges):
        return None  # there are no rows, or a word is in two columns
    # In CommonMark, these are paragraphs and a rule; and so they are if words seem to be in columns by chance.
    filled = [line for [line] in cut if "".join(line[1:]).strip()] if is_simple else []
    if is_simple and 2 * sum(any(map(_is_apart, pairwise(line))) for line in filled) < max(len(filled), 1):
        return None
    rows = [["\n".join(map(str.strip, cell)).strip() for cell in zip(*group, strict=True)] for group in cut]
    columns = [
        (end - start, _sides([part[start * (index == 0) :].rstrip() for part in cell], end - start))
        for index, ((start, end), cell) in enumerate(zip(dashes, zip(*cut[0], strict=True), strict=True))
    ]
    indent = " " * dashes[0][0]

    def layout(rows: list[list[str]]) -> list[str]:
        widths, ruled = [], []
        for (least, sides), *cells in zip(columns, *rows, strict=True):
            longest = max(width(line) for cell in cells for line in cell.split("\n"))
            if sides == _DEFAULT and not has_gaps:  # as wide as the text that shows this
                least = max(width(cells[0]), 2)
                longest = max(longest, least)
            else:
                longest = least = max(least, longest + (1 if sides[0] != sides[1] else 2 * (sides == _CENTER)))
            widths.append(longest)
            ruled.append(("-" * least).ljust(longest))
        rule = (indent + " ".join(ruled)).rstrip()
        full = indent + "-" * len(rule.strip())
        kinds = [sides for _, sides in columns]
        written = [
            [(indent + " ".join(map(_placed, line, widths, kinds))).rstrip() for line in _lines(row)] for row in rows
        ]
        between = [""] * has_gaps
        rest = [line for row in written[head > 0 :] for line in (*between, *row)][len(between) :]
        if head > 1:
            return [full, *written[0], rule, *rest, *ending, full]
        return [*written[0], rule, *rest] if head else [rule, *rest, *ending, rule]

    return Table(rows, block, layout)


def _is_apart(cells: tuple[str, str]) -> bool:
    """Whether there is more than one space between two cells of a line, or before them."""
    one, other = cells
    return one[:1].isspace() or len(one) + len(other) - len(one.rstrip() + other.lstrip()) > 1


def _groups(lines: Sequence[str]) -> list[list[str]]:
    """Lines between empty ones."""
    groups: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            groups[-1].append(line)
        elif groups[-1]:
            groups.append([])
    return groups if groups[-1] else groups[:-1]


def _grid(lines: _Lines) -> Table | None:
    """A grid. One in which a cell spans rows or columns has no rows, and stays."""
    block = lines.part(0, lines.find(1, lambda line: line.lstrip()[:1] not in ("+", "|")))
    edges = [match.start() for match in re.finditer(r"\+", block[0])]
    rules = [number for number, line in enumerate(block) if _GRID.fullmatch(line)]
    if len(rules) < 2:
        return None
    block = block[: rules[-1] + 1]
    rows, stays = [], Table([], block, lambda _: block)
    for first, last in pairwise(rules):
        cut = [_parts(line.rstrip(), [0, *edges])[1:] for line in block[first + 1 : last]]
        if not cut or [match.start() for match in re.finditer(r"\+", block[last])] != edges:
            return stays
        if not all(part[:1] == "|" for line in cut for part in line) or any(line[-1] != "|" for line in cut):
            return stays
        cells = ["\n".join(part[1:].rstrip() for part in cell) for cell in zip(*cut, strict=True)]
        rows.append([dedent(cell).strip("\n") for cell in cells[:-1]])
    indent = " " * edges[0]

    def layout(rows: list[list[str]]) -> list[str]:
        widths = [
            max(end - start - 3, *(width(line) for cell in cells for line in cell.split("\n")))
            for (start, end), *cells in zip(pairwise(edges), *rows, strict=True)
        ]
        written = []
        for number, row in zip(rules, [*rows, None], strict=True):
            fills = [block[number][start + 1 : end] for start, end in pairwise(edges)]
            longer = (fill[0] + fill[1] * columns + fill[-1] for fill, columns in zip(fills, widths, strict=True))
            written.append(f"{indent}+{'+'.join(longer)}+")
            for line in _lines(row) if row else ():
                texts = (_placed(text, columns, _DEFAULT) for text, columns in zip(line, widths, strict=True))
                written.append(f"{indent}| {' | '.join(texts)} |")
        return written

    return Table(rows, block, layout)


def width(text: str) -> int:
    """The columns that a text takes, as Pandoc counts them: two for wide characters, none for combining ones."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.category(character) in ("Mn", "Me", "Cf") for character in text)


def _parts(line: str, starts: Sequence[int]) -> list[str]:
    """A line, cut where columns start; the first part begins the line."""
    parts, done, at, index = [], 0, 0, 0
    for start in starts[1:]:
        while index < len(line) and at < start:
            at += width(line[index])
            index += 1
        parts.append(line[done:index])
        done = index
    return [*parts, line[done:]]


def _sides(texts: Sequence[str], dashes: int) -> tuple[bool, bool]:
    """Where the shortest of some texts touches the ends of the dashes."""
    text = min(filter(None, texts), key=width, default=" ")
    return not text.startswith(" "), width(text) >= dashes


def _placed(text: str, columns: int, sides: tuple[bool, bool]) -> str:
    space = columns - width(text)
    before = space if sides == _RIGHT else space // 2 if sides == _CENTER else 0
    return " " * before + text + " " * (space - before)


def _lines(row: Sequence[str]) -> Iterator[list[str]]:
    """The lines of a row, each with a text for each cell."""
    cells = [cell.split("\n") for cell in row]
    for number in range(max(map(len, cells))):
        yield [cell[number] if number < len(cell) else "" for cell in cells]

"""What readers of corpora find, unit by unit, and what the user asked for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from ...errors import UserError
from ...languages import preference

# Why units are no pairs, as the report says it.
NO_SOURCE, NO_TARGET = "without a source", "without a translation"
FUZZY, OBSOLETE, UNFINISHED = "fuzzy", "obsolete", "that need work"
OTHER_LENGTH = "in arrays of different lengths"
PLURAL_FORMS, KEPT_AS_IS = "plural forms without a source of their own", "not to be translated"
OTHER_LANGUAGES, BROKEN = "in other languages", "with half a character"

_LINE_ENDS = re.compile("[ \t]*[\n-\r\x1c-\x1e\x85\u2028\u2029][ \t-\r\x1c-\x1e\x85\u2028\u2029]*")

Value = TypeVar("Value")


class Unit(NamedTuple):
    """
    A text with its translation.

    Args:
        place: of the unit in its file: its id or key, its line, row or number.
        skipped: why it is no pair; empty: it is one, unless a side is empty.
    """

    place: str
    source: str = ""
    target: str = ""
    skipped: str = ""


@dataclass
class Request:
    """
    What the user asked for.

    Args:
        source, target: language tags.
        inline_tags: what becomes of tags within a text.
        columns: those of source and target in tables: names, or numbers from 1.

    Attributes:
        seen: the language tags in the files.
    """

    source: str
    target: str
    inline_tags: Literal["drop", "placeholders", "text"] = "drop"
    columns: tuple[str | int, str | int] | None = None
    seen: set[str] = field(default_factory=set)

    def __post_init__(self):
        if preference(self.source, self.target) == 0:
            raise UserError(f"source and target are the same language, {self.source}")
        if self.columns is not None and len({isinstance(column, int) for column in self.columns}) > 1:
            raise UserError(
                f"of the columns {self.columns[0]} and {self.columns[1]}, one is a number; give two names or, for "
                "tables without a header, two numbers"
            )

    def rank(self, side: int, tag: str) -> int | None:
        """How well a tag serves for the source (side 0) or target (side 1); see `preference`."""
        return preference((self.source, self.target)[side], tag)

    def side(self, tag: str) -> int | None:
        """The side that a tag serves for better: 0, the source; 1, the target; None: neither."""
        self.seen.add(tag)
        ranks = {side: rank for side in (0, 1) if (rank := self.rank(side, tag)) is not None}
        return min(ranks, key=ranks.__getitem__, default=None)

    def best(self, variants: Iterable[tuple[str, Value]]) -> list[Value] | None:
        """The values of the tags that serve best as source and target, the first of several; None: one is lacking."""
        found: dict[int, tuple[int, Value]] = {}
        for tag, value in variants:
            side = self.side(tag)
            if side is not None and (side not in found or self.rank(side, tag) < found[side][0]):
                found[side] = self.rank(side, tag), value
        return [found[side][1] for side in (0, 1)] if len(found) == 2 else None


def tidy(text: str) -> str:
    """A text on one line: line ends, with the spaces and tabs beside them, become a space."""
    return _LINE_ENDS.sub(" ", text).strip()

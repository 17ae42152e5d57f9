"""What documents of every format are read into."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..paragraphs import Translated


@dataclass(frozen=True)
class Document:
    """
    A document that has been read.

    Args:
        paragraphs: its text, without markup.
        write: returns the document with each paragraph's translation in its place; may be called again with others.
    """

    paragraphs: list[str]
    write: Callable[[Sequence[Translated]], str]

"""What every format of documents is read into."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..paragraphs import Translated


@dataclass(frozen=True)
class Document:
    """
    A document that has been read.

    Args:
        paragraphs: its text, without markup.
        write: the document with the translation of each paragraph in its place; may be called again with others.
    """

    paragraphs: list[str]
    write: Callable[[Sequence[Translated]], str]

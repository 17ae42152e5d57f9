"""Plain text: each line is a paragraph."""

from collections.abc import Sequence

from .document import Document
from .paragraphs import Translated


def read_plain(text: str) -> Document:
    """Read each line of a text; line breaks of all kinds, and white space around lines, are kept."""
    lines = text.splitlines(keepends=True)
    places = [place for place, line in enumerate(lines) if line.strip()]

    def write(translations: Sequence[Translated]) -> str:
        written = list(lines)
        for place, found in zip(places, translations, strict=True):
            before, _, after = lines[place].partition(lines[place].strip())
            written[place] = before + found.text + after
        return "".join(written)

    return Document([lines[place].strip() for place in places], write)

"""Plain text: each line is a paragraph."""

from collections.abc import Sequence

from ..translate.kept_words import KeptWords
from ..translate.paragraphs import Translated
from .document import Document


def read_plain(text: str, kept: KeptWords) -> Document:
    """
    Read each line of a text. White space around lines, and line breaks of all kinds, stay. Kept words are left to what
    translates its sentences, so that all other white space stays too.
    """
    lines = text.splitlines(keepends=True)
    indices = [index for index, line in enumerate(lines) if line.strip()]

    def write(translations: Sequence[Translated]) -> str:
        written = list(lines)
        for index, found in zip(indices, translations, strict=True):
            before, _, after = lines[index].partition(lines[index].strip())
            written[index] = before + found.text + after
        return "".join(written)

    return Document([lines[index].strip() for index in indices], write)

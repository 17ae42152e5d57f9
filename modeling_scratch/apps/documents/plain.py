"""Plain text: each line is a paragraph."""

from collections.abc import Sequence

from ...model.kept_words import KeptWords
from ..translate.paragraphs import Translated
from .document import Document


def read_plain(text: str, kept: KeptWords, confidence: bool = False) -> Document:
    """
    Read each line of a text. White space around lines, and line breaks of all kinds, stay. Kept words are left to what
    translates its sentences, so that all other white space stays too.

    Args:
        confidence: write that of each line, and a tab, before the line.
    """
    lines = text.splitlines(keepends=True)
    indices = [index for index, line in enumerate(lines) if line.strip()]

    def write(translations: Sequence[Translated]) -> str:
        written, sure = list(lines), [1.0] * len(lines)
        for index, found in zip(indices, translations, strict=True):
            before, _, after = lines[index].partition(lines[index].strip())
            written[index], sure[index] = before + found.text + after, found.confidence
        if confidence:
            written = [f"{number:.4f}\t{line}" for number, line in zip(sure, written, strict=True)]
        return "".join(written)

    return Document([lines[index].strip() for index in indices], write)

"""Documents with known translations."""

from collections.abc import Callable, Sequence

from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.apps.translate.paragraphs import Translated, TranslateParagraphs


def changed(text: str, format: str, change: Callable[[str], str] = str) -> tuple[str, list[str]]:
    """A document with a function of each paragraph as its translation, without links; and the paragraphs."""
    read: list[str] = []

    def translate(paragraphs: list[str]) -> list[Translated]:
        read.extend(paragraphs)
        return [Translated(change(paragraph)) for paragraph in paragraphs]

    return translate_document(text, format, translate), read


def always(text: str, links: Sequence[tuple[int, int]] = ()) -> TranslateParagraphs:
    """Translates every paragraph by the same text."""
    return lambda paragraphs: [Translated(text, list(links)) for _ in paragraphs]


def backwards(paragraphs: list[str]) -> list[Translated]:
    """The words of each paragraph in capitals from the last to the first, with their links."""
    found = []
    for paragraph in paragraphs:
        words = paragraph.upper().split()
        links = [(index, len(words) - 1 - index) for index in range(len(words))]
        found.append(Translated(" ".join(reversed(words)), links))
    return found

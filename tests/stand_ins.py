"""Translators whose translations are known, for documents."""

from modeling_scratch.apps.documents.paragraphs import Translated


class Shouting:
    """Writes all in capitals, without links, and remembers what it was given."""

    def __init__(self):
        self.given: list[str] = []

    def __call__(self, paragraphs: list[str]) -> list[Translated]:
        self.given += paragraphs
        return [Translated(paragraph.upper()) for paragraph in paragraphs]


def backwards(paragraphs: list[str]) -> list[Translated]:
    """The words of each paragraph in capitals from the last to the first, with true links."""
    found = []
    for paragraph in paragraphs:
        words = paragraph.upper().split()
        links = [(place, len(words) - 1 - place) for place in range(len(words))]
        found.append(Translated(" ".join(reversed(words)), links))
    return found

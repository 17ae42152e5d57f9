"""Translators with known translations, for tests of documents."""

from modeling_scratch.apps.documents.paragraphs import Translated


class Shouting:
    """Translates into capitals, without links, and records its inputs."""

    def __init__(self):
        self.given: list[str] = []

    def __call__(self, paragraphs: list[str]) -> list[Translated]:
        self.given += paragraphs
        return [Translated(paragraph.upper()) for paragraph in paragraphs]


def backwards(paragraphs: list[str]) -> list[Translated]:
    """Translate into capitals in reverse order of words, with correct links."""
    found = []
    for paragraph in paragraphs:
        words = paragraph.upper().split()
        links = [(place, len(words) - 1 - place) for place in range(len(words))]
        found.append(Translated(" ".join(reversed(words)), links))
    return found

"""Write and read a run's final translations, so that runs can be compared without translating again."""

from collections.abc import Sequence
from pathlib import Path

from ..files import reading, write_lines

TRANSLATIONS = "translations"


def write_translations(run: Path, name: str, translations: Sequence[str]) -> None:
    """Write the translations of a split or further test set, one a line, replacing earlier ones."""
    path = run / TRANSLATIONS / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, translations)


def read_translations(run: Path, name: str) -> list[str]:
    """
    The translations of a split or test set, in the order of its sentences.

    Raises:
        UserError: there are none, or the file is not UTF-8.
    """
    path = run / TRANSLATIONS / f"{name}.txt"
    with reading(path):
        text = path.read_bytes().decode("utf-8")
    return text.removesuffix("\n").split("\n") if text else []

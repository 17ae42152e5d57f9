"""Writes a model's tokenizers in the format that JavaScript reads."""

from pathlib import Path

from ..errors import UserError
from ..loading import load_tokenizers, named_languages, save_tokenizers
from ..model.translation_pipeline import TARGET_FOLDER

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write_tokenizers(name: str, folder: Path, where: str) -> tuple[bool, list[str]]:
    """
    Write a model's tokenizers to an export's folder, with no files other than `TOKENIZER_FILES`.

    Args:
        name: a model folder or Hub name.
        where: what is exported, for messages.

    Returns:
        Whether source and target have separate tokenizers, and the language codes of both; empty: unknown.

    Raises:
        UserError: a tokenizer has no tokenizer.json, because it is of another library.
    """
    source, target = load_tokenizers(name)
    save_tokenizers(source, target, folder)
    two = target is not source
    for part in (folder, folder / TARGET_FOLDER)[: 2 if two else 1]:
        if not (part / "tokenizer.json").is_file():
            raise UserError(
                f"{name}: its tokenizer has no tokenizer.json, which {where} needs (it is of another library)"
            )
        for path in part.iterdir():
            if path.is_file() and path.name not in TOKENIZER_FILES:
                path.unlink()
    return two, named_languages(source)

"""Writes a model's tokenizers for JavaScript libraries."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ...errors import UserError
from ...loading import load_tokenizers, named_languages, save_tokenizers
from ...model.text import has_whole_symbols
from ...model.translation_pipeline import TARGET_FOLDER

EXPORTED_FILES = ("tokenizer.json", "tokenizer_config.json")


def write_tokenizers(name: str, folder: Path, where: str) -> tuple[bool, list[str], bool]:
    """
    Write the `EXPORTED_FILES` of a model's tokenizers to a folder.

    Args:
        name: a model folder or Hub name.
        where: the kind of export, for messages.

    Returns:
        Whether source and target have separate tokenizers, the language tags of both (empty: unknown), and whether the
        source's takes any text (`has_whole_symbols`).

    Raises:
        UserError: a tokenizer has no tokenizer.json, since it is not from the tokenizers library.
    """
    source, target = load_tokenizers(name)
    save_tokenizers(source, target, folder)
    two = target is not source
    for part, tokenizer in ((folder, source), (folder / TARGET_FOLDER, target))[: 2 if two else 1]:
        if not (part / "tokenizer.json").is_file():
            raise UserError(f"{name}: the tokenizer has no tokenizer.json, which {where} needs")
        for path in part.iterdir():
            if path.is_file() and path.name not in EXPORTED_FILES:
                path.unlink()
        _write_whether_spaces_are_cleaned(part / "tokenizer_config.json", tokenizer)
    return two, named_languages(source), has_whole_symbols(source)


def _write_whether_spaces_are_cleaned(path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Write to a tokenizer's config whether decoding removes spaces before punctuation in Python, which ignores the
    setting for some tokenizers. In JavaScript, the default is to remove them.
    """
    ids = tokenizer("a ! b 's", add_special_tokens=False).input_ids
    cleans = tokenizer.decode(ids) != tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    config = json.loads(path.read_text(encoding="utf-8")) | {"clean_up_tokenization_spaces": cleans}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""Choose the files of a model folder to push: those on an allow-list, and the code that config.json names."""

import re
import shutil
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files

from ..errors import UserError, as_user_error
from ..files import read_json, reading
from ..model.confidence import FILE as CONFIDENCE
from ..model.translation_pipeline import TARGET_FOLDER
from ..run.folder import COMPANIONS, CURVES, TOKENIZER_FILES, WEIGHTS
from ..run.records import METRICS_FILE, RECIPE
from .model_files import CONVERSION, read_config, weight_files
from .probe import HANDLER

CARD = "README.md"
EVAL_RESULTS = ".eval_results/modeling_scratch.yaml"
# Names and patterns of files to push; code is found by following imports. A push deletes files on the Hub that match
# these and are not in the folder (push.MODEL_FILES). Files that it must never delete belong in COMPANIONS.
ALLOWED = (
    "config.json",
    "generation_config.json",
    CONFIDENCE,
    WEIGHTS,
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    *TOKENIZER_FILES,
    *(f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES),
    CURVES,
    HANDLER,
    EVAL_RESULTS,
)
# Files that the card is made from, and that are not pushed as they are.
READ_FOR_CARD = (RECIPE, METRICS_FILE, CONVERSION, CARD)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a path in a repository or model folder matches a pattern, whose `*` stays within one folder."""
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def _code_names(path: Path, config: dict[str, Any]) -> set[str]:
    """The `file` of each `file.Class` or `user/name--file.Class` in a config.json's auto_map and custom_pipelines."""
    with as_user_error(f"{path}: auto_map and custom_pipelines name no classes; save the model again: "):
        references = [*(config.get("auto_map") or {}).values()]
        references += [pipeline["impl"] for pipeline in (config.get("custom_pipelines") or {}).values()]
        return {reference.rpartition("--")[2].partition(".")[0] for reference in references}


def code_files(folder: Path, config: dict[str, Any]) -> list[Path]:
    """The Python files that config.json's auto_map and custom_pipelines name, and everything they import."""
    roots = {folder / f"{name}.py" for name in _code_names(folder / "config.json", config)}
    files = set(roots)
    for root in roots:
        if not root.is_file():
            raise UserError(f"{folder}: config.json names {root.name}, which is missing; save the model again")
        with reading(root, "it and what it imports cannot be read: "):
            files |= {Path(file) for file in get_relative_import_files(root)}
    return sorted(files)


def _check_links(folder: Path) -> None:
    """Raise UserError for a link out of the folder: its target may not belong to the model, or may vanish."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_read = path.suffix == ".py" or matches(name, (*ALLOWED, *COMPANIONS, *READ_FOR_CARD, TARGET_FOLDER))
        if is_read and path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{path} is a symbolic link out of the folder, to {path.resolve()}: put the file itself there (cp -L), "
                "or copy the folder (cp -rL)"
            )


def chosen_files(folder: Path) -> dict[str, Path]:
    """
    The files to push, except the card: {path in the repository: file}. An allow-list keeps out optimizer states, logs,
    environment files and pickles.

    Raises:
        UserError: the folder holds no model of this architecture or only part of one, or a link out of it.
    """
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} holds no model: there is no config.json; scratch train and save_pretrained write one"
        )
    read_config(folder)
    _check_links(folder)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    chosen = {name: folder / name for name in names if matches(name, (*ALLOWED, *COMPANIONS))}
    if weight_files(folder)[0].name == WEIGHTS:
        chosen = {name: path for name, path in chosen.items() if not re.match(r"model-|model\.safetensors\.", name)}
    if "generation_config.json" not in chosen:
        raise UserError(f"{folder}: generation_config.json is missing; the model has not been saved whole")
    config = read_json(chosen["config.json"])
    code = code_files(folder, config)
    if "AutoModelForSeq2SeqLM" not in (config.get("auto_map") or {}):
        raise UserError(
            f"{chosen['config.json']}: auto_map names no AutoModelForSeq2SeqLM, without which nobody can load it; load "
            "it here, and save it again"
        )
    return chosen | {path.name: path for path in code}


def copy_files(folder: Path, copy: Path, endpoint_handler: bool = False) -> dict[str, Path]:
    """
    Copy `chosen_files` to an empty folder: {path in the repository: copied file}.

    Args:
        endpoint_handler: add a handler.py for Inference Endpoints if the folder has none. UserError if the model has no
            pipeline.
    """
    files = {name: copy / name for name in chosen_files(folder)}
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, path)
    if endpoint_handler and HANDLER not in files:
        if "tokenizer_config.json" not in files or not read_json(files["config.json"]).get("custom_pipelines"):
            raise UserError(f"{folder}: {HANDLER} needs a pipeline and a tokenizer; leave out --endpoint-handler")
        files[HANDLER] = Path(shutil.copyfile(Path(__file__).with_name(HANDLER), copy / HANDLER))
    return files

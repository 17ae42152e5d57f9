"""Read recipes: YAML files and KEY=VALUE overrides, checked against the schema, with errors that name key and line."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from huggingface_hub.utils import yaml_dump
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from ruamel.yaml import YAML, SafeConstructor, ScalarNode, ScalarToken, YAMLError
from ruamel.yaml.constructor import ConstructorError

from ..errors import UserError, as_user_error, beginning
from ..files import reading
from ..model.configuration_scratch import ScratchConfig
from ..model.translation_pipeline import TARGET_FOLDER
from . import CONFIGURATION_FOLDER
from .messages import explain
from .schema import Architecture, HubSection, ModelSection, Recipe

_NUMBER_SIGN = "\ufdd0"  # stands for # in a value of the command line; Unicode leaves it to programs, so no text has it


class _Constructor(SafeConstructor):
    """Values of YAML 1.2, except that 1e3 is an integer, and ~/ is expanded, since shells leave it in files=~/x."""

    def construct_yaml_float(self, node: ScalarNode) -> float:
        value = super().construct_yaml_float(node)
        return int(value) if "." not in node.value and value.is_integer() else value

    def construct_yaml_str(self, node: ScalarNode) -> str:
        value = super().construct_yaml_str(node).replace(_NUMBER_SIGN, "#")
        if "\0" in value:
            raise ConstructorError(None, None, f"{beginning(value)} contains a null character", node.start_mark)
        return _expanded(value)


_Constructor.add_constructor("tag:yaml.org,2002:float", _Constructor.construct_yaml_float)
_Constructor.add_constructor("tag:yaml.org,2002:str", _Constructor.construct_yaml_str)


class _TextConstructor(_Constructor):
    """The same, except that numbers, dates and the like are text: [2026-11-28, null] holds a text and a null."""


for _tag in ("bool", "int", "float", "timestamp"):
    _TextConstructor.add_constructor(f"tag:yaml.org,2002:{_tag}", _Constructor.construct_yaml_str)


def _expanded(text: str) -> str:
    return os.path.expanduser(text) if text.startswith("~/") else text


def parse_yaml(text: str, prefix: str = "", constructor: type[SafeConstructor] = _Constructor) -> Any:
    """
    The value of a YAML 1.2 text.

    Raises:
        UserError: the text is not YAML, or a key appears twice; the message is the prefix, the line and the problem.
    """
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = constructor
    with as_user_error(prefix):
        text.encode()  # fails for an argument that is not UTF-8
        try:
            return reader.load(text)
        except YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error)
            where = f"line {mark.line + 1}: " if mark else ""
            raise UserError(f"{prefix}{where}{' '.join(str(problem).split())}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError if there is none."""
    with reading(path, "not YAML: "):
        content = parse_yaml(path.read_text(encoding="utf-8"), f"{path}: not YAML: ")
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
    return content


def check_fields(fields: dict[str, Any], where: str) -> None:
    """Raise UserError, beginning with `where`, for ScratchConfig fields that are unknown, mistyped or out of range."""
    try:
        Architecture.model_validate(fields)
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error, Architecture)}") from None


# Keys that do not change the result of a run.
WITHOUT_EFFECT = {"output_dir", "data.num_workers", "evaluation.batch_size", "evaluation.batch_tokens", "trackers"}
WITHOUT_EFFECT |= {"checkpoints.keep_last", "logging_steps", *(f"hub.{name}" for name in HubSection.model_fields)}
# Keys that may differ between two recipes of the same run. Accumulation changes only dropout and rounding.
ACCUMULATION = "optimization.gradient_accumulation_steps"
MAY_DIFFER_WITHIN_RUN = WITHOUT_EFFECT | {ACCUMULATION}


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both and value else value  # {} empties a mapping
    return merged


def _check_model_file(content: dict[str, Any], overrides: Sequence[str]) -> None:
    """
    Raise UserError if the command line names a model file for the recipe of a run. Such a recipe has the fields of its
    model itself, and they would silently win over the file.
    """
    named, model = {override.partition("=")[0] for override in overrides}, content.get("model")
    if "model.config" not in named or "model.overrides" in named or not isinstance(model, dict):
        return
    fields = model.get("overrides")
    if model.get("config") is None and isinstance(fields, dict) and "d_model" in fields:
        raise UserError(
            "model.config: this recipe sets the sizes of its model in model.overrides, which take precedence; add "
            "model.overrides={}"
        )


def _type_of(key: str) -> Any:
    """The type that the schema gives to a dotted key; Any for a section, or if there is no such key."""
    found: Any = Recipe
    for part in key.split("."):
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(part)
            found = Any if field is None else field.rebuild_annotation()
        else:
            found = get_args(found)[0] if get_origin(found) is Annotated else found
            found = get_args(found)[1] if get_origin(found) is dict else Any
    return Any if isinstance(found, type) and issubclass(found, BaseModel) else found


def _is_quoted(text: str) -> bool:
    """Whether a text is one quoted value of YAML, perhaps with a wrong escape, and not, say, 'a'|'b'."""
    try:
        tokens = list(YAML(typ="safe", pure=True).scan(text))
    except YAMLError:
        return re.fullmatch('"[^"]+"', text.strip()) is not None
    return [type(token) for token in tokens[1:-1]] == [ScalarToken] and tokens[1].style in ("'", '"')


def _value_of(key: str, text: str) -> Any:
    """
    The value of KEY=TEXT on the command line. It is YAML without comments, except that a key that takes any text gets
    the text as it is written, whatever YAML would make of it. Even there, quotes around the whole text are removed, and
    `null`, lists and numbers keep their meaning if the key takes them.

    Raises:
        UserError: the value is missing, or it is not YAML and the key does not take any text.
    """
    adapter = TypeAdapter(_type_of(key), config=ConfigDict(strict=True, str_min_length=1))

    def fits(value: Any) -> bool:
        try:
            adapter.validate_python(value)
        except ValidationError:
            return False
        return True

    if not text.strip():
        unset = f"; write {key}=null to unset it" if fits(None) else ""
        raise UserError(f"{key}: the value is missing{unset}")
    takes_text, takes_list = fits("any text") and not fits({}), fits(["any text"])  # not Any
    is_quoted = _is_quoted(text)
    prefix, without_comments = f"{key}: {beginning(text)} is not YAML: ", text.replace("#", _NUMBER_SIGN)
    try:
        value, as_texts = (parse_yaml(without_comments, prefix, kind) for kind in (_Constructor, _TextConstructor))
    except UserError:
        if is_quoted or not takes_text or (takes_list and text.lstrip().startswith("[")):
            raise
        return _expanded(text)
    is_list = isinstance(value, list) and takes_list
    is_number, is_null = type(value) is int and fits(1), text.strip() == "null"
    if takes_text and not (is_null or is_quoted or is_list or is_number):
        return _expanded(text)
    return as_texts if isinstance(value, list | dict) and not fits(value) and fits(as_texts) else value


def apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `["optimization.learning_rate=1e-3", ...]` in order; {} empties a mapping."""
    changed = content
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise UserError(f"{beginning(override)} is not KEY=VALUE, such as optimization.learning_rate=1e-3")
        value = _value_of(key, text)
        for part in reversed(key.split(".")):
            value = {part: value}
        changed = _merge(changed, value)
    _check_model_file(content, overrides)
    return changed


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a YAML file with KEY=VALUE overrides applied. UserError names the key and what is expected."""
    content = apply_overrides(read_yaml(path), overrides)
    try:
        return checked_recipe(content)
    except ValueError as error:
        raise UserError(str(error) if overrides else f"{path.name}: {error}") from None


def checked_recipe(content: dict[str, Any]) -> Recipe:
    """
    A recipe from plain values, with the fields of its model file copied into `model.overrides`. UserError names the
    wrong key and value, and suggests a key for an unknown one.
    """
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise UserError(explain(error, Recipe)) from None
    if recipe.model.start_from is None:
        recipe.model = ModelSection(overrides=model_fields(recipe.model))
        planned_config(recipe)
    return recipe


def adopts_two(recipe: Recipe) -> bool:
    """Whether `tokenizer.existing` is a folder with a tokenizer for each language."""
    return recipe.tokenizer.existing is not None and (Path(recipe.tokenizer.existing) / TARGET_FOLDER).is_dir()


def planned_config(recipe: Recipe) -> ScratchConfig:
    """
    The architecture of a new model before the tokenizer is trained, which decides the vocabulary sizes. Raises
    UserError if fields contradict each other.
    """
    tokenizer = recipe.tokenizer
    two = adopts_two(recipe) if tokenizer.existing else not tokenizer.shared
    fields = fields_of_new_model(recipe, tokenizer.vocab_size, tokenizer.vocab_size if two else None)
    try:
        return ScratchConfig(**fields)
    except ValueError as error:
        raise UserError(f"model: {error}") from None


def fields_of_new_model(recipe: Recipe, vocab_size: int, decoder_vocab_size: int | None) -> dict[str, Any]:
    """
    The recipe's ScratchConfig fields, with these vocabulary sizes unless it sets them itself.

    Args:
        decoder_vocab_size: None if source and target share a vocabulary.
    """
    fields = model_fields(recipe.model)
    fields.setdefault("vocab_size", vocab_size)
    if decoder_vocab_size is not None:
        fields.setdefault("decoder_vocab_size", decoder_vocab_size)
        fields.setdefault("share_encoder_decoder_embeddings", False)
    return fields


def recipe_of_model(model: str) -> Path:
    """The recipe of the run that a folder belongs to: the run's own folder or one of its checkpoints."""
    for folder in (Path(model), Path(model).parent.parent):
        if (folder / "recipe.yaml").is_file():
            return folder / "recipe.yaml"
    raise UserError(
        f"{model} is not the folder of a run, so it has no recipe; name the data to score it on with --config"
    )


def recipe_text(recipe: Recipe) -> str:
    """The recipe as YAML with every default written out, so that later defaults do not change it."""
    return yaml_dump(recipe.model_dump(mode="json"), sort_keys=False)


def is_saved_recipe(path: Path) -> bool:
    """Whether a file looks like `recipe_text`, and not like a recipe that somebody wrote."""
    return path.read_text(encoding="utf-8") == yaml_dump(read_yaml(path), sort_keys=False)


def model_fields(section: ModelSection) -> dict[str, Any]:
    """The ScratchConfig fields that the recipe's model file and overrides set."""
    fields = dict(section.overrides)
    if section.config is not None:
        path = CONFIGURATION_FOLDER / "models" / f"{section.config}.yaml"
        path = path if path.exists() else Path(section.config)
        if not path.is_file():
            known = sorted(file.stem for file in (CONFIGURATION_FOLDER / "models").glob("*.yaml"))
            raise UserError(f"model.config: {section.config!r} is neither a file nor one of {', '.join(known)}")
        fields = read_yaml(path) | fields
    for key in map(str, fields):
        if key.endswith("_token_id"):
            raise UserError(f"model: {key} is set by the tokenizer; remove it")
    check_fields(fields, "model")
    return fields


def flat_recipe(recipe: Recipe) -> dict[str, Any]:
    """A recipe's values by dotted key."""

    def flatten(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in content.items():
            flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        return flat

    return flatten(recipe.model_dump())


def differing_keys(first: Recipe, second: Recipe) -> list[str]:
    """The dotted keys in which two recipes differ."""
    one, other = flat_recipe(first), flat_recipe(second)
    return [key for key in one | other if one.get(key) != other.get(key)]

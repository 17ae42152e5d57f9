"""
Read YAML as users write it: 1e-3 is a number, duplicate keys are errors, and errors give the line.

The fields of a new model as users write them: their names, types and ranges, taken from ScratchConfig.

Read recipes from YAML files and KEY=VALUE overrides.
"""

import difflib
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError, create_model
from transformers.activations import ACT2FN

from ..errors import UserError, as_user_error, beginning
from ..files import reading
from ..model.configuration_scratch import ScratchConfig
from ..model.translation_pipeline import TARGET_FOLDER
from . import CONFIGURATION_FOLDER
from .messages import describe
from .schema import HubSection, ModelSection, Probability, Recipe, Section

_MOST_VALUES = 100_000  # with each alias counted as all that it stands for


class BoundedLoader(yaml.SafeLoader):
    """Refuses aliases that multiply: a few lines of them can stand for more values than memory holds."""

    def __init__(self, text: str):
        super().__init__(text)
        self.values, self.sizes = 0, {}

    def compose_node(self, parent, index):
        before, alias = self.values, self.peek_event() if self.check_event(yaml.AliasEvent) else None
        node = super().compose_node(parent, index)
        # What is not complete yet contains this alias.
        self.values += 1 if alias is None else self.sizes.get(id(node), math.inf)
        self.sizes[id(node)] = self.values - before
        if alias is not None and self.values > _MOST_VALUES:
            raise yaml.composer.ComposerError(
                problem=f"the alias *{alias.anchor} contains itself, or with the others stands for too many values",
                problem_mark=alias.start_mark,
            )
        return node


class _Loader(BoundedLoader):
    """
    Reads numbers and booleans as in YAML 1.2 (PyYAML takes 1e-3, without a dot, for text, and no, which is Norwegian,
    for false), expands the ~/ that shells leave in data.train_files=~/x, and refuses duplicate keys.
    """

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)  # before merge keys (<<) add keys of other mappings
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} appears twice", problem_mark=key.start_mark
                )
            seen.add((key.tag, key.value if isinstance(key, yaml.ScalarNode) else key))
        return node


# Without PyYAML's octal numbers (010 is 8), those to base 60 (1:30 is 90), and its other names of true and false.
_REPLACED = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:bool")
_Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][\d_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"), list("-+.0123456789")
)


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    """A number with a point or an exponent; 1e5, which has no point, is an integer."""
    value = loader.construct_yaml_float(node)
    return int(value) if "." not in node.value and value.is_integer() else value


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    value = loader.construct_yaml_str(node)
    if re.search("[\0\ud800-\udfff]", value):  # from an escape
        raise yaml.constructor.ConstructorError(
            problem=f"{beginning(value)} holds a character that no text or path may have", problem_mark=node.start_mark
        )
    return os.path.expanduser(value) if value.startswith("~/") else value


_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_constructor("tag:yaml.org,2002:str", _text)


def parse_yaml(text: str, prefix: str = "") -> Any:
    """The value of a YAML text. UserError, after this prefix, says what is wrong with it, and on which line."""
    with as_user_error(prefix):
        try:
            return yaml.load(text, Loader=_Loader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
            where = f"line {mark.line + 1}: " if mark else ""
            raise UserError(f"{prefix}{where}{' '.join(str(problem).split())}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. UserError if there is none."""
    how = "cannot be read as YAML: "
    with reading(path, how):
        content = parse_yaml(path.read_text(encoding="utf-8"), f"{path}: {how}")
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
    return content


_Size = Annotated[int, Field(ge=1, le=100_000_000)]  # the product of two still counts a tensor's bytes
_Positive = Annotated[float, Field(gt=0)]
_Id = Annotated[int, Field(ge=0)]


class _RopeParameters(Section):  # only for the types: ScratchConfig has the defaults
    rope_type: Literal["default", "linear"] = "default"
    rope_theta: _Positive = 10000.0
    factor: Annotated[float, Field(ge=1)] = 1.0


def _is_an_activation(name: str) -> str:
    if name not in ACT2FN:
        close = difflib.get_close_matches(name, ACT2FN) or sorted(ACT2FN)
        raise ValueError(f"{name!r} is unknown; Transformers has {', '.join(close)}")
    return name


_FIELDS = ScratchConfig.fields()
_TYPES: dict[str, Any] = {
    name: _Size if field.annotation is int else field.annotation for name, field in _FIELDS.items()
}
# Narrower types than the annotations in ScratchConfig.
_TYPES |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), Probability)
_TYPES |= {"norm_eps": _Positive, "init_std": _Positive | None, "decoder_vocab_size": _Size | None}
_TYPES |= {"rope_parameters": _RopeParameters | None}
_TYPES |= dict.fromkeys(("pad_token_id", "bos_token_id", "unk_token_id", "decoder_start_token_id"), _Id | None)
_TYPES |= {"eos_token_id": _Id | Annotated[list[_Id], Field(min_length=1)] | None}
_TYPES |= {"activation_function": Annotated[str, AfterValidator(_is_an_activation)]}
Architecture = create_model(
    "Architecture", __base__=Section, **{name: (_TYPES[name], field.default) for name, field in _FIELDS.items()}
)


def check_fields(fields: dict[str, Any], where: str) -> None:
    """UserError if ScratchConfig fields are unknown, of the wrong type or out of range. It starts with `where`."""
    try:
        Architecture.model_validate(fields)
    except ValidationError as error:
        raise UserError(f"{where}: {describe(error, Architecture)}") from None


# Keys that change no result of a run.
WITHOUT_EFFECT = {"output_dir", "data.num_workers", "evaluation.batch_size", "evaluation.batch_tokens", "trackers"}
WITHOUT_EFFECT |= {"checkpoints.keep_last", "logging_steps", *(f"hub.{name}" for name in HubSection.model_fields)}
# Keys in which two recipes may differ and still describe the same run. Accumulation changes only dropout and rounding.
ACCUMULATION = "optimization.gradient_accumulation_steps"
ALIKE = WITHOUT_EFFECT | {ACCUMULATION}


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both and value else value  # {} empties a mapping
    return merged


def _check_model_file(content: dict[str, Any], overrides: Sequence[str]) -> None:
    """UserError if the command line names a model file for a run's recipe, which has the fields of its model."""
    named, model = {each.partition("=")[0] for each in overrides}, content.get("model")
    if "model.config" not in named or "model.overrides" in named or not isinstance(model, dict):
        return
    fields = model.get("overrides")
    if model.get("config") is None and isinstance(fields, dict) and "d_model" in fields:
        raise UserError(
            "command line: model.config: this recipe sets the sizes of its model in model.overrides, which win; add "
            "model.overrides={}"
        )


def apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `["optimization.learning_rate=1e-3", ...]` in order; values are YAML, and {} empties a mapping."""
    changed = content
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise UserError(
                f"{beginning(override)} is not of the form KEY=VALUE, such as optimization.learning_rate=1e-3"
            )
        if not text.strip():
            raise UserError(f"{key}: no value is given; write {key}=null to unset it")
        value = parse_yaml(text, f"{key}: {beginning(text)} is not a YAML value: ")
        for part in reversed(key.split(".")):
            value = {part: value}
        changed = _merge(changed, value)
    _check_model_file(content, overrides)
    return changed


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a YAML file, with KEY=VALUE overrides applied. UserError names the key, and what would be right."""
    content = apply_overrides(read_yaml(path), overrides)
    try:
        return checked_recipe(content)
    except ValueError as error:
        raise UserError(f"{'the recipe' if overrides else path.name}: {error}") from None


def checked_recipe(content: dict[str, Any]) -> Recipe:
    """
    A recipe from plain values, with the fields of its model's file as overrides. UserError names the key and value at
    fault, and suggests a key for an unknown one.
    """
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise UserError(describe(error, Recipe)) from None
    if recipe.model.start_from is None:
        recipe.model = ModelSection(overrides=model_fields(recipe.model))
        planned_config(recipe)
    return recipe


def adopts_two(recipe: Recipe) -> bool:
    """Whether `tokenizer.existing` is a folder with a tokenizer for each language."""
    return recipe.tokenizer.existing is not None and (Path(recipe.tokenizer.existing) / TARGET_FOLDER).is_dir()


def planned_config(recipe: Recipe) -> ScratchConfig:
    """
    The architecture of a new model as the recipe plans it; the trained tokenizer decides the vocabulary sizes.
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
    """The recipe of the run that a folder belongs to, be it the run's own folder or one of its checkpoints."""
    for folder in (Path(model), Path(model).parent.parent):
        if (folder / "recipe.yaml").is_file():
            return folder / "recipe.yaml"
    raise UserError(f"{model} is not a run's folder with a recipe; use --config to say which data to score it on")


def recipe_text(recipe: Recipe) -> str:
    """The recipe as YAML with every default spelt out, so that later defaults do not change it."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


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
            raise UserError(f"model: {key} comes from the tokenizer; leave it out")
    check_fields(fields, "model")
    return fields


def flat_recipe(recipe: Recipe) -> dict[str, Any]:
    """A recipe's values by dotted key."""

    def flatten(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        flat = {}
        for key, value in content.items():
            flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        return flat

    return flatten(recipe.model_dump())


def differing_keys(first: Recipe, second: Recipe) -> list[str]:
    """The dotted keys in which two recipes differ."""
    one, other = flat_recipe(first), flat_recipe(second)
    return [key for key in one | other if one.get(key) != other.get(key)]

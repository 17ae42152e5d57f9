"""Explain the errors in a recipe in one line: the key, the value, what is expected, and the key that was meant."""

import difflib
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ..errors import shortened
from ..model.configuration_scratch import ScratchConfig

# Shorter forms of pydantic's messages, by error type.
_EXPECTED = {
    "int": "must be an integer",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "string_unicode": "must be valid UTF-8",
    "string_too_short": "must not be empty",
    "too_short": "has too few entries",
    "too_long": "has too many entries",
    "list": "must be a list, such as [a, b]",
    "dict": "must be a mapping, such as {a: b}",
    "model": "must be a mapping, such as {a: b}",
    "invalid_key": "a key must be text, in quotes",
}
# Our names for the keys of other toolkits.
_ALIASES = {
    "batch_size": "tokens_per_batch",
    "batch_tokens": "tokens_per_batch",
    "max_tokens": "tokens_per_batch",
    "beam": "num_beams",
    "beams": "num_beams",
    "beam_size": "num_beams",
    "steps": "max_steps",
    "lr": "learning_rate",
    "layers": "encoder_layers",
    "heads": "encoder_attention_heads",
    "out": "output_dir",
    "output": "output_dir",
} | ScratchConfig.attribute_map


def explain(error: ValidationError, recipe: type[BaseModel]) -> str:
    """Pydantic's errors in one line; `recipe` is the schema that was violated."""
    lines: dict[str, str] = {}
    for item in error.errors():
        parts = item["loc"]
        if parts[-1:] == ("[key]",):  # the key of a mapping, whose location comes before
            parts, item = parts[:-1], item | {"type": "invalid_key"}
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
        if item["type"] == "extra_forbidden":
            lines[key] = f"unknown recipe key {key!r}{_advice(key, recipe)}"
        else:
            lines.setdefault(key, _problem(key, dict(item)))
    return "; ".join(lines.values())


def _problem(key: str, item: dict[str, Any]) -> str:
    if item["type"] == "missing":
        return f"{key} is missing"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":  # from a section's validator: the message names the keys itself
        return message if not key or message.startswith(f"{key}.") else f"{key}: {message}"
    expected = _EXPECTED.get(item["type"].removesuffix("_type"))
    return (
        f"{key}: {expected or message.replace('Input should be', 'must be')}, got {shortened(repr(item['input']), 80)}"
    )


def _section(of: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The class of a section, which may be optional or in a list."""
    annotation = of.model_fields[name].annotation
    classes = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next((kind for kind in classes if issubclass(kind, BaseModel)), None)


def _valid_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values in a section."""
    for name in section.model_fields:
        nested = _section(section, name)
        if nested is None:
            yield prefix + name
        else:
            yield from _valid_keys(nested, f"{prefix}{name}.")


def _advice(key: str, recipe: type[BaseModel]) -> str:
    """Suggest the key that was probably meant, or list the valid ones."""
    above, _, name = re.sub(r"\[\d+\]", "", key).rpartition(".")
    valid = [*recipe.model_fields, *_valid_keys(recipe)]
    if "model" in recipe.model_fields:
        valid += [f"model.overrides.{field}" for field in ScratchConfig.fields()]
    here = [dotted for dotted in valid if above and dotted.rpartition(".")[0] == above]
    by_name = {dotted.rpartition(".")[2]: dotted for dotted in [*valid[::-1], *here]}
    plain = name.lower().replace("-", "_")
    if close := difflib.get_close_matches(_ALIASES.get(plain, plain), by_name, n=1):
        return f"; did you mean {by_name[close[0]]!r}?"
    if here:
        return f"; {above} has {', '.join(dotted.rpartition('.')[2] for dotted in here)}"
    return f"; the {recipe.__name__.lower()} has {', '.join(recipe.model_fields)}"

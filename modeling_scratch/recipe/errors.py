"""Explain what is wrong with a recipe in one line: the key, the value, and what would be right."""

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ..model.configuration_scratch import ScratchConfig

Location = tuple[int | str, ...]

# Shorter forms of pydantic's messages, by error type.
_KINDS = {"int": "must be an integer", "float": "must be a number", "bool": "must be true or false"}
_KINDS |= {"string": "must be text", "list": "must be a list, such as [a, b]"}
_KINDS |= {"dict": "must be a mapping, such as {a: b}"}
# Keys by the names that other toolkits use.
_ELSEWHERE = {"batch_size": "tokens_per_batch", "batch_tokens": "tokens_per_batch", "max_tokens": "tokens_per_batch"}
_ELSEWHERE |= {"beam": "num_beams", "beams": "num_beams", "beam_size": "num_beams", "steps": "max_steps"}
_ELSEWHERE |= ScratchConfig.attribute_map


def describe(error: ValidationError, recipe: type[BaseModel], architecture: list[str]) -> str:
    """
    Pydantic's findings in one line.

    Args:
        recipe: the schema that was violated.
        architecture: the valid keys of model.overrides.
    """
    lines: dict[str, str] = {}
    for item in error.errors():
        if item["type"] == "extra_forbidden":
            key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])[1:]
            advice = _advice(re.sub(r"\[\d+\]", "", key), recipe, architecture)
            lines[key] = f"unknown recipe key {key!r}{advice}"
            continue
        key, section = _locate(item["loc"], recipe)
        if section is not None and item["type"] not in ("value_error", "missing"):
            first, whole = next(iter(section.model_fields)), re.sub(r"\[\d+\]", "", key)
            is_in_list = any(isinstance(part, int) for part in item["loc"])
            lines[key] = f"{key} is a section, not a value: set its keys one by one, for example {key}.{first}=..."
            if item["type"] == "list_type" or is_in_list:
                lines[key] = f"{whole} must be a list, such as {whole}=[{{{first}: ...}}], got {item['input']!r}"
            continue
        lines.setdefault(key, _finding(key, item))
    return "; ".join(lines.values())


def _finding(key: str, item: dict[str, Any]) -> str:
    if item["type"] == "missing":
        return f"{key}: is missing"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":  # from a section's validator: the message names the keys itself
        return message if not key or message.startswith(f"{key}.") else f"{key}: {message}"
    kind = _KINDS.get(item["type"].removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float"))
    return f"{key}: {kind or message.replace('Input should be', 'must be')}, got {item['input']!r}"


def _locate(location: Location, recipe: type[BaseModel]) -> tuple[str, type[BaseModel] | None]:
    """
    The dotted key of a location, and its class if it is a section. A location may end in labels of a union's branches,
    such as "function-after[...]" or "list[str]".
    """
    names: list[str] = []
    section: type[BaseModel] | None = recipe
    for part in location:
        if section is not None and isinstance(part, int):
            names[-1] += f"[{part}]"
            continue
        if section is None or part not in section.model_fields:
            break
        names.append(str(part))
        section = _section(section, str(part))
    return ".".join(names), section if names else None


def _section(of: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The class of a section, even of one that may be left out or is in a list."""
    annotation = of.model_fields[name].annotation
    classes = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type)]
    return next((each for each in classes if issubclass(each, BaseModel)), None)


def valid_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values in a section."""
    for name in section.model_fields:
        nested = _section(section, name)
        if nested is None:
            yield prefix + name
        else:
            yield from valid_keys(nested, f"{prefix}{name}.")


def _advice(key: str, recipe: type[BaseModel], architecture: list[str]) -> str:
    """A suggestion: the key that was probably meant, or a list of the valid ones."""
    above, _, name = key.rpartition(".")
    valid = [*valid_keys(recipe), *(f"model.overrides.{field}" for field in architecture)]
    here = [each for each in valid if above and each.rpartition(".")[0] == above]
    for fits in _likenesses(name):
        # The right name in the wrong section is a better suggestion than a similar name.
        if close := [each for each in [*here, *valid] if fits(each.rpartition(".")[2])]:
            return f"; did you mean {close[0]!r}?"
    section = key.partition(".")[0]
    if not here and (close := difflib.get_close_matches(section, recipe.model_fields, n=1, cutoff=0.8)):
        return f"; did you mean {close[0]!r}?"
    if here:
        return f"; {above} has {', '.join(each.rpartition('.')[2] for each in here)}"
    return f"; the {recipe.__name__.lower()} has {', '.join(recipe.model_fields)}"


def _likenesses(name: str) -> Iterator[Callable[[str], Any]]:
    """Tests for similar names, strictest first: the name itself, a misspelling, initials (lr), a part (epochs), ..."""
    plain = name.lower().replace("-", "_")
    yield lambda other: other == _ELSEWHERE.get(plain, plain)
    yield lambda other: difflib.SequenceMatcher(None, plain, other).ratio() > 0.8
    yield lambda other: "".join(word[0] for word in other.split("_")) == plain and len(plain) > 1
    yield lambda other: len(plain) > 3 and re.search(rf"(^|_){re.escape(plain)}(_|$)", other)
    yield lambda other: difflib.SequenceMatcher(None, plain, other).ratio() > 0.6

"""What is wrong with a recipe, in a line: the key, the value, what would be right."""

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

Location = tuple[int | str, ...]


def describe(error: ValidationError, recipe: type[BaseModel]) -> str:
    """
    Pydantic's findings.

    Args:
        recipe: the whole schema, of which the error is.
    """
    lines: dict[str, str] = {}
    for item in error.errors():
        if item["type"] == "extra_forbidden":
            key = ".".join(map(str, item["loc"]))
            lines[key] = f"unknown recipe key {key!r}{_advice(key, recipe)}"
            continue
        key, section = _locate(item["loc"], recipe)
        if section is not None and item["type"] != "value_error":
            first = next(iter(section.model_fields))
            lines[key] = f"{key} is a section, not a value: set its keys one by one, as {key}.{first}=..."
            continue
        message = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        missing = item["type"] == "missing"
        got = "" if missing or item["type"] == "value_error" else f", got {item['input']!r}"
        lines.setdefault(key, f"{key}: {'is missing' if missing else message}{got}" if key else message)
    return "; ".join(lines.values())


def _locate(location: Location, recipe: type[BaseModel]) -> tuple[str, type[BaseModel] | None]:
    """
    The dotted key of a location, and the section that it is, if it is one. Beyond a key's own name a location holds
    labels of a union's branches, as "function-after[...]" or "list[str]".
    """
    names: list[str] = []
    section: type[BaseModel] | None = recipe
    for part in location:
        if section is None or part not in section.model_fields:
            break
        names.append(str(part))
        section = _section(section, str(part))
    return ".".join(names), section if names else None


def _section(of: type[BaseModel], name: str) -> type[BaseModel] | None:
    annotation = of.model_fields[name].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def valid_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values."""
    for name in section.model_fields:
        nested = _section(section, name)
        if nested is None:
            yield prefix + name
        else:
            yield from valid_keys(nested, f"{prefix}{name}.")


def _advice(key: str, recipe: type[BaseModel]) -> str:
    """A key that was probably meant, or those that there are."""
    above, _, name = key.rpartition(".")
    valid = list(valid_keys(recipe))
    here = [each for each in valid if each.rpartition(".")[0] == above]
    for fits in _likenesses(name):
        # A right name in the wrong section is closer than any likeness of another one.
        if close := [each for each in [*here, *valid] if fits(each.rpartition(".")[2])]:
            return f"; did you mean {close[0]!r}?"
    if close := difflib.get_close_matches(key, [*recipe.model_fields, *valid], n=1, cutoff=0.6):
        return f"; did you mean {close[0]!r}?"
    if here and above:
        return f"; {above} has {', '.join(each.rpartition('.')[2] for each in here)}"
    return f"; a recipe has {', '.join(recipe.model_fields)}"


def _likenesses(name: str) -> Iterator[Callable[[str], Any]]:
    """From the closest to the farthest: the name itself, a spelling, initials (lr), a part (epochs)."""
    plain = name.lower().replace("-", "_")
    yield lambda other: other == plain
    yield lambda other: difflib.SequenceMatcher(None, plain, other).ratio() > 0.8
    yield lambda other: "".join(word[0] for word in other.split("_")) == plain and len(plain) > 1
    yield lambda other: len(plain) > 3 and re.search(rf"(^|_){re.escape(plain)}(_|$)", other)

"""The base class of a recipe's sections, and the types of their values."""

import os
import re
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

Probability = Annotated[float, Field(ge=0, lt=1)]
_DURATION = r"[1-9]\d*[mh]"


def _is_an_interval(value: Any) -> Any:
    if value != "epoch" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{value!r} is not epoch or a number of updates (at least 1)")
    return value


def _is_an_interval_or_a_time(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(_DURATION, value):
        return value
    try:
        return _is_an_interval(value)
    except ValueError:
        known = "epoch, a number of updates (at least 1) or a time such as 10m or 2h"
        raise ValueError(f"{value!r} is not {known}") from None


def _are_betas(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2 or any(isinstance(each, bool) for each in value):
        raise ValueError(f"{value!r} is not a pair of numbers, such as [0.9, 0.98]")
    return value


def _from_home(value: Any) -> Any:
    """A path without the ~ that shells leave in data.train_files=~/x; any other value unchanged."""
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def _are_files(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    if value is not None and not (names and all(isinstance(name, str) and name for name in names)):
        raise ValueError(f"{value!r} is neither the name of a file nor a list of such names")
    return list(map(_from_home, value)) if isinstance(value, list) else _from_home(value)


def _are_test_sets(value: Any) -> Any:
    for name in value if isinstance(value, dict) else []:
        if name in ("train", "validation", "test") or not re.fullmatch(r"\w[\w.-]*", str(name)):
            raise ValueError(f"{name!r} cannot be a test set's name; letters, digits, . _ - can")
    # null on the command line takes away a set of the recipe
    return {name: files for name, files in value.items() if files is not None} if isinstance(value, dict) else value


Interval = Annotated[int | str, BeforeValidator(_is_an_interval)]
IntervalOrTime = Annotated[int | str, BeforeValidator(_is_an_interval_or_a_time)]
Files = Annotated[str | list[str] | None, BeforeValidator(_are_files)]
TestSets = Annotated[dict[str, Files], BeforeValidator(_are_test_sets)]
Betas = Annotated[tuple[Probability, Probability], BeforeValidator(_are_betas)]


class Section(BaseModel):
    """A part of the recipe. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_not_empty_and_no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name].annotation
        if value == "":
            raise ValueError("must not be empty")
        if isinstance(value, bool) and annotation is not bool and True not in get_args(annotation):
            raise ValueError(f"{str(value).lower()} is not allowed here")
        return _from_home(value)

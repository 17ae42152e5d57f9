"""The base class of a recipe's sections, and the types of their values."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

Probability = Annotated[float, Field(ge=0, lt=1)]
_DURATION = r"[1-9]\d*[mh]"


def _is_interval(value: Any) -> bool:
    return value == "epoch" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _check_interval(value: Any) -> Any:
    if not _is_interval(value):
        raise ValueError(f"{value!r} is not epoch or a number of updates (at least 1)")
    return value


def _check_interval_or_time(value: Any) -> Any:
    if not _is_interval(value) and not re.fullmatch(_DURATION, str(value)):
        raise ValueError(f"{value!r} is not epoch, a number of updates (at least 1) or a time such as 10m or 2h")
    return value


def _check_column(value: Any) -> Any:
    if not (value is None or (isinstance(value, str) and value) or (type(value) is int and value >= 1)):
        raise ValueError(f"{value!r} is not a column's name, or its number (from 1) in files without a header")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _are_test_sets(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for name in value:
        if name in ("train", "validation", "test") or not re.fullmatch(r"\w[\w.-]*", str(name)):
            raise ValueError(f"{name!r} cannot be a test set's name; letters, digits, . _ - can")
    # null on the command line takes away a set of the recipe
    return {name: files for name, files in value.items() if files is not None}


Interval = Annotated[int | str, BeforeValidator(_check_interval)]
IntervalOrTime = Annotated[int | str, BeforeValidator(_check_interval_or_time)]
Column = Annotated[int | str | None, BeforeValidator(_check_column)]
Files = Annotated[Annotated[list[str], Field(min_length=1)] | None, BeforeValidator(_as_list)]
TestSets = Annotated[dict[str, Files], BeforeValidator(_are_test_sets)]
Betas = Annotated[list[Probability], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    """A part of the recipe. Unknown keys, empty texts and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, strict=True, str_min_length=1)

    @field_validator("*")
    @classmethod
    def _fits_in_64_bits(cls, value: Any) -> Any:
        if isinstance(value, int) and value >= 2**63:
            raise ValueError("must be less than 2**63, since libraries count in 64 bits")
        return value

"""The base class of a recipe's sections, and the types of their values."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _are_test_sets(value: Any) -> Any:
    for name in value if isinstance(value, dict) else []:
        if name in ("train", "validation", "test") or not re.fullmatch(r"\w[\w.-]*", str(name)):
            raise ValueError(f"{name!r} cannot be a test set's name; letters, digits, . _ - can")
    # null on the command line takes away a set of the recipe
    return {name: files for name, files in value.items() if files is not None} if isinstance(value, dict) else value


Interval = Annotated[int | str, BeforeValidator(_is_an_interval)]
IntervalOrTime = Annotated[int | str, BeforeValidator(_is_an_interval_or_a_time)]
Files = Annotated[Annotated[list[str], Field(min_length=1)] | None, BeforeValidator(_as_list)]
TestSets = Annotated[dict[str, Files], BeforeValidator(_are_test_sets)]
Betas = Annotated[list[Probability], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    """A part of the recipe. Unknown keys, empty texts and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, strict=True, str_min_length=1)

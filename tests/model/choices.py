"""Which config choices run by default in tests that are slow for each, such as those of compilers."""

import pytest
from conftest import CHOICES, DISTINCT

# These compute different things; the others differ only in which weights exist.
FAST = ("default", "rotary, rms, gated", "learned", "alibi")

every_kind_of_position = pytest.mark.parametrize(
    "fields", [pytest.param(CHOICES[name], id=name, marks=[] if name in FAST else pytest.mark.slow) for name in CHOICES]
)
every_kind_of_position_and_slowly_every_variant = pytest.mark.parametrize(
    "fields",
    [pytest.param(DISTINCT[name], id=name, marks=[] if name in FAST else pytest.mark.slow) for name in DISTINCT],
)
default_and_slowly_every_variant = pytest.mark.parametrize(
    "fields",
    [pytest.param(DISTINCT[name], id=name, marks=[] if name == "default" else pytest.mark.slow) for name in DISTINCT],
)

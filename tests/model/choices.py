"""Choices of the config for tests that take their time with each, as compilers do."""

import pytest
from conftest import CHOICES, DISTINCT

# They differ in what is computed; the others, in which weights there are.
FAST = ("default", "rotary, rms, gated", "learned", "alibi")

every_kind_of_position = pytest.mark.parametrize(
    "fields", [pytest.param(CHOICES[name], id=name, marks=[] if name in FAST else pytest.mark.slow) for name in CHOICES]
)
every_kind_of_position_and_slowly_every_variant = pytest.mark.parametrize(
    "fields",
    [pytest.param(DISTINCT[name], id=name, marks=[] if name in FAST else pytest.mark.slow) for name in DISTINCT],
)

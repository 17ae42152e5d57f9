"""Which config choices run by default in tests that are slow for each, such as those of compilers."""

import pytest
from conftest import DISTINCT

# The paper's architecture and a modern one; in between, the others have nothing new for a compiler.
FAST = ("default", "rotary, rms, gated")

two_choices_and_slowly_every = pytest.mark.parametrize(
    "fields",
    [pytest.param(DISTINCT[name], id=name, marks=[] if name in FAST else pytest.mark.slow) for name in DISTINCT],
)

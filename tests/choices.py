"""Which config choices run by default in tests that are slow for each, such as those of compilers."""

import pytest
from conftest import DISTINCT

# The paper's architecture and a modern one; in between, the others have nothing new for a compiler.
FAST = ("default", "rotary, rms, gated")


def slowly_every_choice_but(*fast: str) -> pytest.MarkDecorator:
    """Every choice and variant, slowly but for those named."""
    return pytest.mark.parametrize(
        "fields",
        [pytest.param(DISTINCT[name], id=name, marks=[] if name in fast else pytest.mark.slow) for name in DISTINCT],
    )


two_choices_and_slowly_every = slowly_every_choice_but(*FAST)

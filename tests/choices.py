"""Config choices for tests that take long for each, such as those of compilers: some by default, the others slow."""

import pytest
from conftest import DISTINCT

# The paper's architecture and a modern one.
FAST = ("default", "rotary, rms, gated")


def slowly_every_choice_but(*fast: str) -> pytest.MarkDecorator:
    """Parametrize over every choice and variant; all but those named are slow."""
    return pytest.mark.parametrize(
        "fields",
        [pytest.param(DISTINCT[name], id=name, marks=[] if name in fast else pytest.mark.slow) for name in DISTINCT],
    )


two_choices_and_slowly_every = slowly_every_choice_but(*FAST)

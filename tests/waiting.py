"""Waiting for what another process or thread does, however slow the machine is."""

import time
from collections.abc import Callable

LONGEST = 900.0  # seconds; what takes longer never ends, however many others use the processors


def wait_until(condition: Callable[[], object]) -> None:
    """Return once the condition holds. TimeoutError if it never does."""
    end = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {LONGEST:g} seconds")
        time.sleep(0.01)

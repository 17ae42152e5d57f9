"""The exceptions that end a command, and how they quote a text."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)


def beginning(text: str) -> str:
    """The beginning of a text in quotation marks, for a message."""
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class UserError(ValueError):
    """Something the user can fix: what is wrong, where, and what to do. Commands print it as one line."""


class ProcessError(UserError):
    """An error that only one of several processes has seen, so this process must report it."""


class Stopped(Exception):
    """A run ended early because it was asked to; --resume continues from its last checkpoint."""


def is_lack_of_memory(error: Exception) -> bool:
    """Whether an error, of PyTorch or of a worker, says that memory ran out."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    )


@contextmanager
def as_user_error(prefix: str = "", kinds: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """
    Turn errors of these kinds into UserErrors, where code that raises no UserError, such as a library, gets a user's
    input.
    """
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(f"{prefix}{' '.join(str(error).split())}") from error

"""Errors that users can fix, how messages quote and print text, and the redaction of tokens."""

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

TOKEN = re.compile(r"hf_[A-Za-z0-9]{10,}")


def escape_what_output_lacks() -> None:
    """Escape what the encoding of standard output lacks: a text may not fit the locale, or a name not be UTF-8."""
    for stream in (sys.stdout, sys.stderr):  # Python's own standard error is like this already
        if isinstance(stream, TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


def redact(text: str) -> str:
    """The text with the user's token, and anything that looks like a token, replaced."""
    from huggingface_hub import get_token  # slow to import, and most processes end without an error

    token = get_token()
    return TOKEN.sub("<token>", text.replace(token, "<token>") if token else text)


def without_tokens(text: str) -> str:
    """A text to publish, with anything that looks like a token replaced."""
    return TOKEN.sub("hf_...", text)


def redacted_traceback(error: BaseException) -> str:
    """The traceback of an error and its causes, redacted."""
    return redact("".join(traceback.format_exception(error)))


class RedactingFilter(logging.Filter):
    """A filter for handlers that redacts what they write, tracebacks included."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text, record.exc_info = redacted_traceback(record.exc_info[1]).rstrip(), None
        return True


_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)

# Modules that only some commands need, and the extras of this package that install them.
EXTRAS = dict.fromkeys(["accelerate", "datasets", "evaluate", "psutil"], "train")
EXTRAS |= dict.fromkeys(["sacrebleu", "sacremoses", "tabulate", "tiktoken"], "train")
EXTRAS |= {"matplotlib": "plots", "PIL": "plots", "sentencepiece": "opus", "ctranslate2": "ctranslate2"}
EXTRAS |= {"rdkit": "smiles"}
EXTRAS |= dict.fromkeys(["prometheus_client", "py3langid", "python_multipart", "starlette", "uvicorn"], "serve")
EXTRAS |= dict.fromkeys(["ftfy", "rensa"], "corpora")
EXTRAS |= dict.fromkeys(["markdown_it", "pysubs2"], "text")
EXTRAS |= {"openpyxl": "corpora", "pyarrow": "train"}
EXTRAS |= dict.fromkeys(["onnx", "onnxruntime", "onnxscript"], "web")


def shortened(text: str, longest: int = 300) -> str:
    """The beginning of a text, for a message."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def beginning(text: str) -> str:
    """The beginning of a text in quotation marks, for a message."""
    return repr(shortened(text, 40))


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def describe_error(error: Exception) -> str:
    """An error's message, shortened and on one line, with its type if the message alone would mean little."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8 ({error.reason})"
    if (wrong := explained_name(error)) is not None:
        return wrong
    message = shortened(" ".join(str(error).split()))
    is_bare = not message or isinstance(error, LookupError | TypeError | AttributeError | AssertionError)
    return f"{type(error).__name__}{message and f': {message}'}" if is_bare else message


def explained_name(error: Exception) -> str | None:
    """What is wrong with a file's name, or a text, that Python refuses without an OSError; None for any other error."""
    # Python reads bytes of arguments and names that are not UTF-8 as surrogates (PEP 383); or a file had "\\ud800".
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return f"{shortened(repr(error.object))} is not valid UTF-8"
    message = str(error)
    if isinstance(error, RuntimeError) and message.startswith("Symlink loop from "):  # Path.resolve, until Python 3.12
        return f"{message.removeprefix('Symlink loop from ')}: a symbolic link leads back to itself"
    if isinstance(error, ValueError) and "embedded null " in message:  # after "stat: " from Python 3.13 on
        return "a file's name contains a null character"
    return None


def explained_import(error: Exception) -> str | None:
    """What to install, if the missing module belongs to an extra of this package; None for any other error."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in EXTRAS:
        return None
    return f"this needs {name}, which is not installed: pip install 'modeling-scratch[{EXTRAS[name]}]'"


class UserError(ValueError):
    """An error that the user can fix: what is wrong, where, and what to do. Commands print it as one line."""


class ProcessError(UserError):
    """An error that occurred on only one of several processes, which must therefore report it itself."""


class Stopped(Exception):
    """A run was asked to stop early; --resume continues from its last checkpoint."""


def is_lack_of_memory(error: Exception) -> bool:
    """Whether PyTorch or a worker ran out of memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    )


@contextmanager
def as_user_error(prefix: str = "", kinds: type[Exception] | tuple[type[Exception], ...] = Exception) -> Iterator[None]:
    """
    Turn any error that a library raises about a user's file or value into a UserError that begins with the prefix,
    which names that file or value. Wrap only the code that reads it: our own bugs would be blamed on the user.

    Args:
        kinds: the errors to turn, if our own code has to run inside as well.
    """
    try:
        yield
    except (UserError, Stopped):
        raise
    except kinds as error:
        if is_lack_of_memory(error) or explained_import(error):
            raise
        raise UserError(f"{prefix}{describe_error(error)}") from error

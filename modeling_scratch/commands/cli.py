"""
What the commands share: logging that does not break progress bars, and one-line errors.

Options that all commands share.
"""

import io
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, TextIO

import typer
from safetensors import SafetensorError
from tqdm.auto import tqdm

from ..errors import (
    ProcessError,
    Stopped,
    UserError,
    explained_import,
    is_lack_of_memory,
    redact,
    redacted_traceback,
    shortened,
)

BAD_INPUT = 2
INTERRUPTED = 130  # what shells report for SIGINT
STOPPED = 75  # EX_TEMPFAIL in sysexits.h: try again
BUG = 1  # Python's own exit code after a traceback

_NO_PATHS = ("Symlink loop", "embedded null")  # how pathlib begins what it says of a path that cannot be one
_LONGEST_LINE = 2000  # an error may quote a user's value

ASK_FOR_REPORT = "this is a bug of modeling_scratch: please report it, with the lines above"


def discard(stream: TextIO) -> None:
    """Discard what could not be written to a stream, which Python would write again when it exits, and fail."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _BarHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        try:
            tqdm.write(prefix + self.format(record), file=sys.stderr)
        except OSError:  # a closed pipe or a full disk must not end the run
            discard(sys.stderr)


def log_to_terminal(level: int = logging.INFO) -> None:
    """Send this package's log to stderr, above any progress bar, and keep the libraries' own bars out of the way."""
    logger = logging.getLogger("modeling_scratch")
    logger.setLevel(level)
    logger.handlers = [_BarHandler()]
    logger.propagate = False
    from transformers.utils.logging import disable_progress_bar  # here, since not every command needs it

    disable_progress_bar()
    logging.getLogger("accelerate.accelerator").setLevel(logging.ERROR)  # warns that tied weights are saved once
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)


def is_main_process() -> bool:
    """Whether this is the process that prints, among those that a launcher started."""
    return os.environ.get("RANK", "0") == "0"


def set_up_terminal() -> None:
    """Set up logging for a command that several processes may run together: all but the main one log errors only."""
    log_to_terminal(logging.INFO if is_main_process() else logging.ERROR)
    if not is_main_process() or not sys.stderr.isatty():
        os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"  # read when datasets is imported
        if "datasets" in sys.modules:
            sys.modules["datasets"].disable_progress_bars()


def print_if_possible(text: str, name: str = "stdout") -> None:
    """
    Print something that the command can do without, on stdout or stderr: if it cannot be written, the command
    continues. Characters that the encoding lacks are escaped.
    """
    stream = getattr(sys, name)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    try:
        print(text, file=stream, flush=True)
    except OSError:
        discard(stream)


@contextmanager
def one_line_errors(debug: bool, is_main: bool = True, interrupted: str = "interrupted") -> Iterator[None]:
    """
    Turn a UserError, a lack of memory or an error of the operating system (a full disk, a missing file) into one line
    on stderr and exit code 2, Ctrl-C into one line and 130, and a run stopped on request into one line and 75. Anything
    else is our bug: print its traceback and a line that asks for a report, and exit with 1.

    Args:
        debug: print the traceback too.
        is_main: whether this process prints the errors that all processes have in common.
        interrupted: what to print on Ctrl-C.
    """
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # see the package's __init__.py
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except Stopped as stopped:
        _end(STOPPED, str(stopped), is_main, debug=False)
    except Exception as error:
        if (said := _users_error(error)) is None:
            _end(BUG, ASK_FOR_REPORT, True, debug=True)
        seen_by_one = isinstance(error, ProcessError) or is_lack_of_memory(error)
        _end(BAD_INPUT, f"error: {said}", is_main or seen_by_one, debug)
    except KeyboardInterrupt as interrupt:
        _end(INTERRUPTED, f"\n{str(interrupt) or interrupted}", is_main, debug)
    finally:
        wait_for_threads()


def _users_error(error: Exception) -> str | None:
    """What to tell the user, in one line, about an error that they can fix; None if it is our bug."""
    if isinstance(error, ModuleNotFoundError):
        return explained_import(error)
    if is_lack_of_memory(error):
        return (
            "out of memory: use a smaller model, or do less at once (where sentences are translated, a smaller "
            "--batch-tokens or evaluation.batch_tokens, fewer beams, fewer --workers)"
        )
    # An OSError without an errno comes from a library. Safetensors is written in Rust, whose errors have none.
    is_of_the_system = isinstance(error, OSError) and error.errno is not None
    is_of_a_path = isinstance(error, RuntimeError | ValueError) and str(error).startswith(_NO_PATHS)
    is_theirs = is_of_the_system or is_of_a_path or isinstance(error, UserError | SafetensorError)
    return shortened(" ".join(str(error).split()), _LONGEST_LINE) if is_theirs else None


def _end(code: int, said: str, is_main: bool, debug: bool) -> None:
    """Print and exit. Call it while an exception is being handled."""
    if debug:
        print_if_possible(redacted_traceback(sys.exception()).rstrip("\n"), "stderr")
    if is_main:
        print_if_possible(redact(said), "stderr")
    sys.exit(code)


def wait_for_threads() -> None:
    """
    Call this before one of several processes exits: Gloo's threads need the GIL to release the tensors of the last
    collective, and taking it while Python exits aborts the process ("terminate called without an active exception").
    """
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_initialized():
        time.sleep(1)


Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]

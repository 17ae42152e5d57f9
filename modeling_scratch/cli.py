"""What the command lines share: a log that leaves progress bars whole, and errors of one line."""

import errno
import io
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import transformers
from tqdm.auto import tqdm

from .errors import ProcessError, Stopped, UserError
from .redaction import redact, redacted_traceback

BAD_INPUT = 2
INTERRUPTED = 130  # as shells say of SIGINT
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: start it again
BUG = 1  # as Python ends after a traceback

# What only some commands need, and the extra of this package that brings it.
EXTRAS = dict.fromkeys(["accelerate", "datasets", "evaluate", "psutil", "pydantic", "sacrebleu", "tiktoken"], "train")
EXTRAS |= {"matplotlib": "plots", "PIL": "plots", "sentencepiece": "opus", "ctranslate2": "ctranslate2"}


ASK_FOR_REPORT = "this is a bug of modeling_scratch: please report it, with the lines above"


class _BarHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        with suppress(OSError):  # a full disk under a log file must not end what is logged
            tqdm.write(prefix + self.format(record), file=sys.stderr)


def log_to_terminal(level: int) -> None:
    """Send this package's log to stderr, above any progress bar, and keep the libraries' own bars out of the way."""
    logger = logging.getLogger("modeling_scratch")
    logger.setLevel(level)
    logger.handlers = [_BarHandler()]
    logger.propagate = False
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("accelerate.accelerator").setLevel(logging.ERROR)  # tied weights saved once are no news
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)


def is_main_process() -> bool:
    """Of several that a launcher started, the one that speaks."""
    return os.environ.get("RANK", "0") == "0"


def set_up_terminal() -> None:
    """The log of a command that several processes may run together: one of them tells, the others warn."""
    log_to_terminal(logging.INFO if is_main_process() else logging.ERROR)
    if not is_main_process() or not sys.stderr.isatty():
        os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"  # read when datasets is imported
        if "datasets" in sys.modules:
            sys.modules["datasets"].disable_progress_bars()


def print_whatever_happens(text: str) -> None:
    """
    Print what is good to know and no more: where stdout is full or closed, the command goes on, and says so on stderr.
    Letters that stdout's encoding lacks are written as escapes.
    """
    if sys.stdout is None:
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except OSError as error:
        # What is buffered must go somewhere when Python ends.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            print(f"warning: standard output cannot be written ({error.strerror})", file=sys.stderr)


def explained_import(error: ModuleNotFoundError) -> str | None:
    """What to install, if an extra of this package brings the module; None for any other."""
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        return None
    return f"this needs {name}, which is not installed: pip install 'modeling-scratch[{EXTRAS[name]}]'"


@contextmanager
def explained_imports(name: str) -> Iterator[None]:
    """For the imports of a module that is run as a command too: one line and exit code 2 for what is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if name != "__main__" or (said := explained_import(error)) is None:
            raise
        _end(BAD_INPUT, f"error: {said}", speak=True, debug=False)


@contextmanager
def one_line_errors(debug: bool, speak: bool = True, interrupted: str = "interrupted") -> Iterator[None]:
    """
    Turn a UserError, or what the operating system refuses (a full disk, a missing file), into one line on stderr and
    exit code 2, Ctrl-C into one line and 130, and the end of a run on request into one line and 75. Anything else is a
    bug of ours: its traceback, a line that asks for a report, and exit code 1.

    Args:
        debug: print the traceback too.
        speak: False on all processes but one, which say the same.
        interrupted: what Ctrl-C says.
    """
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # until the imports were done: see train.py
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except Stopped as stopped:
        _end(STOPPED, str(stopped), speak, debug=False)
    except ModuleNotFoundError as error:
        if (said := explained_import(error)) is None:
            raise
        _end(BAD_INPUT, f"error: {said}", speak, debug)
    except UserError as error:
        _end(BAD_INPUT, _line(error), speak or isinstance(error, ProcessError), debug)
    except OSError as error:
        if error.errno is None:  # of a library, not of the system
            _end(BUG, ASK_FOR_REPORT, True, debug=True)
        _end(BAD_INPUT, _line(error), speak, debug)
    except Exception:
        _end(BUG, ASK_FOR_REPORT, True, debug=True)
    except KeyboardInterrupt as interrupt:
        _end(INTERRUPTED, f"\n{str(interrupt) or interrupted}", speak, debug)
    finally:
        wait_for_threads()


def _line(error: Exception) -> str:
    return f"error: {' '.join(str(error).split())}"


def _end(code: int, said: str, speak: bool, debug: bool) -> None:
    """To be called while an exception is handled."""
    if debug:
        print(redacted_traceback(sys.exception()), end="", file=sys.stderr)
    if speak:
        print(redact(said), file=sys.stderr)
    sys.exit(code)


def wait_for_threads() -> None:
    """
    Before a process of several ends: Gloo's threads need Python's lock to drop the tensors of the last exchange, and
    one that asks for it while Python ends aborts the process ("terminate called without an active exception").
    """
    if torch.distributed.is_initialized():
        time.sleep(1)

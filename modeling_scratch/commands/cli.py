"""What the commands share: logging that does not break progress bars, one-line errors, exit codes, `--debug`."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from safetensors import SafetensorError
from tqdm.auto import tqdm

from ..errors import (
    ProcessError,
    Stopped,
    UserError,
    escape_what_output_lacks,
    explained_import,
    explained_name,
    is_lack_of_memory,
    redact,
    redacted_traceback,
    shortened,
)

if TYPE_CHECKING:
    from ..model.confidence import Confidence

BAD_INPUT = 2
INTERRUPTED = 130  # the exit code that shells report for SIGINT
STOPPED = 75  # EX_TEMPFAIL in sysexits.h: try again
BUG = 1  # Python's own exit code after a traceback
BROKEN_PIPE = 141  # the exit code that shells report for SIGPIPE

_LONGEST_LINE = 2000  # an error may quote a user's value

ASK_FOR_REPORT = "this is a bug of modeling_scratch: please report it, with the lines above"
_PERHAPS_ANOTHER = (
    "if another process ended before this one, its error says why, and --auto-resume continues; otherwise "
)

Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"] | None,
    typer.Option(help="of the weights; bfloat16 is faster on a GPU, int8 on a CPU, by CTranslate2 (default: as saved)"),
]
LONGEST_TIME = 10_000_000  # minutes: 19 years
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]


class _BarHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        with suppress(OSError):  # a log file on a full disk must not end the run
            tqdm.write(prefix + self.format(record), file=sys.stderr)


def log_to_terminal(level: int = logging.INFO, uses_transformers: bool = True) -> None:
    """Send this package's log to stderr, above any progress bar, and hide the progress bars of the libraries."""
    logger = logging.getLogger("modeling_scratch")
    logger.setLevel(level)
    logger.handlers = [_BarHandler()]
    logger.propagate = False
    if uses_transformers:
        hide_bars_of_transformers()
    logging.getLogger("accelerate.accelerator").setLevel(logging.ERROR)  # warns that tied weights are saved once
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)


def hide_bars_of_transformers() -> None:
    """Hide the progress bars of Transformers, which takes a second to import."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def beside(folder: Path, ending: str) -> Path:
    """A folder beside another one, named like it, with this ending."""
    return Path(f"{folder if folder.name == folder.resolve().name else folder.resolve()}-{ending}")


def is_main_process() -> bool:
    """Whether this is the process that prints, among those that a launcher started."""
    return os.environ.get("RANK", "0") == "0"


def set_up_terminal() -> None:
    """Set up logging for a command that may run on several processes; all but the main one log errors only."""
    log_to_terminal(logging.INFO if is_main_process() else logging.ERROR)
    if not is_main_process() or not sys.stderr.isatty():
        os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"  # read when datasets is imported
        if "datasets" in sys.modules:
            sys.modules["datasets"].disable_progress_bars()


@contextmanager
def one_line_errors(debug: bool, is_main: bool = True, interrupted: str = "interrupted") -> Iterator[None]:
    """
    End the command with one line on stderr and an exit code: 2 for a UserError, a lack of memory or an error of the
    operating system (a full disk, a missing file), 130 for Ctrl-C, 75 for a run that was asked to stop (0 under a
    launcher with --max_restarts, which restarts what ends with any other code). Any other error is our bug: print its
    traceback and a request to report it, and exit with 1.

    Args:
        debug: print the traceback of every error.
        is_main: whether this process prints the errors that all processes have in common.
        interrupted: the line for Ctrl-C.
    """
    escape_what_output_lacks()
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # see __main__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except Stopped as stopped:
        is_restarted = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
        _end(0 if is_restarted else STOPPED, str(stopped), is_main, debug=False)
    except Exception as error:
        if (message := _message_for_user(error)) is None:
            # A collective operation whose partner is gone raises what any other failing operation does.
            may_be_another = isinstance(error, RuntimeError) and os.environ.get("WORLD_SIZE", "1") != "1"
            _end(BUG, (_PERHAPS_ANOTHER if may_be_another else "") + ASK_FOR_REPORT, True, debug=True)
        seen_by_one = isinstance(error, ProcessError) or is_lack_of_memory(error)
        _end(BAD_INPUT, f"error: {message}", is_main or seen_by_one, debug)
    except KeyboardInterrupt as interrupt:
        _end(INTERRUPTED, f"\n{str(interrupt) or interrupted}", is_main, debug)
    finally:
        wait_for_threads()
        _drop_unwritable_output()


def report(text: str, done: str | None = None) -> None:
    """
    Print the result of a command, after all its other work.

    Args:
        done: what is finished even if nothing can be printed, such as "the run is finished". If the reader has closed
            the output, as in `scratch train | head`, the command then ends well; otherwise with BROKEN_PIPE.

    Raises:
        UserError: it cannot be printed for another reason, such as a full disk.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        lost = f"{done}; its report could not be printed" if done else "standard output cannot be written"
        lost += f": {str(error.strerror).lower()}"
        if not isinstance(error, BrokenPipeError):
            raise UserError(lost) from error
        if not done:
            sys.exit(BROKEN_PIPE)
        logging.getLogger(__name__).warning(lost)


@contextmanager
def reporting(done: str) -> Iterator[list[str]]:
    """
    Inside this context, finish a command's work and add the lines of its report to a list. They are printed at the end,
    so that an output that cannot be written prevents nothing; also after an error, as far as they go.

    Args:
        done: as for `report`.
    """
    lines: list[str] = []
    try:
        yield lines
    except BaseException:
        with suppress(OSError):
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
        raise
    report("\n".join(lines), done)


def _drop_unwritable_output() -> None:
    """Let Python's flush at exit, which would change the exit code, succeed where an output is closed or full."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _message_for_user(error: Exception) -> str | None:
    """One line about an error that the user can fix; None if it is our bug."""
    if isinstance(error, ModuleNotFoundError):
        return explained_import(error)
    if is_lack_of_memory(error):
        return (
            "out of memory: use a smaller model or smaller batches (--batch-tokens, "
            "evaluation.batch_tokens, fewer beams or --workers)"
        )
    if (wrong := explained_name(error)) is not None:
        return wrong
    # An OSError without an errno comes from a library. Safetensors is written in Rust, and its errors have none.
    is_of_the_system = isinstance(error, OSError) and error.errno is not None
    if is_of_the_system or isinstance(error, UserError | SafetensorError):
        return shortened(" ".join(str(error).split()), _LONGEST_LINE)
    return None


def _end(code: int, message: str, is_main: bool, debug: bool) -> NoReturn:
    """Print and exit. Call this while an exception is being handled."""
    with suppress(OSError):  # stderr may be closed too
        if debug and (error := sys.exception()) is not None:
            print(redacted_traceback(error).rstrip("\n"), file=sys.stderr, flush=True)
        if is_main:
            print(redact(message), file=sys.stderr, flush=True)
    sys.exit(code)


def check_number(option: str, value: float | None, most: float) -> None:
    """Raise UserError for a value of an option that is NaN or above `most`; None: the option was not given."""
    if value is not None and not value <= most:
        raise UserError(f"{option} {value:g}: it must be a number, at most {most:,}")


def check_confidence(option: str, models: list[str], confidence: "Confidence | None") -> None:
    """Raise UserError for an option that needs a confidence, if these models have none."""
    if confidence is None:
        problem = "an ensemble has no confidence; name one model"
        if len(models) == 1:
            problem = f"{models[0]} has no confidence.json, which scratch train writes; leave it out"
        raise UserError(f"{option}: {problem}")


def wait_for_threads() -> None:
    """
    Call this before one of several processes exits. Gloo's threads need the GIL to release the tensors of the last
    collective, and taking it while Python exits aborts the process ("terminate called without an active exception").
    Destroying the process group instead may deadlock: it holds the GIL while it waits for these threads.
    """
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_initialized():
        time.sleep(1)

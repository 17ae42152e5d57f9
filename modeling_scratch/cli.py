"""What the command lines share: logging that leaves progress bars whole, and errors of one line."""

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
import transformers
from safetensors import SafetensorError
from tqdm.auto import tqdm

from .faults import ProcessError, wait_for_threads
from .recipe import CONFIGURATION_FOLDER
from .stopping import Stopped

RECIPES = CONFIGURATION_FOLDER / "recipes"
BAD_INPUT = 2
INTERRUPTED = 130  # as shells say of SIGINT
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: start it again


class _BarHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def log_to_terminal(level: int) -> None:
    """Send this package's log to stderr, above any progress bar, and keep the libraries' own bars out of the way."""
    logger = logging.getLogger("modeling_scratch")
    logger.setLevel(level)
    logger.handlers = [_BarHandler()]
    logger.propagate = False
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("accelerate.accelerator").setLevel(logging.ERROR)  # tied weights saved once are no news
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    if level > logging.INFO:
        datasets.disable_progress_bars()


def default_recipe(evaluate: str | None) -> Path:
    """That of the run to score, also for one of its checkpoints; without one to score, the embedded corpus's."""
    if not evaluate:
        return RECIPES / "embedded.yaml"
    for folder in (Path(evaluate), Path(evaluate).parent.parent):
        if (folder / "recipe.yaml").is_file():
            return folder / "recipe.yaml"
    raise ValueError(f"{evaluate} is not a run's folder with a recipe; say by --config whose data to score it on")


@contextmanager
def one_line_errors(debug: bool, speak: bool = True, interrupted: str = "interrupted") -> Iterator[None]:
    """
    Turn an error that a user can mend into one line on stderr and exit code 2, Ctrl-C into one line and 130, and the
    end of a run on request into one line and 75.

    Args:
        debug: print the traceback too.
        speak: False on all processes but one, which say the same.
        interrupted: what Ctrl-C says.
    """
    try:
        yield
    except Stopped as stopped:
        if speak:
            print(stopped, file=sys.stderr)
        sys.exit(STOPPED)
    except (ValueError, OSError, SafetensorError) as error:
        if debug:
            traceback.print_exc()
        if speak or isinstance(error, ProcessError):
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        if speak:
            print(f"\n{interrupted}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        wait_for_threads()

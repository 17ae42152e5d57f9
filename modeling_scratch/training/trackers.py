"""The trackers that a recipe names: Accelerate starts them, and a resumed run continues its records in them."""

import logging
import re
from functools import partial
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from ..errors import UserError
from .folder import PROJECT
from .processes import on_all
from .progress import Progress

logger = logging.getLogger(__name__)


def open_trackers(accelerator: Accelerator, progress: Progress, in_folder: bool) -> None:
    """
    Open the Accelerator's trackers, to begin or continue a run's records. All processes call this together.

    Args:
        progress: of the run; what a tracker calls the run is noted in it.
        in_folder: open those that write into the run's folder; otherwise all others, which may need an account and
            should therefore start before anything is written.

    Raises:
        UserError: one of them, which it names, cannot start, as without an account.
    """
    names, opened = accelerator.log_with, accelerator.trackers

    def open_one(name: Any) -> None:
        try:
            accelerator.init_trackers(PROJECT, init_kwargs=_named(progress))
        except (Exception, SystemExit) as error:  # each has its own
            raise UserError(
                f"trackers: {name} cannot start; set it up, or leave it out ({_on_one_line(error)})"
            ) from error
        for tracker in accelerator.trackers:
            if tracker.name == "mlflow":
                progress.tracker_runs["mlflow"] = tracker.tracker.info.run_id
            elif tracker.name == "aim":
                progress.tracker_runs["aim"] = tracker.tracker.hash

    # One by one: Accelerate would also keep one that has failed, and starts all that are open again.
    for name in [name for name in names if LOGGER_TYPE_TO_CLASS[str(name)].requires_logging_directory == in_folder]:
        accelerator.log_with, accelerator.trackers = [name], []
        try:
            on_all(accelerator, partial(open_one, name))
            opened = [*opened, *accelerator.trackers]
        finally:
            accelerator.log_with, accelerator.trackers = names, opened


def _named(progress: Progress) -> dict[str, dict[str, Any]]:
    """Arguments by tracker with which a run begins or continues; TensorBoard continues by its folder."""
    name, runs = progress.tracked_as, progress.tracker_runs
    # wandb 0.31 refuses these characters in an id, swanlab 0.10 some more, and both long ids. All others stay, since a
    # run that an earlier version began is known by them.
    refused = {"wandb": r"[:;,#?/']", "swanlab": r"""[:;,#?/'<>"|*%]"""}
    by_name = {"name": name, "resume": "allow"}
    arguments = {each: {"id": re.sub(characters, "-", name)[-128:], **by_name} for each, characters in refused.items()}
    arguments["trackio"] = by_name
    # MLflow draws names from Python's generator, whose seed is the recipe's.
    return arguments | {
        "mlflow": {"run_name": name, "run_id": runs.get("mlflow")},
        "aim": {"run_hash": runs.get("aim")},
    }


def log_to_trackers(accelerator: Accelerator, values: dict[str, float], step: int, failed: set[str]) -> None:
    """
    Send values to the open trackers. If one fails, as when its server is gone, the run and the others go on.

    Args:
        failed: the names of trackers that have failed, of which a warning was given.
    """
    for tracker in accelerator.trackers:
        try:
            tracker.log(values, step=step)
        except Exception as error:
            if tracker.name not in failed:
                logger.warning(
                    f"trackers: {tracker.name} does not record update {step}, and perhaps later ones: "
                    f"{_on_one_line(error)}"
                )
            failed.add(tracker.name)


def close_trackers(accelerator: Accelerator) -> None:
    """
    Make trackers write what they hold. Accelerator.end_training would also destroy the process group, whose destructor
    holds the GIL while it waits for Gloo's thread, which may be waiting for the GIL.
    """
    trackers, accelerator.trackers = accelerator.trackers, []
    for tracker in trackers:
        try:
            tracker.finish()
        except Exception as error:
            logger.warning(f"trackers: {tracker.name} has perhaps lost records: {_on_one_line(error)}")


def _on_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"

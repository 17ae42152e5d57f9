"""Report a run's progress: terminal, metrics.jsonl, trackers, curves."""

import logging
import math
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from tqdm.auto import tqdm

from ..data.streaming import GlobalBatches
from ..errors import UserError
from .folder import CURVES, PROJECT
from .processes import on_all, write_on_main
from .progress import Progress
from .records import METRICS_FILE, TRANSLATIONS, append_record, read_metrics, write_translations

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_CURVES = 60  # plotting is slow: a small model makes many updates in that time


class RunLog:
    """
    Writes on the main process. All processes call its methods together, so that a full disk ends all of them.

    Args:
        folder: the run's.
        batches: for the epoch of each record.
        total: updates in the whole run.
        utilization_per_token: the utilization of the GPUs at one target token a second; None: unknown.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        folder: Path,
        progress: Progress,
        batches: GlobalBatches,
        total: int,
        utilization_per_token: float | None = None,
    ):
        self.accelerator, self.folder, self.progress, self.batches = accelerator, folder, progress, batches
        self.total, self.utilization_per_token, self._drawn = total, utilization_per_token, time.monotonic()
        self._before = progress.target_tokens, progress.seconds  # of earlier processes, perhaps on another GPU
        self._failed_trackers: set[str] = set()

    # -- records -----------------------------------------------------------------------------------------------------

    def record(self, record: dict[str, Any]) -> None:
        """
        Append a record to metrics.jsonl, without numbers that are not finite, which JSON cannot express. Its numbers
        also go to the trackers, under the names of the split and the test set.
        """
        step = self.progress.step
        record = {"step": step, "epoch": self.batches.epochs(), **record}
        record = {name: value for name, value in record.items() if not isinstance(value, float) or math.isfinite(value)}
        write_on_main(self.accelerator, METRICS_FILE, self.folder, lambda: append_record(self.folder, record))
        names = "/".join(filter(None, (record["split"], record.get("name"))))
        values = {
            f"{names}/{key}": value
            for key, value in record.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        log_to_trackers(self.accelerator, values, step, self._failed_trackers)

    def training(self, learning_rate: float) -> None:
        """
        Record the mean losses since the last such record, which begin anew, and the speed since the run began. Without
        a progress bar, log them with the time left.
        """
        progress = self.progress
        tokens, utilization = progress.loss_tokens or math.nan, self._utilization()
        record: dict[str, Any] = {
            "split": "train",
            "loss": progress.loss_sum / tokens,
            "cross_entropy": progress.cross_entropy_sum / tokens,
            "learning_rate": learning_rate,
            "target_tokens": progress.target_tokens,
            "target_tokens_per_second": progress.target_tokens / progress.seconds,
            **({} if utilization is None else {"mfu": utilization}),
            "seconds": progress.seconds,
            **({"nonfinite_updates": progress.nonfinite} if progress.nonfinite else {}),
        }
        self.record(record)
        progress.loss_sum, progress.cross_entropy_sum, progress.loss_tokens = 0.0, 0.0, 0
        if not sys.stderr.isatty():
            began, step = self._began
            left = (time.monotonic() - began) / (progress.step - step) * (self.total - progress.step)
            speed = self.loss_and_speed(record["loss"])
            logger.info(f"step {progress.step} of {self.total}: {speed}, about {format_duration(left)} left")

    def loss_and_speed(self, loss: float) -> str:
        """Such as: loss 3.142, 1,234 target tokens/s."""
        return f"loss {loss:.3f}, {speed(self.progress.target_tokens / self.progress.seconds, self._utilization())}"

    def _utilization(self) -> float | None:
        """How much of the GPUs' peak has been reached since this process began."""
        tokens, seconds = self._before
        tokens, seconds = self.progress.target_tokens - tokens, self.progress.seconds - seconds
        per_token = self.utilization_per_token
        return None if per_token is None or not seconds else tokens / seconds * per_token

    def validation(self, record: dict[str, Any]) -> None:
        """Record an evaluation, log it, and plot the curves from time to time."""
        self.record(record)
        scores = ", ".join(f"{name} {record[name]:.2f}" for name in record if name not in ("split", "chosen_by"))
        level = logging.INFO if math.isfinite(record["loss"]) else logging.WARNING
        epoch = self.batches.epochs()
        logger.log(level, f"step {self.progress.step}, epoch {epoch:.1f}: validation {scores}")
        self.curves(older_than=_SECONDS_BETWEEN_CURVES)

    def translations(self, name: str, translations: list[str]) -> None:
        """Write the translations of a split or further test set: the final ones, or those before fine-tuning."""
        write_on_main(
            self.accelerator, TRANSLATIONS, self.folder, lambda: write_translations(self.folder, name, translations)
        )

    def curves(self, older_than: float = 0.0) -> None:
        """
        Plot metrics.jsonl.

        Args:
            older_than: do nothing within this many seconds of the last plot, or of the start.
        """
        from .curves import plot_curves  # matplotlib takes a second to import

        def draw() -> None:  # only the main process's clock counts
            if time.monotonic() - self._drawn >= older_than:
                plot_curves(read_metrics(self.folder), self.folder / CURVES)
                self._drawn = time.monotonic()

        write_on_main(self.accelerator, CURVES, self.folder, draw)

    # -- terminal ----------------------------------------------------------------------------------------------------

    @contextmanager
    def progress_bar(self) -> Iterator[tqdm]:
        """A progress bar over updates, on the main process's terminal. The time left is estimated from here on."""
        self._began = time.monotonic(), self.progress.step
        hidden = None if self.accelerator.is_main_process else True  # None: shown on a terminal
        options = {"desc": "training", "unit": "update", "disable": hidden, "dynamic_ncols": True}
        with tqdm(total=self.total, initial=self.progress.step, **options) as bar:
            yield bar


def speed(rate: float, utilization: float | None) -> str:
    """Such as: 987,654 target tokens/s (27 % of the GPU's peak)."""
    return f"{rate:,.0f} target tokens/s" + ("" if utilization is None else f" ({utilization:.0%} of the GPU's peak)")


def format_duration(seconds: float) -> str:
    """A duration such as 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# -- trackers ----------------------------------------------------------------------------------------------------------


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
        except (Exception, SystemExit) as error:  # every tracker has its own
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
    arguments = {
        tracker: {"id": re.sub(characters, "-", name)[-128:], **by_name} for tracker, characters in refused.items()
    }
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

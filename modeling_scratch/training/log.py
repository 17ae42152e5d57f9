"""Report a run's progress: terminal, metrics.jsonl, trackers, curves."""

import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from tqdm.auto import tqdm

from ..data.streaming import GlobalBatches
from .folder import CURVES, METRICS_FILE, TRANSLATIONS, append_record, read_metrics, write_translations
from .processes import write_on_main
from .progress import Progress
from .trackers import log_to_trackers

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_CURVES = 60  # plotting is slow: a small model makes many updates in that time


class RunLog:
    """
    Writes on the main process. All processes call its methods together, so that a full disk ends all of them.

    Args:
        folder: the run's.
        batches: for the epoch of each record.
        total: updates in the whole run.
        share_per_token: the share of the GPUs' peak that one target token a second is; None: unknown.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        folder: Path,
        progress: Progress,
        batches: GlobalBatches,
        total: int,
        share_per_token: float | None = None,
    ):
        self.accelerator, self.folder, self.progress, self.batches = accelerator, folder, progress, batches
        self.total, self.share_per_token, self._drawn = total, share_per_token, time.monotonic()
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
        tokens, share = progress.loss_tokens or math.nan, self._share()
        record: dict[str, Any] = {
            "split": "train",
            "loss": progress.loss_sum / tokens,
            "cross_entropy": progress.cross_entropy_sum / tokens,
            "learning_rate": learning_rate,
            "target_tokens": progress.target_tokens,
            "target_tokens_per_second": progress.target_tokens / progress.seconds,
            **({} if share is None else {"mfu": share}),
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
        return f"loss {loss:.3f}, {speed(self.progress.target_tokens / self.progress.seconds, self._share())}"

    def _share(self) -> float | None:
        """The share of the GPUs' peak that this process has reached."""
        tokens, seconds = self._before
        tokens, seconds = self.progress.target_tokens - tokens, self.progress.seconds - seconds
        return None if self.share_per_token is None or not seconds else tokens / seconds * self.share_per_token

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


def speed(rate: float, share: float | None) -> str:
    """Such as: 987,654 target tokens/s (27 % of the GPU's peak)."""
    return f"{rate:,.0f} target tokens/s" + ("" if share is None else f" ({share:.0%} of the GPU's peak)")


def format_duration(seconds: float) -> str:
    """A duration such as 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""Report a run's progress: terminal, metrics.jsonl, trackers, curves."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from datasets import Dataset
from tqdm.auto import tqdm

from ..data.streaming import GlobalBatches
from ..errors import UserError
from .checkpoints import Progress
from .folder import CURVES, METRICS_FILE, TRANSLATIONS, RunFolder, append_record, read_metrics, write_translations
from .processes import explained_failure_to_write, on_all, on_main

logger = logging.getLogger(__name__)


def spoken_duration(seconds: float) -> str:
    """A duration such as 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def loss_and_speed(loss: float, progress: Progress) -> str:
    """Such as: loss 3.142, 1,234 target tokens/s."""
    return f"loss {loss:.3f}, {progress.target_tokens / progress.seconds:,.0f} target tokens/s"


def describe_data(pairs: dict[str, Dataset], batches: GlobalBatches) -> dict[str, Any]:
    """The number and the commit of the training pairs, if known."""
    count = {"train_pairs": len(pairs["train"])} if "train" in pairs else {}
    return count | ({"data_revision": batches.revision} if batches.revision else {})


def training_record(progress: Progress, learning_rate: float) -> dict[str, Any]:
    """The mean losses since the last such record, and the speed since the run began."""
    tokens = progress.loss_tokens or math.nan
    return {
        "split": "train",
        "loss": progress.loss_sum / tokens,
        "cross_entropy": progress.cross_entropy_sum / tokens,
        "learning_rate": learning_rate,
        "target_tokens": progress.target_tokens,
        "target_tokens_per_second": progress.target_tokens / progress.seconds,
        "seconds": progress.seconds,
        **({"nonfinite_updates": progress.nonfinite} if progress.nonfinite else {}),
    }


class RunLog:
    """Writes on the main process. All processes call its methods together, so that a full disk ends all of them."""

    def __init__(self, accelerator: Accelerator, folder: RunFolder):
        self.accelerator, self.folder = accelerator, folder
        self._drawn = time.monotonic()

    @contextmanager
    def progress_bar(self, step: int, total: int) -> Iterator[tqdm]:
        """A progress bar over updates that starts at `step`, on the main process's terminal."""
        self._began = time.monotonic(), step
        hidden = None if self.accelerator.is_main_process else True  # None: shown on a terminal
        options = {"desc": "training", "unit": "update", "disable": hidden, "dynamic_ncols": True}
        with tqdm(total=total, initial=step, **options) as bar:
            yield bar

    def tell(self, loss: float, progress: Progress, total: int) -> None:
        """Log progress and the time left, if there is no progress bar."""
        if sys.stderr.isatty():
            return
        began, step = self._began
        left = (time.monotonic() - began) / (progress.step - step) * (total - progress.step)
        said = loss_and_speed(loss, progress)
        logger.info(f"step {progress.step} of {total}: {said}, about {spoken_duration(left)} left")

    def open_trackers(self, name: str) -> None:
        """
        Open the Accelerator's trackers, to begin or continue this run's records.

        Args:
            name: the run's name, the same when it resumes. TensorBoard continues by its folder.

        Raises:
            UserError: one of them cannot start, as without an account.
        """
        by_id = {"id": name, "name": name, "resume": "allow"}
        named = {"wandb": by_id, "swanlab": by_id, "trackio": {"name": name, "resume": "allow"}}

        def open_them() -> None:
            try:
                self.accelerator.init_trackers("modeling_scratch", init_kwargs=named)
            except Exception as error:  # each has its own
                raise UserError(f"trackers: {type(error).__name__}: {' '.join(str(error).split())}") from error

        on_all(self.accelerator, open_them, "opening trackers")

    def close(self) -> None:
        """
        Make trackers write what they hold. Accelerator.end_training would also destroy the process group, whose
        destructor holds the GIL while it waits for Gloo's thread, which may be waiting for the GIL.
        """
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def write(self, what: str, function: Callable[[], Any]) -> Any:
        """Let the main process write to the folder, and return its result. UserError on all processes if it cannot."""
        with explained_failure_to_write(self.accelerator, what, self.folder.path):
            return on_main(self.accelerator, function, f"writing {what}")

    def record(self, step: int, record: dict[str, Any]) -> None:
        """
        Append a record to metrics.jsonl, without numbers that are not finite, which JSON cannot express. Its numbers
        also go to the trackers, under the names of the split and the test set.
        """
        record = {name: value for name, value in record.items() if not isinstance(value, float) or math.isfinite(value)}
        self.write(METRICS_FILE, lambda: append_record(self.folder.path, record))
        names = "/".join(filter(None, (record["split"], record.get("name"))))
        values = {
            f"{names}/{key}": value
            for key, value in record.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self.accelerator.log(values, step=step)  # does nothing without trackers

    def curves(self, older_than: float = 0.0) -> None:
        """
        Plot metrics.jsonl. This is slow: a small model makes many updates in that time.

        Args:
            older_than: do nothing within this many seconds of the last plot, or of the start.
        """

        from .curves import plot_curves  # matplotlib takes a second to import

        def draw() -> None:  # only the main process's clock counts
            if time.monotonic() - self._drawn >= older_than:
                plot_curves(read_metrics(self.folder.path), self.folder.path / CURVES)
                self._drawn = time.monotonic()

        self.write(CURVES, draw)

    def translations(self, name: str, translations: list[str]) -> None:
        """Write the translations of a split or further test set: the final ones, or those before fine-tuning."""
        self.write(TRANSLATIONS, lambda: write_translations(self.folder.path, name, translations))

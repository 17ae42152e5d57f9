"""The progress of a run: the plain numbers that a checkpoint holds beside tensors and random states."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from .. import __version__
from ..errors import UserError, as_user_error
from ..files import read_json
from .folder import CHECKSUMS, STATE, checkpoint_name


@dataclass
class Progress:
    """How far a run is, and what it must still know when it resumes."""

    # What a resumed run is compared with.
    fingerprint: str = ""  # of the training pairs
    validation: str = ""  # the same of the validation pairs; empty in older checkpoints
    clean_sources: bool = False  # as tokenized since `clean` exists; not in older checkpoints
    processes: int = 1
    device: str = ""  # "cpu", "cuda"
    precision: str = ""  # of matrix products, as Accelerate names it
    compiled: bool = False
    threads: int = 0  # 0: unknown
    tracked_as: str = ""  # the run's name in trackers
    tracker_runs: dict[str, str] = field(default_factory=dict)  # what trackers that choose it themselves call the run
    # The updates made.
    step: int = 0
    position: dict[str, Any] = field(default_factory=dict)  # of the next global batch
    target_tokens: int = 0
    seconds: float = 0.0  # spent on updates, without evaluations and checkpoints
    nonfinite: int = 0  # updates skipped
    nonfinite_in_a_row: int = 0
    loss_sum: float = 0.0  # these three: since the last log line
    cross_entropy_sum: float = 0.0
    loss_tokens: int = 0
    # Evaluations and checkpoints.
    completed_step: int = 0  # the last update after which all that the recipe asks for is done (see `complete_update`)
    evaluations: int = 0
    best: float | None = None  # by the recipe's metric
    best_loss: float | None = None  # the loss of the same weights; not in older checkpoints
    best_step: int = 0
    without_better: int = 0
    warned_of: list[str] = field(default_factory=list)  # symptoms that the log names
    averaging: list[str] = field(default_factory=list)  # the files of weights that will be averaged

    def threads_on_cpu(self) -> int:
        """The threads of a run on the CPU in one process; 0 for any other run, or if unknown."""
        return self.threads if (self.processes, self.device) == (1, "cpu") else 0


FROM_ANOTHER = "; resume from another checkpoint (--resume-from)"


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Add to a UserError about a checkpoint what to do."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{error}{advice}") from error


def read_progress(checkpoint: Path) -> Progress:
    """The progress in a checkpoint. Raises UserError if it is damaged, renamed, or written by a newer version."""
    with advising(FROM_ANOTHER):
        content = read_json(checkpoint / STATE)
    content.pop(CHECKSUMS, None)
    is_incomplete = content.pop("unsettled", False)  # of version 0.2, in place of completed_step
    if unknown := sorted(content.keys() - Progress.__dataclass_fields__.keys()):
        raise UserError(
            f"{checkpoint / STATE}: this version of modeling_scratch ({__version__}) does not know "
            f"{', '.join(unknown)}; resume with the version that wrote it"
        )
    with advising(FROM_ANOTHER), as_user_error(f"{checkpoint / STATE}: "):
        content["averaging"] = list(content.get("averaging", ()))  # older checkpoints also have a checksum of each
        progress = TypeAdapter(Progress).validate_python(content)
    if "completed_step" not in content:
        progress.completed_step = progress.step - 1 if is_incomplete else progress.step
    if checkpoint.name != checkpoint_name(progress.step):
        raise UserError(
            f"{checkpoint} is the checkpoint of update {progress.step}; rename it to {checkpoint_name(progress.step)}"
        )
    return progress

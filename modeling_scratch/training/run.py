"""The parts of a run, and how to begin or resume it, on one process or many."""

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import PreTrainedModel

from ..data.batches import fingerprint_of
from ..data.tokenizer import texts
from ..errors import Stopped, UserError
from ..files import write_whole
from ..hub.push import check_destination
from ..metrics import can_tell
from ..recipe.reading import recipe_text
from ..recipe.schema import Recipe
from .checkpoints import Progress, find_checkpoint, load_checkpoint, read_progress, save_model_files
from .compilation import is_compiled, is_recorded
from .due import total_updates
from .folder import RECIPE, RunFolder
from .inputs import Inputs, prepare_inputs
from .log import RunLog
from .processes import check_folder, check_run, choose_threads, on_main
from .step import TrainingStep
from .stopping import StopRequest

logger = logging.getLogger(__name__)


def _claim_folder(recipe: Recipe, accelerator: Accelerator, resume: bool, overwrite: bool = False) -> RunFolder:
    """
    Lock a run's folder, and check where the run will be pushed. UserError if the folder conflicts with the command
    line, or a process cannot see it.
    """
    folder = RunFolder(recipe.output_dir)
    for key, name in (("model.start_from", recipe.model.start_from), ("tokenizer.existing", recipe.tokenizer.existing)):
        is_inside = name and Path(name).exists() and Path(name).resolve().is_relative_to(folder.path.resolve())
        if is_inside and not resume:
            raise UserError(f"{key} is {name}, which is in output_dir; a new run needs another output_dir")
    on_main(accelerator, lambda: folder.check(resume, overwrite))
    if accelerator.num_processes > 1:
        check_folder(accelerator, folder)
    if recipe.hub.repository is not None:
        on_main(accelerator, lambda: check_destination(recipe))
    return folder


class TrainingRun:
    """
    A run of a recipe, and its progress. `begin` or `resume` makes one, `loop.train` makes its updates, and
    `finish.finish` chooses and scores its final weights. All processes call every method together.
    """

    def __init__(
        self, recipe: Recipe, accelerator: Accelerator, folder: RunFolder, inputs: Inputs, stop: StopRequest | None
    ):
        """Used by `begin` and `resume`; nothing is written here."""
        self.recipe, self.accelerator, self.folder, self.tokenizers = recipe, accelerator, folder, inputs.tokenizers
        self.stop = StopRequest() if stop is None else stop
        self.log, self.batches = RunLog(accelerator, folder), inputs.batches
        self.pairs, self.validation_data = inputs.pairs, inputs.validation_data
        self.total_updates = total_updates(recipe, self.batches.batches_in(recipe.optimization.max_epochs or 0))
        self.progress = Progress(
            fingerprint=self.batches.fingerprint(),
            validation=fingerprint_of(inputs.validation_data),
            clean_sources=True,
            position=self.batches.position(),
            processes=accelerator.num_processes,
            device=accelerator.device.type,
            precision=accelerator.mixed_precision,
            compiled=is_compiled(recipe, accelerator, self.total_updates),
            threads=torch.get_num_threads(),
            tracked_as=on_main(accelerator, lambda: f"{folder.path.name}-{uuid.uuid4().hex[:8]}"),
        )
        epochs, steps = recipe.optimization.max_epochs, recipe.optimization.max_steps
        if epochs and steps and self.total_updates < steps:
            logger.warning(
                f"optimization.max_epochs ({epochs}) ends the run after {self.total_updates:,} updates, before "
                f"optimization.max_steps ({steps:,}); optimization.max_epochs=null takes it away"
            )
        if self.total_updates <= (warmup := recipe.optimization.warmup_steps):
            logger.warning(
                f"the learning rate is still growing when the run ends: optimization.warmup_steps is {warmup:,}, and "
                f"there are {self.total_updates:,} updates"
            )
        self.saved_at = time.monotonic()
        check_run(accelerator, recipe, self.progress.compiled, self.progress.fingerprint, self.total_updates)
        set_seed(recipe.seed, device_specific=True)  # from here on each process draws its own dropout
        recorded = is_recorded(accelerator, inputs.model)
        if accelerator.device.type != "cpu":
            whether = {True: "", False: "not "}
            layers = f"layers {whether[self.progress.compiled]}compiled"
            logger.info(f"updates are {whether[recorded]}recorded, {layers} (docs/scaling.md, Training on a GPU)")
        self.training_step = TrainingStep(accelerator, inputs.model, recipe.optimization, recorded)
        self.model, self.optimizer = self.training_step.model, self.training_step.optimizer

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        accelerator: Accelerator,
        overwrite: bool = False,
        stop: StopRequest | None = None,
    ) -> "TrainingRun":
        """
        A new run, in a new or empty folder.

        Args:
            overwrite: delete the run that is in the folder.
            stop: asks the run to stop; `train` and `finish` then raise Stopped.

        Raises:
            UserError: something is wrong with the folder, the data or the model. Nothing has been written.
        """
        folder = _claim_folder(recipe, accelerator, False, overwrite)
        choose_threads(accelerator)
        set_seed(recipe.seed)
        run = cls(recipe, accelerator, folder, prepare_inputs(recipe, accelerator), stop)
        # Last: what was there is deleted.
        on_main(accelerator, lambda: run._create_folder(overwrite))
        return run

    @classmethod
    def resume(
        cls, recipe: Recipe, accelerator: Accelerator, checkpoint: str | None = None, stop: StopRequest | None = None
    ) -> "TrainingRun":
        """
        The run in the recipe's folder, restored from a checkpoint. It makes the updates that it would have made without
        the interruption.

        Args:
            checkpoint: its name; None: the newest complete one. Later ones are deleted once the next is written.
            stop: as in `begin`.

        Raises:
            UserError: there is no such checkpoint, the training data differs, or the recipe differs too much.
        """
        folder = _claim_folder(recipe, accelerator, True)
        path = on_main(accelerator, lambda: find_checkpoint(folder, recipe, checkpoint))
        choose_threads(accelerator, on_main(accelerator, lambda: read_progress(path).threads_on_cpu()))
        set_seed(recipe.seed)
        run = cls(recipe, accelerator, folder, prepare_inputs(recipe, accelerator, path), stop)
        run._restore(path)
        return run

    @classmethod
    def begin_or_resume(
        cls, recipe: Recipe, accelerator: Accelerator, stop: StopRequest | None = None
    ) -> "TrainingRun":
        """
        `resume` if the recipe's folder holds a run with a checkpoint, else `begin`, since a run interrupted before its
        first checkpoint has nothing to lose. Errors as there.
        """
        folder = RunFolder(recipe.output_dir)  # with it goes the lock, so it stays until the run has one
        can_go_on, is_run = on_main(accelerator, lambda: (folder.locked_can_go_on(), folder.is_run()))
        if can_go_on:
            return cls.resume(recipe, accelerator, None, stop)
        return cls.begin(recipe, accelerator, is_run, stop)

    # -- set-up --------------------------------------------------------------------------------------------------

    def _create_folder(self, overwrite: bool) -> None:
        self.folder.check(False, overwrite)  # again: preparing the data took a while
        self.folder.create()
        write_whole(self.folder.path / RECIPE, recipe_text(self.recipe))
        save_model_files(self, self.folder.path)

    def _restore(self, checkpoint: Path) -> None:
        self.progress = before = load_checkpoint(self, checkpoint)
        logger.info(f"resuming from {checkpoint}")

        def restore_folder() -> bool:
            best = None if before.best is None else before.best_step
            has_best = self.folder.go_on_from(checkpoint, before.step, best, before.unsettled)
            write_whole(self.folder.path / RECIPE, recipe_text(self.recipe))
            save_model_files(self, self.folder.path)  # the recipe may have changed the generation config
            return has_best

        if not self.log.write("the folder", restore_folder) and before.best is not None:
            before.best, before.best_step, before.without_better = None, 0, 0

    def final_splits(self) -> list[str]:
        """What final weights are scored on: the test split and further test sets, or validation if there are none."""
        return [split for split in ("test", *self.recipe.data.test_sets) if split in self.pairs] or ["validation"]

    @cached_property
    def metric_can_tell(self) -> bool:
        """Whether the recipe's metric can choose the best weights; otherwise the loss does."""
        section, language = self.recipe.evaluation, self.recipe.data.target_language
        references = texts(self.pairs["validation"])[1]
        return on_main(self.accelerator, lambda: can_tell(section.metric, references, language))

    @property
    def unwrapped(self) -> PreTrainedModel:
        return self.accelerator.unwrap_model(self.model)

    # -- used by the loop and at the end of a run ------------------------------------------------------------------

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """A context in which signals ask the run to stop; if it stops or fails, the trackers are closed."""
        with self.stop:
            try:
                yield
            except (Stopped, UserError):
                self.log.close()
                raise

    def record(self, record: dict[str, Any]) -> None:
        """Append a record to metrics.jsonl and send its numbers to the trackers."""
        step = self.progress.step
        self.log.record(step, {"step": step, "epoch": self.batches.epochs(), **record})

    def clock_asks(self) -> bool:
        """Whether the main process's clock asks for a checkpoint; False on other processes."""
        seconds = self.recipe.checkpoints.seconds
        due = seconds is not None and time.monotonic() - self.saved_at >= seconds
        return due and self.accelerator.is_main_process

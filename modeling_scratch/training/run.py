"""The training loop: train, evaluate, checkpoint, finish; on one process or many; begun or resumed."""

import logging
import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from safetensors.torch import load_file
from transformers import PreTrainedModel

from ..data.tokenization import texts
from ..errors import Diverged, ProcessError, Stopped, UserError
from ..hub.push import check_destination, try_push
from ..recipe.reading import recipe_text
from ..recipe.schema import Recipe
from ..runs.agreement import check_folder, check_run
from ..runs.folder import RECIPE, WEIGHTS, RunFolder, write_whole
from ..runs.processes import describe, on_main
from ..runs.stopping import StopRequest
from .checkpoints import (
    Progress,
    check_recipe,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_model_files,
    stored_weights,
)
from .compilation import compile_layers, example_batch, explained_failure_to_compile, is_compiled
from .due import Due, due_after, out_of_patience, total_updates
from .global_batches import GlobalBatch
from .inputs import Inputs, prepare_inputs
from .log import RunLog
from .optimization import learning_rate_at, make_optimizer
from .sharding import prepare
from .step import StepResult, TrainingStep
from .validation import Validator

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_CURVES = 60


def begin_or_resume(recipe: Recipe, accelerator: Accelerator, stop: StopRequest | None = None) -> "TrainingRun":
    """Resume the run in the recipe's folder if there is anything to resume, else begin it."""
    if on_main(accelerator, RunFolder(recipe.output_dir).can_go_on):
        return TrainingRun.resume(recipe, accelerator, stop=stop)
    # What an interrupt has left before the first checkpoint is no loss.
    return TrainingRun.begin(recipe, accelerator, overwrite=True, stop=stop)


def _open_folder(recipe: Recipe, accelerator: Accelerator, resume: bool, overwrite: bool = False) -> RunFolder:
    """The run's folder, locked and seen by all processes; UserError if it is not fit, or the Hub refuses the push."""
    folder = RunFolder(recipe.output_dir)
    on_main(accelerator, lambda: folder.check(resume, overwrite))
    if accelerator.num_processes > 1:
        check_folder(accelerator, folder)
    if recipe.hub.repository is not None:
        on_main(accelerator, lambda: check_destination(recipe))
    return folder


def _find_checkpoint(folder: RunFolder, recipe: Recipe, name: str | None) -> Path:
    check_recipe(folder, recipe)
    if name is not None:
        return folder.named_checkpoint(name)
    checkpoint, passed_over = folder.newest_checkpoint()
    for why in passed_over:
        logger.warning(f"passed over a checkpoint: {why}")
    return checkpoint


class TrainingRun:
    """
    One run of a recipe: `begin` or `resume` makes it, `train` makes the updates, `finish` chooses the final weights and
    scores them.

    An update is a step of the optimizer on one global batch, the same whatever the number of processes. After each the
    run logs, evaluates, writes a checkpoint or ends, as `due_after` says. All processes call everything together.
    """

    def __init__(
        self, recipe: Recipe, accelerator: Accelerator, folder: RunFolder, inputs: Inputs, stop: StopRequest | None
    ):
        """Used by `begin` and `resume`; nothing is written here."""
        self.recipe, self.accelerator, self.folder, self.tokenizers = recipe, accelerator, folder, inputs.tokenizers
        self.stop = StopRequest() if stop is None else stop
        self.log, self.pairs, self.batches = RunLog(accelerator, folder), inputs.pairs, inputs.batches
        self.progress = Progress(
            fingerprint=self.batches.fingerprint(),
            processes=accelerator.num_processes,
            device=accelerator.device.type,
            precision=accelerator.mixed_precision,
            compiled=is_compiled(recipe, accelerator),
            tracked_as=on_main(accelerator, lambda: f"{folder.path.name}-{uuid.uuid4().hex[:8]}"),
        )
        self.total_updates = total_updates(recipe, self.batches.batches_per_epoch)
        self.saved_at = time.monotonic()
        check_run(accelerator, recipe, self.progress.fingerprint, self.total_updates)
        self.model, self.optimizer = inputs.model, None  # `_distribute` makes these the accelerator's
        self.validation_data = inputs.validation_data

    @classmethod
    def begin(
        cls, recipe: Recipe, accelerator: Accelerator, overwrite: bool = False, stop: StopRequest | None = None
    ) -> "TrainingRun":
        """
        A new run, in a new or empty folder.

        Args:
            overwrite: delete the run that is in the folder.
            stop: asks the run to end; `train` and `finish` then raise Stopped.

        Raises:
            UserError: what is wrong with the folder, the data or the model. Nothing has been written.
        """
        folder = _open_folder(recipe, accelerator, resume=False, overwrite=overwrite)
        set_seed(recipe.seed)
        run = cls(recipe, accelerator, folder, prepare_inputs(recipe, accelerator), stop)
        on_main(accelerator, lambda: run._create_folder(overwrite))
        run._distribute()
        run._open_trackers()
        return run

    @classmethod
    def resume(
        cls,
        recipe: Recipe,
        accelerator: Accelerator,
        checkpoint: str | None = None,
        stop: StopRequest | None = None,
    ) -> "TrainingRun":
        """
        The run in the recipe's folder, from where a checkpoint left it: it makes the updates that it would have made.

        Args:
            checkpoint: its name; later ones are deleted. None: the newest that is whole.
            stop: as for `begin`.

        Raises:
            UserError: there is no such checkpoint, or it is of other data, or of a recipe that cannot go on so.
        """
        folder = _open_folder(recipe, accelerator, resume=True)
        path = on_main(accelerator, lambda: _find_checkpoint(folder, recipe, checkpoint))
        set_seed(recipe.seed)
        run = cls(recipe, accelerator, folder, prepare_inputs(recipe, accelerator, path), stop)
        run._distribute()
        run._restore(path, drop_later=checkpoint is not None)
        run._open_trackers()
        return run

    # -- set-up --------------------------------------------------------------------------------------------------

    def _create_folder(self, overwrite: bool) -> None:
        self.folder.check(False, overwrite)  # again: preparing the data took a while
        self.folder.create()
        write_whole(self.folder.path / RECIPE, recipe_text(self.recipe))
        self._save_model_files(self.folder.path)

    def _distribute(self) -> None:
        """Give the model to the accelerator: wrapped, sharded, on its device, as the launcher has it."""
        recipe, accelerator = self.recipe, self.accelerator
        set_seed(recipe.seed, device_specific=True)  # from here on each process draws its own dropout
        optimizer = make_optimizer(self.model, recipe.optimization)
        self.model, self.optimizer = prepare(accelerator, self.model, optimizer)
        batches, compiled = self.batches, self.progress.compiled
        self.step = TrainingStep(
            accelerator, self.model, self.optimizer, recipe.optimization, compiled, batches.in_smaller_pieces
        )
        self.validator = Validator(
            recipe, accelerator, self.unwrapped, self.tokenizers, self.pairs, self.validation_data, self.stop
        )

    def _restore(self, checkpoint: Path, drop_later: bool) -> None:
        run = (self.optimizer, self.batches, self.progress, self.recipe)
        self.progress = before = load_checkpoint(self.accelerator, checkpoint, *run)
        logger.info(f"resuming from {checkpoint}")

        def restore_folder() -> bool:
            best = None if before.best is None else before.best_step
            has_best = self.folder.go_on_from(checkpoint, before.step, best, before.unsettled, drop_later)
            write_whole(self.folder.path / RECIPE, recipe_text(self.recipe))
            self.unwrapped.generation_config.save_pretrained(self.folder.path)  # as the recipe has it now
            return has_best

        if not on_main(self.accelerator, restore_folder):
            before.best, before.best_step, before.without_better = None, 0, 0

    def _open_trackers(self) -> None:
        if self.recipe.trackers:
            self.log.open_trackers(self.progress.tracked_as)

    @property
    def unwrapped(self) -> PreTrainedModel:
        return self.accelerator.unwrap_model(self.model)

    def _save_model_files(self, folder: Path) -> None:
        data = self.recipe.data
        save_model_files(self.unwrapped, self.tokenizers, (data.source_language, data.target_language), folder)

    # -- training ------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """
        Make the updates from where the run stands to its end, or until patience runs out.

        Raises:
            Stopped: the run was asked to end, and a checkpoint of where it stands is written.
            UserError: the loss or the gradient was not finite too many times in a row; a checkpoint cannot be written;
                memory does not suffice; another process is gone.
        """
        progress = self.progress
        self._log({"split": "run", **self._describe()})
        self.model.train()
        with self.log.progress_bar(progress.step, self.total_updates) as bar, self._stoppable():
            if progress.compiled and progress.step < self.total_updates:
                self._compile()
            if progress.unsettled:  # stopped between an update and what was due after it
                self._do(self._due())
            batches = self.batches.iterate(self.stop)
            while progress.step < self.total_updates and not self._out_of_patience():
                batch = next(batches, None)
                if batch is None:  # a process was asked to stop while it read
                    self._stop_here()
                result = self._update(batch)
                bar.show(result.loss, progress)
                asked_to_stop, late = result.asked
                due = self._due(late)
                if due.log:
                    self._log_training()
                self._do(due, asked_to_stop)

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        with self.stop:
            try:
                yield
            except Stopped:
                self.log.close()
                raise

    def _update(self, batch: GlobalBatch) -> StepResult:
        """
        Make one update and note what became of it. It asks all processes whether one of them is to stop, and whether
        the main one's clock wants a checkpoint.
        """
        progress, started = self.progress, time.perf_counter()
        progress.step += 1
        rate = learning_rate_at(progress.step, self.recipe.optimization, self.total_updates)
        result = self.step(batch, rate, questions=(bool(self.stop), self._clock_asks()))
        progress.position = self.batches.position()
        progress.seconds += time.perf_counter() - started
        progress.target_tokens += batch.target_tokens
        if result.finite:
            progress.loss_sum += result.loss * batch.target_tokens
            progress.loss_tokens += batch.target_tokens
            progress.nonfinite_in_a_row = 0
        else:
            self._skip(batch, result.loss)
        return result

    def _skip(self, batch: GlobalBatch, loss: float) -> None:
        """Count an update that was left out. UserError if these become too many."""
        progress, limit = self.progress, self.recipe.optimization.max_nonfinite_updates
        progress.nonfinite, progress.nonfinite_in_a_row = progress.nonfinite + 1, progress.nonfinite_in_a_row + 1
        places = "; ".join(filter(None, gather_object([self.batches.describe(batch.examples)])))
        what = f"update {progress.step}: the loss ({loss}) or its gradient is not finite"
        if progress.nonfinite_in_a_row > limit:
            raise UserError(
                f"{what}, as in the {limit} before, all skipped (optimization.max_nonfinite_updates); the last "
                "checkpoint is from before them. Lower optimization.learning_rate, lengthen optimization.warmup_steps, "
                f"or look at the training pairs {places}"
            )
        logger.warning(f"{what}; skipped. Its training pairs: {places}")

    def _due(self, late: bool = False) -> Due:
        progress = self.progress
        skipped = progress.nonfinite_in_a_row > 0
        return due_after(progress.step, progress.position, self.recipe, self.total_updates, skipped=skipped, late=late)

    def _do(self, due: Due, asked_to_stop: bool = False) -> None:
        """
        Evaluate, write a checkpoint, or end on request. A checkpoint that is written before all is done says so
        (`unsettled`), and a run that resumes from it does the rest.
        """
        progress = self.progress
        progress.unsettled = due.evaluation or due.checkpoint
        if asked_to_stop:
            self._stop_here()
        if due.evaluation:
            self._evaluate(due.end)
        progress.unsettled = False
        counts = due.checkpoint or self._out_of_patience()
        if counts or progress.best_step == progress.step:
            self._save_checkpoint(counts)

    def _stop_here(self) -> None:
        progress = self.progress
        self._save_checkpoint(counts=False)
        asked = next((reason for reason in gather_object([self.stop.reason]) if reason), "")
        raise Stopped(
            f"stopped by {asked} after update {progress.step} of {self.total_updates}; --resume continues from "
            f"{self.folder.checkpoint(progress.step)}"
        ) from None

    def _clock_asks(self) -> bool:
        """Whether the main process's clock asks for a checkpoint."""
        seconds = self.recipe.checkpoints.seconds
        due = seconds is not None and time.monotonic() - self.saved_at >= seconds
        return due and self.accelerator.is_main_process

    def _out_of_patience(self) -> bool:
        return out_of_patience(self.recipe, self.progress.without_better)

    def _compile(self) -> None:
        """Make the graphs, from a batch that is never trained on."""
        logger.info("compiling the layers, which takes a minute or two")
        compile_layers(self.unwrapped)
        batch = example_batch(self.unwrapped, self.accelerator.device)
        devices = [self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices), explained_failure_to_compile():
            self.accelerator.backward(self.step.forward(batch, batch["labels"].numel()))
        self.optimizer.zero_grad()

    # -- records -------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        """What the run trains on and with, for its records and its card."""
        pairs = {"train_pairs": len(self.pairs["train"])} if "train" in self.pairs else {}
        revision = {"data_revision": self.batches.revision} if self.batches.revision else {}
        return pairs | revision | describe(self.accelerator, self.unwrapped)

    def _log(self, record: dict[str, Any]) -> None:
        step = self.progress.step
        self.log.record(step, {"step": step, "epoch": self.batches.epochs(), **record})

    def _log_training(self) -> None:
        """The mean loss since the last such record, speed, and time left."""
        progress = self.progress
        rate = learning_rate_at(progress.step, self.recipe.optimization, self.total_updates)
        loss = progress.loss_sum / progress.loss_tokens if progress.loss_tokens else math.nan
        self._log(
            {
                "split": "train",
                "loss": loss,
                "learning_rate": rate,
                "target_tokens": progress.target_tokens,
                "target_tokens_per_second": progress.target_tokens / progress.seconds,
                "seconds": progress.seconds,
                **({"nonfinite_updates": progress.nonfinite} if progress.nonfinite else {}),
            }
        )
        self.log.tell(loss, progress, self.total_updates)
        progress.loss_sum, progress.loss_tokens = 0.0, 0

    # -- evaluation and checkpoints --------------------------------------------------------------------------------

    def _evaluate(self, end: bool) -> None:
        """Evaluate on the validation split; the best weights go to the folder's root."""
        try:
            with_translations = (self.progress.evaluations + 1) % self.recipe.evaluation.translate_every == 0 or end
            record = self.validator.validate(with_translations)
        except Stopped:
            self._stop_here()
        except ProcessError:  # no memory; with less at once the run can go on from here
            if self.accelerator.num_processes == 1:
                self._save_checkpoint(counts=False)
            raise
        progress, metric = self.progress, self.recipe.evaluation.metric
        progress.evaluations += 1
        self._log(record)
        found = ", ".join(f"{name} {record[name]:.2f}" for name in ("loss", "bleu", "chrf") if name in record)
        level = logging.INFO if math.isfinite(record["loss"]) else logging.WARNING
        logger.log(level, f"step {progress.step}, epoch {self.batches.epochs():.1f}: validation {found}")
        self.log.curves(older_than=_SECONDS_BETWEEN_CURVES)
        if metric not in record:
            return
        if not self.validator.is_better(record, progress.best):
            progress.without_better += 1
            return
        progress.best, progress.best_step, progress.without_better = record[metric], progress.step, 0
        self._write_root(self.accelerator.get_state_dict(self.model))
        if self.recipe.hub.repository is not None and self.recipe.hub.push == "best":
            self.log.curves()
            on_main(self.accelerator, lambda: try_push(self.recipe, f"Upload model of step {progress.step}"))

    def _write_root(self, weights: dict[str, torch.Tensor]) -> None:
        self.log.write(WEIGHTS, lambda: self.folder.write_weights(stored_weights(self.unwrapped, weights)))

    def _save_checkpoint(self, counts: bool) -> None:
        """
        Args:
            counts: whether it is one of those that the recipe asks for, and averages.
        """
        section, step = self.recipe.checkpoints, self.progress.step
        self.saved_at = time.monotonic()
        save_checkpoint(
            self.accelerator,
            self.folder,
            self.model,
            self.optimizer,
            self.batches,
            self.progress,
            self._save_model_files,
            keep_last=section.keep_last,
            average_last=section.average_last if counts else 1,
        )

        def first_weights() -> None:
            if not (self.folder.path / WEIGHTS).exists():
                self.folder.write_weights(load_file(self.folder.checkpoint(step) / WEIGHTS))

        on_main(self.accelerator, first_weights)

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """
        Choose the final weights (the average of the last checkpoints, or the best by the recipe's metric), put them at
        the folder's root, and score them on the test split, or validation where there is none.

        Returns:
            The scores by split, some samples, the folder, and the progress.

        Raises:
            Stopped: the run was asked to end. It is trained whole; --resume scores it.
        """
        with self._stoppable():
            try:
                return self._finish()
            except Stopped:
                raise Stopped("stopped while the final model was scored; --resume scores it") from None

    def _finish(self) -> dict[str, Any]:
        self._choose_weights()
        splits = [split for split in ("test", *self.recipe.data.test_sets) if split in self.pairs] or ["validation"]
        translations, scores = {}, {}
        for split in splits:
            translations[split], record = self.validator.final_scores(split)
            scores[split] = record
            self._log(record)
        split = splits[0]
        sources, references = texts(self.pairs[split].select(range(min(5, len(self.pairs[split])))))
        samples = list(zip(sources, references, translations[split][:5], strict=True))
        self.log.samples(samples, split)
        self.log.curves()
        self.log.close()
        self.accelerator.wait_for_everyone()
        return {"scores": scores, "samples": samples, "folder": str(self.folder.path), **asdict(self.progress)}

    def _choose_weights(self) -> None:
        """Put the final weights at the folder's root and into the model."""
        accelerator, last = self.accelerator, self.recipe.checkpoints.average_last
        if last > 1:
            average = self.progress.averaging
            self.log.write(WEIGHTS, lambda: self.folder.write_weights(self.folder.averaged_weights(average)))
        elif self.progress.best is None:  # the best is lost, or never was
            self._check_loss()
            self._write_root(accelerator.get_state_dict(self.model))
        load_weights(accelerator, self.unwrapped, self.folder.path / WEIGHTS)
        if last > 1:
            logger.info(f"scoring the average of the last {last} checkpoints on the validation split")
            loss = self._check_loss()
            _, scores = self.validator.translate("validation")
            self._log({"split": "validation", "final": True, "loss": loss, **scores})

    def _check_loss(self) -> float:
        """The validation loss. Diverged if it is not finite: such weights are no model."""
        if not math.isfinite(loss := self.validator.loss()):
            # What a checkpoint or the average has left at the root is no model either.
            on_main(self.accelerator, lambda: (self.folder.path / WEIGHTS).unlink(missing_ok=True))
            raise Diverged(
                "training has diverged: the loss on the validation split is not finite, so there is no final model; "
                "lower optimization.learning_rate or lengthen optimization.warmup_steps, and begin anew"
            )
        return loss

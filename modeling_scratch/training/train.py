"""
Train a model: begin a run or resume one; make an update, then evaluate and write a checkpoint if they are due, until
all updates are made; then score the model.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed

from ..data.batches import BatchShare, fingerprint_of
from ..data.streaming import GlobalBatches
from ..errors import ProcessError, Stopped, UserError
from ..files import write_whole
from ..recipe.reading import recipe_text
from ..recipe.schema import OptimizationSection, Recipe
from ..run.checkpoints import find_checkpoint, load_checkpoint, save_checkpoint, save_model_files
from ..run.folder import RunFolder
from ..run.log import RunLog, close_trackers, open_trackers
from ..run.processes import StopRequest, on_main, write_on_main
from ..run.progress import Progress, read_progress
from ..run.records import RECIPE
from ..run.run import Run, RunData
from ..run.sharding import is_finite
from .captured_updates import make_training_step
from .compilation import compile_training, is_compiled, log_use_of_gpu
from .evaluation import evaluate, metric_can_tell
from .finish import finish, score_start
from .optimization import learning_rate_at
from .preparation import prepare
from .setup import check_agreement, check_shared_folder, describe_setup, keep_threads
from .step import StepResult, TrainingStep
from .throughput import utilization_per_token

logger = logging.getLogger(__name__)

Push = Callable[[str], None]


def train(
    recipe: Recipe,
    accelerator: Accelerator,
    resume: bool | str = False,
    overwrite: bool = False,
    stop: StopRequest | None = None,
    push: Push | None = None,
) -> dict[str, Any]:
    """
    Train and score the model of a recipe. All processes of a run call this together.

    Args:
        resume: continue the run in the recipe's folder, which makes the updates that it would have made without the
            interruption. True: from its newest checkpoint; a name: from that one; "auto": from the newest, or begin a
            run if there is none.
        overwrite: delete the run that is in the folder.
        stop: a request to stop, which signals make too.
        push: called with a message whenever an evaluation finds better weights, to send the folder's model to the Hub.

    Returns:
        What `finish` returns.

    Raises:
        Stopped: the run was asked to stop, and has written a checkpoint.
        UserError: something is wrong with folder, data or model, and nothing has been written; or the loss was not
            finite too many times in a row, a checkpoint cannot be written, memory ran out.
    """
    stop = StopRequest() if stop is None else stop
    run, step = begin_or_resume(recipe, accelerator, resume, overwrite, stop)
    with stop, ExitStack() as at_end:
        at_end.callback(close_trackers, accelerator)
        if recipe.trackers:
            open_trackers(accelerator, run.progress, in_folder=True)
        run.log.record({"split": "run", **_describe_data(run.data), **describe_setup(accelerator, run.model)})
        with _checkpoint_if_stopped(run):
            if recipe.model.start_from and run.progress.step == 0:
                score_start(run)
            make_updates(run, step, push)
        return finish(run)


# -- begin or resume ---------------------------------------------------------------------------------------------------


def begin_or_resume(
    recipe: Recipe, accelerator: Accelerator, resume: bool | str, overwrite: bool, stop: StopRequest
) -> tuple[Run, TrainingStep]:
    """
    A new run in the recipe's folder, or the one that is there, restored from a checkpoint; and what makes its updates.
    Arguments and errors are those of `train`. If there is an error, the folder is left unchanged.
    """
    folder = RunFolder(recipe.output_dir)
    try:
        checkpoint = _claim(folder, recipe, accelerator, resume, overwrite)
        if checkpoint is not None and (threads := read_progress(checkpoint).threads_on_cpu()):
            keep_threads(threads)
        set_seed(recipe.seed)
        data, model = prepare(recipe, accelerator, checkpoint)
        total = total_updates(recipe.optimization, data.batches)
        progress = _new_progress(recipe, accelerator, data, total)
        check_agreement(accelerator, recipe, progress.compiled, progress.fingerprint, total)
        set_seed(recipe.seed, device_specific=True)  # from here on each process draws its own dropout
        _warn_of_length(recipe, total)
        step = make_training_step(accelerator, model, recipe.optimization)
        log_use_of_gpu(step, progress.compiled)
        if checkpoint is not None:
            progress = load_checkpoint(checkpoint, recipe, accelerator, data.batches, step.optimizer, progress)
            logger.info(f"resuming from {checkpoint}")
        if recipe.trackers:  # the Accelerator may have another run's, as in `scratch improve`
            open_trackers(accelerator, progress, in_folder=False)
        model = accelerator.unwrap_model(step.model)
        per_token = utilization_per_token(model, data.validation, accelerator)
        log = RunLog(accelerator, folder.path, progress, data.batches, total, per_token)
        run = Run(
            recipe,
            accelerator,
            stop,
            folder,
            data,
            model=model,
            wrapped=step.model,
            optimizer=step.optimizer,
            progress=progress,
            total=total,
            log=log,
        )
        if not write_on_main(accelerator, "the folder", folder.path, lambda: _write(run, checkpoint)):
            progress.best, progress.best_step, progress.without_better = None, 0, 0
    except BaseException:
        close_trackers(accelerator)
        folder.remove_if_unused()
        raise
    return run, step


def _claim(
    folder: RunFolder, recipe: Recipe, accelerator: Accelerator, resume: bool | str, overwrite: bool
) -> Path | None:
    """Lock the run's folder. Returns the checkpoint to resume from; None: a new run begins."""
    if resume == "auto":
        resume, overwrite = on_main(accelerator, lambda: (folder.can_resume(), folder.is_run()))
    for key, name in (("model.start_from", recipe.model.start_from), ("tokenizer.existing", recipe.tokenizer.existing)):
        is_inside = name and Path(name).exists() and Path(name).resolve().is_relative_to(folder.path.resolve())
        if is_inside and not resume:
            raise UserError(f"{key} is {name}, which is in output_dir; a new run needs a different output_dir")
    on_main(accelerator, lambda: folder.claim(bool(resume), overwrite))
    if accelerator.num_processes > 1:
        check_shared_folder(accelerator, folder.path)
    if not resume:
        return None
    return on_main(accelerator, lambda: find_checkpoint(folder, recipe, None if resume is True else resume))


def _write(run: Run, checkpoint: Path | None) -> bool:
    """Empty the folder of a new run, or restore that of a resumed one. Returns whether the best weights are there."""
    folder, progress, has_best = run.folder, run.progress, True
    if checkpoint is None:
        folder.clear()
    else:
        best = None if progress.best is None else progress.best_step
        has_best = folder.rewind(checkpoint, progress.step, progress.completed_step, best) or best is None
    write_whole(folder.path / RECIPE, recipe_text(run.recipe))
    # The generation config may have changed.
    save_model_files(folder.path, run.model, run.data.tokenizers, run.recipe.data)
    return has_best


def total_updates(optimization: OptimizationSection, batches: GlobalBatches) -> int:
    """The number of updates in a run, unless patience ends it earlier."""
    by_epochs = batches.batches_in(optimization.max_epochs) if optimization.max_epochs else None
    return min(updates for updates in (by_epochs, optimization.max_steps) if updates is not None)


def _new_progress(recipe: Recipe, accelerator: Accelerator, data: RunData, total: int) -> Progress:
    return Progress(
        fingerprint=data.batches.fingerprint(),
        validation=fingerprint_of(data.validation),
        clean_sources=True,
        position=data.batches.position(),
        processes=accelerator.num_processes,
        device=accelerator.device.type,
        precision=accelerator.mixed_precision,
        compiled=is_compiled(recipe, accelerator, total),
        threads=torch.get_num_threads(),
        tracked_as=on_main(accelerator, lambda: f"{Path(recipe.output_dir).resolve().name}-{uuid.uuid4().hex[:8]}"),
    )


def _warn_of_length(recipe: Recipe, total: int) -> None:
    """Warn about a second length without effect and a warm-up that never ends."""
    epochs, steps = recipe.optimization.max_epochs, recipe.optimization.max_steps
    if epochs and steps and total < steps:
        logger.warning(
            f"optimization.max_epochs ({epochs}) ends the run after {total:,} updates, before optimization.max_steps "
            f"({steps:,}); set optimization.max_epochs=null to remove this limit"
        )
    if total <= (warmup := recipe.optimization.warmup_steps):
        logger.warning(
            f"the learning rate is still growing when the run ends: optimization.warmup_steps is {warmup:,}, and there "
            f"are {total:,} updates"
        )


def _describe_data(data: RunData) -> dict[str, Any]:
    """The number and the commit of the training pairs, if known."""
    count = {"train_pairs": len(data.pairs["train"])} if "train" in data.pairs else {}
    return count | ({"data_revision": data.batches.revision} if data.batches.revision else {})


# -- the loop ----------------------------------------------------------------------------------------------------------


def make_updates(run: Run, step: TrainingStep, push: Push | None = None) -> None:
    """
    Make the updates that are left.

    Raises:
        Stopped: the run was asked to stop; a checkpoint of the last update is still to be written.
        UserError: the loss was not finite too many times in a row.
    """
    recipe, progress, log = run.recipe, run.progress, run.log
    loss_chooses, first_step = not metric_can_tell(run), progress.step
    run.wrapped.train()
    if progress.compiled and progress.step < run.total:
        compile_training(step)
    batches, saved_at = run.data.batches.iterate(), time.monotonic()
    # What any process asks for, all do.
    requests = {"stop": lambda: bool(run.stop), "save": lambda: _is_time_to_save(run, saved_at)}
    with log.progress_bar() as bar:
        if progress.completed_step < progress.step:  # the run was stopped before it came to that
            complete_update(run, loss_chooses, False, push)
        while not is_over(run):
            started = time.perf_counter()
            batch = next(batches)
            rate = learning_rate_at(progress.step + 1, recipe.optimization, run.total)
            result = step(batch, rate, requests)
            count_update(run, result, batch, time.perf_counter() - started)
            bar.update()
            bar.set_postfix_str(log.loss_and_speed(result.loss))
            if not result.finite:
                note_skipped_update(run, result.loss)
            if progress.step == run.total or progress.step % recipe.logging_steps == 0:
                log.training(rate)
            if result.requested["stop"]:
                raise Stopped
            if complete_update(run, loss_chooses, result.requested["save"], push):
                saved_at = time.monotonic()
        if progress.step < run.total:
            if progress.loss_tokens and progress.step > first_step:  # not logged yet
                log.training(rate)
            logger.info(
                f"training ends after update {progress.step}: {progress.without_better} evaluations in a row "
                "were no better (evaluation.patience)"
            )


def count_update(run: Run, result: StepResult, batch: BatchShare, seconds: float) -> None:
    """Count an update and its losses."""
    progress, tokens = run.progress, batch.target_tokens
    progress.step, progress.position = progress.step + 1, run.data.batches.position()
    progress.seconds += seconds
    progress.target_tokens += tokens
    if result.finite:
        progress.loss_sum += result.loss * tokens
        progress.cross_entropy_sum += result.cross_entropy * tokens
        progress.loss_tokens += tokens
        progress.nonfinite_in_a_row = 0
    else:
        progress.nonfinite += 1
        progress.nonfinite_in_a_row += 1


def note_skipped_update(run: Run, loss: float) -> None:
    """Log an update that was skipped. Raises UserError if too many were in a row."""
    progress, limit = run.progress, run.recipe.optimization.max_nonfinite_updates
    what = f"update {progress.step}: the loss ({loss}) or its gradient is not finite"
    if progress.nonfinite_in_a_row > limit:
        weights = "so the weights are still those of the last finite update"
        if not is_finite(run.accelerator, run.wrapped):
            first = progress.step - limit
            weights = "but the weights are no longer finite either"
            weights += f"; --resume-from a checkpoint of an update before {first}, if there is one"
        raise UserError(
            f"{what}, as in the {limit} updates before it, which were skipped (optimization.max_nonfinite_updates), "
            f"{weights}. Lower optimization.learning_rate, or lengthen optimization.warmup_steps"
        )
    logger.warning(f"{what}; skipped")


def complete_update(run: Run, loss_chooses: bool, is_time_to_save: bool, push: Push | None) -> bool:
    """
    Complete the last update: evaluate, write a checkpoint and push, as far as the recipe asks for them at this step.

    Args:
        loss_chooses: the loss chooses the best weights, since the recipe's metric cannot.
        is_time_to_save: whether the time between checkpoints has passed, if the recipe gives one.

    Returns:
        Whether a checkpoint was written.
    """
    recipe, progress = run.recipe, run.progress
    if progress.step >= run.total or is_due(recipe.evaluation.every, progress):
        evaluate(run, loss_chooses)
    progress.completed_step = progress.step
    is_best = progress.best_step == progress.step
    is_regular = is_due(recipe.checkpoints.every, progress, is_time_to_save)
    # After a skipped update no checkpoint is due: the last one should predate the problem.
    is_regular = is_over(run) or (is_regular and not progress.nonfinite_in_a_row)
    if is_regular or is_best:
        save_checkpoint(run, is_regular)
    if push is not None and is_best:
        run.log.curves()
        on_main(run.accelerator, partial(push, f"Upload model of step {progress.step}"))
    return is_regular or is_best


def is_due(every: int | str, progress: Progress, is_time: bool = False) -> bool:
    """
    Whether an interval of the recipe ends with the last update.

    Args:
        every: a number of updates, "epoch", or a time.
        is_time: whether that time has passed.
    """
    if every == "epoch":
        return progress.position.get("update") == 0  # the next batch is the first of an epoch, so this was the last
    return progress.step % every == 0 if isinstance(every, int) else is_time


def is_over(run: Run) -> bool:
    """Whether all updates are made, or too many evaluations in a row have found no better weights."""
    patience = run.recipe.evaluation.patience
    return run.progress.step >= run.total or (patience is not None and run.progress.without_better >= patience)


def _is_time_to_save(run: Run, saved_at: float) -> bool:
    """Whether the main process's clock asks for a checkpoint; False on other processes."""
    seconds = run.recipe.checkpoints.seconds
    return seconds is not None and run.accelerator.is_main_process and time.monotonic() - saved_at >= seconds


@contextmanager
def _checkpoint_if_stopped(run: Run) -> Iterator[None]:
    """Write a checkpoint if the run is asked to stop, or if an evaluation runs out of memory."""
    progress = run.progress
    try:
        yield
    except ProcessError:
        is_evaluating = progress.completed_step < progress.step
        if is_evaluating and run.accelerator.num_processes == 1:  # the run can resume here with smaller batches
            save_checkpoint(run)
        raise
    except Stopped:
        save_checkpoint(run)
        reason = next((reason for reason in gather_object([run.stop.reason]) if reason), "")
        where = f"stopped by {reason} after update {progress.step} of {run.total}"
        raise Stopped(f"{where}; --resume continues from there") from None

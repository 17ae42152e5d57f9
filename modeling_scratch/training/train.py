"""The training loop: make an update, then do what is due, until all updates are made."""

import logging
import math
import time
from typing import NoReturn

from accelerate.utils import gather_object
from tqdm.auto import tqdm

from ..data.batches import BatchShare
from ..errors import ProcessError, Stopped, UserError
from ..hub.push import try_push
from ..metrics import tells_nothing, title_of
from .checkpoints import save_checkpoint
from .compilation import make_graphs
from .due import Due, due_after, out_of_patience
from .evaluation import is_better, validate
from .finish import score_start
from .log import describe_data, loss_and_speed, training_record
from .optimization import learning_rate_at
from .processes import describe, explained_loss_of_a_process, on_main
from .run import TrainingRun
from .step import StepResult

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_CURVES = 60


def train(run: TrainingRun) -> None:
    """
    Make the run's remaining updates, unless patience runs out first.

    Raises:
        Stopped: the run was asked to stop, and has written a checkpoint.
        UserError: loss or gradient was not finite too many times in a row; a checkpoint cannot be written; memory ran
            out; another process is gone.
    """
    progress, accelerator = run.progress, run.accelerator
    if run.recipe.trackers:  # the Accelerator may have those of another run, as in `scratch improve`
        run.log.open_trackers(progress.tracked_as)
    run.record({"split": "run", **describe_data(run.pairs, run.batches), **describe(accelerator, run.unwrapped)})
    run.model.train()
    lost = explained_loss_of_a_process(accelerator, lambda: f"in or after update {progress.step}")
    with run.stoppable(), lost:
        try:
            if run.recipe.model.start_from and progress.step == 0:
                score_start(run)
            if progress.compiled and progress.step < run.total_updates:
                make_graphs(run.unwrapped, run.training_step)
            if progress.unsettled:  # stopped between an update and what was due after it
                _do_what_is_due(run, _due(run))
            # Not before: the time left is estimated from here on, and compiling would inflate it.
            with run.log.progress_bar(progress.step, run.total_updates) as bar:
                _make_updates(run, bar)
        except Stopped:
            _stop_here(run)


def _make_updates(run: TrainingRun, bar: tqdm) -> None:
    progress, batches, first = run.progress, run.batches.iterate(), run.progress.step
    while progress.step < run.total_updates and not out_of_patience(run.recipe, progress.without_better):
        started = time.perf_counter()
        result = _update(run, next(batches), started)
        bar.update()
        bar.set_postfix_str(loss_and_speed(result.loss, progress))
        due = _due(run, late=result.answers["late"])
        if due.log:
            _log_training(run)
        _do_what_is_due(run, due, asked_to_stop=result.answers["stop"])
    if progress.step < run.total_updates:
        if progress.loss_tokens and progress.step > first:  # not logged yet
            _log_training(run)
        said = f"{progress.without_better} evaluations in a row were no better (evaluation.patience)"
        logger.info(f"training ends after update {progress.step}: {said}")


def _update(run: TrainingRun, batch: BatchShare, started: float) -> StepResult:
    """
    Make one update and record its outcome. The exchange of losses also tells all processes whether any was asked to
    stop, and whether the main process's clock asks for a checkpoint.
    """
    progress = run.progress
    progress.step += 1
    rate = learning_rate_at(progress.step, run.recipe.optimization, run.total_updates)
    result = run.training_step(batch, rate, {"stop": lambda: bool(run.stop), "late": run.clock_asks})
    progress.position = run.batches.position()
    progress.seconds += time.perf_counter() - started
    progress.target_tokens += batch.target_tokens
    if result.finite:
        progress.loss_sum += result.loss * batch.target_tokens
        progress.cross_entropy_sum += result.cross_entropy * batch.target_tokens
        progress.loss_tokens += batch.target_tokens
        progress.nonfinite_in_a_row = 0
    else:
        _skip(run, result.loss)
    return result


def _skip(run: TrainingRun, loss: float) -> None:
    """Count a skipped update. UserError if there are too many in a row."""
    progress, limit = run.progress, run.recipe.optimization.max_nonfinite_updates
    progress.nonfinite, progress.nonfinite_in_a_row = progress.nonfinite + 1, progress.nonfinite_in_a_row + 1
    what = f"update {progress.step}: the loss ({loss}) or its gradient is not finite"
    if progress.nonfinite_in_a_row > limit:
        raise UserError(
            f"{what}, as in the {limit} before, all skipped (optimization.max_nonfinite_updates), so that the weights "
            "are those before them. Lower optimization.learning_rate, or lengthen optimization.warmup_steps"
        )
    logger.warning(f"{what}; skipped")


def _due(run: TrainingRun, late: bool = False) -> Due:
    progress = run.progress
    skipped = progress.nonfinite_in_a_row > 0
    return due_after(progress.step, progress.position, run.recipe, run.total_updates, skipped=skipped, late=late)


def _do_what_is_due(run: TrainingRun, due: Due, asked_to_stop: bool = False) -> None:
    """
    After an update, do what is due: stop on request, evaluate, write a checkpoint. There are three kinds of checkpoint:

    - due: the recipe asks for it, or patience has run out, so it takes part in averaging;
    - of the best weights so far, if the recipe does not ask for one here: kept, and not averaged;
    - on stopping, or when an evaluation runs out of memory: written before what is due is done, so it is marked
      `unsettled`, and a run that resumes from it does the rest first.
    """
    progress = run.progress
    # On request too: if the run resumes with a shorter length, it ends here.
    progress.unsettled = due.evaluation or due.checkpoint or asked_to_stop
    if asked_to_stop:
        raise Stopped
    if due.evaluation:
        _evaluate(run, due.end)
    progress.unsettled = False
    is_averaged = due.checkpoint or out_of_patience(run.recipe, progress.without_better)
    is_best = progress.best_step == progress.step
    if is_averaged or is_best:
        save_checkpoint(run, is_averaged)
    hub = run.recipe.hub
    if is_best and hub.repository is not None and hub.push == "best":  # last: it may take long
        run.log.curves()
        message = f"Upload model of step {progress.step}"
        on_main(run.accelerator, lambda: try_push(run.recipe, message), "pushing the best model")


def _stop_here(run: TrainingRun) -> NoReturn:
    """Write a checkpoint, and raise Stopped with how to continue."""
    progress = run.progress
    save_checkpoint(run, is_averaged=False)
    asked = next((reason for reason in gather_object([run.stop.reason]) if reason), "")
    raise Stopped(
        f"stopped by {asked} after update {progress.step} of {run.total_updates}; --resume continues from "
        f"{run.folder.checkpoints.path(progress.step)}"
    ) from None


def _evaluate(run: TrainingRun, end: bool) -> None:
    """Evaluate on the validation split, and note whether the weights are the best so far."""
    try:
        with_translations = (run.progress.evaluations + 1) % run.recipe.evaluation.translate_every == 0 or end
        record = validate(run, with_translations)
    except ProcessError:  # out of memory: the run can resume from here with smaller batches
        if run.accelerator.num_processes == 1:
            save_checkpoint(run, is_averaged=False)
        raise
    progress, metric = run.progress, run.recipe.evaluation.metric
    progress.evaluations += 1
    run.record(record)
    found = ", ".join(f"{name} {record[name]:.2f}" for name in record if name not in ("split", "chosen_by"))
    level = logging.INFO if math.isfinite(record["loss"]) else logging.WARNING
    logger.log(level, f"step {progress.step}, epoch {run.batches.epochs():.1f}: validation {found}")
    run.log.curves(older_than=_SECONDS_BETWEEN_CURVES)
    if metric not in record:
        return
    best = None if progress.best is None else record | {"loss": progress.best_loss, metric: progress.best}
    if not is_better(record, metric, best):
        progress.without_better += 1
        return
    instead = "the loss chooses the best weights; evaluation.metric=chrf may tell more"
    if best is None and "chosen_by" in record:
        logger.warning(f"{title_of(metric)} of the validation split's own references is as low as can be, so {instead}")
    elif best is None and tells_nothing(metric, record[metric]):
        logger.warning(f"{title_of(metric)} is {record[metric]:g} on the validation split: while it is, {instead}")
    progress.best, progress.best_loss = record[metric], record["loss"]
    progress.best_step, progress.without_better = progress.step, 0


def _log_training(run: TrainingRun) -> None:
    """Log the mean loss since the last such record, the speed, and the time left."""
    progress = run.progress
    rate = learning_rate_at(progress.step, run.recipe.optimization, run.total_updates)
    record = training_record(progress, rate)
    run.record(record)
    run.log.tell(record["loss"], progress, run.total_updates)
    progress.loss_sum, progress.cross_entropy_sum, progress.loss_tokens = 0.0, 0.0, 0

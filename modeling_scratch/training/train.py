"""Train a model: make an update, do what is due after it, until all updates are made; then score the model."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from ..errors import ProcessError, Stopped, UserError
from ..metrics import tells_nothing, title_of
from ..recipe.schema import EvaluationSection, Recipe
from .checkpoints import save_checkpoint
from .compilation import make_graphs
from .evaluation import is_better, metric_can_tell, validate
from .finish import finish, score_start
from .inputs import Inputs
from .log import RunLog, loss_and_speed
from .optimization import learning_rate_at
from .processes import describe_setup, on_main
from .progress import Progress
from .start import begin_or_resume, total_updates
from .step import TrainingStep
from .stopping import StopRequest

logger = logging.getLogger(__name__)


def train(
    recipe: Recipe,
    accelerator: Accelerator,
    resume: bool | str = False,
    overwrite: bool = False,
    stop: StopRequest | None = None,
    push: Callable[[str], None] | None = None,
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
            finite too many times in a row, a checkpoint cannot be written, memory ran out, another process is gone.
    """
    stop = StopRequest() if stop is None else stop
    folder, inputs, update, progress = begin_or_resume(recipe, accelerator, resume, overwrite)
    model, total = accelerator.unwrap_model(update.model), total_updates(recipe.optimization, inputs.batches)
    log = RunLog(accelerator, folder.path, progress, inputs.batches, total)
    save = partial(save_checkpoint, folder, recipe, accelerator, inputs, update.model, update.optimizer, progress)
    with stop, closing(log):
        if recipe.trackers:  # the Accelerator may have those of another run, as in `scratch improve`
            log.open_trackers()
        log.record({"split": "run", **_describe_data(inputs), **describe_setup(accelerator, model)})
        update.model.train()
        with _checkpoint_if_stopped(save, progress, total, stop, accelerator):
            if recipe.model.start_from and progress.step == 0:
                score_start(recipe, accelerator, inputs, model, log, stop)
            if progress.compiled and progress.step < total:
                make_graphs(model, update)
            make_updates(recipe, accelerator, inputs, update, model, progress, total, log, save, stop, push)
        return finish(recipe, accelerator, folder, inputs, update.model, progress, log, stop)


def make_updates(
    recipe: Recipe,
    accelerator: Accelerator,
    inputs: Inputs,
    update: TrainingStep,
    model: PreTrainedModel,
    progress: Progress,
    total: int,
    log: RunLog,
    save: Callable[..., None],
    stop: StopRequest,
    push: Callable[[str], None] | None,
) -> None:
    """
    The training loop: the updates that remain of `total`, unless patience ends them, and what is due after each.

    Args:
        update: makes one update of `model`, which it has wrapped.
        save: `save_checkpoint` for this run.

    Raises:
        Stopped: a process was asked to stop.
    """
    batches, following, first = inputs.batches, inputs.batches.iterate(), progress.step
    by_loss = not metric_can_tell(recipe, inputs, accelerator)
    saved_at, late = time.monotonic(), False  # late: the time between two checkpoints has passed
    # What the processes ask one another as they exchange the losses of an update.
    questions = {"stop": lambda: bool(stop), "late": lambda: _is_late(recipe, saved_at, accelerator)}
    with log.progress_bar() as bar:
        while True:
            end, impatient = progress.step >= total, out_of_patience(recipe.evaluation, progress)

            # What is due after an update. If the run was stopped in between, it is still due when it resumes.
            if progress.unsettled:
                if end or is_due(recipe.evaluation.every, progress):
                    translate = end or (progress.evaluations + 1) % recipe.evaluation.translate_every == 0
                    record = validate(recipe, model, inputs, accelerator, stop, translate)
                    judge(record, recipe.evaluation.metric, by_loss, progress)
                    log.validation(record)
                    impatient = out_of_patience(recipe.evaluation, progress)
                progress.unsettled = False
                # After a skipped update no checkpoint is due: the last one should predate the problem.
                is_averaged = end or impatient
                is_averaged |= is_due(recipe.checkpoints.every, progress, late) and not progress.nonfinite_in_a_row
                if is_averaged or progress.best_step == progress.step:
                    save(is_averaged)
                    saved_at = time.monotonic()
                if push is not None and progress.best_step == progress.step:
                    log.curves()
                    on_main(accelerator, lambda: push(f"Upload model of step {progress.step}"))
            if end or impatient:
                break

            started = time.perf_counter()
            batch = next(following)
            rate = learning_rate_at(progress.step + 1, recipe.optimization, total)
            result = update(batch, rate, questions)
            progress.count_update(result, batch.target_tokens, time.perf_counter() - started, batches.position())
            late = result.answers["late"]
            bar.update()
            bar.set_postfix_str(loss_and_speed(result.loss, progress))
            if not result.finite:
                _note_skipped(progress, result.loss, recipe.optimization.max_nonfinite_updates)
            if progress.step == total or progress.step % recipe.logging_steps == 0:
                log.training(rate)
            if result.answers["stop"]:
                raise Stopped
        if not end:
            if progress.loss_tokens and progress.step > first:  # not logged yet
                log.training(rate)
            logger.info(
                f"training ends after update {progress.step}: {progress.without_better} evaluations in a row were no "
                "better (evaluation.patience)"
            )


def is_due(every: int | str, progress: Progress, late: bool = False) -> bool:
    """
    Whether an interval of the recipe ends with the last update.

    Args:
        every: a number of updates, "epoch", or a time.
        late: whether that time has passed.
    """
    if every == "epoch":
        return progress.position.get("update") == 0  # of the next batch
    return progress.step % every == 0 if isinstance(every, int) else late


def out_of_patience(evaluation: EvaluationSection, progress: Progress) -> bool:
    """Whether the run has evaluated too many times without finding better weights."""
    return evaluation.patience is not None and progress.without_better >= evaluation.patience


def judge(record: dict[str, Any], metric: str, by_loss: bool, progress: Progress) -> None:
    """
    Count an evaluation, and note whether its weights are the best so far.

    Args:
        by_loss: the metric cannot tell good translations from bad ones, so the loss chooses, and the record notes that.
    """
    progress.evaluations += 1
    if metric not in record:
        return
    if by_loss:
        record["chosen_by"] = "loss"
    best = None if progress.best is None else record | {"loss": progress.best_loss, metric: progress.best}
    if not is_better(record, metric, best):
        progress.without_better += 1
        return
    instead = "the loss chooses the best weights; evaluation.metric=chrf may tell more"
    if best is None and by_loss:
        logger.warning(f"{title_of(metric)} of the validation split's own references is as low as can be, so {instead}")
    elif best is None and tells_nothing(metric, record[metric]):
        logger.warning(f"{title_of(metric)} is {record[metric]:g} on the validation split: while it is, {instead}")
    progress.best, progress.best_loss = record[metric], record["loss"]
    progress.best_step, progress.without_better = progress.step, 0


def _is_late(recipe: Recipe, saved_at: float, accelerator: Accelerator) -> bool:
    """Whether the main process's clock asks for a checkpoint; False on other processes."""
    seconds = recipe.checkpoints.seconds
    return seconds is not None and accelerator.is_main_process and time.monotonic() - saved_at >= seconds


def _note_skipped(progress: Progress, loss: float, limit: int) -> None:
    """Log a skipped update. UserError if there are more than `limit` in a row."""
    what = f"update {progress.step}: the loss ({loss}) or its gradient is not finite"
    if progress.nonfinite_in_a_row > limit:
        raise UserError(
            f"{what}, as in the {limit} before, all skipped (optimization.max_nonfinite_updates), so that the weights "
            "are those before them. Lower optimization.learning_rate, or lengthen optimization.warmup_steps"
        )
    logger.warning(f"{what}; skipped")


@contextmanager
def _checkpoint_if_stopped(
    save: Callable[..., None], progress: Progress, total: int, stop: StopRequest, accelerator: Accelerator
) -> Iterator[None]:
    """Write a checkpoint if the run is asked to stop, or if an evaluation runs out of memory."""
    try:
        yield
    except ProcessError:
        if progress.unsettled and accelerator.num_processes == 1:  # the run can resume here with smaller batches
            save()
        raise
    except Stopped:
        save()
        reason = next((reason for reason in gather_object([stop.reason]) if reason), "")
        where = f"stopped by {reason} after update {progress.step} of {total}"
        raise Stopped(f"{where}; --resume continues from there") from None


def _describe_data(inputs: Inputs) -> dict[str, Any]:
    """The number and the commit of the training pairs, if known."""
    count = {"train_pairs": len(inputs.pairs["train"])} if "train" in inputs.pairs else {}
    return count | ({"data_revision": inputs.batches.revision} if inputs.batches.revision else {})

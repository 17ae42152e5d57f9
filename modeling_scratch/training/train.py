"""Train a model: make an update, do what is due after it, until all updates are made; then score the model."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from ..data.tokenizer import texts
from ..errors import ProcessError, Stopped, UserError
from ..metrics import tells_nothing, title_of
from ..recipe.schema import EvaluationSection, Recipe
from .checkpoints import save_checkpoint
from .compilation import compile_training
from .evaluation import is_better, metric_can_tell, validate
from .finish import finish, score_start
from .inputs import Inputs
from .log import RunLog
from .optimization import learning_rate_at
from .processes import describe_setup, on_main
from .progress import Progress
from .sharding import is_finite
from .start import begin_or_resume
from .stopping import StopRequest
from .symptoms import find_symptom, warn_of_symptom
from .throughput import share_of_peak_per_token
from .trackers import close_trackers, open_trackers

logger = logging.getLogger(__name__)

_LATE = 0.25  # of a run: what a model writes before says little


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
    folder, inputs, training_step, progress, total = begin_or_resume(recipe, accelerator, resume, overwrite)
    batches = inputs.batches
    wrapped, optimizer, first_step = training_step.model, training_step.optimizer, progress.step
    model = accelerator.unwrap_model(wrapped)
    share_per_token = share_of_peak_per_token(model, inputs, accelerator)
    log = RunLog(accelerator, folder.path, progress, batches, total, share_per_token)
    save = partial(save_checkpoint, folder, recipe, accelerator, inputs, wrapped, optimizer, progress)
    by_loss, saved_at = not metric_can_tell(recipe, inputs, accelerator), time.monotonic()

    def is_over() -> bool:
        return progress.step >= total or out_of_patience(recipe.evaluation, progress)

    def complete(is_time_to_save: bool) -> None:
        """Evaluate, write a checkpoint and push, if they are due after the last update."""
        nonlocal saved_at
        if progress.step >= total or is_due(recipe.evaluation.every, progress):
            translate = progress.step >= total or (progress.evaluations + 1) % recipe.evaluation.translate_every == 0
            record, outputs = validate(recipe, model, inputs, accelerator, stop, translate)
            judge(record, recipe.evaluation.metric, by_loss, progress)
            log.validation(record)
            if progress.step > recipe.optimization.warmup_steps and progress.step >= _LATE * total:
                given = texts(inputs.pairs["validation"]) if outputs else ((), ())
                found = find_symptom(
                    record["loss"], model.config.target_vocab_size, given[0], outputs, given[1], record.get("bleu")
                )
                warn_of_symptom(found, progress.warned_of)
        progress.completed_step = progress.step
        is_regular = is_due(recipe.checkpoints.every, progress, is_time_to_save)
        # After a skipped update no checkpoint is due: the last one should predate the problem.
        is_regular = is_over() or (is_regular and not progress.nonfinite_in_a_row)
        if is_regular or progress.best_step == progress.step:
            save(is_regular)
            saved_at = time.monotonic()
        if push is not None and progress.best_step == progress.step:
            log.curves()
            on_main(accelerator, lambda: push(f"Upload model of step {progress.step}"))

    # The processes answer these after each update; if one answers yes, all act on it.
    questions = {"stop": lambda: bool(stop), "save": lambda: _is_time_to_save(recipe, saved_at, accelerator)}
    with stop, ExitStack() as at_end:
        at_end.callback(close_trackers, accelerator)
        if recipe.trackers:
            open_trackers(accelerator, progress, in_folder=True)
        log.record({"split": "run", **_describe_data(inputs), **describe_setup(accelerator, model)})
        wrapped.train()
        with _checkpoint_if_stopped(save, progress, total, stop, accelerator):
            if recipe.model.start_from and progress.step == 0:
                score_start(recipe, accelerator, inputs, model, log, stop)
            if progress.compiled and progress.step < total:
                compile_training(training_step)
            batch_iterator, saved_at = batches.iterate(), time.monotonic()  # scoring and compiling do not count
            with log.progress_bar() as bar:
                is_time_to_save = False
                while True:
                    if progress.completed_step < progress.step:  # also in a run that was stopped after an update
                        complete(is_time_to_save)
                    if is_over():
                        break
                    started = time.perf_counter()
                    batch = next(batch_iterator)
                    rate = learning_rate_at(progress.step + 1, recipe.optimization, total)
                    result = training_step(batch, rate, questions)
                    seconds = time.perf_counter() - started
                    progress.count_update(result, batch.target_tokens, seconds, batches.position())
                    bar.update()
                    bar.set_postfix_str(log.loss_and_speed(result.loss))
                    if not result.finite:
                        _note_skipped(
                            progress, result.loss, recipe.optimization.max_nonfinite_updates, accelerator, wrapped
                        )
                    if progress.step == total or progress.step % recipe.logging_steps == 0:
                        log.training(rate)
                    if result.answers["stop"]:
                        raise Stopped
                    is_time_to_save = result.answers["save"]
                if progress.step < total:
                    if progress.loss_tokens and progress.step > first_step:  # not logged yet
                        log.training(rate)
                    logger.info(
                        f"training ends after update {progress.step}: {progress.without_better} evaluations in a row "
                        "were no better (evaluation.patience)"
                    )
        return finish(recipe, accelerator, folder, inputs, wrapped, progress, log, stop)


def is_due(every: int | str, progress: Progress, is_time: bool = False) -> bool:
    """
    Whether an interval of the recipe ends with the last update.

    Args:
        every: a number of updates, "epoch", or a time.
        is_time: whether that time has passed.
    """
    if every == "epoch":
        return progress.position.get("update") == 0  # of the next batch
    return progress.step % every == 0 if isinstance(every, int) else is_time


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
    instead = "the loss chooses the best weights"
    if metric == "bleu":
        instead += "; evaluation.metric=chrf may tell more"
    if best is None and by_loss:
        logger.warning(
            f"{title_of(metric)} of the validation split's own references is the worst possible, so {instead}"
        )
    elif best is None and tells_nothing(metric, record[metric]):
        logger.warning(f"{title_of(metric)} is {record[metric]:g} on the validation split: while it is, {instead}")
    progress.best, progress.best_loss = record[metric], record["loss"]
    progress.best_step, progress.without_better = progress.step, 0


def _is_time_to_save(recipe: Recipe, saved_at: float, accelerator: Accelerator) -> bool:
    """Whether the main process's clock asks for a checkpoint; False on other processes."""
    seconds = recipe.checkpoints.seconds
    return seconds is not None and accelerator.is_main_process and time.monotonic() - saved_at >= seconds


def _note_skipped(progress: Progress, loss: float, limit: int, accelerator: Accelerator, model: nn.Module) -> None:
    """Log a skipped update. Raises UserError if there are more than `limit` in a row."""
    what = f"update {progress.step}: the loss ({loss}) or its gradient is not finite"
    if progress.nonfinite_in_a_row > limit:
        weights = "so the weights are still those of the last finite update"
        if not is_finite(accelerator, model):
            first = progress.step - limit
            weights = "but the weights are no longer finite either"
            weights += f"; --resume-from a checkpoint of an update before {first}, if there is one"
        raise UserError(
            f"{what}, as in the {limit} updates before it, which were skipped (optimization.max_nonfinite_updates), "
            f"{weights}. Lower optimization.learning_rate, or lengthen optimization.warmup_steps"
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
        is_after_update = progress.completed_step < progress.step
        if is_after_update and accelerator.num_processes == 1:  # the run can resume here with smaller batches
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

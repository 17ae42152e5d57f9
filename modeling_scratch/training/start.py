"""Begin or resume a run: its folder, its inputs, its progress, and its model and optimizer as they are updated."""

import logging
import uuid
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import PreTrainedModel

from ..data.batches import fingerprint_of
from ..data.streaming import GlobalBatches
from ..errors import UserError
from ..files import write_whole
from ..recipe.reading import recipe_text
from ..recipe.schema import OptimizationSection, Recipe
from .captured_updates import make_training_step
from .checkpoints import find_checkpoint, load_checkpoint, save_model_files
from .compilation import is_compiled, log_use_of_gpu
from .folder import RECIPE, RunFolder
from .inputs import Inputs, prepare_inputs
from .processes import check_agreement, check_shared_folder, keep_threads, on_main, write_on_main
from .progress import Progress, read_progress
from .step import TrainingStep
from .trackers import close_trackers, open_trackers

logger = logging.getLogger(__name__)


def begin_or_resume(
    recipe: Recipe, accelerator: Accelerator, resume: bool | str = False, overwrite: bool = False
) -> tuple[RunFolder, Inputs, TrainingStep, Progress, int]:
    """
    A new run in the recipe's folder, or the one that is there, restored from a checkpoint. Arguments and errors are
    those of `train`. If there is an error, the folder is left unchanged.

    Returns:
        The folder, the inputs, what makes an update, the progress, and the number of updates in the whole run.
    """
    folder = RunFolder(recipe.output_dir)
    try:
        checkpoint = _claim(folder, recipe, accelerator, resume, overwrite)
        if checkpoint is not None and (threads := read_progress(checkpoint).threads_on_cpu()):
            keep_threads(threads)
        set_seed(recipe.seed)
        inputs = prepare_inputs(recipe, accelerator, checkpoint)
        total = total_updates(recipe.optimization, inputs.batches)
        progress = _new_progress(recipe, accelerator, inputs, total)
        check_agreement(accelerator, recipe, progress.compiled, progress.fingerprint, total)
        set_seed(recipe.seed, device_specific=True)  # from here on each process draws its own dropout
        _warn_of_length(recipe, total)
        training_step = make_training_step(accelerator, inputs.model, recipe.optimization)
        log_use_of_gpu(training_step, progress.compiled)
        if checkpoint is not None:
            progress = load_checkpoint(
                checkpoint, recipe, accelerator, inputs.batches, training_step.optimizer, progress
            )
            logger.info(f"resuming from {checkpoint}")
        if recipe.trackers:  # the Accelerator may have those of another run, as in `scratch improve`
            open_trackers(accelerator, progress, in_folder=False)
        write = partial(
            _write, folder, recipe, accelerator.unwrap_model(training_step.model), inputs, progress, checkpoint
        )
        if not write_on_main(accelerator, "the folder", folder.path, write):
            progress.best, progress.best_step, progress.without_better = None, 0, 0
    except BaseException:
        close_trackers(accelerator)
        folder.remove_if_unused()
        raise
    return folder, inputs, training_step, progress, total


def _write(
    folder: RunFolder,
    recipe: Recipe,
    model: PreTrainedModel,
    inputs: Inputs,
    progress: Progress,
    checkpoint: Path | None,
) -> bool:
    """Empty the folder of a new run, or restore that of a resumed one. Returns whether the best weights are there."""
    has_best = True
    if checkpoint is None:
        folder.clear()
    else:
        best = None if progress.best is None else progress.best_step
        has_best = folder.rewind(checkpoint, progress.step, progress.completed_step, best) or best is None
    write_whole(folder.path / RECIPE, recipe_text(recipe))
    save_model_files(folder.path, model, inputs.tokenizers, recipe.data)  # the generation config may have changed
    return has_best


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


def total_updates(optimization: OptimizationSection, batches: GlobalBatches) -> int:
    """The number of updates in a run, unless patience ends it earlier."""
    by_epochs = batches.batches_in(optimization.max_epochs) if optimization.max_epochs else None
    return min(updates for updates in (by_epochs, optimization.max_steps) if updates is not None)


def _new_progress(recipe: Recipe, accelerator: Accelerator, inputs: Inputs, total: int) -> Progress:
    return Progress(
        fingerprint=inputs.batches.fingerprint(),
        validation=fingerprint_of(inputs.validation_data),
        clean_sources=True,
        position=inputs.batches.position(),
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

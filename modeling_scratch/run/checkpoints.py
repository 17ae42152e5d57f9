"""Save and load checkpoints: everything that a run needs to continue as if it had never been interrupted."""

import logging
import random
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import load, set_seed
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import custom_object_save
from transformers.utils import CONFIG_NAME

from ..data.streaming import GlobalBatches
from ..errors import UserError
from ..files import reading
from ..loading import load_config, save_tokenizers
from ..model import ScratchConfig, ScratchForConditionalGeneration
from ..recipe.reading import ACCUMULATION, MAY_DIFFER_WITHIN_RUN, differing_keys, load_recipe
from ..recipe.schema import SCHEDULES, DataSection, Recipe
from .folder import OPTIMIZER, SCALER, WEIGHTS, RunFolder, random_states
from .processes import advising_on_memory, explained_failure_to_write, on_all, write_on_main
from .progress import FROM_ANOTHER, Progress, advising, read_progress
from .records import METRICS_FILE, RECIPE
from .run import Run, Tokenizers
from .sharding import load_whole_optimizer_state, whole_optimizer_state

logger = logging.getLogger(__name__)

_NOT_IDENTICAL = "the batches are the same, but dropout will differ, so the results will not be identical"
_LENGTH = ("optimization.max_epochs", "optimization.max_steps")
# Keys whose values may change when a run is resumed.
MAY_CHANGE = (
    *MAY_DIFFER_WITHIN_RUN,
    *_LENGTH,
    "optimization.max_nonfinite_updates",
    "data.revision",  # fingerprints of the data are compared instead
    "data.validation_size",
    "evaluation.also",
    "evaluation.metrics",
    "evaluation.alignments",
    "evaluation.num_beams",  # used for the final scores only
    "evaluation.patience",
    "compile",
    "precision",
)


# -- save --------------------------------------------------------------------------------------------------------------


def save_checkpoint(run: Run, is_regular: bool = False) -> None:
    """
    Write a checkpoint, which is also a model folder; then its weights to the folder's root, if they are the best so far
    or the first. Weights and optimizer are stored unsharded, so that any number of processes, sharded or not, can
    resume from it. All processes call this together.

    Args:
        is_regular: whether it is due by `checkpoints.every` or the run's last one, so that it may be averaged.

    Raises:
        UserError: the checkpoint cannot be written. Its files are removed, and earlier checkpoints are intact.
    """
    accelerator, folder, progress = run.accelerator, run.folder, run.progress
    section, step = run.recipe.checkpoints, progress.step
    temporary, what = folder.checkpoints.unfinished(step), f"the checkpoint of update {step}"
    averages = is_regular and section.average_last > 1

    def write_shared_files() -> None:
        folder.checkpoints.begin(step)
        folder.write_weights(stored_weights(run.model, weights), temporary)
        torch.save(optimizer_state, temporary / OPTIMIZER)
        if accelerator.scaler is not None:
            torch.save(accelerator.scaler.state_dict(), temporary / SCALER)

    def write_own_files() -> None:
        with explained_failure_to_write(what, folder.path):
            torch.save(_random_states(accelerator.device), temporary / random_states(accelerator.process_index))
            run.data.batches.save_readers(temporary)

    def complete() -> None:
        save_model_files(temporary, run.model, run.data.tokenizers, run.recipe.data)
        if averages:  # before the checkpoint is complete: a run that resumes from it must find the copy
            kept = {*progress.averaging, folder.keep_for_averaging(step, temporary / WEIGHTS)}
            progress.averaging = sorted(kept)[-section.average_last :]
        folder.checkpoints.finish(step, asdict(progress), section.keep_last)
        if averages:
            folder.forget_averaged(progress.averaging)

    try:
        advice = "earlier checkpoints are intact; free memory, then --resume"
        with advising_on_memory(accelerator, f"gathering {what}", advice):  # from all processes, if it is sharded
            weights = accelerator.get_state_dict(run.wrapped)
            optimizer_state = whole_optimizer_state(accelerator, run.optimizer)
        write_on_main(accelerator, what, folder.path, write_shared_files)
        on_all(accelerator, write_own_files)
        write_on_main(accelerator, what, folder.path, complete)
    except Exception:
        if accelerator.is_main_process:
            shutil.rmtree(temporary, ignore_errors=True)
        raise

    def write_to_root() -> None:
        if progress.best_step == step or not (folder.path / WEIGHTS).exists():
            folder.write_weights(load_file(folder.checkpoints.path(step) / WEIGHTS))

    write_on_main(accelerator, WEIGHTS, folder.path, write_to_root)  # after the checkpoint


def save_model_files(folder: Path, model: PreTrainedModel, tokenizers: Tokenizers, data: DataSection) -> None:
    """Write a model's folder except for the weights: config, generation config, tokenizers, the model's code."""
    model.config.architectures = [ScratchForConditionalGeneration.__name__]  # the class of a sharded model differs
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    custom_object_save(ScratchForConditionalGeneration, folder)
    save_tokenizers(*tokenizers, folder, model.config.max_position_embeddings, data.languages)


def stored_weights(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights to store: tied ones once, under the name that save_pretrained keeps."""
    return {name: tensor for name, tensor in weights.items() if name not in model.all_tied_weights_keys}


def _random_states(device: torch.device) -> dict[str, Any]:
    states = {
        "random_state": random.getstate(),
        "numpy_random_seed": np.random.get_state(),
        "torch_manual_seed": torch.get_rng_state(),
    }
    if device.type != "cpu":  # this process's device only: the number of visible ones may change
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


# -- load --------------------------------------------------------------------------------------------------------------


def find_checkpoint(folder: RunFolder, recipe: Recipe, name: str | None) -> Path:
    """The checkpoint of this name, or the newest one. Raises UserError if the recipe cannot resume from it."""
    _check_recipe_may_resume(folder, recipe)
    checkpoint = folder.checkpoints.newest() if name is None else folder.checkpoints.named(name)
    progress = read_progress(checkpoint)
    with advising(FROM_ANOTHER):
        _check_architecture(folder, checkpoint)
        folder.checkpoints.check(checkpoint)
    if progress.best is not None and (best := folder.checkpoints.path(progress.best_step)).is_dir():
        with advising(f", or delete {best}: the best is then chosen anew"):
            read_progress(best)
            with advising(FROM_ANOTHER):
                folder.checkpoints.check(best, [WEIGHTS])
    return checkpoint


def _check_architecture(folder: RunFolder, checkpoint: Path) -> None:
    """Raise UserError if a checkpoint's model is not that of its run: it may be another run's."""
    if not (folder.path / CONFIG_NAME).is_file():
        return
    own, saved = load_config(str(folder.path)), load_config(str(checkpoint))
    for name in ScratchConfig.fields():
        if getattr(own, name, None) != getattr(saved, name, None):
            raise UserError(
                f"{checkpoint} is of another model than the run in {folder.path}: its {name} is "
                f"{getattr(saved, name, None)}, not {getattr(own, name, None)}"
            )


def _check_recipe_may_resume(folder: RunFolder, recipe: Recipe) -> None:
    """Log how the recipe of a resumed run has changed. Raises UserError if the run cannot resume with these changes."""
    saved = load_recipe(folder.path / RECIPE)
    may_change = set(MAY_CHANGE)
    if saved.data.streaming:  # the number of readers is fixed
        may_change.discard(ACCUMULATION)
    changed = differing_keys(saved, recipe)
    if wrong := [key for key in changed if key not in may_change]:
        raise UserError(
            f"cannot resume the run in {folder.path} with another recipe: give its own, --config "
            f"{shlex.quote(str(folder.path / RECIPE))}. This one has different values for {', '.join(wrong)}; only "
            f"these keys may change: {', '.join(sorted(may_change))}"
        )
    if changed:
        logger.info(f"changed since the run began: {', '.join(changed)}")
    if ACCUMULATION in changed:
        logger.warning(f"resuming with a different number of micro-batches ({ACCUMULATION}): {_NOT_IDENTICAL}")
    if SCHEDULES[recipe.optimization.schedule].uses_length and {*_LENGTH} & {*changed}:
        logger.warning(
            f"the {recipe.optimization.schedule} schedule depends on the run's length; from here on it follows the new "
            "length"
        )


def load_checkpoint(
    checkpoint: Path,
    recipe: Recipe,
    accelerator: Accelerator,
    batches: GlobalBatches,
    optimizer: torch.optim.Optimizer,
    current: Progress,
) -> Progress:
    """
    Restore optimizer, random states and batches from a checkpoint. The model already has its weights.

    Args:
        current: the progress of a new run on these processes.

    Returns:
        The progress in the checkpoint, continued on these processes.

    Raises:
        UserError: the checkpoint belongs to other training pairs, or a file in it cannot be used.
    """
    saved = read_progress(checkpoint)
    if saved.fingerprint != current.fingerprint:
        advice = ""
        if recipe.data.on_the_hub:
            advice = "; if it has changed on the Hub since, set data.revision to the commit that the run began with"
            advice += f" (data_revision in {METRICS_FILE})" if batches.revision else ""
        raise UserError(f"the training data is not what the run in {recipe.output_dir} was trained on{advice}")
    with advising(FROM_ANOTHER):
        on_all(accelerator, lambda: batches.go_to(saved.position, checkpoint))
        on_all(accelerator, lambda: _load_optimizer(accelerator, optimizer, checkpoint))
    differs = _differences(saved, current)
    path = checkpoint / random_states(accelerator.process_index)
    with advising(FROM_ANOTHER):
        restored = on_all(accelerator, lambda: not differs and _restore_random_states(path, accelerator.device))
    if not restored:
        how = f"resuming {', '.join(differs)}" if differs else "the checkpoint has no random state for this device"
        logger.warning(f"{how}: {_NOT_IDENTICAL}")
        # A new seed: the run's own would repeat the random numbers of its beginning.
        set_seed(recipe.seed + saved.step, device_specific=True)
    if saved.validation not in ("", current.validation):
        logger.warning(
            "the validation pairs have changed: scores from now on cannot be compared with the earlier ones, by which "
            "the best weights so far were chosen"
        )
    for name in ("validation", "processes", "device", "precision", "compiled", "threads"):
        setattr(saved, name, getattr(current, name))
    return saved


def _load_optimizer(accelerator: Accelerator, optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    path = checkpoint / OPTIMIZER
    with reading(path):
        state = torch.load(path, map_location="cpu", mmap=True)  # the processes on a machine share it
        load_whole_optimizer_state(optimizer, state)
    if accelerator.scaler is not None and (checkpoint / SCALER).exists():
        with reading(checkpoint / SCALER):
            accelerator.scaler.load_state_dict(load(checkpoint / SCALER))


def _differences(saved: Progress, current: Progress) -> list[str]:
    """How the processes that resume a run differ from those that trained it so far."""
    full, found = {"no": "full precision"}, []
    if saved.processes != current.processes:
        found.append(f"with {current.processes} processes instead of {saved.processes}")
    if saved.device != current.device:
        found.append(f"on {current.device} instead of {saved.device}")
    if saved.precision != current.precision:
        names = [full.get(precision, precision) for precision in (current.precision, saved.precision)]
        found.append(f"in {names[0]} instead of {names[1]}")
    if saved.compiled != current.compiled:
        found.append("compiled instead of eager" if current.compiled else "eager instead of compiled")
    return found


def _restore_random_states(path: Path, device: torch.device) -> bool:
    """Restore random states from a checkpoint; False if it has none for this kind of device."""
    with reading(path):
        states = load(path)
    if device.type not in ("cpu", *states):
        return False
    random.setstate(states["random_state"])
    np.random.set_state(states["numpy_random_seed"])
    torch.set_rng_state(states["torch_manual_seed"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type])
    return True

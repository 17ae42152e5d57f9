"""Save and load checkpoints: everything that a run needs to continue as if it had never been interrupted."""

import json
import logging
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import load, set_seed
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import custom_object_save

from ..errors import UserError
from ..files import reading
from ..loading import save_tokenizers
from ..model.modeling_scratch import ScratchForConditionalGeneration
from ..recipe.reading import ACCUMULATION, ALIKE, differing_keys, load_recipe
from ..recipe.schema import Recipe
from .folder import METRICS_FILE, OPTIMIZER, RECIPE, SCALER, STATE, WEIGHTS, RunFolder, random_states
from .processes import explained_failure_to_write, on_all, on_main
from .sharding import load_whole_optimizer_state, whole_optimizer_state

if TYPE_CHECKING:
    from .run import TrainingRun

logger = logging.getLogger(__name__)

_LENGTH = ("optimization.max_epochs", "optimization.max_steps")
# Keys whose values may change when a run is resumed.
MAY_CHANGE = (
    *ALIKE,
    *_LENGTH,
    "optimization.max_nonfinite_updates",
    "data.revision",  # fingerprints of the data are compared instead
    "data.validation_size",
    "evaluation.also",
    "evaluation.alignments",
    "evaluation.num_beams",  # used for the final scores only
    "evaluation.patience",
    "compile",
    "precision",
)


@dataclass
class Progress:
    """The progress of a run: what a checkpoint holds besides tensors and random states."""

    fingerprint: str = ""  # of the training pairs
    validation: str = ""  # the same of the validation pairs; empty in older checkpoints
    clean_sources: bool = False  # as tokenized since `clean` exists; not in older checkpoints
    processes: int = 1
    device: str = ""  # "cpu", "cuda"
    precision: str = ""  # of matrix products, as Accelerate names it
    compiled: bool = False
    threads: int = 0  # 0: not known
    position: dict[str, Any] = field(default_factory=dict)  # of the next global batch
    step: int = 0
    unsettled: bool = False  # stopped after this step, before what may be due then: an evaluation, averaging
    evaluations: int = 0
    best: float | None = None  # by the recipe's metric
    best_loss: float | None = None  # the loss of the same weights; not in older checkpoints
    best_step: int = 0
    without_better: int = 0
    target_tokens: int = 0
    seconds: float = 0.0  # spent on updates, without evaluations and checkpoints
    loss_sum: float = 0.0  # since the last log line
    cross_entropy_sum: float = 0.0
    loss_tokens: int = 0
    nonfinite: int = 0  # updates skipped so far
    nonfinite_in_a_row: int = 0
    tracked_as: str = ""  # the run's name in trackers that resume a run by name
    averaging: dict[str, str] = field(default_factory=dict)  # snapshots, with SHA-256; on the main process

    def threads_on_cpu(self) -> int:
        """The threads of a run on the CPU in one process; 0 for any other run, or if not known."""
        return self.threads if (self.processes, self.device) == (1, "cpu") else 0


def read_progress(checkpoint: Path) -> Progress:
    """The progress in a checkpoint. UserError if it is damaged."""
    with _readable(checkpoint / STATE):
        return Progress(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))


def save_model_files(run: "TrainingRun", folder: Path) -> None:
    """Write a model's folder except for the weights: config, generation config, tokenizers, the model's code."""
    model, data = run.unwrapped, run.recipe.data
    model.config.architectures = [ScratchForConditionalGeneration.__name__]  # the class of a sharded model differs
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    custom_object_save(ScratchForConditionalGeneration, folder)
    languages = (data.source_language, data.target_language)
    save_tokenizers(*run.tokenizers, folder, model.config.max_position_embeddings, languages)


def check_recipe(folder: RunFolder, recipe: Recipe) -> None:
    """Log how the recipe of a resumed run has changed. UserError if the run cannot resume with these changes."""
    before = load_recipe(folder.path / RECIPE)
    may_change = set(MAY_CHANGE)
    if before.data.streaming:  # the number of readers is fixed
        may_change.discard(ACCUMULATION)
    changed = differing_keys(before, recipe)
    if wrong := [key for key in changed if key not in may_change]:
        raise UserError(
            f"the recipe differs from that of the run in {folder.path} in {', '.join(wrong)}: a run resumes "
            f"with its own recipe (what may change is {', '.join(sorted(may_change))})"
        )
    if changed:
        logger.info(f"the recipe differs from that of the run so far in {', '.join(changed)}")
    if ACCUMULATION in changed:
        logger.warning("the run continues with other micro-batches: its batches stay the same, its dropout does not")
    if recipe.optimization.schedule in ("cosine", "linear") and {*_LENGTH} & {*changed}:
        logger.warning(
            f"the learning rate of the schedule {recipe.optimization.schedule} depends on the length of the run: from "
            "here on it is that of the new length"
        )


def find_checkpoint(folder: RunFolder, recipe: Recipe, name: str | None) -> Path:
    """The checkpoint of this name, or the newest complete one. UserError if the recipe cannot resume from it."""
    check_recipe(folder, recipe)
    if name is not None:
        return folder.checkpoints.named(name)
    checkpoint, passed_over = folder.checkpoints.newest()
    for why in passed_over:
        logger.warning(f"passed over a checkpoint: {why}")
    return checkpoint


def stored_weights(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights to store: tied ones once, under the name that save_pretrained keeps."""
    return {name: tensor for name, tensor in weights.items() if name not in model.all_tied_weights_keys}


def save_checkpoint(run: "TrainingRun", is_averaged: bool) -> None:
    """
    Write the run's current state to a checkpoint, which is also a model folder; then its weights to the folder's root,
    if they are the best so far or the first. Weights and optimizer are stored unsharded, so that any number of
    processes, sharded or not, can resume from it. All processes call this together.

    Args:
        is_averaged: whether the recipe asks for this checkpoint, so that it takes part in averaging.

    Raises:
        UserError: it cannot be written; earlier checkpoints are intact, and nothing is left of this one.
    """
    accelerator, folder, progress = run.accelerator, run.folder, run.progress
    section, step = run.recipe.checkpoints, progress.step
    averages = is_averaged and section.average_last > 1
    temporary = folder.checkpoints.unfinished(step)
    what = f"the checkpoint of update {step}"
    run.saved_at = time.monotonic()
    with explained_failure_to_write(accelerator, what, folder.path), _removed_if_it_fails(accelerator, temporary):
        weights = accelerator.get_state_dict(run.model)
        optimizer_state = whole_optimizer_state(accelerator, run.optimizer)

        def begin() -> None:
            folder.checkpoints.begin(step)
            folder.write_weights(stored_weights(run.unwrapped, weights), temporary)
            torch.save(optimizer_state, temporary / OPTIMIZER)
            if accelerator.scaler is not None:
                torch.save(accelerator.scaler.state_dict(), temporary / SCALER)

        def write_own_state() -> None:
            with explained_failure_to_write(accelerator, what, folder.path):  # other processes quote it
                torch.save(_random_states(accelerator.device), temporary / random_states(accelerator.process_index))
                run.batches.save_readers(temporary)

        on_main(accelerator, begin, "writing a checkpoint")
        on_all(accelerator, write_own_state)

        def finish() -> None:
            save_model_files(run, temporary)
            if averages:  # first: a run that resumes from this checkpoint must find the snapshot
                kept = progress.averaging | folder.snapshots.keep(step, temporary / WEIGHTS)
                progress.averaging = dict(sorted(kept.items())[-section.average_last :])
            folder.checkpoints.finish(step, asdict(progress), section.keep_last)
            if averages:
                folder.snapshots.delete_all_but(progress.averaging)

        on_main(accelerator, finish, "writing a checkpoint")

    def write_to_root() -> None:
        if progress.best_step == step or not (folder.path / WEIGHTS).exists():
            folder.write_weights(load_file(folder.checkpoints.path(step) / WEIGHTS))

    run.log.write(WEIGHTS, write_to_root)  # not before: weights without a checkpoint cannot be resumed from


@contextmanager
def _removed_if_it_fails(accelerator: Accelerator, folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception:
        if accelerator.is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def load_checkpoint(run: "TrainingRun", checkpoint: Path) -> Progress:
    """
    Restore a new run's optimizer, random states and batches from a checkpoint (its model has the weights already).
    Returns the checkpoint's progress.

    Raises:
        UserError: the checkpoint belongs to other training pairs, or a file in it cannot be used.
    """
    accelerator, progress, before = run.accelerator, run.progress, read_progress(checkpoint)
    if before.fingerprint != progress.fingerprint:
        advice = ""
        if run.recipe.data.on_the_hub:
            advice = "; if it has changed on the Hub since, set data.revision to the commit that the run began with"
            advice += f" (data_revision in {METRICS_FILE})" if run.batches.revision else ""
        raise UserError(f"the training data is not what the run in {run.recipe.output_dir} was trained on{advice}")
    on_all(accelerator, lambda: run.batches.go_to(before.position, checkpoint))
    on_all(accelerator, lambda: _load_optimizer(accelerator, run.optimizer, checkpoint))
    differs = _differences(before, progress)
    path = checkpoint / random_states(accelerator.process_index)
    if not on_all(accelerator, lambda: not differs and _restore_random_states(path, accelerator.device)):
        how = ", ".join(differs) or "without the random states of its device"
        logger.warning(f"the run continues {how}: its batches stay the same, its dropout does not")
        # A new seed: the run's own would repeat the random numbers of its beginning.
        set_seed(run.recipe.seed + before.step, device_specific=True)
    if before.validation not in ("", progress.validation):
        logger.warning(
            "the validation pairs have changed: scores from now on cannot be compared with the earlier ones, by which "
            "the best weights so far were chosen"
        )
    for name in ("validation", "processes", "device", "precision", "compiled", "threads"):
        setattr(before, name, getattr(progress, name))
    return before


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn whatever a loader raises into a UserError that names the file of the checkpoint."""
    what = "not what a checkpoint of this run holds (resume from an earlier one with --resume-from): "
    with reading(path, what):
        yield


def _load_optimizer(accelerator: Accelerator, optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    path = checkpoint / OPTIMIZER
    with _readable(path):  # memory-mapped, so that the processes on a machine share it
        load_whole_optimizer_state(optimizer, torch.load(path, map_location="cpu", mmap=True))
    if accelerator.scaler is not None and (checkpoint / SCALER).exists():
        with _readable(checkpoint / SCALER):
            accelerator.scaler.load_state_dict(load(checkpoint / SCALER))


def _differences(before: Progress, now: Progress) -> list[str]:
    """How the processes that resume a run differ from those that trained it so far."""
    full, found = {"no": "full precision"}, []
    if before.processes != now.processes:
        found.append(f"with {now.processes} processes instead of {before.processes}")
    if before.device != now.device:
        found.append(f"on {now.device} instead of {before.device}")
    if before.precision != now.precision:
        names = [full.get(precision, precision) for precision in (now.precision, before.precision)]
        found.append(f"in {names[0]} instead of {names[1]}")
    if before.compiled != now.compiled:
        found.append("compiled instead of eager" if now.compiled else "eager instead of compiled")
    return found


def _random_states(device: torch.device) -> dict[str, Any]:
    states = {
        "random_state": random.getstate(),
        "numpy_random_seed": np.random.get_state(),
        "torch_manual_seed": torch.get_rng_state(),
    }
    if device.type != "cpu":  # this process's device only: the number of visible ones may change
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def _restore_random_states(path: Path, device: torch.device) -> bool:
    """Restore random states from a checkpoint; False if it has none for this kind of device."""
    with _readable(path):
        states = load(path)
    if device.type not in ("cpu", *states):
        return False
    random.setstate(states["random_state"])
    np.random.set_state(states["numpy_random_seed"])
    torch.set_rng_state(states["torch_manual_seed"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type])
    return True

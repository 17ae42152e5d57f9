"""Checkpoints: all that an interrupted run needs to make the updates that it would have made."""

import json
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import load, set_seed
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import custom_object_save

from ..errors import UserError
from ..loading import save_tokenizers
from ..model.modeling_scratch import ScratchForConditionalGeneration
from ..recipe.reading import differing_keys, load_recipe
from ..recipe.schema import Recipe
from ..runs.checkpoint_store import STATE, WEIGHTS
from ..runs.faults import explained_failure_to_write
from ..runs.folder import OPTIMIZER, RECIPE, SCALER, RunFolder, random_states
from ..runs.metrics_file import METRICS
from ..runs.processes import on_main, together
from .global_batches import EpochBatches, StreamBatches
from .sharding import is_sharded, load_whole_optimizer_state, load_whole_weights, whole_optimizer_state

logger = logging.getLogger(__name__)


# What a run may be resumed with another value of.
MAY_CHANGE = (
    "output_dir",
    "optimization.max_epochs",
    "optimization.max_steps",
    "optimization.gradient_accumulation_steps",
    "optimization.max_nonfinite_updates",
    "data.num_workers",
    "data.revision",  # the data themselves are compared
    "evaluation.batch_tokens",
    "evaluation.batch_size",
    "evaluation.num_beams",  # of the final scores
    "compile",
    "logging_steps",
    "checkpoints.keep_last",
    "trackers",
    "hub.repository",
    "hub.push",
    "hub.private",
    "hub.revision",
    "hub.license",
    "hub.overwrite",
    "hub.timeout",
)


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint must remember besides tensors and random states."""

    fingerprint: str = ""  # of the training pairs
    processes: int = 1
    device: str = ""  # the kind of their devices; unknown of earlier versions
    precision: str = ""  # of matrix products, as Accelerate names it; likewise
    compiled: bool | None = None  # likewise
    position: dict[str, Any] = field(default_factory=dict)  # where the next global batch is
    step: int = 0
    unsettled: bool = False  # stopped before the evaluation, or the averaging, of this step was done
    evaluations: int = 0
    best: float | None = None
    best_step: int = 0
    without_better: int = 0
    target_tokens: int = 0
    seconds: float = 0.0  # in updates, evaluations and checkpoints not counted
    loss_sum: float = 0.0  # since the last log line
    loss_tokens: int = 0
    nonfinite: int = 0  # updates skipped, in all
    nonfinite_in_a_row: int = 0
    tracked_as: str = ""  # the name of the run for trackers that go on with one by its name
    averaging: dict[str, str] = field(default_factory=dict)  # kept weights, names and SHA-256; on the main process


# What earlier versions wrote as.
_RENAMED = {"data": "fingerprint", "source": "position"}


def read_progress(checkpoint: Path) -> Progress:
    """The progress in a checkpoint. UserError if it is damaged."""
    with _readable(checkpoint / STATE):
        values = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        return Progress(**{_RENAMED.get(name, name): value for name, value in values.items()})


def save_model_files(
    model: PreTrainedModel,
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
    languages: tuple[str, str],
    folder: Path,
) -> None:
    """Write all of a model's folder but the weights: config, generation config, tokenizers, the code that travels."""
    model.config.architectures = [ScratchForConditionalGeneration.__name__]  # a sharded model has another class
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    custom_object_save(ScratchForConditionalGeneration, folder)
    save_tokenizers(*tokenizers, folder, model.config.max_position_embeddings, languages)


def check_recipe(folder: RunFolder, recipe: Recipe) -> None:
    """Log what is changed in the recipe of a run that goes on. UserError if it cannot go on with that."""
    before = load_recipe(folder.path / RECIPE)
    may_change = set(MAY_CHANGE)
    if before.data.streaming:  # the stream stays cut as it is
        may_change.discard("optimization.gradient_accumulation_steps")
    changed = differing_keys(before, recipe)
    if wrong := [key for key in changed if key not in may_change]:
        raise UserError(
            f"the recipe differs from that of the run in {folder.path} in {', '.join(wrong)}: a run resumes "
            f"with its own recipe (what may change is {', '.join(sorted(may_change))})"
        )
    if changed:
        logger.info(f"the recipe differs from that of the run so far in {', '.join(changed)}")


def find_checkpoint(folder: RunFolder, recipe: Recipe, name: str | None) -> Path:
    """The checkpoint of this name, or the newest that is whole. UserError if the recipe cannot go on from there."""
    check_recipe(folder, recipe)
    if name is not None:
        return folder.checkpoints.named(name)
    checkpoint, passed_over = folder.checkpoints.newest()
    for why in passed_over:
        logger.warning(f"passed over a checkpoint: {why}")
    return checkpoint


def stored_weights(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that a file holds: tied ones once, under the name that save_pretrained keeps."""
    return {name: tensor for name, tensor in weights.items() if name not in model.all_tied_weights_keys}


def save_checkpoint(
    accelerator: Accelerator,
    folder: RunFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: EpochBatches | StreamBatches,
    progress: Progress,
    write_model_files: Callable[[Path], None],
    keep_last: int,
    average_last: int,
) -> None:
    """
    Write a checkpoint of all processes' states, which is also a model's folder. Weights and optimizer are whole,
    however the processes hold them, so that any number of processes, sharded or not, can go on from it.

    Args:
        write_model_files: writes config, code and tokenizers, on the main process.
        keep_last: so many are kept, and the best.
        average_last: above 1, the weights are kept for averaging, those of so many checkpoints.

    Raises:
        UserError: it cannot be written; those before it are whole, and nothing of it is left.
    """
    step = progress.step
    temporary = folder.checkpoints.unfinished(step)
    what = f"the checkpoint of update {step}"
    with explained_failure_to_write(accelerator, what, folder.path), _removed_if_it_fails(accelerator, temporary):
        weights, optimizer_state = accelerator.get_state_dict(model), whole_optimizer_state(accelerator, optimizer)

        def begin() -> None:
            folder.checkpoints.begin(step)
            folder.write_weights(stored_weights(accelerator.unwrap_model(model), weights), temporary)
            torch.save(optimizer_state, temporary / OPTIMIZER)
            if accelerator.scaler is not None:
                torch.save(accelerator.scaler.state_dict(), temporary / SCALER)

        def write_own_state() -> None:
            torch.save(_random_states(accelerator.device), temporary / random_states(accelerator.process_index))
            batches.save_readers(temporary)

        on_main(accelerator, begin)
        together(accelerator, write_own_state)

        def finish() -> None:
            write_model_files(temporary)
            if average_last > 1:  # first: a run that goes on from this checkpoint must find it
                kept = progress.averaging | folder.snapshots.keep(step, temporary / WEIGHTS)
                progress.averaging = dict(sorted(kept.items())[-average_last:])
            folder.checkpoints.finish(step, asdict(progress), keep_last, progress.best_step)
            if average_last > 1:
                folder.snapshots.delete_all_but(progress.averaging)

        on_main(accelerator, finish)


@contextmanager
def _removed_if_it_fails(accelerator: Accelerator, folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception:
        if accelerator.is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def load_checkpoint(
    accelerator: Accelerator,
    checkpoint: Path,
    optimizer: torch.optim.Optimizer,
    batches: EpochBatches | StreamBatches,
    progress: Progress,
    recipe: Recipe,
) -> Progress:
    """
    Give optimizer, random states and batches the states of a checkpoint, whose weights the model has already. Returns
    its progress.

    Args:
        progress: that of a run at its beginning, to compare with.

    Raises:
        UserError: it is of other training pairs, or of processes whose states these cannot take over.
    """
    before = read_progress(checkpoint)
    if before.fingerprint != progress.fingerprint:
        advice = ""
        if recipe.data.on_the_hub:
            advice = "; if it has changed on the Hub since, set data.revision to the commit that the run began with"
            advice += f" (data_revision in {METRICS})" if batches.revision else ""
        raise UserError(f"the training data is not what the run in {recipe.output_dir} was trained on{advice}")
    together(accelerator, lambda: batches.go_to(before.position, checkpoint))
    together(accelerator, lambda: _load_optimizer(accelerator, optimizer, checkpoint))
    differs = _differences(before, progress)
    path = checkpoint / random_states(accelerator.process_index)
    if not together(accelerator, lambda: not differs and _restore_random_states(path, accelerator.device)):
        how = ", ".join(differs) or "without the random states of its device"
        logger.warning(f"the run continues {how}: its batches stay the same, its dropout does not")
        # Not the beginning's numbers over again.
        set_seed(recipe.seed + before.step, device_specific=True)
    for name in ("processes", "device", "precision", "compiled"):
        setattr(before, name, getattr(progress, name))
    return before


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """UserError that names the file of a checkpoint that cannot be taken over, whatever its loader raises."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{path}: not what a checkpoint of this run holds ({type(error).__name__}: {reason}); go on from an "
            "earlier checkpoint by --resume-from"
        ) from error


def _load_optimizer(accelerator: Accelerator, optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    path = checkpoint / OPTIMIZER
    with _readable(path):  # mapped, so that the processes of a machine share what they read
        load_whole_optimizer_state(optimizer, torch.load(path, map_location="cpu", mmap=True))
    if accelerator.scaler is not None and (checkpoint / SCALER).exists():
        with _readable(checkpoint / SCALER):
            accelerator.scaler.load_state_dict(load(checkpoint / SCALER))


def _differences(before: Progress, now: Progress) -> list[str]:
    """On what a run continues that it did not begin on; earlier versions have not written all of it down."""
    full, found = {"no": "full precision"}, []
    if before.processes != now.processes:
        found.append(f"with {now.processes} processes instead of {before.processes}")
    if before.device not in ("", now.device):
        found.append(f"on {now.device} instead of {before.device}")
    if before.precision not in ("", now.precision):
        names = [full.get(precision, precision) for precision in (now.precision, before.precision)]
        found.append(f"in {names[0]} instead of {names[1]}")
    if before.compiled not in (None, now.compiled):
        found.append("compiled instead of eager" if now.compiled else "eager instead of compiled")
    return found


def _random_states(device: torch.device) -> dict[str, Any]:
    states = {
        "random_state": random.getstate(),
        "numpy_random_seed": np.random.get_state(),
        "torch_manual_seed": torch.get_rng_state(),
    }
    if device.type != "cpu":  # this process's own; not of all that it sees, whose number may change
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def _restore_random_states(path: Path, device: torch.device) -> bool:
    """Go on with the random states of a checkpoint; False where it has none of this device."""
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


def load_weights(accelerator: Accelerator, model: PreTrainedModel, path: Path) -> None:
    """Give a model, which may be sharded, the weights of a file that holds all of them."""
    weights = load_file(path)
    if is_sharded(accelerator):
        load_whole_weights(model, weights)
        return
    report = model.load_state_dict(weights, strict=False)
    # Tied weights are stored once; anything else that is missing would be left as it is.
    assert set(report.missing_keys) <= set(model.all_tied_weights_keys), report
    assert not report.unexpected_keys, report

"""Checkpoints: all that an interrupted run needs to make the updates that it would have made."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import load, set_seed
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import PreTrainedModel

from .evaluation import is_sharded
from .faults import explained_failure_to_write, together
from .preparation import on_main
from .recipe import Recipe, differing_keys, load_recipe
from .run_folder import METRICS, RECIPE, STATE, WEIGHTS, RunFolder
from .updates import PlannedUpdates, StreamedUpdates

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
    "logging_steps",
    "checkpoints.keep_last",
    "trackers",
    "hub.repository",
    "hub.push",
    "hub.private",
    "hub.revision",
    "hub.license",
    "hub.overwrite",
)


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint must remember besides tensors and random states."""

    data: str = ""  # tells the training pairs from others
    processes: int = 1
    device: str = ""  # the kind of their devices; unknown of earlier versions
    source: dict[str, Any] = field(default_factory=dict)  # where the next update's pairs are
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


def check_recipe(folder: RunFolder, recipe: Recipe) -> None:
    """Log what is changed in the recipe of a run that goes on. ValueError if it cannot go on with that."""
    before = load_recipe(folder.path / RECIPE)
    may_change = set(MAY_CHANGE)
    if before.data.streaming:  # the stream stays cut as it is
        may_change.discard("optimization.gradient_accumulation_steps")
    changed = differing_keys(before, recipe)
    if wrong := [key for key in changed if key not in may_change]:
        raise ValueError(
            f"the recipe differs from that of the run in {folder.path} in {', '.join(wrong)}: a run resumes "
            f"with its own recipe (what may change is {', '.join(sorted(may_change))})"
        )
    if changed:
        logger.info(f"the recipe differs from that of the run so far in {', '.join(changed)}")


def stored_weights(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that a file holds: tied ones once, under the name that save_pretrained keeps."""
    return {name: tensor for name, tensor in weights.items() if name not in model.all_tied_weights_keys}


def save_checkpoint(
    accelerator: Accelerator,
    folder: RunFolder,
    model: nn.Module,
    source: PlannedUpdates | StreamedUpdates,
    progress: Progress,
    write_model_files: Callable[[Path], None],
    keep_last: int,
    average_last: int,
) -> None:
    """
    Write a checkpoint of all processes' states, which is also a model's folder.

    Args:
        write_model_files: writes config, code and tokenizers, on the main process.
        keep_last: so many are kept, and the best.
        average_last: above 1, the weights are kept for averaging, those of so many checkpoints.

    Raises:
        ValueError: it cannot be written; those before it are whole, and nothing of it is left.
    """
    step = progress.step
    temporary = folder.unfinished(step)
    what = f"the checkpoint of update {step}"
    with explained_failure_to_write(accelerator, what, folder.path), _removed_if_it_fails(accelerator, temporary):
        on_main(accelerator, lambda: folder.begin_checkpoint(step))
        together(accelerator, lambda: _write_state(accelerator, temporary, source))
        weights = None
        if not on_main(accelerator, lambda: (temporary / WEIGHTS).exists()):  # sharded: FSDP
            weights = accelerator.get_state_dict(model)

        def finish() -> None:
            if weights is not None:
                folder.write_weights(stored_weights(accelerator.unwrap_model(model), weights), temporary)
            write_model_files(temporary)
            if average_last > 1:  # first: a run that goes on from this checkpoint must find it
                kept = progress.averaging | folder.snapshot(step, temporary / WEIGHTS)
                progress.averaging = dict(sorted(kept.items())[-average_last:])
            folder.finish_checkpoint(step, asdict(progress), keep_last, progress.best_step)
            if average_last > 1:
                folder.delete_snapshots_but(progress.averaging)

        on_main(accelerator, finish)


@contextmanager
def _removed_if_it_fails(accelerator: Accelerator, folder: Path) -> Iterator[None]:
    try:
        yield
    except (Exception, CheckpointException):
        if accelerator.is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_state(accelerator: Accelerator, temporary: Path, source: PlannedUpdates | StreamedUpdates) -> None:
    accelerator.save_state(str(temporary))
    source.save(temporary)


def load_checkpoint(
    accelerator: Accelerator,
    checkpoint: Path,
    source: PlannedUpdates | StreamedUpdates,
    progress: Progress,
    recipe: Recipe,
) -> Progress:
    """
    Give model, optimizer, random states and source the states of a checkpoint. Returns its progress.

    Args:
        progress: that of a run at its beginning, to compare with.

    Raises:
        ValueError: it is of other training pairs, or of processes whose states these cannot take over.
    """
    before = Progress(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
    if before.data != progress.data:
        advice = ""
        if recipe.data.on_the_hub:
            advice = "; if it has changed on the Hub since, set data.revision to the commit that the run began with"
            advice += f" (data_revision in {METRICS})" if source.revision else ""
        raise ValueError(f"the training data is not what the run in {recipe.output_dir} was trained on{advice}")
    together(accelerator, lambda: source.load(before.source, checkpoint))
    together(accelerator, lambda: accelerator.load_state(str(checkpoint)))
    path = checkpoint / f"random_states_{accelerator.process_index}.pkl"
    differs = _other_devices(before, progress)
    if not together(accelerator, lambda: not differs and _has_random_state(path, accelerator.device)):
        differs = differs or "on another number of GPUs"
        logger.warning(f"resuming a run {differs}: the batches are the same, but dropout is not")
        # Not the beginning's numbers over again.
        set_seed(recipe.seed + before.step, device_specific=True)
    before.processes, before.device = progress.processes, progress.device
    return before


def _other_devices(before: Progress, now: Progress) -> str:
    """How the processes of a run that goes on differ from those before; "" if they do not."""
    if before.processes != now.processes:
        return f"of {before.processes} processes on {now.processes}"
    return f"on {before.device} on {now.device}" if before.device not in ("", now.device) else ""


def _has_random_state(path: Path, device: torch.device) -> bool:
    """
    Whether this process goes on with the random states of a checkpoint that was loaded: not where it sees fewer or more
    GPUs. ValueError if they could not be restored, which Accelerate reports nowhere but in its log.
    """
    saved = load(path)
    same = torch.equal(saved["torch_manual_seed"], torch.get_rng_state())
    if device.type == "cuda":
        of_gpus, now = saved.get("torch_cuda_manual_seed", []), torch.cuda.get_rng_state_all()
        if len(of_gpus) != len(now):
            return False
        same = same and all(map(torch.equal, of_gpus, now))
    if not same:
        raise ValueError(f"{path}: the random state could not be restored; resume from another checkpoint")
    return True


def load_weights(accelerator: Accelerator, model: PreTrainedModel, path: Path) -> None:
    """Give a model, which may be sharded, the weights of a file that holds all of them."""
    weights = load_file(path)
    if is_sharded(accelerator):
        set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=False))
        return
    report = model.load_state_dict(weights, strict=False)
    # Tied weights are stored once; anything else that is missing would be left as it is.
    assert set(report.missing_keys) <= set(model.all_tied_weights_keys), report
    assert not report.unexpected_keys, report

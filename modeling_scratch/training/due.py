"""What is due after an update: a function of the progress and the recipe alone."""

from dataclasses import dataclass
from typing import Any

from ..recipe.schema import Recipe


@dataclass(frozen=True)
class Due:
    """What to do before the next update."""

    end: bool = False  # there is no next one
    log: bool = False
    evaluation: bool = False
    checkpoint: bool = False


def total_updates(recipe: Recipe, batches_per_epoch: int | None) -> int:
    """
    How many updates a run makes, unless patience ends it.

    Args:
        batches_per_epoch: None: a stream, which has no epochs.
    """
    optimization = recipe.optimization
    by_epochs = optimization.max_epochs * batches_per_epoch if optimization.max_epochs else None
    return min(updates for updates in (by_epochs, optimization.max_steps) if updates is not None)


def due_after(
    step: int, position: dict[str, Any], recipe: Recipe, total: int, *, skipped: bool = False, late: bool = False
) -> Due:
    """
    Args:
        step: updates made, this one included.
        position: of the next batch, as the batches give it; the last batch of an epoch leaves `update` at 0.
        total: updates of the whole run.
        skipped: the update was left out, since its loss or gradient was not finite. No checkpoint is due: the last one
            should be from before the trouble.
        late: the time between two checkpoints is over, where the recipe counts time.
    """

    def falls(interval: int | str) -> bool:
        if interval == "epoch":
            return position.get("update") == 0
        return step % interval == 0 if isinstance(interval, int) else late

    end = step >= total
    return Due(
        end=end,
        log=end or step % recipe.logging_steps == 0,
        evaluation=end or falls(recipe.evaluation.every),
        checkpoint=end or (falls(recipe.checkpoints.every) and not skipped),
    )


def out_of_patience(recipe: Recipe, evaluations_without_better: int) -> bool:
    """Whether the run has evaluated too many times without finding a better model."""
    patience = recipe.evaluation.patience
    return patience is not None and evaluations_without_better >= patience

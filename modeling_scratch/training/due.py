"""
Decide what is due after an update, from the progress and the recipe alone. (The loop adds what depends on more: new
best weights, patience, a request to stop.)
"""

from dataclasses import dataclass
from typing import Any

from ..recipe.schema import Recipe


@dataclass(frozen=True)
class Due:
    """What to do before the next update."""

    end: bool = False  # this was the last update
    log: bool = False
    evaluation: bool = False
    checkpoint: bool = False


def total_updates(recipe: Recipe, batches: int | None) -> int:
    """
    The number of updates in a run, unless patience ends it earlier.

    Args:
        batches: of max_epochs epochs, if that is set; None: of a stream, which has no epochs.
    """
    optimization = recipe.optimization
    by_epochs = batches if optimization.max_epochs else None
    return min(updates for updates in (by_epochs, optimization.max_steps) if updates is not None)


def due_after(
    step: int, position: dict[str, Any], recipe: Recipe, total: int, *, skipped: bool = False, late: bool = False
) -> Due:
    """
    What is due after update `step`.

    Args:
        step: updates made, including this one.
        position: of the next batch (`EpochBatches.position`); after the last batch of an epoch, `update` is 0.
        total: updates in the whole run.
        skipped: the update was skipped because its loss or gradient was not finite. Then no checkpoint is due: the last
            one should predate the problem.
        late: the time between two checkpoints has passed, if the recipe sets a time.
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

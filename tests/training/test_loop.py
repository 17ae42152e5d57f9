"""When evaluations and checkpoints are due, and after how many updates a run ends."""

import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator

from modeling_scratch.errors import UserError
from modeling_scratch.recipe.schema import EvaluationSection, OptimizationSection
from modeling_scratch.run.progress import Progress
from modeling_scratch.training.train import is_due, is_over, note_skipped_update, total_updates

MIDDLE, LAST_OF_EPOCH, STREAM = {"epoch": 0, "update": 7}, {"epoch": 1, "update": 0}, {"readers": 2}


@pytest.mark.parametrize(
    ("every", "step", "position", "is_time", "due"),
    [
        ("epoch", 7, MIDDLE, False, False),
        ("epoch", 33, LAST_OF_EPOCH, False, True),
        (10, 33, LAST_OF_EPOCH, False, False),
        (10, 20, MIDDLE, False, True),
        (10, 20, STREAM, False, True),
        ("epoch", 20, STREAM, False, False),
        ("15m", 20, MIDDLE, False, False),
        ("15m", 21, MIDDLE, True, True),
        (10, 21, MIDDLE, True, False),  # the clock does not matter
    ],
)
def test_an_action_is_due_by_update_epoch_or_clock(every, step, position, is_time, due):
    assert is_due(every, Progress(step=step, position=position), is_time) is due


class Epochs:
    def batches_in(self, epochs: int) -> int:
        return 30 * epochs


class Stream:
    def batches_in(self, epochs: int) -> None:
        return None


@pytest.mark.parametrize(
    ("optimization", "batches", "updates"),
    [
        ({"max_steps": 100}, Epochs(), 100),
        ({"max_steps": None, "max_epochs": 4}, Epochs(), 120),
        ({"max_steps": 100, "max_epochs": 4}, Epochs(), 100),
        ({"max_steps": 100, "max_epochs": 3}, Epochs(), 90),
        ({"max_steps": 100}, Stream(), 100),
    ],
)
def test_the_number_of_updates_is_the_smaller_limit(optimization, batches, updates):
    assert total_updates(OptimizationSection(**optimization), batches) == updates


@pytest.mark.parametrize(("patience", "without_better", "out"), [(None, 99, False), (3, 2, False), (3, 3, True)])
def test_patience_counts_evaluations_without_improvement(patience, without_better, out):
    recipe = SimpleNamespace(evaluation=EvaluationSection(patience=patience))
    assert is_over(SimpleNamespace(recipe=recipe, progress=Progress(without_better=without_better), total=1)) is out


@pytest.mark.parametrize(
    ("weight", "stated"),
    [(1.0, "those of the last finite update"), (math.nan, "no longer finite either; --resume-from .* before 7,")],
)
def test_the_end_after_skipped_updates_states_whether_the_weights_are_finite(weight, stated):
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, weight)
    recipe = SimpleNamespace(optimization=OptimizationSection(max_steps=20, max_nonfinite_updates=3))
    progress, accelerator = Progress(step=10, nonfinite_in_a_row=4), Accelerator(cpu=True)
    run = SimpleNamespace(recipe=recipe, progress=progress, accelerator=accelerator, wrapped=model)
    with pytest.raises(UserError, match=stated):
        note_skipped_update(run, math.nan)

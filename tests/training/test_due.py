"""What is due after an update, and how many updates there are: tables of a function's arguments and results."""

import pytest

from modeling_scratch.recipe.schema import Recipe
from modeling_scratch.training.due import Due, due_after, out_of_patience, total_updates

MIDDLE, LAST_OF_EPOCH, STREAM = {"epoch": 0, "update": 7}, {"epoch": 1, "update": 0}, {"readers": 2}


def recipe(evaluation="epoch", checkpoints="epoch", logging_steps=50, **optimization):
    return Recipe.model_validate(
        {
            "output_dir": "run",
            "logging_steps": logging_steps,
            "optimization": {"max_steps": 100} | optimization,
            "evaluation": {"every": evaluation},
            "checkpoints": {"every": checkpoints},
        }
    )


@pytest.mark.parametrize(
    ("every", "step", "position", "facts", "due"),
    [
        (("epoch", "epoch"), 7, MIDDLE, {}, set()),
        (("epoch", "epoch"), 33, LAST_OF_EPOCH, {}, {"evaluation", "checkpoint"}),
        (("epoch", 10), 33, LAST_OF_EPOCH, {}, {"evaluation"}),
        ((10, "epoch"), 20, MIDDLE, {}, {"evaluation"}),
        ((10, 5), 15, STREAM, {}, {"checkpoint"}),
        ((10, 5), 20, STREAM, {}, {"evaluation", "checkpoint"}),
        ((10, 5), 20, STREAM, {"skipped": True}, {"evaluation"}),  # the last checkpoint is from before the trouble
        ((10, "15m"), 20, MIDDLE, {}, {"evaluation"}),
        ((10, "15m"), 21, MIDDLE, {"late": True}, {"checkpoint"}),
        ((10, 5), 21, MIDDLE, {"late": True}, set()),  # nobody counts time
        (("epoch", "epoch"), 50, MIDDLE, {}, {"log"}),
        ((7, "15m"), 100, MIDDLE, {}, {"log", "evaluation", "checkpoint", "end"}),
        ((7, 7), 100, MIDDLE, {"skipped": True}, {"log", "evaluation", "checkpoint", "end"}),
    ],
)
def test_what_is_due(every, step, position, facts, due):
    assert due_after(step, position, recipe(*every), 100, **facts) == Due(**dict.fromkeys(due, True))


@pytest.mark.parametrize(
    ("optimization", "batches", "updates"),
    [
        ({"max_steps": 100}, 30, 100),
        ({"max_steps": None, "max_epochs": 4}, 120, 120),
        ({"max_steps": 100, "max_epochs": 4}, 120, 100),
        ({"max_steps": 100, "max_epochs": 3}, 90, 90),
        ({"max_steps": 100}, None, 100),  # a stream
    ],
)
def test_how_many_updates(optimization, batches, updates):
    assert total_updates(recipe(**optimization), batches) == updates


@pytest.mark.parametrize(("patience", "without_better", "out"), [(None, 99, False), (3, 2, False), (3, 3, True)])
def test_patience(patience, without_better, out):
    patient = recipe(evaluation=10)
    patient.evaluation.patience = patience
    assert out_of_patience(patient, without_better) is out

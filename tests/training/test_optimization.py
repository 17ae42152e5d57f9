"""Learning rate schedules equal their formulas, and only matrices decay."""

import pytest

from modeling_scratch.recipe import CONFIGURATION_FOLDER
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.recipe.schema import SCHEDULES, OptimizationSection
from modeling_scratch.training.optimization import learning_rate_at, make_optimizer


def test_the_schedule_follows_the_formula_in_the_paper():
    """lrate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (equation 3), by the wmt14 recipe."""
    optimization = load_recipe(CONFIGURATION_FOLDER / "recipes" / "wmt14-en-de.yaml").optimization
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate_at(step, optimization, 100_000) == pytest.approx(expected, rel=1e-12)


# By which the peak is multiplied at updates 60 and 110 of a run of 110 updates, of which the first 10 are the warm-up.
MIDDLE_AND_LAST = {
    "inverse_sqrt": ((10 / 60) ** 0.5, (10 / 110) ** 0.5),
    "cosine": (0.5, 0.0),
    "linear": (0.5, 0.0),
    "constant": (1.0, 1.0),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_warm_up_and_decay(schedule):
    middle, last = MIDDLE_AND_LAST[schedule]
    optimization = OptimizationSection(max_steps=110, warmup_steps=10, schedule=schedule, learning_rate=2.0)
    rates = [learning_rate_at(step, optimization, 110) for step in (5, 10, 60, 110)]
    assert rates == pytest.approx([1.0, 2.0, 2 * middle, 2 * last], abs=1e-12)
    longer = learning_rate_at(60, optimization, 210)
    assert (longer != rates[2]) == SCHEDULES[schedule].uses_length


def test_without_warmup_a_schedule_starts_at_its_peak():
    for schedule in SCHEDULES:
        optimization = OptimizationSection(max_steps=10, warmup_steps=0, schedule=schedule, learning_rate=1.0)
        assert 0.8 < learning_rate_at(1, optimization, 10) <= 1.0


def test_only_matrices_decay(make_model):
    model = make_model(position_embedding_type="learned")
    optimizer = make_optimizer(model, OptimizationSection(max_steps=1, weight_decay=0.1))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, others = ([names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert all(name.endswith("proj.weight") for name in decayed)
    assert all("norm" in name or name.endswith("bias") or "embed" in name for name in others)
    assert len(decayed) + len(others) == len(names)

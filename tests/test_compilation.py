"""Compiled training: the losses of eager mode, three graphs for all batches, the same checkpoints, exact resuming."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL_RUN, read_metrics, run_training
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.compilation import is_compiled
from modeling_scratch.recipe import CONFIGURATION_FOLDER, load_recipe

MIXED = [*SMALL_RUN, "optimization.max_steps=100", "optimization.tokens_per_batch=128", "evaluation.every=50"]


@pytest.fixture(autouse=True)
def no_graphs():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def losses(run) -> list[float]:
    return [record["loss"] for record in read_metrics(run, "train")]


def test_compiled_training_is_eager_training(tmp_path):
    """Over 100 updates of mixed lengths, some of one pair, with evaluations between."""
    runs = {}
    for compiled in ("false", "true"):
        runs[compiled] = tmp_path / compiled
        options = [f"compile={compiled}", "model.overrides.dropout=0.0", f"output_dir={runs[compiled]}"]
        run_training(*MIXED, *options)
    assert counters["stats"]["unique_graphs"] == 3
    assert not counters["graph_break"]
    assert losses(runs["true"]) == pytest.approx(losses(runs["false"]), abs=1e-4)
    weights = [load_file(run / "model.safetensors") for run in runs.values()]
    assert set(weights[0]) == set(weights[1])
    ScratchForConditionalGeneration.from_pretrained(runs["true"])


def test_a_compiled_run_goes_on_as_if_it_had_not_been_stopped(tmp_path):
    """With dropout, which compiled layers draw in their own way."""
    options = [*SMALL_RUN, "compile=true", "checkpoints.every=5", "optimization.max_steps=10"]
    run_training(*options, f"output_dir={tmp_path / 'whole'}")
    run_training(*options, f"output_dir={tmp_path / 'run'}")
    torch._dynamo.reset()
    run_training(*options, f"output_dir={tmp_path / 'run'}", resume_from="step-0000005")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "run")]
    assert weights[0] == weights[1]


def test_accelerates_own_compiling_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    with pytest.raises(SystemExit):
        run_training(*SMALL_RUN, f"output_dir={tmp_path / 'run'}")
    assert "Accelerate is set to compile; set compile=true in the recipe instead" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_by_default_the_cpu_does_not_compile():
    recipe = load_recipe(CONFIGURATION_FOLDER / "recipes" / "embedded.yaml", [])
    for device, setting, compiled in (("cpu", "auto", False), ("cpu", True, True), ("cuda", False, False)):
        recipe.compile = setting
        assert is_compiled(recipe, SimpleNamespace(device=torch.device(device))) is compiled
    recipe.compile = "auto"
    has_triton = importlib.util.find_spec("triton") is not None
    assert is_compiled(recipe, SimpleNamespace(device=torch.device("cuda"))) is has_triton

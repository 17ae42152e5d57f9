"""Compiled training: the losses of eager mode, three graphs for all batches, the same checkpoints, exact resuming."""

import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, SMALL_RUN, read_metrics, run_command, run_training
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.utils._triton import has_triton

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.data.batching import PairCollator
from modeling_scratch.model import loss
from modeling_scratch.recipe.reading import CONFIGURATION_FOLDER, load_recipe
from modeling_scratch.training import run as training
from modeling_scratch.training.compilation import LENGTHS_OF, compile_layers, example_batch, is_compiled, longest

sys.path.insert(0, str(ROOT / "benchmarks"))
import ceilings

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
    assert is_compiled(recipe, SimpleNamespace(device=torch.device("cuda"))) is has_triton()


def test_no_micro_batch_waits_for_the_device(monkeypatch):
    """Counted as on a GPU; and what it would do if it looked at labels there, as on the CPU."""
    eager, compiled = (ceilings.count("tiny", 3125, compiled) for compiled in (False, True))
    assert eager.waits == compiled.waits == 0
    assert eager.operations == pytest.approx(compiled.operations, rel=0.01)
    assert compiled.transferred < 0.7 * eager.transferred
    assert eager.operations == pytest.approx(ceilings.useful_operations("tiny", 3125), rel=0.05)
    monkeypatch.setattr(ceilings, "as_on_a_gpu", nullcontext)
    monkeypatch.setattr(loss, "can_look_at", lambda labels: True)
    with pytest.raises(DynamicOutputShapeException):  # how many labels count
        ceilings.count("tiny", 3125, False)


def test_hooks_and_adapters_are_compiled_with_their_layers(make_model):
    """Those that are there before the first batch."""
    torch.manual_seed(0)
    adapted = get_peft_model(make_model(dropout=0.0), LoraConfig(target_modules=["q_proj", "down_proj"], r=2)).train()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # which begins as zeros, and then changes nothing
            torch.nn.init.normal_(parameter)
    model = adapted.base_model.model
    model.model.encoder.layers[1].feed_forward.register_forward_hook(lambda module, inputs, output: 1.5 * output)
    batch = example_batch(model, torch.device("cpu"))
    results = []
    for compiled in (False, True):
        if compiled:
            compile_layers(model, backend="aot_eager")
        adapted.zero_grad()
        torch.manual_seed(1)
        loss = adapted(**batch, skip_logits=True).loss
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in adapted.parameters() if parameter.grad is not None]
        results.append([loss.detach(), *gradients])
    assert counters["stats"]["unique_graphs"] > 0
    assert len(results[0]) > 10
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-4)
    assert not any("_orig_mod" in name for name in model.state_dict())


def test_learned_positions_are_not_rounded_beyond_their_end(make_model):
    model = make_model(position_embedding_type="learned", max_position_embeddings=20)
    collate = PairCollator(0, multiple=LENGTHS_OF, longest=longest(model.config), pairs=2)
    for length, padded in ((15, 16), (16, 16), (17, 20), (20, 20)):
        batch = collate([([5] * length, [5] * 3)])
        assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, padded)
        assert batch["position_ids"].shape == (1, padded)
        assert batch["labels"].shape == (2, 8)
        assert model(**batch).loss.isfinite()
    assert model(**example_batch(model, torch.device("cpu"))).loss.isfinite()
    assert longest(make_model().config) is None


def test_a_compiler_that_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "compile_layers", lambda model: compile_layers(model, backend=broken))
    with pytest.raises(SystemExit) as end:
        run_training(*SMALL_RUN, "compile=true", f"output_dir={tmp_path / 'run'}")
    assert end.value.code == 2
    assert re.search(r"error: the layers cannot be compiled here \(.+\); set compile=false", capsys.readouterr().err)


def broken(graph, example_inputs):
    raise RuntimeError("no compiler")


def test_layers_are_whole_graphs_in_ddp(tmp_path):
    """Of more than DDP's first bucket, a MiB, at which it would cut a graph."""
    script = tmp_path / "script.py"
    script.write_text(DDP)
    result = run_command(str(script), MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    assert result.stdout.split() == ["2", "2"], result.stderr


DDP = """
import torch
from torch._dynamo.utils import counters
from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.training.compilation import compile_layers, example_batch
torch.distributed.init_process_group("gloo")
shape = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024}
model = ScratchForConditionalGeneration(ScratchConfig(vocab_size=61, d_model=256, **shape)).train()
wrapped = torch.nn.parallel.DistributedDataParallel(model)
compile_layers(model, backend="aot_eager")
wrapped(**example_batch(model, torch.device("cpu")), skip_logits=True).loss.backward()
print(counters["stats"]["unique_graphs"], counters["aot_autograd"]["ok"])
"""

"""Compiled training: the losses of eager mode, compiled once for all batches, the same checkpoints, exact resuming."""

import json
import re
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from conftest import ROOT, SHALLOW, quick_run, train_losses
from forked import run_group
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._triton import has_triton
from train_on_processes import count_graphs

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.data.batches import BinCollator
from modeling_scratch.model import masking
from modeling_scratch.recipe import CONFIGURATION_FOLDER
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.training import compilation
from modeling_scratch.training import fused_loss as loss
from modeling_scratch.training.captured_updates import may_capture
from modeling_scratch.training.compilation import compile_layers, example_batch, is_compiled, uses_bins
from modeling_scratch.training.fused_loss import fused_cross_entropy

sys.path.insert(0, str(ROOT / "benchmarks"))
import ceilings

MIXED = ["optimization.max_steps=12", "optimization.tokens_per_batch=128", "evaluation.every=6"]


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("backend", "updates"), [("eager", 12), pytest.param("inductor", 100, marks=pytest.mark.slow)])
def test_compiled_training_is_eager_training(backend, updates, tmp_path, monkeypatch):
    """
    Over updates of mixed lengths, some of one pair, with evaluations between them. What is traced is the point; its
    kernels take their time to build.
    """
    monkeypatch.setattr(compilation, "compile_layers", partial(compile_layers, backend=backend))
    options = [*MIXED, "model.overrides.dropout=0.0", f"optimization.max_steps={updates}"]
    eager, compiled = (quick_run(tmp_path / setting, *options, f"compile={setting}") for setting in ("false", "true"))
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    assert len(train_losses(eager)) == updates
    assert train_losses(compiled) == pytest.approx(train_losses(eager), abs=1e-4)
    assert set(load_file(compiled / "model.safetensors")) == set(load_file(eager / "model.safetensors"))
    ScratchForConditionalGeneration.from_pretrained(compiled)


@pytest.mark.parametrize(
    ("encoder_heads", "decoder_heads"), [(4, 1), pytest.param(2, 2, marks=pytest.mark.slow)], ids=["8 and 32", "16"]
)
def test_a_width_of_heads_that_is_a_usual_length_compiles_nothing_more(encoder_heads, decoder_heads, make_model):
    """Widths of 8, 16 and 32, which rotary positions have as a size of their own."""
    heads = {"encoder_attention_heads": encoder_heads, "decoder_attention_heads": decoder_heads}
    model = make_model(position_embedding_type="rotary", **SHALLOW, **heads).train()
    compile_layers(model, backend="eager")
    model(**example_batch(model, torch.device("cpu"))).loss.backward()
    for length in (8, 16, 24, 32):
        collate = BinCollator(0, rows=3)
        collate.length = length
        model(**collate([([5] * length, [5] * length)] * 3)).loss.backward()
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.slow
def test_a_compiled_run_goes_on_as_if_it_had_not_been_stopped(tmp_path):
    """With dropout, which compiled layers draw in their own way."""
    options = ["compile=true", "checkpoints.every=5", "optimization.max_steps=10"]
    whole, run = (quick_run(tmp_path / name, *options) for name in ("whole", "run"))
    torch._dynamo.reset()
    quick_run(run, *options, resume_from="step-0000005")
    assert train_losses(run) == train_losses(whole)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_accelerates_own_compiling_is_refused(tmp_path, monkeypatch, fails):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    assert "Accelerate is set to compile; set compile=true in the recipe instead" in fails(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_by_default_the_cpu_does_not_compile():
    recipe = load_recipe(CONFIGURATION_FOLDER / "recipes" / "embedded.yaml", [])
    for device, setting, compiled in (("cpu", "auto", False), ("cpu", True, True), ("cuda", False, False)):
        recipe.compile = setting
        assert is_compiled(recipe, SimpleNamespace(device=torch.device(device)), 10**6) is compiled


def test_what_pays_on_a_gpu():
    """Compiling takes longer than a short run."""
    recipe = load_recipe(CONFIGURATION_FOLDER / "recipes" / "embedded.yaml", [])
    gpu = {
        "device": torch.device("cuda"),
        "num_processes": 1,
        "distributed_type": DistributedType.NO,
        "mixed_precision": "no",
    }
    one, float16 = SimpleNamespace(**gpu), SimpleNamespace(**gpu | {"mixed_precision": "fp16"})
    several = SimpleNamespace(**gpu | {"num_processes": 2, "distributed_type": DistributedType.MULTI_GPU})
    assert [may_capture(accelerator) for accelerator in (one, float16, several)] == [True, False, False]
    for accelerator in (one, float16, several):
        assert [is_compiled(recipe, accelerator, updates) for updates in (10, 10**6)] == [False, has_triton()]
    assert [uses_bins(recipe, accelerator) for accelerator in (one, float16, several)] == [True] * 3
    recipe.compile = False
    assert [uses_bins(recipe, accelerator) for accelerator in (one, float16, several)] == [True, False, False]


@pytest.mark.slow
def test_no_micro_batch_waits_for_the_device(monkeypatch):
    """Counted as on a GPU, with one layer of each kind; and what it would do if it looked at the mask there."""
    config_of = ceilings.config_of

    def shallow(shape: str) -> ScratchConfig:
        config = config_of(shape)
        config.encoder_layers = config.decoder_layers = 1
        return config

    monkeypatch.setattr(ceilings, "config_of", shallow)
    monkeypatch.setattr(ceilings, "VOCABULARY", 1000)  # so that most is moved in the layers
    eager, compiled = (ceilings.count("tiny", 3125, compiled) for compiled in (False, True))
    assert eager.waits == compiled.waits == 0
    assert eager.operations == pytest.approx(compiled.operations, rel=0.01)
    assert compiled.transferred < 0.85 * eager.transferred
    assert eager.operations == pytest.approx(ceilings.useful_operations("tiny", 3125), rel=0.05)
    monkeypatch.setattr(masking, "check_mask", lambda name, mask, *sizes: bool(mask.all()))
    with pytest.raises(DataDependentOutputException):
        ceilings.count("tiny", 3125, False)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "ceiling"), [("base", 0.30), ("big", 0.40)])
def test_a_compiled_update_could_reach_this_share_of_an_h100(shape, ceiling):
    """Computed, with 25,000 tokens a GPU: a change that moves more memory shows here."""
    peak, _ = ceilings.GPUS["H100 SXM"]
    seconds = ceilings.count(shape, 25_000, True).seconds["H100 SXM"]
    assert ceilings.useful_operations(shape, 25_000) / (seconds * peak) >= ceiling


def test_hooks_and_adapters_are_compiled_with_their_layers(make_model):
    """Those that are there before the first batch."""
    torch.manual_seed(0)
    model = make_model(dropout=0.0, **SHALLOW)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "down_proj"], r=2)).train()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # which begins as zeros, and then changes nothing
            torch.nn.init.normal_(parameter)
    model.model.encoder.layers[0].feed_forward.register_forward_hook(lambda module, inputs, output: 1.5 * output)
    batch = example_batch(model, torch.device("cpu"))

    def loss_and_gradients() -> list[torch.Tensor]:
        adapted.zero_grad()
        torch.manual_seed(1)
        loss = adapted(**batch, fused_loss=fused_cross_entropy).loss
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in adapted.parameters() if parameter.grad is not None]
        return [loss.detach(), *gradients]

    eager = loss_and_gradients()
    compile_layers(model, backend="eager")  # what is traced is the point
    compiled = loss_and_gradients()
    assert counters["stats"]["unique_graphs"] > 0
    assert len(eager) > 10
    for found, expected in zip(compiled, eager, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert not any("_orig_mod" in name for name in model.state_dict())


def test_a_compiler_that_fails(tmp_path, monkeypatch, fails):
    monkeypatch.setattr(compilation, "compile_layers", lambda model: compile_layers(model, backend=broken))
    line = fails(tmp_path / "run", "compile=true")
    assert re.search(r"error: the layers cannot be compiled here \(.+\); set compile=false", line)


def broken(graph, example_inputs):
    raise RuntimeError("no compiler")


@pytest.mark.slow
def test_layers_are_compiled_as_wholes_in_ddp(tmp_path):
    run_group(tmp_path, 1, count_graphs, str(tmp_path / "graphs"))
    assert json.loads((tmp_path / "graphs").read_text()) == [2, 2]  # an encoder's and a decoder's layer


def test_a_compiled_loss_is_the_plain_one():
    """What is compiled on a GPU, in float64."""
    torch.manual_seed(0)
    logits, labels = torch.randn(7, 30, dtype=torch.float64), torch.randint(0, 30, (7,))
    expected = loss._losses_and_gradient(logits.clone(), labels, 0.9, torch.empty_like(logits))
    torch.testing.assert_close(loss._textbook_losses_and_gradient(logits, labels, 0.9), expected, rtol=0, atol=1e-13)

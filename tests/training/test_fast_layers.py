"""Fast dropout, norms and attention do what PyTorch's do."""

import copy
from types import SimpleNamespace

import pytest
import torch
from conftest import quick_run

from modeling_scratch.model.layers import NORMS
from modeling_scratch.training import fast_layers
from modeling_scratch.training.fast_layers import (
    FAST,
    FastAttention,
    FastDropout,
    FastLayerNorm,
    FastLearnedPositionEmbedding,
    FastRMSNorm,
    use_fast_layers,
)
from modeling_scratch.training.fused_loss import fused_cross_entropy
from modeling_scratch.training.step import TrainingStep


@pytest.mark.parametrize("norm_type", ["layer_norm", "rms_norm"])
def test_a_model_keeps_its_weights_and_computes_by_the_fast_layers(norm_type, make_model):
    model = make_model(norm_type=norm_type, dropout=0.3)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    inputs = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    expected = model.eval()(**inputs).logits
    use_fast_layers(model)
    kinds = {type(module) for module in model.modules()}
    other_norm = FastRMSNorm if norm_type == "layer_norm" else FastLayerNorm
    assert set(FAST.values()) - kinds == {other_norm, FastLearnedPositionEmbedding}
    assert not set(FAST) & kinds
    assert torch.equal(model(**inputs).logits, expected)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_dropout_keeps_the_mean_and_scales_the_kept():
    torch.manual_seed(0)
    layer = FastDropout(0.3)
    ones = torch.ones(1001, 999, requires_grad=True)  # not a multiple of the four draws in a word
    dropped = layer(ones)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=2e-3)  # four standard deviations
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / 0.7), rtol=2e-5, atol=0)
    dropped.sum().backward()
    assert torch.equal(ones.grad, dropped.detach())
    by_column, by_row = kept.float().mean(0), kept.float().mean(1)
    assert by_column.std().item() < 0.02  # no column or row is favoured
    assert by_row.std().item() < 0.02
    assert not torch.equal(layer(ones) != 0, kept)
    assert layer.eval()(ones) is ones


def test_runs_train_with_them(tmp_path, monkeypatch):
    """New ones, resumed ones, and those that start from a model."""
    kinds, make_update = [], TrainingStep.__call__

    def watched(training_step, *given):
        kinds.append({type(module) for module in training_step.model.modules()})
        return make_update(training_step, *given)

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    run = quick_run(tmp_path / "run", "optimization.max_steps=2", "logging_steps=1")
    quick_run(run, "optimization.max_steps=3", "logging_steps=1", resume=True)
    options = [f"model.start_from={run}", "model.overrides={}", "optimization.max_steps=1", "logging_steps=1"]
    quick_run(tmp_path / "tuned", *options)
    assert len(kinds) == 4
    for found in kinds:
        assert {FastAttention, FastDropout} <= found
        assert not found & FAST.keys()


@pytest.mark.parametrize(("norm_position", "least_similarity"), [("pre", 0.999), ("post", 0.995)])
@pytest.mark.parametrize("norm_type", NORMS)
def test_the_residual_stream_under_autocast(norm_type, norm_position, least_similarity, make_model, monkeypatch):
    """It is bfloat16 where products are; float16, whose numbers end at 65,504, is for products alone."""
    normalize = torch.nn.LayerNorm.forward  # which returns float32 under a GPU's autocast
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda layer, states: normalize(layer, states.float()))
    model = make_model(norm_type=norm_type, norm_position=norm_position, dropout=0.0).train()
    use_fast_layers(model)
    seen, ids = set(), torch.randint(4, 61, (8, 7))
    for stack in (model.model.encoder, model.model.decoder):
        for layer in stack.layers:
            layer.register_forward_hook(lambda _, inputs, outputs: seen.update({inputs[0].dtype, outputs[0].dtype}))

    def train(dtype: torch.dtype) -> tuple[set[torch.dtype], torch.Tensor, torch.Tensor]:
        seen.clear()
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = model(input_ids=ids, labels=ids, fused_loss=fused_cross_entropy).loss
        loss.backward()
        return set(seen), loss.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    dtypes, expected, gradient = train(torch.float32)
    assert dtypes == {torch.float32}
    for dtype, stream in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        dtypes, loss, found = train(dtype)
        assert dtypes == {stream}
        torch.testing.assert_close(loss, expected, rtol=0.01, atol=0.0)
        assert torch.cosine_similarity(found, gradient, dim=0) > least_similarity


@pytest.mark.filterwarnings("error")  # PyTorch warns of norms whose weight has another precision
@pytest.mark.parametrize("norm_type", NORMS)
def test_autocast_leaves_float64_alone_and_evaluation_silent(norm_type, make_model):
    model, ids = make_model(norm_type=norm_type).eval(), torch.randint(4, 61, (3, 7))
    use_fast_layers(model)
    for dtype, seen in ((torch.float32, torch.bfloat16), (torch.float64, torch.float64)):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            assert model.to(dtype).model(input_ids=ids, decoder_input_ids=ids).last_hidden_state.dtype == seen


@pytest.mark.parametrize(("short", "kernels"), [(0, {torch.float32}), (64 * 64, set())])
@pytest.mark.parametrize(("mask", "positions"), [(None, "rotary"), ("boolean", "sinusoidal"), ("float", "sinusoidal")])
def test_sdpa_trains_without_the_kernels_that_are_slow(mask, positions, short, kernels, make_model, monkeypatch):
    """On the CPU: those for bfloat16, and any for short sentences. Without gradients, they are the fast ones."""
    monkeypatch.setattr(fast_layers, "_SHORT", short)
    model, seen = make_model(dropout=0.0, position_embedding_type=positions).train(), set()
    use_fast_layers(model)
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, *args, **kwargs):
        seen.add(value.dtype)  # autocast narrows rotated queries and keys inside
        return attend(query, key, value, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    ids = torch.randint(4, 61, (3, 6))
    batch = {"input_ids": ids, "labels": ids}
    if mask is not None:
        attends = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 6])
        batch["attention_mask"] = attends.bool() if mask == "boolean" else (1 - attends[:, None, None]) * -1e9
    with monkeypatch.context() as patch:
        patch.setattr(fast_layers, "_SHORT", 0)
        expected = model(**batch)
    expected.loss.backward()
    gradient = model.lm_head.weight.grad.clone()
    model.zero_grad()
    seen.clear()
    torch.testing.assert_close(model(**batch).loss, expected.loss)
    assert seen == kernels
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**batch)
    found.loss.backward()
    assert seen == kernels
    torch.testing.assert_close(found.loss, expected.loss, rtol=0.02, atol=0.02)
    torch.testing.assert_close(model.lm_head.weight.grad, gradient, rtol=0.1, atol=0.02)
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model.eval()(**batch)
    assert seen == {torch.bfloat16}


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi"])
def test_short_attention_is_the_model_s(positions, make_model, monkeypatch):
    """Loss and gradients of all weights in float64, against the model's own layers; padding on either side."""
    model, ran = make_model(position_embedding_type=positions, dropout=0.0).double().train(), []
    fast = copy.deepcopy(model)
    use_fast_layers(fast)
    apply = fast_layers._ShortAttention.apply
    counted = SimpleNamespace(apply=lambda *args: ran.append(1) or apply(*args))
    monkeypatch.setattr(fast_layers, "_ShortAttention", counted)
    ids = torch.randint(4, 61, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4, [0] * 3 + [1] * 6])
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids[:, :7]}
    losses = [each(**batch).loss for each in (model, fast)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses, rtol=1e-12, atol=1e-12)
    for (name, expected), found in zip(model.named_parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-9, atol=1e-12, msg=name)
    assert len(ran) == model.config.encoder_layers + 2 * model.config.decoder_layers


def test_positions_may_be_learnt(make_model):
    """A bias or a rotation of a position embedding that has weights gets its gradient."""
    torch.manual_seed(0)
    layer = make_model().train().model.encoder.layers[0].self_attn
    use_fast_layers(layer)
    bias = torch.randn(1, layer.num_heads, 5, 5, requires_grad=True)
    rotation = tuple(torch.randn(1, 5, layer.head_dim, requires_grad=True) for _ in range(2))
    layer(torch.randn(2, 5, layer.num_heads * layer.head_dim), None, bias, rotation)[0].square().sum().backward()
    assert all(each.grad.abs().sum() > 0 for each in (bias, *rotation))


def test_attention_dropout_is_the_model_s(make_model, monkeypatch):
    monkeypatch.setattr(fast_layers, "_ShortAttention", None)
    model = make_model(attention_dropout=0.9, dropout=0.0).train()
    use_fast_layers(model)
    ids = torch.randint(4, 61, (3, 9))
    first, second = (model(input_ids=ids, labels=ids).loss for _ in range(2))
    assert first != second

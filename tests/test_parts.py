"""Positions, feed-forward, dropout, masks and attention, each against a formula written here."""

import math

import numpy as np
import pytest
import torch

from modeling_scratch import ScratchConfig
from modeling_scratch.attention import ScratchCrossAttention, ScratchSelfAttention
from modeling_scratch.dropout import ScratchDropout
from modeling_scratch.feed_forward import ScratchFeedForward
from modeling_scratch.masking import bidirectional_mask, causal_mask, count_positions
from modeling_scratch.position_embeddings import ScratchRotaryEmbedding, SinusoidalPositionEmbedding, apply_rotary


def small_config(implementation: str = "sdpa", **fields) -> ScratchConfig:
    config = ScratchConfig(vocab_size=20, d_model=16, encoder_attention_heads=2, decoder_attention_heads=2, **fields)
    config._attn_implementation = implementation
    return config


# -- positions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [16, 7])
def test_sinusoidal_is_the_paper_s_formula(d_model):
    table = SinusoidalPositionEmbedding(d_model)(torch.tensor([[0, 1, 5, 3000]]), torch.float64)[0]
    for row, position in enumerate([0, 1, 5, 3000]):
        for dimension in range(d_model):
            angle = position / 10000 ** (2 * (dimension // 2) / d_model)
            expected = math.cos(angle) if dimension % 2 else math.sin(angle)
            assert table[row, dimension].item() == pytest.approx(expected, abs=1e-9)


def test_rotary_products_depend_on_distance_alone():
    config = small_config(position_embedding_type="rotary")
    rotary = ScratchRotaryEmbedding(config)
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)

    def product(query_position: int, key_position: int) -> float:
        rotated = [
            apply_rotary(states, rotary(states, torch.tensor([[position]])))
            for states, position in ((query, query_position), (key, key_position))
        ]
        return (rotated[0] * rotated[1]).sum().item()

    assert product(5, 3) == pytest.approx(product(105, 103), abs=1e-9)
    assert product(0, 0) == pytest.approx((query * key).sum().item(), abs=1e-12)
    assert abs(product(5, 3) - product(5, 4)) > 1e-3


def test_positions_count_attended_tokens():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    expected = [[0, 0, 0, 1], [0, 1, 2, 2]]
    for form in (mask, mask.bool(), (1.0 - mask) * torch.finfo(torch.float32).min, (1.0 - mask) * -10000.0):
        assert count_positions(form, 4, 0, mask.device).tolist() == expected
    assert count_positions(mask, 2, 2, mask.device).tolist() == [[0, 1], [2, 2]]
    assert count_positions(None, 2, 3, mask.device).tolist() == [[3, 4]]


# -- feed-forward and dropout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward(gated):
    torch.manual_seed(0)
    layer = ScratchFeedForward(small_config(gated_ffn=gated, activation_function="silu"), 24).double().eval()
    states = torch.randn(2, 3, 16, dtype=torch.float64)
    up = states @ layer.up_proj.weight.T + layer.up_proj.bias
    inner = up if not gated else states @ layer.gate_proj.weight.T + layer.gate_proj.bias
    inner = inner / (1 + torch.exp(-inner)) * (up if gated else 1)
    expected = inner @ layer.down_proj.weight.T + layer.down_proj.bias
    torch.testing.assert_close(layer(states), expected, rtol=0, atol=1e-12)


def test_dropout_keeps_the_mean_and_scales_the_kept():
    torch.manual_seed(0)
    layer = ScratchDropout(0.3)
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


# -- masks and attention -------------------------------------------------------------------------------------------


def reference_attention(layer, queries, keys, allowed, bias=None):
    """Section 3.2 for one pair of sequences in numpy. allowed: (query_length, key_length), True attends."""
    weights = {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}
    heads, size = layer.num_heads, layer.head_dim
    project = lambda name, x: x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]  # noqa: E731
    query, key, value = project("q_proj", queries), project("k_proj", keys), project("v_proj", keys)
    output = np.zeros_like(query)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / math.sqrt(size) + (0 if bias is None else bias)
        scores = np.where(allowed, scores, -np.inf)
        for row in range(len(scores)):
            if not allowed[row].any():
                continue  # attends to nothing: zeros
            exponents = np.exp(scores[row] - scores[row].max())
            output[row, part] = exponents / exponents.sum() @ value[:, part]
    return project("o_proj", output)


MASKS = {
    "none": None,
    "bool": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]]).bool(),
    "integer": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]]),
    "float": torch.tensor([[0.0, -0.5, 0.0, -2.0], [-math.inf, 0.0, -1.0, -1e9]], dtype=torch.float64),
    "4-D bool": torch.tensor([1, 1, 0, 1] * 4 + [1, 0, 0, 0] * 4).view(2, 1, 4, 4).bool(),
    "4-D integer": torch.tensor([1, 1, 0, 1] * 4 + [1, 0, 0, 0] * 4).view(2, 1, 4, 4),
    "4-D float": torch.tensor([0, -0.3, -math.inf, 0] * 8, dtype=torch.float64).view(2, 1, 4, 4),
    "4-D with an empty row": torch.tensor([0, 0, 0, 0] + [1, 1, 0, 1] * 7).view(2, 1, 4, 4).bool(),
}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_every_kind_of_mask(kind, causal, implementation):
    mask = MASKS[kind]
    torch.manual_seed(0)
    config = small_config(implementation)
    layer = ScratchSelfAttention(config, 2, 0, is_causal=causal).double().eval()
    states = torch.randn(2, 4, 16, dtype=torch.float64)
    prepared = causal_mask(config, states, mask, None) if causal else bidirectional_mask(config, states, mask)
    output, _ = layer(states, prepared)

    for index in range(2):
        allowed, bias = np.ones((4, 4), bool), np.zeros((4, 4))
        if mask is not None:
            row = (mask[index, 0] if mask.ndim == 4 else mask[index].expand(4, 4)).numpy()
            allowed = row > -1e4 if row.dtype == np.float64 else row != 0
            bias = np.where(allowed, row, 0) if row.dtype == np.float64 else bias
        if causal and (mask is None or mask.ndim == 2):  # a 4-D mask is the whole mask
            allowed = allowed & np.tril(np.ones((4, 4), bool))
        expected = reference_attention(layer, states[index].numpy(), states[index].numpy(), allowed, bias)
        np.testing.assert_allclose(output[index].detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_cross_attention(implementation):
    torch.manual_seed(0)
    config = small_config(implementation)
    layer = ScratchCrossAttention(config, 2, 0, is_causal=False).double().eval()
    target, source = torch.randn(1, 3, 16, dtype=torch.float64), torch.randn(1, 5, 16, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 1, 0]])
    output, _ = layer(target, source, bidirectional_mask(config, target, mask, source))
    allowed = np.broadcast_to(mask[0].numpy() != 0, (3, 5))
    expected = reference_attention(layer, target[0].numpy(), source[0].numpy(), allowed)
    np.testing.assert_allclose(output[0].detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_nothing_to_attend_to_has_finite_gradients(implementation):
    config = small_config(implementation)
    layer = ScratchSelfAttention(config, 2, 0, is_causal=True)
    states = torch.randn(1, 4, 16, requires_grad=True)
    output, _ = layer(states, causal_mask(config, states, torch.tensor([[0, 0, 1, 1]]), None))
    output[:, 2:].sum().backward()
    assert torch.isfinite(output).all()
    assert torch.equal(states.grad[:, :2], torch.zeros(1, 2, 16))

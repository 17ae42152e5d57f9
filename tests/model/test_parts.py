"""Positions, masks and attention equal formulas written here."""

import copy
import math

import numpy as np
import pytest
import torch
from conftest import SHALLOW, padded
from test_variants import SMALL, Reference

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.model import attention, stacks
from modeling_scratch.model.attention import ScratchAttention, eager_attention
from modeling_scratch.model.layers import ScratchEncoderLayer
from modeling_scratch.model.masking import as_bias, causal_mask, count_positions
from modeling_scratch.model.position_embeddings import (
    ALiBiPositionEmbedding,
    ScratchRotaryEmbedding,
    SinusoidalPositionEmbedding,
    apply_rotary,
)


def small_config(implementation: str = "sdpa", **fields) -> ScratchConfig:
    config = ScratchConfig(vocab_size=20, d_model=16, encoder_attention_heads=2, decoder_attention_heads=2, **fields)
    config._attn_implementation = implementation
    return config


# -- positions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [16, 7])
def test_sinusoidal_positions_follow_the_formula_in_the_paper(d_model):
    table = SinusoidalPositionEmbedding.encode(torch.tensor([[0, 1, 5, 3000]]), d_model)[0]
    for row, position in enumerate([0, 1, 5, 3000]):
        for dimension in range(d_model):
            angle = position / 10000 ** (2 * (dimension // 2) / d_model)
            expected = math.cos(angle) if dimension % 2 else math.sin(angle)
            assert table[row, dimension].item() == pytest.approx(expected, abs=1e-9)


def test_rotary_products_only_depend_on_the_distance():
    config = small_config(position_embedding_type="rotary")
    rotary = ScratchRotaryEmbedding(config, num_heads=2)
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)

    def product(query_position: int, key_position: int) -> float:
        rotated = [
            apply_rotary(states, rotary.rotation(states, torch.tensor([[position]])))
            for states, position in ((query, query_position), (key, key_position))
        ]
        return (rotated[0] * rotated[1]).sum().item()

    assert product(5, 3) == pytest.approx(product(105, 103), abs=1e-9)
    assert product(0, 0) == pytest.approx((query * key).sum().item(), abs=1e-12)
    assert abs(product(5, 3) - product(5, 4)) > 1e-3


def test_positions_count_attended_tokens():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 1]])
    for form in (mask, mask.bool(), mask.float(), mask.to(torch.int8), 2 * mask):
        assert count_positions(form).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2], [0, 0, 0, 1]]


# Section 3 of the paper has 8 heads; 16 and numbers that are not powers of two follow its authors' code.
SLOPES = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    16: [2 ** (-head / 2) for head in range(1, 17)],
    3: [2**-4, 2**-8, 2**-2],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    12: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
}


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_subtracts_the_slope_times_the_distance(heads):
    alibi = ALiBiPositionEmbedding(small_config(position_embedding_type="alibi"), heads)
    queries, keys = torch.tensor([[3, 4], [0, 7]]), torch.tensor([[0, 1, 4], [2, 2, 9]])
    states = torch.zeros(2, 2, 16, dtype=torch.float64)
    bias = alibi.bias(states, queries, keys)
    expected = [
        [[[-slope * abs(query - key) for key in row] for query in asked] for slope in SLOPES[heads]]
        for asked, row in zip(queries.tolist(), keys.tolist(), strict=True)
    ]
    torch.testing.assert_close(bias, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)
    assert alibi.add(states, queries) is states
    assert alibi.rotation(states, queries) is None


def with_a_hole(sentences: list[torch.Tensor], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences padded in the middle, after the second token."""
    ids, mask = (torch.cat([each[:, :2], each[:, 2:].flip(1)], dim=1) for each in padded(sentences, length))
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right", "middle"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["alibi", "rotary", "sinusoidal"])
def test_a_padded_batch_equals_the_formulas_for_each_sentence(kind, implementation, side):
    """In logits, loss and gradients."""
    fields = SMALL | {"position_embedding_type": kind, "dropout": 0.0}
    fields |= {"encoder_attention_heads": 8, "decoder_attention_heads": 6, "d_model": 48} | SHALLOW
    torch.manual_seed(0)
    model = ScratchForConditionalGeneration(ScratchConfig(**fields)).double()
    model.set_attn_implementation(implementation)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.05, std=0.2)
    sources, targets = ([torch.randint(4, 23, (size,)) for size in sizes] for sizes in ((7, 4, 5), (3, 6, 5)))
    pad = with_a_hole if side == "middle" else lambda rows, length: padded(rows, length, side)
    (ids, mask), (target, target_mask) = pad(sources, 8), pad(targets, 7)
    labels = torch.where(target_mask == 1, (target + 3) % 23, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": target}
    output = model(**inputs, decoder_attention_mask=target_mask, labels=labels)
    output.loss.backward()

    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    total = 0.0
    for index, (one, other) in enumerate(zip(sources, targets, strict=True)):
        if side == "middle":  # in their order in the batch
            one, other = ids[index][mask[index] == 1], target[index][target_mask[index] == 1]
        logits = Reference(fields, weights).logits(one[None], torch.ones(1, len(one)), other[None])[0]
        torch.testing.assert_close(output.logits[index][target_mask[index] == 1], logits, rtol=0, atol=1e-10)
        total = total - logits.log_softmax(-1)[torch.arange(len(other)), (other + 3) % 23].sum()
    loss = total / sum(map(len, targets))
    loss.backward()
    torch.testing.assert_close(output.loss, loss, rtol=0, atol=1e-10)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=0, atol=1e-10, msg=name)


def packed(sentences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Concatenated ids in one row, the position of each in its sentence, and the number of that sentence."""
    places = torch.cat([torch.arange(len(sentence)) for sentence in sentences])
    numbers = torch.cat([torch.full((len(sentence),), number) for number, sentence in enumerate(sentences)])
    return torch.cat(sentences)[None], places[None], numbers


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["alibi", "rotary", "sinusoidal", "learned"])
def test_sentences_packed_into_one_row_are_kept_apart_by_4d_masks_and_position_ids(kind, implementation, make_model):
    model = make_model(position_embedding_type=kind).double().model
    model.set_attn_implementation(implementation)
    sources, targets = ([torch.randint(4, 61, (size,)) for size in sizes] for sizes in ((7, 4), (3, 5)))
    ids, places, numbers = packed(sources)
    target, target_places, target_numbers = packed(targets)
    together = numbers[:, None] == numbers
    states = model.encoder(ids, together[None, None], position_ids=places).last_hidden_state
    causal = (target_numbers[:, None] == target_numbers).tril()
    cross = target_numbers[:, None] == numbers
    masks = {"attention_mask": causal[None, None], "encoder_attention_mask": cross[None, None]}
    output = model.decoder(target, encoder_hidden_states=states, position_ids=target_places, **masks).last_hidden_state
    for number, (source, wanted) in enumerate(zip(sources, targets, strict=True)):
        alone = model(input_ids=source[None], decoder_input_ids=wanted[None])
        torch.testing.assert_close(states[:, numbers == number], alone.encoder_last_hidden_state, rtol=0, atol=1e-10)
        torch.testing.assert_close(output[:, target_numbers == number], alone.last_hidden_state, rtol=0, atol=1e-10)


def test_a_layer_with_its_own_config_follows_set_attn_implementation(make_model, monkeypatch):
    """docs/model.md shows how to make such a layer."""

    made = []

    def make(config):
        copied = copy.deepcopy(config)
        copied.dropout = config.dropout if made else 0.0
        made.append(ScratchEncoderLayer(copied))
        return made[-1]

    monkeypatch.setattr(stacks, "ScratchEncoderLayer", make)
    encoder = make_model(dropout=0.3).model.encoder
    encoder.set_attn_implementation("eager")
    assert [layer.dropout.p for layer in encoder.layers] == [0.0, 0.3]
    calls = []
    monkeypatch.setattr(attention, "eager_attention", lambda *inputs: calls.append(inputs) or eager_attention(*inputs))
    encoder(torch.ones(1, 3, dtype=torch.long))
    assert len(calls) == len(encoder.layers)


@pytest.mark.parametrize("kind", ["alibi", "rotary", "sinusoidal", "learned"])
def test_position_ids_equal_hiding_the_tokens_in_between(kind, make_model):
    """Tokens at positions 0, 2 and 5 behave as in a sequence of six with the others hidden by a 4-D mask."""
    model = make_model(position_embedding_type=kind).double().model
    whole, places = torch.randint(4, 61, (1, 6)), torch.tensor([[0, 2, 5]])
    ids, seen = whole[:, places[0]], torch.zeros(6).index_fill(0, places[0], 1.0).bool()
    states = model.encoder(ids, position_ids=places).last_hidden_state
    expected = model.encoder(whole, seen.expand(1, 1, 1, 6)).last_hidden_state[:, places[0]]
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-10)
    causal = (torch.ones(6, 6).tril().bool() & seen)[None, None]
    output = model.decoder(ids, encoder_hidden_states=states, position_ids=places).last_hidden_state
    expected = model.decoder(whole, causal, states).last_hidden_state[:, places[0]]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)


# -- masks and attention -----------------------------------------------------------------------------------------------


def reference_attention(layer, queries, keys, allowed, bias=0.0):
    """
    Section 3.2 of the paper for one pair of sequences, in numpy. allowed: (query_length, key_length) or one for each
    head, True attends; bias: likewise, added to the scores.
    """
    weights = {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}
    heads, size = layer.num_heads, layer.head_dim
    project = lambda name, x: x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]  # noqa: E731
    query, key, value = project("q_proj", queries), project("k_proj", keys), project("v_proj", keys)
    output = np.zeros_like(query)
    allowed, bias = (np.broadcast_to(each, (heads, len(query), len(key))) for each in (allowed, bias))
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / math.sqrt(size)
        # A query with nothing to attend to attends to everything.
        nothing = ~allowed[head].any(axis=1, keepdims=True)
        scores = np.where(nothing, scores, np.where(allowed[head], scores + bias[head], -np.inf))
        for row in range(len(scores)):
            exponents = np.exp(scores[row] - scores[row].max())
            output[row, part] = exponents / exponents.sum() @ value[:, part]
    return project("o_proj", output)


MASKS = {
    "none": None,
    "bool": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]]).bool(),
    "integer": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]]),
    "float": torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.5, 0.0]]),
    "other integer": torch.tensor([[1, 1, 1, 1], [0, -1, 2, 0]], dtype=torch.int8),
    "additive": torch.tensor([[0.0, -0.5, 0.0, -2.0], [-math.inf, 0.0, -1.0, -1e9]]).double().view(2, 1, 1, 4),
    "additive, minimum": torch.tensor([[0.0, 0.5], [-3.4028234663852886e38, 0.0]]).repeat(1, 2).view(2, 1, 1, 4),
    "4-D bool": torch.tensor([1, 1, 0, 1] * 4 + [1, 0, 0, 0] * 4).view(2, 1, 4, 4).bool(),
    "4-D integer": torch.tensor([1, 1, 0, 1] * 4 + [1, 0, 0, 0] * 4).view(2, 1, 4, 4),
    "4-D float": torch.tensor([0, -0.3, -math.inf, 0] * 8, dtype=torch.float64).view(2, 1, 4, 4),
    "4-D, one a head": torch.tensor([1, 1, 0, 1] * 4 + [0, 1, 0, 0] * 4 + [1, 0, 1, 0] * 8).view(2, 2, 4, 4),
    "4-D with an empty row": torch.tensor([0, 0, 0, 0] + [1, 1, 0, 1] * 7).view(2, 1, 4, 4).bool(),
    "4-D float with an empty row": torch.tensor([-math.inf] * 4 + [0, 0, -math.inf, 0.5] * 7).view(2, 1, 4, 4),
}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_attention_with_any_mask_equals_the_formula(kind, causal, implementation):
    mask = MASKS[kind]
    torch.manual_seed(0)
    config = small_config(implementation)
    layer = ScratchAttention(config, 2, is_causal=causal).double().eval()
    states = torch.randn(2, 4, 16, dtype=torch.float64)
    whole = mask is None or mask.ndim == 4  # a 4-D mask is complete
    prepared = mask if whole or not causal else causal_mask(mask, 4, 4, 0, "cpu")
    output, _ = layer(states, attention_mask=as_bias(prepared, states.dtype))

    for index in range(2):
        allowed, bias = np.ones((2, 4, 4), bool), np.zeros((2, 4, 4))
        if mask is not None:
            row = np.broadcast_to(mask[index].numpy(), (2, 4, 4))
            is_added = mask.ndim == 4 and mask.is_floating_point()
            allowed = row > -1e30 if is_added else row != 0
            bias = np.where(allowed, row, 0) if is_added else bias
        if causal and (mask is None or mask.ndim == 2):
            allowed = allowed & np.tril(np.ones((4, 4), bool))
        expected = reference_attention(layer, states[index].numpy(), states[index].numpy(), allowed, bias)
        np.testing.assert_allclose(output[index].detach().numpy(), expected, rtol=0, atol=1e-12)

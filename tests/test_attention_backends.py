"""The attention backends against each other, for every kind of mask: outputs, gradients, and the memory of masks."""

import pytest
import torch
from conftest import padded, run_command
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import masking_utils
from transformers.integrations import flash_attention as flash_integration
from transformers.integrations import flex_attention as flex_integration

from modeling_scratch import attention


def additive(attend: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(attend.shape).clamp(max=0).masked_fill(~attend, float("-inf"))


def square(mask: torch.Tensor, queries: int, heads: int = 1) -> torch.Tensor:
    """A 4-D mask in which queries see different keys, and the second query of the last sentence none."""
    torch.manual_seed(6)
    attend = mask[:, None, None, :].bool() & (torch.rand(len(mask), heads, queries, mask.shape[1]) < 0.7)
    attend |= mask[:, None, None, :].bool() & (torch.arange(mask.shape[1]) == mask.argmax(1)[:, None])[:, None, None]
    attend[-1, :, 1] = False
    return attend


# From (batch_size, key_length), 1 attends, and the number of queries.
MASKS = {
    "none": lambda mask, queries: None,
    "nothing but ones": lambda mask, queries: torch.ones_like(mask),
    "integer": lambda mask, queries: mask,
    "boolean": lambda mask, queries: mask.bool(),
    "float": lambda mask, queries: additive(mask.bool()),
    "4-D boolean": square,
    "4-D integer": lambda mask, queries: square(mask, queries).long(),
    "4-D boolean, one a head": lambda mask, queries: square(mask, queries, heads=2),
    "4-D float": lambda mask, queries: additive(square(mask, queries)),
    "4-D float, one a head": lambda mask, queries: additive(square(mask, queries, heads=2)),
}


def run(model, implementation, sentences, kind):
    """Outputs of encoder and decoder with a mask of this kind in all three attentions; and where they are defined."""
    model.config._attn_implementation = implementation
    source, mask = padded(sentences, 8, "left")
    target, target_mask = padded([sentence[:4] for sentence in sentences], 5)
    make = MASKS[kind]
    states = model.model.encoder(source, make(mask, 8)).last_hidden_state
    output = model.model.decoder(target, make(target_mask, 5), states, make(mask, 5)).last_hidden_state
    return states, output, mask.bool(), target_mask.bool()


@pytest.fixture
def model(make_model):
    return make_model(encoder_attention_heads=2, decoder_attention_heads=2).double()


@pytest.mark.parametrize("kind", MASKS)
def test_eager_and_sdpa_agree(kind, model, sentences):
    results = []
    for implementation in ("eager", "sdpa"):
        model.zero_grad()
        states, output, *_ = run(model, implementation, sentences, kind)
        (output.sin().sum() + states.cos().sum()).backward()
        results.append([states, output, *(parameter.grad.clone() for parameter in model.model.parameters())])
    for eager, sdpa in zip(*results, strict=True):
        assert torch.isfinite(eager).all()
        torch.testing.assert_close(sdpa, eager, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", MASKS)
def test_flex_agrees_in_outputs(kind, model, sentences, monkeypatch):
    """The masks as flex reads them, with its mathematics run eagerly; the slow test below compiles it."""
    direct = lambda *tensors, training, **options: flex_attention(*tensors, **options)  # noqa: E731
    monkeypatch.setattr(flex_integration, "compile_friendly_flex_attention", direct)
    make = lambda mask_mod, **options: create_block_mask(mask_mod, **(options | {"_compile": False}))  # noqa: E731
    monkeypatch.setattr(masking_utils, "create_block_mask", make)
    with torch.no_grad():
        if "float" in kind:
            with pytest.raises(
                ValueError, match=r"float32 cannot go to flex_attention; use attn_implementation='sdpa'"
            ):
                run(model, "flex_attention", sentences, kind)
            return
        flex, expected = (run(model, implementation, sentences, kind) for implementation in ("flex_attention", "eager"))
    for first, second in zip(flex[:2], expected[:2], strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-10)


def flash(query, key, value, attention_mask, query_length, is_causal, dropout, softmax_scale, **options):
    """
    What flash attention computes, as Transformers calls it: (batch_size, length, heads, head_dim); the mask, if any, is
    the keys', and the queries' own where there are as many; causal from the end.
    """
    keys = key.shape[1]
    allowed = torch.ones(len(query), query_length, keys, dtype=torch.bool)
    if is_causal:
        allowed &= torch.ones(query_length, keys).tril(keys - query_length).bool()
    if attention_mask is not None:
        assert attention_mask.shape == (len(key), keys)
        allowed &= attention_mask[:, None, :].bool()
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * softmax_scale
    weights = scores.masked_fill(~allowed[:, None], float("-inf")).softmax(-1).nan_to_num(0.0)
    output = torch.einsum("bhqk,bkhd->bqhd", weights, value)
    if attention_mask is not None and query_length == keys:
        output = output * attention_mask[:, :, None, None]
    return output


@pytest.mark.parametrize("kind", MASKS)
def test_flash_is_called_as_it_must_be(kind, model, sentences, monkeypatch):
    calls = []
    monkeypatch.setattr(
        flash_integration, "_flash_attention_forward", lambda *args, **kw: calls.append(1) or flash(*args, **kw)
    )
    with torch.no_grad():
        got, expected = (run(model, which, sentences, kind) for which in ("flash_attention_2", "sdpa"))
    for first, second, kept in zip(got[:2], expected[:2], got[2:], strict=True):
        torch.testing.assert_close(first[kept], second[kept], rtol=0, atol=1e-10)
    if kind in ("none", "nothing but ones"):
        assert len(calls) == 2 + 3 + 3  # no mask: every attention of every layer
    elif kind in ("integer", "boolean"):
        assert len(calls) == 2 + 3  # cross-attention to padding goes to sdpa
    else:
        assert not calls
    # Target as long as the source: flash alone would take the source's padding for the target's.
    source, mask = padded(sentences, 7)
    inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": source.roll(1, 1)}
    logits = []
    for which in ("flash_attention_2", "sdpa"):
        model.config._attn_implementation = which
        logits.append(model(**inputs).logits)
    torch.testing.assert_close(*logits, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_flex_compiled():
    """Generation with flex as it is used: compiled. In a process of its own: the compiler keeps state."""
    script = """
import torch
from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
torch.manual_seed(0)
sizes = dict(vocab_size=61, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=48)
model = ScratchForConditionalGeneration(ScratchConfig(**sizes, init_std=0.3)).eval()
ids, mask = torch.randint(4, 61, (3, 8)), torch.tensor([[1] * 8, [1] * 6 + [0] * 2, [1] * 3 + [0] * 5])
expected = model.generate(ids, attention_mask=mask, max_new_tokens=6)
model.set_attn_implementation("flex_attention")
assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=6), expected)
"""
    result = run_command("-c", script)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flash_attention_2"])
def test_no_needless_mask(implementation, model, sentences, monkeypatch):
    """What reaches the backend: no mask where a flag or nothing suffices, and else one row for all queries."""
    shapes = []

    def attend(self, query, key, value, attention_mask, **options):
        shapes.append(None if attention_mask is None else tuple(attention_mask.shape))
        return self.o_proj(query.transpose(1, 2).flatten(2)), None

    monkeypatch.setattr(attention.ScratchAttention, "attend", attend)
    model.config._attn_implementation = implementation
    source, mask = padded(sentences, 8)
    target = source[:, :5]

    def seen(**inputs):
        shapes.clear()
        model.model(decoder_input_ids=target, **inputs)
        return shapes[0], shapes[2], shapes[3]  # encoder, causal, cross

    causal = (3, 1, 5, 5) if implementation == "eager" else None  # eager has no flag
    assert seen(input_ids=source) == (None, causal, None)
    assert seen(input_ids=source, attention_mask=torch.ones_like(mask)) == (None, causal, None)
    padding = (3, 8) if implementation == "flash_attention_2" else (3, 1, 1, 8)
    assert seen(input_ids=source, attention_mask=mask) == (padding, causal, (3, 1, 1, 8))


def test_long_sequences_build_no_square(model, monkeypatch):
    """Source of 3,000 and target of 3,000 tokens: no tensor of their product is made outside the backend."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for each in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(each, torch.Tensor):
                    largest = max(largest, each.numel())
            return result

    model.config._attn_implementation = "sdpa"
    ids = torch.randint(4, 61, (1, 3000))
    mask = torch.ones_like(ids)
    mask[:, :10] = 0
    with torch.no_grad(), Watch():
        model.model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids)
    assert largest < 3000 * 3000 / 10


@pytest.mark.parametrize("mask", [None, "boolean", "float"])
def test_sdpa_trains_in_float32_where_bf16_is_slow(mask, make_model, monkeypatch):
    """On the CPU, under autocast. Without gradients it takes what it is given."""
    model, seen = make_model(dropout=0.0).train(), set()
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(query, *args, **kwargs):
        seen.add(query.dtype)
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    ids = torch.randint(4, 61, (3, 6))
    batch = {"input_ids": ids, "labels": ids}
    if mask is not None:
        attends = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 6])
        batch["attention_mask"] = attends.bool() if mask == "boolean" else (1 - attends[:, None, None]) * -1e9
    expected = model(**batch)
    expected.loss.backward()
    gradient = model.lm_head.weight.grad.clone()
    model.zero_grad()
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**batch)
    found.loss.backward()
    assert seen == {torch.float32}
    torch.testing.assert_close(found.loss, expected.loss, rtol=0.02, atol=0.02)
    torch.testing.assert_close(model.lm_head.weight.grad, gradient, rtol=0.1, atol=0.02)
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model.eval()(**batch)
    assert seen == {torch.bfloat16}

"""The attention backends agree in outputs and gradients for every kind of mask, and get no mask they do not need."""

import pytest
import torch
from conftest import padded
from transformers import DynamicCache

from modeling_scratch.model import attention


def additive(attend: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(attend.shape).clamp(max=0).masked_fill(~attend, float("-inf"))


def square(mask: torch.Tensor, queries: int, heads: int = 1) -> torch.Tensor:
    """A random 4-D mask; the second query of the last sentence attends to nothing."""
    torch.manual_seed(6)
    attend = mask[:, None, None, :].bool() & (torch.rand(len(mask), heads, queries, mask.shape[1]) < 0.7)
    attend |= mask[:, None, None, :].bool() & (torch.arange(mask.shape[1]) == mask.argmax(1)[:, None])[:, None, None]
    attend[-1, :, 1] = False
    return attend


# Functions of a mask (batch_size, key_length), where 1 attends, and the number of queries.
MASKS = {
    "none": lambda mask, queries: None,
    "integer": lambda mask, queries: mask,
    "boolean": lambda mask, queries: mask.bool(),
    "float": lambda mask, queries: mask.float(),
    "4-D float, one row": lambda mask, queries: additive(mask[:, None, None].bool()),
    "4-D boolean": square,
    "4-D float": lambda mask, queries: additive(square(mask, queries)),
    "4-D float, one a head": lambda mask, queries: additive(square(mask, queries, heads=2)),
}


def run(model, implementation, sentences, kind):
    """Outputs of encoder and decoder, with this kind of mask in all three attentions."""
    model.config._attn_implementation = implementation
    source, mask = padded(sentences, 8, "left")
    target, target_mask = padded([sentence[:4] for sentence in sentences], 5)
    make = MASKS[kind]
    states = model.model.encoder(source, make(mask, 8)).last_hidden_state
    output = model.model.decoder(target, make(target_mask, 5), states, make(mask, 5)).last_hidden_state
    return states, output


@pytest.fixture
def model(make_model):
    return make_model(encoder_attention_heads=2, decoder_attention_heads=2).double()


@pytest.mark.parametrize("kind", MASKS)
def test_eager_and_sdpa_agree(kind, model, sentences):
    results = []
    for implementation in ("eager", "sdpa"):
        model.zero_grad()
        states, output = run(model, implementation, sentences, kind)
        (output.sin().sum() + states.cos().sum()).backward()
        results.append([states, output, *(parameter.grad.clone() for parameter in model.model.parameters())])
    for eager, sdpa in zip(*results, strict=True):
        assert torch.isfinite(eager).all()
        torch.testing.assert_close(sdpa, eager, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["none", "integer", "4-D float"])
@torch.no_grad()
def test_requested_weights_are_those_of_eager_attention(kind, model, sentences):
    source, mask = padded(sentences, 8, "left")
    inputs = {"input_ids": source, "attention_mask": MASKS[kind](mask, 8), "output_attentions": True}
    model.config._attn_implementation = "eager"
    expected = model.get_encoder()(**inputs)
    model.config._attn_implementation = "sdpa"
    found = model.get_encoder()(**inputs)
    assert torch.equal(torch.stack(found.attentions), torch.stack(expected.attentions))
    assert torch.equal(found.last_hidden_state, expected.last_hidden_state)
    assert model.get_encoder()(**inputs | {"output_attentions": False}).attentions is None


def test_another_backend_is_refused(model, sentences):
    with pytest.raises(ValueError, match="flex"):
        model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="attn_implementation is 'mine'; this model has 'sdpa' and 'eager'"):
        run(model, "mine", sentences, "none")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_backend_gets_a_mask_only_where_it_needs_one(implementation, model, sentences, monkeypatch):
    """No mask where the causal flag suffices, otherwise one row for all queries where possible."""
    shapes = []

    def attend(query, key, value, attention_mask, *_):
        shapes.append(None if attention_mask is None else tuple(attention_mask.shape))
        return query

    monkeypatch.setattr(attention.ScratchAttention, "sdpa", lambda self, *inputs: attend(*inputs))
    monkeypatch.setattr(attention, "eager_attention", lambda *inputs: (attend(*inputs), None))
    model.config._attn_implementation = implementation
    source, mask = padded(sentences, 8)
    target, target_mask = source[:, :5], mask[:, :5]

    def seen(training=False, **inputs):
        shapes.clear()
        with torch.set_grad_enabled(training):
            model.model(input_ids=source, **({"decoder_input_ids": target} | inputs))
        return shapes[0], shapes[2], shapes[3]  # encoder, causal, cross

    for ones in (torch.ones_like(mask), torch.ones_like(mask).bool(), torch.ones_like(mask).float()):
        assert seen(attention_mask=ones, decoder_attention_mask=ones[:, :5]) == (None, None, None)
        # In training the mask is kept, so that a compiler sees the same kind of input for every batch.
        assert seen(training=True, attention_mask=ones) == ((3, 1, 1, 8), None, (3, 1, 1, 8))
    assert seen() == (None, None, None)
    assert seen(attention_mask=mask) == ((3, 1, 1, 8), None, (3, 1, 1, 8))
    assert seen(decoder_attention_mask=target_mask) == (None, (3, 1, 5, 5), None)
    cache = DynamicCache()
    assert seen(past_key_values=cache) == (None, None, None)
    step = {"past_key_values": cache, "decoder_input_ids": target[:, :1]}
    assert seen(**step) == (None, None, None)
    assert seen(**step, decoder_attention_mask=mask[:, :7]) == (None, (3, 1, 1, 7), None)
    several = {"past_key_values": cache, "decoder_input_ids": target[:, :3]}
    assert seen(**several) == (None, (1, 1, 3, 10), None)  # a flag cannot express past tokens


def test_no_tensor_grows_with_the_square_of_the_length(model):
    """Outside the backend, for 3,000 source and target tokens."""
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
        model.model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids, decoder_attention_mask=mask * 0 + 1)
    assert largest < 3000 * 3000 / 10

"""generate(): with and without caches, and every strategy against its definition, computed by plain forward passes."""

import itertools
import math

import pytest
import torch
from choices import slowly_every_choice_but, two_choices_and_slowly_every
from conftest import FEW_LAYERS, SHALLOW, every_choice, every_choice_and_slowly_every_variant, padded
from transformers import CompileConfig
from transformers.modeling_outputs import BaseModelOutput

EOS, START = 2, 1


@pytest.fixture
def batch(sentences):
    ids, mask = padded(sentences, 7)
    return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture
def one(sentences):
    return {"input_ids": sentences[0][None]}


def log_probabilities(model, inputs, sequences):
    """log p(token | source, earlier tokens) of sequences, (batch_size, length - 1), by one uncached forward pass."""
    rows = len(sequences) // len(inputs["input_ids"])
    repeated = {name: value.repeat_interleave(rows, dim=0) for name, value in inputs.items()}
    logits = model(**repeated, decoder_input_ids=sequences[:, :-1], use_cache=False).logits
    return logits.log_softmax(-1).gather(2, sequences[:, 1:, None]).squeeze(2)


def greedy_by_hand(model, inputs, prefix, steps):
    """Greedy decoding as a loop over uncached forward passes, for one sentence."""
    ids = prefix
    for _ in range(steps):
        token = model(**inputs, decoder_input_ids=ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        if token.item() == EOS:
            break
    return ids


# -- caches --------------------------------------------------------------------------------------------------------


@every_choice_and_slowly_every_variant
@pytest.mark.parametrize("beams", [1, 3])
def test_cached_static_and_uncached_agree(fields, beams, make_wide_model, batch):
    model = make_wide_model(**FEW_LAYERS, **fields)
    options = {"max_new_tokens": 8, "num_beams": beams, "return_dict_in_generate": True, "output_logits": True}
    uncached = model.generate(**batch, use_cache=False, **options)
    for cache in ("dynamic", "static"):
        cached = model.generate(**batch, cache_implementation=cache, **options)
        assert torch.equal(cached.sequences, uncached.sequences)
        for first, second in zip(cached.logits, uncached.logits, strict=True):
            torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


# By default a modern architecture here; the compiled forward pass, of test_tools.py, takes the paper's.
@slowly_every_choice_but("rotary, rms, gated")
def test_compiled_generation_equals_eager(fields, make_wide_model, batch):
    model = make_wide_model(**SHALLOW, **fields)
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True}
    eager = model.generate(**batch, **options)
    compile_config = CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    compile_config._compile_all_devices = True
    torch._dynamo.reset()
    compiled = model.generate(**batch, **options, cache_implementation="static", compile_config=compile_config)
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert hasattr(model, "_compiled_call")
    assert torch.equal(compiled.sequences, eager.sequences)
    for first, second in zip(compiled.logits, eager.logits, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


# -- strategies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [None, 2])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_a_wide_beam_ranks_the_best_of_all_translations(length_penalty, least, make_wide_model):
    """
    The empty one among them, unless it is banned or the penalty prefers others. Their probabilities, the end token
    included, are the model's, whatever is banned.
    """
    model, steps, beams = make_wide_model(vocab_size=7, init_std=0.6), 4, 7**3
    source = {"input_ids": torch.tensor([[4, 5, 6, 3]])}
    sequences = torch.tensor([[START, *tokens] for tokens in itertools.product(range(7), repeat=steps)])
    tokens = log_probabilities(model, source, sequences)
    is_end = sequences[:, 1:] == EOS
    counts = is_end.cumsum(1) - is_end.long() == 0  # up to the first end token
    lengths = counts.sum(1).tolist()
    sums = zip(sequences[:, 1:].tolist(), lengths, (tokens * counts).sum(1).tolist(), strict=True)
    expected = {tuple(row[:length]): total for row, length, total in sums}  # those that differ
    assert sum(map(math.exp, expected.values())) == pytest.approx(1)
    allowed = {row: total for row, total in expected.items() if len(row) > (least or 0)}
    output = model.generate(
        **source,
        num_beams=beams,
        num_return_sequences=beams,
        min_new_tokens=least,
        max_new_tokens=steps,
        length_penalty=length_penalty,
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = [tuple(row[: [*row, EOS].index(EOS) + 1]) for row in output.sequences[:, 1:].tolist()]
    assert len(set(found)) == beams
    assert ((EOS,) in found) is (least is None and length_penalty < 2)
    best = sorted((total / len(row) ** length_penalty for row, total in allowed.items()), reverse=True)[:beams]
    assert [allowed[row] / len(row) ** length_penalty for row in found] == pytest.approx(best, abs=1e-5)
    assert output.log_probabilities.tolist() == pytest.approx([allowed[row] for row in found], abs=1e-5)
    if least is None:
        assert output.sequences_scores.tolist() == pytest.approx(best, abs=1e-5)


def test_forced_prefix(make_wide_model, one):
    model = make_wide_model(init_std=0.3)
    prefix = torch.tensor([[START, 9, 11]])
    expected = greedy_by_hand(model, one, prefix, 6)
    assert torch.equal(model.generate(**one, decoder_input_ids=prefix, max_new_tokens=6), expected)
    # Prefixes of different lengths, padded on the left, with a mask.
    batch = {"input_ids": one["input_ids"].expand(2, -1)}
    prefixes, mask = padded([prefix[0], prefix[0, :2]], 3, "left")
    static = {"cache_implementation": "static"}
    for options in ({}, static, {"use_cache": False}):
        together = model.generate(
            **batch, decoder_input_ids=prefixes, decoder_attention_mask=mask, max_new_tokens=6, **options
        )
        shorter = greedy_by_hand(model, one, prefix[:, :2], 6)
        assert torch.equal(together[:1, : expected.shape[1]], expected), options
        assert torch.equal(together[1:, 1 : 1 + shorter.shape[1]], shorter), options


@two_choices_and_slowly_every
@pytest.mark.parametrize("helper", ["prompt lookup", "assistant"])
def test_speculative_decoding_changes_nothing(helper, fields, make_wide_model, one):
    fields = fields | {"init_std": 0.3, "eos_token_id": None}
    model = make_wide_model(**fields)
    expected = model.generate(**one, max_new_tokens=20)
    options, steps = {"prompt_lookup_num_tokens": 3}, []
    if helper == "assistant":
        options = {"assistant_model": make_wide_model(**(fields | {"decoder_layers": 1, "encoder_layers": 1}))}
        options["assistant_model"].register_forward_hook(lambda *_: steps.append("assistant"))
    model.lm_head.register_forward_pre_hook(lambda module, given: steps.append(given[0].shape[1]))
    assert torch.equal(model.generate(**one, max_new_tokens=20, **options), expected)
    assert ("assistant" in steps) == (helper == "assistant")
    assert helper == "assistant" or max(steps[1:]) > 1  # several proposed tokens are checked in one step


# -- inputs and outputs --------------------------------------------------------------------------------------------


@every_choice
def test_what_generate_returns_equals_a_forward_pass(fields, make_model, batch):
    model = make_model(**fields)
    model.set_attn_implementation("eager")
    output = model.generate(
        **batch,
        max_new_tokens=5,
        min_new_tokens=5,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
        output_attentions=True,
        output_hidden_states=True,
    )
    whole = model(
        **batch, decoder_input_ids=output.sequences[:, :-1], output_attentions=True, output_hidden_states=True
    )
    for step, logits in enumerate(output.logits):
        torch.testing.assert_close(logits, whole.logits[:, step], rtol=0, atol=1e-5)
        allowed = output.scores[step] > -float("inf")
        torch.testing.assert_close(output.scores[step][allowed], logits[allowed])
    for kind in ("decoder_attentions", "cross_attentions", "decoder_hidden_states"):
        steps, layers = getattr(output, kind), getattr(whole, kind)
        for step, by_layer in enumerate(steps):
            for layer, states in enumerate(by_layer):
                if kind == "decoder_hidden_states":
                    expected = layers[layer][:, step : step + 1]
                else:
                    expected = layers[layer][:, :, step : step + 1, : states.shape[-1]]
                torch.testing.assert_close(states, expected, rtol=0, atol=1e-5)
    for kind in ("encoder_attentions", "encoder_hidden_states"):
        for first, second in zip(getattr(output, kind), getattr(whole, kind), strict=True):
            torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


@every_choice
def test_other_ways_to_give_the_source(fields, make_wide_model, batch):
    model = make_wide_model(**FEW_LAYERS, **fields)
    expected = model.generate(**batch, max_new_tokens=8, num_beams=2)
    mask = batch["attention_mask"]
    embeds = model.get_input_embeddings()(batch["input_ids"])
    assert torch.equal(
        model.generate(inputs_embeds=embeds, attention_mask=mask, max_new_tokens=8, num_beams=2), expected
    )
    states = model.get_encoder()(**batch).last_hidden_state
    outputs = BaseModelOutput(last_hidden_state=states)
    given = model.generate(encoder_outputs=outputs, attention_mask=mask, max_new_tokens=8, num_beams=2)
    assert torch.equal(given, expected)
    target = torch.tensor([[START, 5]]).expand(3, -1)
    as_tuple = model(encoder_outputs=(states,), attention_mask=mask, decoder_input_ids=target).logits
    assert torch.equal(as_tuple, model(**batch, decoder_input_ids=target).logits)

"""Greedy search, sampling and beam search: the tokens of GenerationMixin's own loops, whatever the settings."""

import copy
import itertools
import logging
import pickle
import random

import peft
import pytest
import torch
from conftest import CHOICES, ROOT, SMALL_MODEL, every_choice_and_variant, padded, run_command
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.model import fast_cpu, search, search_loops
from modeling_scratch.model import modeling_scratch as modeling
from modeling_scratch.model.batched_generation import log_probabilities
from modeling_scratch.model.fast_cpu import ScratchDropout, best_tokens, fast_products

SETTINGS = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "several": {"num_beams": 4, "num_return_sequences": 3},
    "early": {"num_beams": 3, "early_stopping": True},
    "never early": {"num_beams": 3, "early_stopping": "never", "length_penalty": 2.0},
    "short": {"num_beams": 5, "length_penalty": -1.0},
    "two ends": {"num_beams": 3, "eos_token_id": [2, 5]},
    "two ends, greedy": {"eos_token_id": [2, 5]},
    "pad": {"num_beams": 2, "pad_token_id": 7},
    "a beginning": {"num_beams": 3, "decoder_input_ids": torch.tensor([[1, 9, 8]] * 6)},
    "a beginning, greedy": {"decoder_input_ids": torch.tensor([[1, 9, 8]] * 6)},
    "as long as it takes": {"num_beams": 2, "max_new_tokens": 40},
    "opus": {"num_beams": 4, "bad_words_ids": [[7], [9, 8]], "forced_eos_token_id": 2},
    "opus, greedy": {"bad_words_ids": [[7], [9, 8]], "forced_eos_token_id": 2},
    "forced begin": {"num_beams": 3, "forced_bos_token_id": 9},
    "shortest": {"num_beams": 3, "min_new_tokens": 4},
    "shortest, greedy": {"min_length": 6},
    "no repeats": {"num_beams": 3, "no_repeat_ngram_size": 2},
    "repetition": {"num_beams": 3, "repetition_penalty": 1.3},
    "repetition, greedy": {"repetition_penalty": 1.3},
    "of the source": {"num_beams": 2, "encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2},
    "suppressed": {"num_beams": 2, "suppress_tokens": [5, 6], "begin_suppress_tokens": [2, 9]},
    "decay": {"num_beams": 2, "exponential_decay_length_penalty": (2, 1.4)},
    "bias": {"num_beams": 3, "sequence_bias": [[[8, 9], -10.0], [[11], 2.0]]},
    "normalised": {"num_beams": 3, "renormalize_logits": True, "repetition_penalty": 1.2},
    "valid": {"remove_invalid_values": True},
    "allowed": {"num_beams": 3, "prefix_allowed_tokens_fn": lambda batch, ids: [2, 5 + batch, *range(20, 40)]},
    "allowed, greedy": {"prefix_allowed_tokens_fn": lambda batch, ids: [2, 5 + batch, *range(20, 40)]},
    "sampled": {"do_sample": True, "top_k": 8, "temperature": 0.7},
    "several sampled": {"do_sample": True, "top_p": 0.9, "num_return_sequences": 3},
    "others sampled": {"do_sample": True, "min_p": 0.05, "typical_p": 0.9, "epsilon_cutoff": 0.01},
}
VOCABULARIES = [61, 3001]


def enliven(model, seed):
    """Larger weights, by which every change of the model changes what it says."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.35)
    return model


@pytest.fixture(params=VOCABULARIES)
def models(request):
    """Models whose sentences end at different places, and what they read."""

    def make():
        torch.manual_seed(0)
        fields = SMALL_MODEL | {"vocab_size": request.param, "lm_head_bias": True}
        model = ScratchForConditionalGeneration(ScratchConfig(**fields)).eval()
        for seed in range(4):
            enliven(model, seed)
            torch.nn.init.normal_(model.lm_head.bias, std=0.5)
            model.lm_head.weight.data[2] *= 3.0  # the end is now likely, now not
            sentences = [torch.randint(4, request.param, (length,)) for length in (7, 4, 5, 9, 3, 6)]
            yield model, dict(zip(("input_ids", "attention_mask"), padded(sentences, 9), strict=True))

    return make


@pytest.fixture
def loops(monkeypatch):
    """Names of our own loops, each time that one runs."""
    ran = []
    for name in ("sample", "beam_search"):
        loop = getattr(search, name)
        spy = lambda *args, loop=loop, name=name: ran.append(name) or loop(*args)  # noqa: E731
        monkeypatch.setattr(search, name, spy)
    return ran


def inherited(model, **settings):
    """By GenerationMixin's loops."""
    return GenerationMixin.generate(model, **settings)


def same(found, expected) -> None:
    """Tokens, and whatever else was asked for."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        return
    assert torch.equal(found.sequences, expected.sequences)
    assert {name for name in expected if name != "past_key_values"} <= set(found)
    if expected.get("sequences_scores") is not None:
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)
        # Beams that are alike at first stay so where a token is forced: which of them is which is of no account.
        told = expected.sequences_scores > -1e8
        assert torch.equal(found.beam_indices[told], expected.beam_indices[told])
    for name in ("scores", "logits"):
        assert (found.get(name) is None) == (expected.get(name) is None)
        for first, second in zip(found.get(name) or (), expected.get(name) or (), strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_tokens_are_those_of_the_inherited_loops(settings, models, loops):
    lengths = set()
    for number, (model, source) in enumerate(models()):
        options = {"max_new_tokens": 12, "do_sample": False} | settings
        if number % 2:
            options |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": number == 3}
        loops.clear()
        torch.manual_seed(number)
        found = model.generate(**source, **options)
        assert loops == ["beam_search" if "num_beams" in settings else "sample"]
        torch.manual_seed(number)
        same(found, inherited(model, **source, **options))
        lengths |= set((getattr(found, "sequences", found) == 2).int().argmax(dim=1).tolist())
    assert len(lengths) > 1  # they end at different places


@every_choice_and_variant
@pytest.mark.parametrize("beams", [1, 3])
def test_every_model_is_searched_as_it_is(fields, beams, make_model, sentences, monkeypatch, loops):
    monkeypatch.setattr(fast_cpu, "_LARGE", 0)  # with the products that larger models have
    model = make_model(**fields)
    model.generation_config.eos_token_id = None  # twenty places: the caches grow
    ids, mask = padded(sentences, 9)
    for source in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        options = {"num_beams": beams, "max_new_tokens": 20, "do_sample": False}
        assert torch.equal(model.generate(**source, **options), inherited(model, **source, **options))
    assert len(loops) == 2


def random_case(draw: random.Random) -> tuple[dict, dict, dict]:
    """Fields of a model, its inputs, and settings of `generate`."""
    fields = draw.choice(list(CHOICES.values()))
    rows, length = draw.randint(1, 6), draw.randint(1, 9)
    sentences = [torch.randint(4, 61, (draw.randint(1, length),)) for _ in range(rows)]
    ids, mask = padded(sentences, length, draw.choice(["left", "right"]))
    source = {"input_ids": ids, "attention_mask": mask} if draw.random() < 0.9 else {"input_ids": ids}
    if draw.random() < 0.3:
        prefix = torch.randint(4, 61, (rows, draw.randint(1, 4)))
        source["decoder_input_ids"] = torch.cat([torch.ones(rows, 1, dtype=torch.long), prefix], dim=1)
    beams = draw.choice([1, 1, 2, 3, 5])
    settings = {"num_beams": beams, "do_sample": beams == 1 and draw.random() < 0.3}
    if beams > 1:
        settings["num_return_sequences"] = draw.randint(1, beams)
        settings["early_stopping"] = draw.choice([True, False, "never"])
        settings["length_penalty"] = draw.choice([-1.0, 0.0, 0.6, 1.0, 2.0])
    elif settings["do_sample"]:
        settings["num_return_sequences"] = draw.randint(1, 3)
    processors = (
        {"bad_words_ids": [[7], [9, 8]]},
        {"forced_eos_token_id": 2},
        {"forced_bos_token_id": 11},
        {"min_new_tokens": draw.randint(1, 6), "max_new_tokens": draw.randint(6, 14)},
        {"no_repeat_ngram_size": draw.randint(1, 3)},
        {"repetition_penalty": 1.2},
        {"encoder_repetition_penalty": 1.2},
        {"suppress_tokens": [5, 6, 10]},
        {"exponential_decay_length_penalty": (3, 1.2)},
        {"renormalize_logits": True},
        {"eos_token_id": [2, 5, 20]},
        {"eos_token_id": None},
        {"pad_token_id": 3},
        {"return_dict_in_generate": True},
        {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
        {"stopping_criteria": StoppingCriteriaList([Large()])},
        {"prefix_allowed_tokens_fn": lambda batch, ids: [2, 5 + batch, *range(12, 50)]},
    )
    for each in draw.sample(processors, draw.randint(0, 3)):
        settings |= each
    if settings.get("eos_token_id", 2) is None:
        settings.pop("exponential_decay_length_penalty", None)  # which raises without an end
    return fields, source, {"max_new_tokens": draw.randint(1, 14)} | settings


def check_random_cases(count: int, seed: int, make_model, monkeypatch, loops) -> None:
    draw, made = random.Random(seed), {}
    for number in range(count):
        torch.manual_seed(seed + number)
        fields, source, settings = random_case(draw)
        if repr(fields) not in made:
            made[repr(fields)] = make_model(**fields).double()
        model = made[repr(fields)]
        enliven(model, number)
        model.tie_weights()
        monkeypatch.setattr(search_loops, "_SHARE_THAT_LEAVES", draw.choice([0.01, 0.25]))
        loops.clear()
        torch.manual_seed(number)
        found = model.generate(**source, **settings)
        assert loops, settings
        torch.manual_seed(number)
        same(found, inherited(model, **source, **settings))


def test_random_cases(make_model, monkeypatch, loops):
    check_random_cases(80, 0, make_model, monkeypatch, loops)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000, 2000, 3000, 4000])
def test_more_random_cases(seed, make_model, monkeypatch, loops):
    check_random_cases(500, seed, make_model, monkeypatch, loops)


# -- what makes it fast ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"num_beams": 3, "bad_words_ids": [[7]]}])
def test_what_is_done_leaves_the_batch(settings, models, monkeypatch):
    rows, left = [], 0
    for model, source in models():
        hook = model.lm_head.register_forward_pre_hook(lambda head, given: rows.append(len(given[0])))
        rows.clear()
        options = {"max_new_tokens": 30, "do_sample": False} | settings
        found = model.generate(**source, **options)
        hook.remove()
        assert rows[0] == 6  # the beams of a sentence begin alike
        beams = settings.get("num_beams", 1)
        assert rows[1:] == sorted(rows[1:], reverse=True)
        assert not any(each % beams for each in rows[1:])
        left += rows[-1] < 6 * beams
        assert torch.equal(found, inherited(model, **source, **options))
    assert left


def test_the_source_is_read_once_for_all_beams(models):
    model, source = next(iter(models()))
    rows = []
    for layer in model.model.decoder.layers:
        layer.cross_attn.k_proj.register_forward_pre_hook(lambda projection, given: rows.append(len(given[0])))
    model.generate(**source, num_beams=3, max_new_tokens=5)
    assert rows == [6] * 3  # a sentence each, in each layer, at the first step alone


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_a_long_beginning_is_read_at_once(settings, make_model, sentences, loops):
    ids, mask = padded(sentences, 9)
    beginning = torch.randint(4, 61, (3, 40), generator=torch.Generator().manual_seed(3))
    beginning[:, 0] = 1
    for fields in ({}, {"position_embedding_type": "learned"}, {"position_embedding_type": "alibi"}):
        model, widths = enliven(make_model(**fields), 1), []
        options = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": beginning, "max_new_tokens": 6}
        expected = inherited(model, **options, **settings, do_sample=False, eos_token_id=None)
        model.lm_head.register_forward_pre_hook(lambda head, given, seen=widths: seen.append(given[0].shape[1]))
        found = model.generate(**options, **settings, do_sample=False, eos_token_id=None)
        assert widths == [40, 1, 1, 1, 1, 1]
        assert torch.equal(found, expected)
    assert len(loops) == 3


def test_generation_under_autocast(make_model, sentences, monkeypatch, loops):
    monkeypatch.setattr(fast_cpu, "_LARGE", 0)
    model, (ids, mask) = enliven(make_model(), 1), padded(sentences, 9)
    options = {"input_ids": ids, "attention_mask": mask, "num_beams": 2, "max_new_tokens": 8, "do_sample": False}
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.generate(**options), inherited(model, **options))
    assert loops == ["beam_search"]


@pytest.mark.parametrize("rows", [1, 5, 40, 200])
@pytest.mark.parametrize("bias", [True, False])
def test_products(bias, rows, monkeypatch):
    for limit, value in {"_LARGE": 0, "_HUGE": 5000, "_PART": 16}.items():
        monkeypatch.setattr(fast_cpu, limit, value)
    layers = torch.nn.ModuleList([torch.nn.Linear(24, width, bias=bias) for width in (1, 40, 400, 41 * 9)])
    inputs = torch.randn(rows, 1, 24)
    state = torch.get_rng_state()
    with torch.no_grad():
        expected = [layer(inputs) for layer in layers]
        with fast_products(layers.modules()), fast_products(layers.modules()):
            for layer, output in zip(layers, expected, strict=True):
                torch.testing.assert_close(layer(inputs), output)
                torch.testing.assert_close(layer(inputs.bfloat16().float()), layer(inputs), rtol=0.1, atol=0.1)
                with torch.autocast("cpu", torch.bfloat16):
                    assert layer(inputs).dtype == torch.bfloat16
    assert torch.equal(torch.get_rng_state(), state)  # a run continued would draw anew
    assert not any("forward" in vars(layer) for layer in layers)
    with fast_products(layers.modules()):
        layers[0](inputs).sum().backward()
    assert layers[0].weight.grad is not None


@pytest.mark.parametrize("vocabulary", [10, 640, 1281, 5000])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_best_tokens(vocabulary, count):
    torch.manual_seed(vocabulary)
    scores = torch.randn(7, vocabulary)
    scores[0, 3:] = -torch.inf
    scores[1] = torch.arange(vocabulary).flip(0)
    values, tokens = best_tokens(scores, count)
    assert torch.equal(values, scores.topk(count).values)
    assert torch.equal(scores.gather(1, tokens), values)
    assert all(len(set(row)) == count for row in tokens.tolist())


# -- scores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["greedy", "several", "two ends", "opus", "repetition", "several sampled", "short"])
def test_the_probability_of_each_translation_is_the_model_s(name, models):
    """Against a forward pass over the whole, whatever processors did to the search."""
    for model, source in models():
        options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True} | SETTINGS[name]
        found = model.generate(**source, **options)
        eos = options.get("eos_token_id", 2)
        expected = log_probabilities(model, source, found.sequences, eos, None)
        torch.testing.assert_close(found.log_probabilities, expected, rtol=1e-4, atol=1e-4)


# -- models that something has changed ---------------------------------------------------------------------------------


def hooked(model):
    model.model.decoder.layers[0].self_attn.q_proj.register_forward_hook(lambda module, inputs, output: -9 * output)
    return model


def patched(model):
    feed_forward = model.model.decoder.layers[1].feed_forward
    forward = feed_forward.forward
    feed_forward.forward = lambda states: forward(states) * 3
    return model


def patched_projection(model):
    projection = model.model.decoder.layers[1].feed_forward.up_proj
    forward = projection.forward
    projection.forward = lambda states: forward(states) * 3
    return model


def hooked_head(model):
    """Which is written for what the model gives it: (batch_size, length, d_model)."""

    def ban(module, inputs, logits):
        logits[:, -1, 30:] = -100.0

    model.lm_head.register_forward_hook(ban)
    return model


def hooked_embedding(model):
    model.model.decoder.embed_tokens.register_forward_hook(lambda module, inputs, output: output.flip(-1))
    return model


def patched_norm(model):
    norm = model.model.decoder.layer_norm
    norm.forward = lambda states: torch.nn.functional.layer_norm(states, norm.normalized_shape).flip(-1)
    return model


def with_dropout(model):
    """As Monte Carlo dropout switches it on."""
    for module in model.model.decoder.layers.modules():
        if isinstance(module, ScratchDropout):
            module.p = 0.5
            module.train()
    return model


def with_a_prefix(model):
    config = peft.PrefixTuningConfig(
        task_type="SEQ_2_SEQ_LM",
        num_virtual_tokens=4,
        num_layers=3,
        token_dim=32,
        num_attention_heads=2,
        num_transformer_submodules=2,
    )
    adapted = peft.get_peft_model(model, config).eval()
    torch.nn.init.normal_(adapted.prompt_encoder.default.embedding.weight, std=5.0)
    return adapted


class Masking(ScratchForConditionalGeneration):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits[..., 30:] = -100.0
        return outputs


class Preparing(ScratchForConditionalGeneration):
    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        return inputs | {"decoder_input_ids": (inputs["decoder_input_ids"] + 1) % 50}


def as_a(subclass):
    def change(model):
        model.__class__ = subclass
        return model

    return change


CHANGES = {
    "a hook": hooked,
    "a forward of its own": patched,
    "a projection's forward": patched_projection,
    "a hook of the head": hooked_head,
    "a hook of the embedding": hooked_embedding,
    "another norm": patched_norm,
    "dropout": with_dropout,
    "a prefix": with_a_prefix,
    "another forward": as_a(Masking),
    "other inputs": as_a(Preparing),
}
INHERITED = ("a prefix", "other inputs")  # what prepares inputs of its own


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_is_called(name, beams, make_model, sentences, loops, monkeypatch):
    monkeypatch.setattr(fast_cpu, "_LARGE", 0)
    ids, mask = padded(sentences, 9)
    options = {"num_beams": beams, "max_new_tokens": 8, "do_sample": False, "attention_mask": mask}
    if name == "dropout":
        options["eos_token_id"] = None  # where rows leave, others are drawn
    before = enliven(make_model(), 1).generate(ids, **options)
    loops.clear()
    changed = CHANGES[name](enliven(make_model(), 1))
    torch.manual_seed(0)
    found = changed.generate(input_ids=ids, **options)
    assert bool(loops) == (name not in INHERITED)
    assert not torch.equal(found, before)
    if beams == 1 or name != "dropout":  # of beams the cross-attention draws in another order
        torch.manual_seed(0)
        monkeypatch.setattr(ScratchForConditionalGeneration, "generate", GenerationMixin.generate)
        assert torch.equal(found, changed.generate(input_ids=ids, **options))


@pytest.mark.parametrize("kind", ["attentions", "hidden_states"])
def test_what_was_recorded_once_changes_nothing(kind, models, loops):
    model, source = next(iter(models()))
    model(**source, decoder_input_ids=source["input_ids"][:, :2], **{f"output_{kind}": True})
    model.generate(**source, max_new_tokens=4)
    assert loops == ["sample"]


# PEFT, about an adapter on tied weights: this test neither merges nor saves it.
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True` and a tied layer:UserWarning")
@pytest.mark.parametrize("target", ["q_proj", "lm_head", "embed_tokens"])
def test_each_sentence_may_have_its_adapter(target, models):
    """Which are as many as the sentences, so that none of those may leave the batch."""
    for model, source in models():
        model.generation_config.eos_token_id = [2, 3, 5, 7, 11, 13, 17]  # sentences end early, and at different places
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=[target], init_lora_weights=False))
        adapted.add_adapter("other", peft.LoraConfig(target_modules=[target], init_lora_weights=False))
        adapted.eval()
        options = source | {"max_new_tokens": 12, "do_sample": False}
        mixed = adapted.generate(**options, adapter_names=["default", "other", "__base__"] * 2)
        adapted.set_adapter("other")
        alone = adapted.generate(**options)
        width = min(mixed.shape[1], alone.shape[1])
        assert torch.equal(mixed[1::3, :width], alone[1::3, :width])
        adapted.unload()


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "lm_head"])
def test_a_lora_trains_and_is_heeded(name, make_model, sentences):
    ids, mask = padded(sentences, 9)
    options = {"input_ids": ids, "attention_mask": mask, "num_beams": 2, "max_new_tokens": 8, "do_sample": False}
    labels = torch.tensor([[9, 8, 7, 2]] * 3)
    before = make_model(tie_word_embeddings=False).generate(**options)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(make_model(tie_word_embeddings=False), peft.LoraConfig(r=4, target_modules=[name]))
    optimizer = torch.optim.Adam([weight for weight in adapted.parameters() if weight.requires_grad], lr=0.05)
    losses = []
    for _ in range(30):
        losses.append(adapted(input_ids=ids, attention_mask=mask, labels=labels, skip_logits=True).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.05
    adapted.eval()
    found = adapted.generate(**options)
    assert not torch.equal(found, before)
    assert torch.equal(found, adapted.merge_and_unload().generate(**options))


# -- criteria ----------------------------------------------------------------------------------------------------------


class Every(StoppingCriteria):
    """Knows rows by their numbers."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(len(input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool)


class EveryOfItsOwnLength(MaxLengthCriteria):
    """As Every, but of a class that would judge each row by itself."""

    def __init__(self):
        super().__init__(max_length=100)
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        return Every.__call__(self, input_ids, scores)


@pytest.mark.parametrize("kind", [Every, EveryOfItsOwnLength])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_no_row_leaves_where_a_criterion_may_know_it(settings, kind, models):
    left = 0
    for model, source in models():
        options = source | {"max_new_tokens": 12, "do_sample": False} | settings
        seen = []
        for known in (False, True):
            criterion = kind()
            if known:
                criterion.is_rowwise = True
            found = model.generate(**options, stopping_criteria=StoppingCriteriaList([criterion]))
            assert torch.equal(found, model.generate(**options))
            seen.append(set(criterion.seen))
        assert len(seen[0]) == 1
        left += len(seen[1]) > 1
    assert left  # of some models rows leave where they may


def test_no_row_leaves_where_a_processor_may_know_it(models):
    seen = []
    processors = LogitsProcessorList([lambda ids, scores: seen.append(len(scores)) or scores])
    for model, source in models():
        model.generate(**source, max_new_tokens=12, logits_processor=processors)
    assert set(seen) == {6}


class Large(StoppingCriteria):
    """Ends a row at a token of the upper half."""

    is_rowwise = True

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] > 30


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_other_ends_than_a_token(settings, models, loops):
    for model, source in models():
        model.generation_config.eos_token_id = None
        options = {"max_new_tokens": 12, "do_sample": False, "stopping_criteria": StoppingCriteriaList([Large()])}
        assert torch.equal(
            model.generate(**source, **options | settings), inherited(model, **source, **options | settings)
        )
    assert len(loops) == 4


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("given", ["argument", "config"])
def test_stop_strings(given, beams, make_model, sentences, loops):
    """And a bare `tokenizer`, which stays in the model's arguments."""
    tokenizer = train_tokenizer(iter([["a b c d e f g h"]]), 61)
    model = enliven(make_model(vocab_size=len(tokenizer), eos_token_id=None), 1)
    ids, mask = padded(sentences, 9)
    options = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 20, "num_beams": beams}
    plain = model.generate(**options, tokenizer=tokenizer)
    assert torch.equal(plain, model.generate(**options))
    strings = [tokenizer.decode(row[4:6]) for row in plain]
    assert all(strings)
    if given == "config":
        model.generation_config.stop_strings = strings  # the inherited loops', which cannot be told to leave them out
    else:
        options["stop_strings"] = strings
    found = model.generate(**options, tokenizer=tokenizer)
    assert len(loops) == (3 if given == "argument" else 2)
    assert torch.equal(found, inherited(model, **options, tokenizer=tokenizer))
    assert not torch.equal(found, plain)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": True, "num_beams": 2},
        {"num_beams": 3, "use_cache": False},
        {"cache_implementation": "static"},
        {"num_beams": 3, "decoder_attention_mask": torch.ones(6, 1, dtype=torch.long)},
        {"return_dict_in_generate": True, "output_attentions": True},
        {
            "generation_config": GenerationConfig(
                max_new_tokens=6, output_hidden_states=True, return_dict_in_generate=True
            )
        },
    ],
)
def test_everything_else_is_inherited(settings, models, loops):
    model, source = next(iter(models()))
    options = {"max_new_tokens": 6, "do_sample": False} | settings
    torch.manual_seed(3)
    found = model.generate(**source, **options)
    assert not loops
    torch.manual_seed(3)
    expected = inherited(model, **source, **options)
    assert torch.equal(getattr(found, "sequences", found), getattr(expected, "sequences", expected))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("lacking", ["custom_generate", "encoder_outputs"])
def test_a_release_without_what_the_loops_need(lacking, beams, models, loops, monkeypatch):
    """It translates all the same, and says so once."""
    model, source = next(iter(models()))
    expected = model.generate(**source, num_beams=beams, max_new_tokens=8)
    said = []
    monkeypatch.setattr(search.logger, "warning_once", said.append)
    if lacking == "custom_generate":
        generate = GenerationMixin.generate

        def without(self, inputs=None, generation_config=None, **kwargs):
            return generate(self, inputs, generation_config, **kwargs)

        monkeypatch.setattr(GenerationMixin, "generate", without)
    else:
        run = search._run
        monkeypatch.setattr(
            search, "_run", lambda *args, encoder_outputs, **named: run(*args, states=encoder_outputs, **named)
        )
    loops.clear()
    assert torch.equal(model.generate(**source, num_beams=beams, max_new_tokens=8), expected)
    assert not loops
    assert len(said) == 1
    assert "generation is slower" in said[0]


@pytest.mark.parametrize("shape", [(6, 5), (1, 9), (6, 1)])
def test_masks_of_another_shape_are_refused(shape, models):
    model, source = next(iter(models()))
    encoded = model.get_encoder()(**source)
    with pytest.raises(ValueError, match="attention_mask"):
        model.generate(encoder_outputs=encoded, attention_mask=torch.ones(shape).long(), max_new_tokens=4)


def test_errors_are_those_of_the_inherited_loops(models):
    model, source = next(iter(models()))
    with pytest.raises(ValueError, match="low_memory"):
        model.generate(**source, num_beams=2, low_memory=True)
    encoded = model.get_encoder()(source["input_ids"][:1])
    for beams in (1, 2):
        with pytest.raises(ValueError, match="this target needs"):
            model.generate(encoder_outputs=encoded, decoder_input_ids=torch.ones(4, 1).long(), num_beams=beams)


@pytest.mark.parametrize("beams", [1, 3])
def test_an_empty_batch_is_named(beams, models):
    model, source = next(iter(models()))
    with pytest.raises(ValueError, match="the batch has no rows"):
        model.generate(**{name: value[:0] for name, value in source.items()}, num_beams=beams, max_new_tokens=4)


def test_streams_come_as_from_the_inherited_loop(models):
    class Streamer:
        def __init__(self):
            self.seen = []

        def put(self, value):
            self.seen.append(value.tolist())

        def end(self):
            self.seen.append("end")

    for model, source in itertools.islice(models(), 3):
        one, streamers = {name: value[:1] for name, value in source.items()}, (Streamer(), Streamer())
        model.generate(**one, max_new_tokens=8, streamer=streamers[0])
        inherited(model, **one, max_new_tokens=8, streamer=streamers[1])
        assert streamers[0].seen == streamers[1].seen


# -- what others bring ---------------------------------------------------------------------------------------------


def test_end_tokens_in_any_form(make_model, sentences, loops):
    model, (ids, mask) = enliven(make_model(), 1), padded(sentences, 9)
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    for beams in (1, 3):
        expected = inherited(model, input_ids=ids, num_beams=beams, eos_token_id=[2, 5], **options)
        for eos in (torch.tensor([2, 5]), [2, 5]):
            assert torch.equal(model.generate(ids, num_beams=beams, eos_token_id=eos, **options), expected)
    assert len(loops) == 4


def test_a_streamer_with_beams_is_refused(make_model, sentences):
    class Streamer:
        put = end = None

    with pytest.raises(ValueError, match="`streamer` cannot be used with beam search"):
        make_model().generate(padded(sentences, 9)[0], num_beams=2, streamer=Streamer())


@pytest.mark.parametrize("beams", [1, 3])
def test_encoder_outputs_in_any_form(beams, make_model, sentences, loops):
    model, (ids, mask) = enliven(make_model(), 1), padded(sentences, 9)
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "num_beams": beams}
    expected = model.generate(ids, **options)
    states = model.get_encoder()(ids, attention_mask=mask).last_hidden_state
    for encoded in ((states,), BaseModelOutput(last_hidden_state=states)):
        assert torch.equal(model.generate(encoder_outputs=encoded, **options), expected)
    model.config.return_dict = False
    assert torch.equal(model.generate(ids, **options), expected)
    assert isinstance(model(ids, attention_mask=mask, decoder_input_ids=ids), tuple)


class Halving(LogitsProcessor):
    """Writes into what it is given, and keeps it."""

    def __init__(self):
        self.kept = []

    def __call__(self, input_ids, scores):
        self.kept.append(scores)
        scores /= 2
        return scores


@pytest.mark.parametrize("beams", [1, 3])
def test_processors_may_write_and_keep(beams, make_model, sentences):
    model, (ids, mask) = enliven(make_model(), 1), padded(sentences, 9)
    halving = Halving()
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "num_beams": beams}
    found = model.generate(ids, logits_processor=[halving], return_dict_in_generate=True, **options)
    assert len({scores.data_ptr() for scores in halving.kept}) == len(halving.kept)
    assert not any(scores.is_inference() for scores in halving.kept)
    source = {"input_ids": ids, "attention_mask": mask}
    expected = log_probabilities(model, source, found.sequences, model.config.eos_token_id, model.config.pad_token_id)
    torch.testing.assert_close(found.log_probabilities, expected, rtol=0, atol=1e-4)


def test_without_own_search_one_warning(make_model, sentences, monkeypatch, caplog):
    monkeypatch.setattr(modeling, "search", None)
    monkeypatch.setattr(modeling, "why_no_search", "no such name")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    ids = padded(sentences, 9)[0]
    for _ in range(2):
        make_model().generate(ids, max_new_tokens=2)
    assert caplog.text.count("this release of Transformers does not take our own loops (no such name)") == 1


def test_arguments_that_are_spelt_out(make_model, sentences, loops):
    ids = padded(sentences, 9)[0]
    make_model().generate(ids, max_new_tokens=2, custom_generate=None, streamer=None, num_beams=2)
    assert loops == ["beam_search"]


def test_gradient_checkpointing_takes_the_inherited_loop(make_model, sentences, loops):
    model = make_model()
    model.gradient_checkpointing_enable()
    model.train()
    model.generate(padded(sentences, 9)[0], max_new_tokens=2, num_beams=2)
    assert loops == []


def test_copies_made_meanwhile(make_model, monkeypatch):
    monkeypatch.setattr(fast_cpu, "_LARGE", 0)
    model, inputs = make_model(), torch.randn(2, 1, 32)
    with torch.no_grad(), fast_products(model.modules()):
        copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        for each in (copied, pickled):
            each.lm_head.weight.zero_()
            assert not each.lm_head(inputs).any()
        assert model.lm_head(inputs).any()


SHARDED = """
import sys, torch
sys.path[:0] = [{root!r}, {tests!r}]
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from conftest import SMALL_MODEL
from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
torch.distributed.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
torch.manual_seed(0)
model = ScratchForConditionalGeneration(ScratchConfig(**SMALL_MODEL, tie_word_embeddings=False)).eval()
ids = torch.randint(4, 61, (3, 7))
expected = [model.generate(ids, max_new_tokens=5, num_beams=beams) for beams in (1, 2)]
for layer in [*model.model.encoder.layers, *model.model.decoder.layers]:
    fully_shard(layer)
fully_shard(model)
register_fsdp_forward_method(model, "generate")
for beams, tokens in zip((1, 2), expected):
    assert torch.equal(model.generate(ids, max_new_tokens=5, num_beams=beams), tokens)
model(ids, labels=ids).loss.backward()
print("done")
"""


def test_sharded_models_generate(tmp_path):
    result = run_command("-c", SHARDED.format(root=str(ROOT), tests=str(ROOT / "tests"), store=tmp_path / "store"))
    assert "done" in result.stdout, result.stderr

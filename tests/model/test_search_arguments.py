"""Stopping criteria, logits processors and other arguments of generate(): honoured, or left to Transformers."""

import functools
import importlib.util
import sys

import pytest
import torch
from conftest import padded
from search_cases import enliven, inherited, log_probabilities
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.model import modeling_scratch as modeling
from modeling_scratch.model import search

pytest_plugins = ["search_fixtures"]


class Every(StoppingCriteria):
    """Might identify rows by their index."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(len(input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool)


class EveryOfItsOwnLength(MaxLengthCriteria):
    """Like Every, but derived from a class that treats rows independently."""

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
        options = source | {"max_new_tokens": 7, "do_sample": False} | settings
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
    assert left  # with some models, rows leave if they may


def test_no_row_leaves_where_a_processor_may_know_it(models):
    seen = []
    processors = LogitsProcessorList([lambda ids, scores: seen.append(len(scores)) or scores])
    for model, source in models():
        model.generate(**source, max_new_tokens=12, logits_processor=processors)
    assert set(seen) == {6}


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"cache_implementation": "static"}])
def test_a_length_that_is_given_counts_more_than_the_model_s_own(settings, models):
    for model, source in models():
        model.generation_config.update(eos_token_id=None, max_new_tokens=9)
        lengths = [{}, {"max_length": 5}, {"max_length": 5, "max_new_tokens": 7}]
        assert [model.generate(**source, **settings, **each).shape[1] for each in lengths] == [10, 5, 8]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("given", ["argument", "config"])
def test_stop_strings(given, beams, make_wide_model, sentences, loops):
    """They work, and so does `tokenizer` without them."""
    tokenizer = train_tokenizer(iter([["a b c d e f g h"]]), 61)
    model = enliven(make_wide_model(vocab_size=len(tokenizer), eos_token_id=None), 1)
    ids, mask = padded(sentences, 9)
    options = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 10, "num_beams": beams}
    plain = model.generate(**options, tokenizer=tokenizer)
    assert torch.equal(plain, model.generate(**options))
    strings = [tokenizer.decode(row[4:6]) for row in plain]
    assert all(strings)
    if given == "config":
        model.generation_config.stop_strings = strings  # left to the inherited loops
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
    """It still translates, with one warning."""
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


@pytest.mark.parametrize("beams", [1, 3])
def test_an_empty_batch_is_named(beams, models):
    model, source = next(iter(models()))
    with pytest.raises(ValueError, match="the batch has no rows"):
        model.generate(**{name: value[:0] for name, value in source.items()}, num_beams=beams, max_new_tokens=4)


def test_streams_come_from_the_inherited_loop(make_wide_model, sentences, loops):
    class Streamer(list):
        put = list.append

        def end(self):
            self.append("end")

    streamer, source = Streamer(), {"input_ids": sentences[0][None]}
    found = make_wide_model().generate(**source, max_new_tokens=8, streamer=streamer)
    assert torch.cat([token.flatten() for token in streamer[:-1]]).tolist() == found[0].tolist()
    assert streamer[-1] == "end"
    assert loops == []


class Halving(LogitsProcessor):
    """Modifies its input in place and keeps it."""

    def __init__(self):
        self.kept = []

    def __call__(self, input_ids, scores):
        self.kept.append(scores)
        scores /= 2
        return scores


@pytest.mark.parametrize("beams", [1, 3])
def test_processors_may_write_and_keep(beams, make_wide_model, sentences):
    model, (ids, mask) = enliven(make_wide_model(), 1), padded(sentences, 9)
    halving = Halving()
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "num_beams": beams}
    found = model.generate(ids, logits_processor=[halving], return_dict_in_generate=True, **options)
    assert len({scores.data_ptr() for scores in halving.kept}) == len(halving.kept)
    assert not any(scores.is_inference() for scores in halving.kept)
    source = {"input_ids": ids, "attention_mask": mask}
    expected = log_probabilities(model, source, found.sequences, model.config.eos_token_id, model.config.pad_token_id)
    torch.testing.assert_close(found.log_probabilities, expected, rtol=0, atol=1e-4)


def test_without_own_search_one_warning(make_wide_model, sentences, monkeypatch, caplog):
    """As under a release of Transformers that lacks a name that our own search imports."""
    monkeypatch.setitem(sys.modules, "modeling_scratch.model.search", None)  # importing it raises
    spec = importlib.util.spec_from_file_location("modeling_scratch.model.modeling_alone", modeling.__file__)
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    assert alone.search is None
    model, ids = make_wide_model(), padded(sentences, 9)[0]
    other = alone.ScratchForConditionalGeneration(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    for beams in (1, 3):
        options = {"max_new_tokens": 5, "num_beams": beams}
        assert torch.equal(other.generate(ids, **options), model.generate(ids, **options))
    assert caplog.text.count("this release of Transformers does not support this project's search loops") == 1


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_mode_takes_the_inherited_loop(checkpointing, make_wide_model, sentences, loops):
    model, ids = enliven(make_wide_model(dropout=0.0), 1), padded(sentences, 9)[0]
    options = {"max_new_tokens": 8, "do_sample": False}
    expected = [model.generate(ids, num_beams=beams, **options) for beams in (1, 2)]
    loops.clear()
    if checkpointing:
        model.activation_checkpointing_enable()
    model.train()
    for beams, tokens in zip((1, 2), expected, strict=True):
        assert torch.equal(model.generate(ids, num_beams=beams, **options), tokens)
    assert loops == []


def test_generate_makes_no_cache_that_our_loops_would_not_use(models, monkeypatch):
    """But a caller's generation_config gets no argument beside it, of which `generate` would warn."""
    seen, generate = [], GenerationMixin.generate
    noted = functools.wraps(generate)(
        lambda model, *args, **kwargs: seen.append(kwargs) or generate(model, *args, **kwargs)
    )
    monkeypatch.setattr(GenerationMixin, "generate", noted)
    model, source = next(iter(models()))
    config = GenerationConfig(max_new_tokens=4, decoder_start_token_id=1, pad_token_id=0, eos_token_id=2)
    expected = model.generate(**source, max_new_tokens=4)
    assert torch.equal(model.generate(**source, generation_config=config), expected)
    assert torch.equal(model.generate(source["input_ids"], config, attention_mask=source["attention_mask"]), expected)
    assert torch.equal(model.generate(**source, max_new_tokens=4, cache_implementation="dynamic"), expected)
    assert [kwargs.get("use_cache") for kwargs in seen] == [False, None, None, None]

"""Our own search: the tokens and scores of GenerationMixin's loops, whatever the settings."""

import math

import pytest
import torch
from conftest import FEW_LAYERS, every_choice_and_slowly_every_variant, padded
from search_cases import SETTINGS, check_random_cases, enliven, inherited, log_probabilities, same
from transformers import RepetitionPenaltyLogitsProcessor

from modeling_scratch.model import cache

pytest_plugins = ["search_fixtures"]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_tokens_are_those_of_the_inherited_loops(settings, models, loops):
    lengths = set()
    for number, (model, source) in enumerate(models()):
        options = {"max_new_tokens": 9, "do_sample": False} | settings
        if number:
            options |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        loops.clear()
        torch.manual_seed(number)
        found = model.generate(**source, **options)
        assert loops == ["beam_search" if "num_beams" in settings else "sample"]
        torch.manual_seed(number)
        same(found, inherited(model, **source, **options))
        lengths |= set((getattr(found, "sequences", found) == 2).int().argmax(dim=1).tolist())
    assert len(lengths) > 1  # they end at different places


@every_choice_and_slowly_every_variant
@pytest.mark.parametrize("beams", [1, 3])
def test_every_model_is_searched_as_it_is(fields, beams, make_wide_model, sentences, loops, monkeypatch):
    monkeypatch.setattr(cache, "_GROWTH", 3)  # hidden slots are dropped
    model = make_wide_model(**FEW_LAYERS, **fields)
    model.generation_config.eos_token_id = None  # eight tokens, so the caches must grow
    ids, mask = padded(sentences, 9)
    for source in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        options = {"num_beams": beams, "max_new_tokens": 8, "do_sample": False}
        options |= {"return_dict_in_generate": True, "output_scores": "attention_mask" in source}
        same(model.generate(**source, **options), inherited(model, **source, **options))
    assert len(loops) == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000, 2000, 3000, 4000])
def test_random_cases(seed, make_model, monkeypatch, loops):
    check_random_cases(500, seed, make_model, monkeypatch, loops)


@pytest.mark.parametrize("ban", [-math.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
def test_the_probabilities_of_a_model_that_bans_a_token_itself(ban, models):
    """As a hook on the output projection may; with processors, which take away what the search knows of them."""
    model, source = next(iter(models()))
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits.index_fill(-1, torch.tensor([0]), ban))
    options = {"num_beams": 3, "bad_words_ids": [[60, 59]], "max_new_tokens": 8, "return_dict_in_generate": True}
    found = model.generate(**source, **options)
    expected = log_probabilities(model, source, found.sequences, model.config.eos_token_id, None)
    torch.testing.assert_close(found.log_probabilities, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_what_fills_up_the_beams_has_no_probability(length_penalty, models):
    """Where fewer translations are allowed than are asked for."""
    model, source = next(iter(models()))
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 6, "return_dict_in_generate": True}
    only = lambda batch, ids: [[9], [8], [2]][min(len(ids) - 1, 2)]  # noqa: E731
    found = model.generate(**source, **options, prefix_allowed_tokens_fn=only, length_penalty=length_penalty)
    scores = found.log_probabilities.view(-1, 4)
    assert scores[:, 0].isfinite().all()
    assert (scores[:, 1:] == -math.inf).all()


@pytest.mark.parametrize("beams", [1, 3])
def test_a_processor_with_an_argument_for_each_row(beams, make_wide_model, sentences, loops):
    model, (ids, mask) = enliven(make_wide_model(), 1), padded(sentences, 9)
    ignored = torch.arange(len(ids)).repeat_interleave(beams) % 2
    options = {"attention_mask": mask, "num_beams": beams, "max_new_tokens": 20, "do_sample": False}
    options["logits_processor"] = [RepetitionPenaltyLogitsProcessor(1.3, prompt_ignore_length=ignored)]
    assert torch.equal(model.generate(ids, **options), inherited(model, input_ids=ids, **options))
    assert len(loops) == 1


@pytest.mark.parametrize("name", ["greedy", "several", "two ends", "opus", "repetition", "several sampled", "short"])
def test_the_probability_of_each_translation_is_the_model_s(name, models):
    """Compared with a forward pass over the translation, whatever the processors did."""
    for model, source in models():
        options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True} | SETTINGS[name]
        found = model.generate(**source, **options)
        eos = options.get("eos_token_id", 2)
        expected = log_probabilities(model, source, found.sequences, eos, None)
        torch.testing.assert_close(found.log_probabilities, expected, rtol=1e-4, atol=1e-4)

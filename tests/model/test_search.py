"""Our own search: the tokens and scores of GenerationMixin's loops, whatever the settings."""

import pytest
import torch
from conftest import every_choice_and_slowly_every_variant, padded
from search_cases import SETTINGS, check_random_cases, inherited, log_probabilities, same

from modeling_scratch.model import cache

pytest_plugins = ["search_fixtures"]


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


@every_choice_and_slowly_every_variant
@pytest.mark.parametrize("beams", [1, 3])
def test_every_model_is_searched_as_it_is(fields, beams, make_model, sentences, faster_layers, loops, monkeypatch):
    monkeypatch.setattr(cache, "_GROWTH", 3)  # hidden slots are dropped
    model = make_model(**fields)
    model.generation_config.eos_token_id = None  # twenty tokens, so the caches must grow
    ids, mask = padded(sentences, 9)
    for source in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        options = {"num_beams": beams, "max_new_tokens": 20, "do_sample": False}
        options |= {"return_dict_in_generate": True, "output_scores": "attention_mask" in source}
        same(model.generate(**source, **options), inherited(model, **source, **options))
    assert len(loops) == 2


def test_random_cases(make_model, monkeypatch, loops):
    check_random_cases(60, 0, make_model, monkeypatch, loops)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000, 2000, 3000, 4000])
def test_more_random_cases(seed, make_model, monkeypatch, loops):
    check_random_cases(500, seed, make_model, monkeypatch, loops)


@pytest.mark.parametrize("name", ["greedy", "several", "two ends", "opus", "repetition", "several sampled", "short"])
def test_the_probability_of_each_translation_is_the_model_s(name, models):
    """Compared with a forward pass over the translation, whatever the processors did."""
    for model, source in models():
        options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True} | SETTINGS[name]
        found = model.generate(**source, **options)
        eos = options.get("eos_token_id", 2)
        expected = log_probabilities(model, source, found.sequences, eos, None)
        torch.testing.assert_close(found.log_probabilities, expected, rtol=1e-4, atol=1e-4)

"""Our own search: the tokens and scores of GenerationMixin's loops, whatever the settings."""

import random

import pytest
import torch
from conftest import CHOICES, every_choice_and_slowly_every_variant, padded
from search_cases import SETTINGS, Large, enliven, inherited, same
from transformers import StoppingCriteriaList

from modeling_scratch.model import cache, search_loops
from modeling_scratch.model.batched_generation import log_probabilities

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


def random_case(draw: random.Random) -> tuple[dict, dict, dict]:
    """Config fields, inputs, and settings of `generate`."""
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
        settings.pop("exponential_decay_length_penalty", None)  # which needs an end token
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
        monkeypatch.setattr(cache, "_GROWTH", draw.choice([1, 3, 16]))  # how often hidden slots are dropped
        loops.clear()
        torch.manual_seed(number)
        found = model.generate(**source, **settings)
        assert loops, settings
        torch.manual_seed(number)
        same(found, inherited(model, **source, **settings))


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

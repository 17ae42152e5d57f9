"""What makes our own search fast: finished sentences leave, and the beams of a sentence share its source."""

import copy
from functools import partial

import pytest
import torch
from conftest import padded
from search_cases import decided, enliven, inherited, log_probabilities
from torch.nn.utils import prune
from transformers import LogitsProcessor, LogitsProcessorList, NoBadWordsLogitsProcessor

from modeling_scratch.model import search

pytest_plugins = ["search_fixtures"]


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"num_beams": 3, "bad_words_ids": [[7]]}])
def test_what_is_done_leaves_the_batch(settings, models, monkeypatch):
    rows, left = [], 0
    for model, source in models():
        hook = model.lm_head.register_forward_pre_hook(lambda head, given: rows.append(len(given[0])))
        rows.clear()
        options = {"max_new_tokens": 20, "do_sample": False} | settings
        found = model.generate(**source, **options)
        hook.remove()
        assert rows[0] == 6  # the beams of a sentence start out identical
        beams = settings.get("num_beams", 1)
        assert rows[1:] == sorted(rows[1:], reverse=True)
        assert not any(each % beams for each in rows[1:])
        left += rows[-1] < 6 * beams
        assert torch.equal(found, inherited(model, **source, **options))
    assert left


@pytest.mark.parametrize("settings", [{}, {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3}])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_few_rows_are_ranked_at_a_time(rows, settings, models, monkeypatch):
    given, rank = set(), search._BeamSearch.rank
    monkeypatch.setattr(search._BeamSearch, "rank", lambda self, *part: given.add(len(part[0])) or rank(self, *part))
    for model, source in models():
        options = {"num_beams": 3, "max_new_tokens": 10, "do_sample": False} | settings
        monkeypatch.setattr(search, "_ELEMENTS", rows * model.config.target_vocab_size)
        assert torch.equal(model.generate(**source, **options), inherited(model, **source, **options))
    assert max(given) == rows


def test_banned_tokens_take_no_processor(models, monkeypatch):
    settings = {"num_beams": 3, "max_new_tokens": 10, "do_sample": False, "forced_eos_token_id": 2}
    for model, source in models():
        first, second = model.generate(**source, **settings)[:2, 1].tolist()
        banned = {"bad_words_ids": [[first], [second]]}
        expected = inherited(model, **source, **settings, **banned)
        with monkeypatch.context() as patches:
            patches.setattr(NoBadWordsLogitsProcessor, "__call__", None)
            found = model.generate(**source, **settings, **banned)
        assert torch.equal(found, expected)
        assert not torch.isin(found, torch.tensor([first, second])).any()
        with pytest.raises(ValueError, match="vocabulary size"):
            model.generate(**source, **settings, bad_words_ids=[[9999]])


def test_the_source_is_read_once_for_all_beams(models):
    model, source = next(iter(models()))
    rows = []
    for layer in model.model.decoder.layers:
        layer.cross_attn.k_proj.register_forward_pre_hook(lambda projection, given: rows.append(len(given[0])))
    model.generate(**source, num_beams=3, max_new_tokens=5)
    assert rows == [6] * 2  # one row per sentence, in each layer, only at the first step


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_a_long_beginning_is_read_at_once(settings, make_wide_model, sentences, loops):
    ids, mask = padded(sentences, 9)
    beginning = torch.randint(4, 61, (3, 40), generator=torch.Generator().manual_seed(3))
    beginning[:, 0] = 1
    for fields in ({}, {"position_embedding_type": "learned"}, {"position_embedding_type": "alibi"}):
        model, widths = enliven(make_wide_model(**fields), 1), []
        options = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": beginning, "max_new_tokens": 6}
        expected = inherited(model, **options, **settings, do_sample=False, eos_token_id=None)
        model.lm_head.register_forward_pre_hook(lambda head, given, seen=widths: seen.append(given[0].shape[1]))
        found = model.generate(**options, **settings, do_sample=False, eos_token_id=None)
        assert widths == [40, 1, 1, 1, 1, 1]
        assert torch.equal(found, expected)
    assert len(loops) == 3


@pytest.mark.parametrize("beams", [1, 2])
def test_generation_under_autocast(beams, make_model, loops):
    """Attention over masked slots, in bf16, is not that over the keys alone, bit for bit."""
    model, random = enliven(make_model(), 1), torch.Generator().manual_seed(1)
    exact = copy.deepcopy(model).double()
    ids, mask = padded([torch.randint(4, 61, (length,), generator=random) for length in (7, 4, 5, 9, 3, 6) * 3], 9)
    source = {"input_ids": ids, "attention_mask": mask}
    options = source | {"num_beams": beams, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    sure = decided(partial(exact.generate, **options), 0.3)
    assert sure.sum() > 5
    loops.clear()
    with torch.autocast("cpu", torch.bfloat16):
        found = model.generate(**options, return_dict_in_generate=True)
        assert torch.equal(found.sequences[sure], inherited(model, **options)[sure])
    assert len(loops) == 1
    expected = log_probabilities(exact, source, found.sequences, [], None)
    torch.testing.assert_close(found.log_probabilities, expected, rtol=0, atol=8 * 0.3)


def test_parameters_may_be_replaced_where_others_compute_them(models):
    """By a user's logits processor, and by pruning, which computes a bias before each call of the layer."""

    class Replacing(LogitsProcessor):
        def __call__(self, input_ids, scores):
            replaced.weight = torch.nn.Parameter(replaced.weight * 0.9)
            return scores

    for model, source in models():
        options = source | {"max_new_tokens": 6, "do_sample": False}
        replaced, original = model.model.decoder.layers[0].self_attn.q_proj, copy.deepcopy(model.state_dict())
        expected = inherited(model, **options, logits_processor=LogitsProcessorList([Replacing()]))
        model.load_state_dict(original)
        assert torch.equal(model.generate(**options, logits_processor=LogitsProcessorList([Replacing()])), expected)
        layer = model.model.decoder.layers[0].feed_forward.up_proj
        prune.identity(layer, "bias")
        with torch.no_grad():
            layer.bias_orig += 1.0
        expected = inherited(model, **options)
        with torch.no_grad():
            layer.bias_orig -= 1.0
        inherited(model, **options)
        with torch.no_grad():
            layer.bias_orig += 1.0
        assert torch.equal(model.generate(**options), expected)

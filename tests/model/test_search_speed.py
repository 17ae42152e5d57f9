"""What makes our own search fast: finished sentences leave, sources are shared, and faster products."""

import copy
import pickle
from functools import partial

import pytest
import torch
from conftest import padded
from search_cases import decided, enliven, inherited, log_probabilities
from torch.nn.utils import prune
from transformers import LogitsProcessor, LogitsProcessorList, NoBadWordsLogitsProcessor

from modeling_scratch.model import fast_cpu
from modeling_scratch.model import search as beam_search
from modeling_scratch.model.fast_cpu import best_continuations, best_tokens, fast_products

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


@pytest.mark.parametrize(
    "settings",
    [{"bad_words_ids": [[7], [9, 8]]}, {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3}, {"min_new_tokens": 9}],
)
@pytest.mark.parametrize("elements", [300, 800])
def test_processors_get_a_few_sentences_at_a_time(elements, settings, models, monkeypatch):
    monkeypatch.setattr(beam_search, "_ELEMENTS", elements)
    given = []

    def noted(log_probs, scores, count):
        given.append(log_probs)
        return best_continuations(log_probs, scores, count)

    monkeypatch.setattr(beam_search, "best_continuations", noted)
    for model, source in models():
        options = {"num_beams": 3, "max_new_tokens": 10, "do_sample": False} | settings
        assert torch.equal(model.generate(**source, **options), inherited(model, **source, **options))
        one = options["num_beams"] * model.config.target_vocab_size
        assert max(map(len, given)) == max(1, elements // one)
        given.clear()


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
def test_generation_under_autocast(beams, make_model, faster_layers, loops):
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


@pytest.mark.parametrize("rows", [1, 5, 10, 40, 200])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("is_amd", [True, False])
def test_products(is_amd, bias, rows, monkeypatch):
    monkeypatch.setattr(fast_cpu, "is_amd_cpu", lambda: is_amd)
    limits = {"_LARGE": 0, "_MUCH_TO_READ": 15_000, "_MUCH_WORK": 10_000, "_PART": 16, "_RESULT": 500}
    limits |= {"_INTEL_WIDTH": 0, "_INTEL_LARGE": 0}
    for name, value in limits.items():
        monkeypatch.setattr(fast_cpu, name, value)
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
    assert torch.equal(torch.get_rng_state(), state)  # resumed runs depend on it
    assert not any("forward" in vars(layer) for layer in layers)
    with fast_products(layers.modules()):
        layers[0](inputs).sum().backward()
    assert layers[0].weight.grad is not None


@pytest.mark.parametrize(
    ("width", "rows", "on_amd", "on_others"),
    [
        (64, 1200, None, None),
        (128, 80, None, None),
        (128, 400, "_by_onednn", None),
        (512, 1, "_by_parts", None),
        (512, 3, "_by_parts", None),
        (512, 8, "_by_parts", None),
        (512, 23, "_by_onednn", None),
        (512, 24, "_by_onednn", None),
        (560, 3, "_by_parts", None),
        (560, 4, "_by_onednn", None),
        (1024, 1, "_by_parts", None),
        (1100, 1, "_by_onednn", None),
        (1024, 7, "_by_onednn", None),
        (1024, 8, "_by_onednn", "_by_parts"),
        (1024, 16, "_by_onednn", "_by_parts"),
        (1024, 17, "_by_onednn", None),
    ],
)
@pytest.mark.parametrize("is_amd", [True, False])
def test_products_take_the_method_of_the_processor(is_amd, width, rows, on_amd, on_others, monkeypatch):
    taken = []
    for name in ("_by_parts", "_by_onednn"):
        method = getattr(fast_cpu, name)
        spy = lambda layer, given, name=name, method=method: taken.append(name) or method(layer, given)  # noqa: E731
        monkeypatch.setattr(fast_cpu, name, spy)
    monkeypatch.setattr(fast_cpu, "is_amd_cpu", lambda: is_amd)
    layer = torch.nn.Linear(width, width)
    with torch.no_grad(), fast_products([layer], rows):
        layer(torch.randn(rows, 1, width))
    assert taken == [each for each in (on_amd if is_amd else on_others,) if each]


@pytest.mark.parametrize("vocabulary", [10, 640, 1281, 5000])
@pytest.mark.parametrize(("beams", "count"), [(1, 1), (2, 4), (5, 10)])
def test_best_continuations(vocabulary, beams, count):
    torch.manual_seed(vocabulary)
    log_probs, scores = torch.randn(7, beams, 2 * vocabulary)[..., ::2], torch.randn(7, beams)
    log_probs[0, :, 1:] = -torch.inf
    log_probs[1] = torch.arange(vocabulary).flip(0)
    log_probs[2, -1, -1] = 100.0
    scores[3, :-1] = -1e9
    found, places = best_continuations(log_probs, scores, count)
    sums = (log_probs + scores[..., None]).flatten(1)
    assert torch.equal(found, sums.topk(count).values)
    assert torch.equal(found, sums.gather(1, places))
    assert all(len(set(row)) == count for row in places.tolist())


@pytest.mark.parametrize("vocabulary", [5, 63, 64, 65, 640, 1281])
def test_best_tokens(vocabulary, monkeypatch):
    monkeypatch.setattr(fast_cpu, "_MANY_SCORES", 0)
    torch.manual_seed(vocabulary)
    scores = torch.randn(40, 2 * vocabulary)[:, ::2].round(decimals=1)  # with many ties
    scores[0], scores[1] = -torch.inf, 1.0
    scores[2, -3:], scores[3, 2::3], scores[4, -1], scores[5, 0] = torch.inf, torch.nan, torch.nan, 9.0
    for row in range(6, 40):
        scores[row, torch.randint(vocabulary, (2,))] = 9.0
    assert torch.equal(best_tokens(scores), scores.argmax(dim=1))
    assert torch.equal(best_tokens(scores[6:].double()), scores[6:].argmax(dim=1))


def test_a_search_looks_up_parameters_once(models):
    for model, source in models():
        seen, projection = [], model.model.decoder.layers[0].self_attn.q_proj
        hook = projection.register_forward_pre_hook(lambda layer, given, seen=seen: seen.append(vars(layer)["forward"]))
        model.generate(**source, max_new_tokens=4, do_sample=False)
        assert len({id(each) for each in seen}) == 1 < len(seen)
        assert seen[0].weight is projection.weight
        assert "forward" not in vars(projection)
        hook.remove()


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


def test_copies_of_small_layers_made_meanwhile():
    layer, inputs = torch.nn.Sequential(torch.nn.Linear(4, 3)), torch.randn(2, 4)
    with torch.no_grad(), fast_products(layer.modules(), binds=True):
        assert "forward" in vars(layer[0])
        for each in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            each[0].weight.zero_()
            each[0].bias = torch.nn.Parameter(torch.ones(3))
            assert torch.equal(each(inputs), torch.ones(2, 3))
        torch.testing.assert_close(layer(inputs), inputs @ layer[0].weight.T + layer[0].bias)
    assert "forward" not in vars(layer[0])


def test_a_batch_without_rows_and_a_bias_with_gaps(faster_layers):
    layer = torch.nn.Linear(24, 40)
    layer.bias = torch.nn.Parameter(torch.randn(80)[::2])
    with torch.no_grad():
        expected = layer(torch.ones(64, 1, 24))
        with fast_products([layer]):
            torch.testing.assert_close(layer(torch.ones(64, 1, 24)), expected)
            assert layer(torch.ones(0, 1, 24)).shape == (0, 1, 40)

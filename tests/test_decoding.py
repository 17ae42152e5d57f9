"""Greedy and beam search: the tokens of GenerationMixin's own loops, whatever the settings; what they save."""

import pytest
import torch
from conftest import SMALL_MODEL, padded
from transformers import GenerationMixin, StoppingCriteria, StoppingCriteriaList

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.decoding import ScratchDecoding, best_tokens

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
    "as long as it takes": {"num_beams": 2, "max_new_tokens": 40},
}
VOCABULARIES = [61, 3001]


@pytest.fixture(params=VOCABULARIES)
def models(request):
    """Models whose sentences end at different places, and what they read."""

    def make():
        torch.manual_seed(0)
        fields = SMALL_MODEL | {"vocab_size": request.param, "lm_head_bias": True}
        model = ScratchForConditionalGeneration(ScratchConfig(**fields)).eval()
        for seed in range(8):
            torch.manual_seed(seed)
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, std=0.35)
            torch.nn.init.normal_(model.lm_head.bias, std=0.5)
            model.lm_head.weight.data[2] *= 3.0  # the end is now likely, now not
            sentences = [torch.randint(4, request.param, (length,)) for length in (7, 4, 5, 9, 3, 6)]
            yield model, dict(zip(("input_ids", "attention_mask"), padded(sentences, 9), strict=True))

    return make


def inherited(model, **settings) -> torch.Tensor:
    """By GenerationMixin's loops."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_sample", "_beam_search"):
            patch.setattr(ScratchDecoding, name, getattr(GenerationMixin, name))
        patch.delattr(ScratchDecoding, "_reorder_cache")
        return model.generate(**settings)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_tokens_are_those_of_the_inherited_loops(settings, models):
    lengths = set()
    for model, source in models():
        options = {"max_new_tokens": 12, "do_sample": False} | settings
        found = model.generate(**source, **options)
        assert torch.equal(found, inherited(model, **source, **options))
        lengths |= set((found == 2).int().argmax(dim=1).tolist())
    assert len(lengths) > 1  # they end at different places


class Watch:
    """Rows that the decoder has read, call by call."""

    def __init__(self, model, monkeypatch):
        self.rows, forward = [], type(model).forward

        def watched(model, *args, decoder_input_ids=None, **kwargs):
            self.rows.append(len(decoder_input_ids))
            return forward(model, *args, decoder_input_ids=decoder_input_ids, **kwargs)

        monkeypatch.setattr(type(model), "forward", watched)


@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_done_leaves_the_batch(beams, models, monkeypatch):
    left = 0
    for model, source in models():
        with monkeypatch.context() as patch:
            watch = Watch(model, patch)
            model.generate(**source, num_beams=beams, max_new_tokens=30, do_sample=False)
        assert watch.rows[0] == 6 * beams
        assert watch.rows == sorted(watch.rows, reverse=True)
        left += watch.rows[-1] < watch.rows[0]
    assert left


class Every(StoppingCriteria):
    """Knows rows by their numbers."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(len(input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_no_row_leaves_where_a_criterion_may_know_it(settings, models):
    model, source = next(iter(models()))
    criterion = Every()
    options = {"max_new_tokens": 12, "do_sample": False} | settings
    found = model.generate(**source, **options, stopping_criteria=StoppingCriteriaList([criterion]))
    assert torch.equal(found, model.generate(**source, **options))
    assert len(set(criterion.seen)) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": True, "num_beams": 2},
        {"do_sample": True},
        {"num_beams": 3, "return_dict_in_generate": True, "output_scores": True},
        {"num_beams": 3, "repetition_penalty": 1.3},
        {"num_beams": 3, "min_new_tokens": 4},
        {"num_beams": 3, "use_cache": False},
        {"cache_implementation": "static"},
        {"num_beams": 3, "decoder_attention_mask": torch.ones(6, 1, dtype=torch.long)},
    ],
)
def test_everything_else_is_inherited(settings, models):
    model, source = next(iter(models()))
    options = {"max_new_tokens": 6, "do_sample": False} | settings
    torch.manual_seed(3)
    found = model.generate(**source, **options)
    torch.manual_seed(3)
    expected = inherited(model, **source, **options)
    assert torch.equal(getattr(found, "sequences", found), getattr(expected, "sequences", expected))


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

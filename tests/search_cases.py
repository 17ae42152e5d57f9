"""
Shared by the tests of our own search: settings of generate(), Transformers' own loops, comparisons, and random cases.
"""

import random
from collections.abc import Callable

import torch
from conftest import CHOICES, FEW_LAYERS, padded
from torch.nn.functional import pad
from transformers import GenerationMixin, LogitsProcessor, StoppingCriteria, StoppingCriteriaList

from modeling_scratch.model import cache
from modeling_scratch.model import search as search_loops
from modeling_scratch.model.stacks import CACHE_NAME

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
    "tokens banned": {"num_beams": 4, "bad_words_ids": [[7], [12]], "forced_eos_token_id": 2, "min_new_tokens": 3},
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
    "normalized": {"num_beams": 3, "renormalize_logits": True, "repetition_penalty": 1.2},
    "valid": {"remove_invalid_values": True},
    "allowed": {"num_beams": 3, "prefix_allowed_tokens_fn": lambda batch, ids: [2, 5 + batch, *range(20, 40)]},
    "allowed, greedy": {"prefix_allowed_tokens_fn": lambda batch, ids: [2, 5 + batch, *range(20, 40)]},
    "sampled": {"do_sample": True, "top_k": 8, "temperature": 0.7},
    "several sampled": {"do_sample": True, "top_p": 0.9, "num_return_sequences": 3},
    "others sampled": {"do_sample": True, "min_p": 0.05, "typical_p": 0.9, "epsilon_cutoff": 0.01},
}
# Seeds for models with these vocabulary sizes, some of whose sentences end, at different places.
SEEDS = {61: 14, 3001: 12}


def enliven(model, seed):
    """Make the weights large, so that every change to the model changes its output."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.35)
    return model


def log_probabilities(model, inputs, sequences, eos, pad):
    """
    Log-probabilities of translations, (translations,), from a forward pass over each. Padding and tokens after the
    first end token do not count.
    """
    targets = sequences[:, 1:]
    is_end = torch.isin(targets, torch.tensor(eos))
    is_padding = (targets == (-1 if pad is None else pad)) & ~is_end
    labels = targets.masked_fill(is_padding | (is_end.cumsum(dim=1) > is_end.long()), -100)
    per_source = len(sequences) // len(inputs["input_ids"])
    sums = []
    for row, target in enumerate(labels):
        source = {name: value[row // per_source, None] for name, value in inputs.items()}
        read = sequences[row, None, :-1]
        sums.append(-model(**source, decoder_input_ids=read, labels=target[None], num_items_in_batch=1).loss.float())
    return torch.stack(sums)


def inherited(model, **settings):
    """Generate with GenerationMixin's loops."""
    return GenerationMixin.generate(model, **settings)


class Shaking(LogitsProcessor):
    """Adds a random number between -by and by to each score."""

    def __init__(self, by: float):
        self.by = by

    def __call__(self, input_ids, scores):
        return scores + self.by * (2 * torch.rand_like(scores) - 1)


def decided(generate: Callable, rounding: float) -> torch.Tensor:
    """
    The rows, as booleans (rows,), whose tokens any kernel or precision must find: their margins are wider than its
    rounding, since the search finds the same tokens when that much noise is added to the scores.

    Args:
        generate: searches in float64; takes a `logits_processor`.
        rounding: how far rounding may move the logarithm of a token's probability.
    """
    expected, stay = generate(), True
    for seed in range(8):
        torch.manual_seed(seed)
        found = generate(logits_processor=[Shaking(rounding)])
        width = max(found.shape[1], expected.shape[1])
        shaken, still = (pad(logits, (0, width - logits.shape[1])) for logits in (found, expected))
        stay = (shaken == still).all(dim=1) & stay
    return stay


def same(found, expected) -> None:
    """Assert that tokens are equal, which needs float64, and the other requested outputs nearly so."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        return
    assert torch.equal(found.sequences, expected.sequences)
    assert {name for name in expected if name != CACHE_NAME} <= set(found)
    if expected.get("sequences_scores") is not None:
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)
        # The order of beams is arbitrary where they are identical: at the start, and after forced tokens.
        differ = expected.sequences_scores > -1e8
        assert torch.equal(found.beam_indices[differ], expected.beam_indices[differ])
    for name in ("scores", "logits"):
        assert (found.get(name) is None) == (expected.get(name) is None)
        for first, second in zip(found.get(name) or (), expected.get(name) or (), strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


class Large(StoppingCriteria):
    """Ends a row at a token in the upper half of the vocabulary."""

    is_rowwise = True

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] > 30


def random_case(draw: random.Random) -> tuple[dict, dict, dict]:
    """Random config fields, inputs, and settings of `generate`."""
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
        {"bad_words_ids": draw.choice([[[7], [12]], [[7], [9, 8]]])},
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
        settings.pop("exponential_decay_length_penalty", None)  # it needs an end token
    return fields, source, {"max_new_tokens": draw.randint(1, 14)} | settings


def check_random_cases(count: int, seed: int, make_model, monkeypatch, loops, device: str = "cpu") -> None:
    """Compare our own loops with the inherited ones in random cases, in float64."""
    draw, made = random.Random(seed), {}
    for number in range(count):
        torch.manual_seed(seed + number)
        fields, source, settings = random_case(draw)
        if repr(fields) not in made:
            made[repr(fields)] = make_model(**FEW_LAYERS, **fields).double().to(device)
        model = made[repr(fields)]
        enliven(model, number)
        model.tie_weights()
        monkeypatch.setattr(search_loops, "_SHARE_THAT_LEAVES", draw.choice([0.01, 0.25]))
        monkeypatch.setattr(cache, "_GROWTH", draw.choice([1, 3, 16]))  # how often hidden slots are dropped
        source = {name: tensor.to(device) for name, tensor in source.items()}
        loops.clear()
        torch.manual_seed(number)
        found = model.generate(**source, **settings)
        assert loops, settings
        torch.manual_seed(number)
        same(found, inherited(model, **source, **settings))

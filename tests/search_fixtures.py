"""Fixtures of the tests of our own search, which load this module as a plugin."""

import pytest
import torch
from conftest import FEW_LAYERS, SMALL_MODEL, padded
from search_cases import SEEDS, enliven

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.model import search


@pytest.fixture
def models():
    """
    Yields two models with inputs, one with a small and one with a large vocabulary, whose sentences end at different
    places; in float64, like make_wide_model.
    """

    def make():
        for vocabulary, seed in SEEDS.items():
            fields = SMALL_MODEL | FEW_LAYERS | {"vocab_size": vocabulary, "lm_head_bias": True}
            model = enliven(ScratchForConditionalGeneration(ScratchConfig(**fields)).eval(), seed)
            torch.nn.init.normal_(model.lm_head.bias, std=0.5)
            model.lm_head.weight.data[2] *= 3.0  # makes the end sometimes likely, sometimes not
            sentences = [torch.randint(4, vocabulary, (length,)) for length in (7, 4, 5, 9, 3, 6)]
            yield model.double(), dict(zip(("input_ids", "attention_mask"), padded(sentences, 9), strict=True))

    return make


@pytest.fixture
def loops(monkeypatch):
    """The names of our own loops, in the order in which they ran."""
    ran = []
    for name in ("sample", "beam_search"):
        loop = getattr(search, name)
        spy = lambda *args, loop=loop, name=name: ran.append(name) or loop(*args)  # noqa: E731
        monkeypatch.setattr(search, name, spy)
    return ran

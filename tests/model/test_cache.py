"""The cache of our own search, against keys kept for each beam by itself."""

import pytest
import torch

from modeling_scratch.model.cache import SearchCache

SENTENCES, BEAMS, HEADS, WIDTH = 3, 4, 2, 5


def step(cache: SearchCache, keys: torch.Tensor) -> torch.Tensor:
    """Add keys, (rows, new tokens), to both layers. Returns all keys of a layer as the attention gets them."""
    states = keys.view(len(keys) // cache.beams, 1, -1, 1).repeat(1, HEADS, 1, WIDTH)
    for layer_idx in range(2):
        found, values = cache.self_attention_cache.update(states * 2**layer_idx, -states, layer_idx)
    assert torch.equal(found, -2 * values)
    cache.advance(keys.shape[1])
    return -values


def seen(cache: SearchCache, values: torch.Tensor) -> list[list[tuple[int, float]]]:
    """The position and the key of every token that each row attends to, in order."""
    rows = []
    for bias, keys, positions in zip(cache.bias, values[:, 1, :, 2], cache.positions, strict=True):
        for hidden in bias[0]:
            rows.append(sorted(zip(positions[hidden == 0].tolist(), keys[hidden == 0].tolist(), strict=True)))
    return rows


@pytest.mark.parametrize("prompt", [1, 5, 16])
def test_each_beam_attends_to_its_own_tokens(prompt):
    torch.manual_seed(prompt)
    cache = SearchCache()
    first = torch.rand(SENTENCES, prompt)
    step(cache, first)
    cache.branch(BEAMS)
    own = [list(enumerate(row)) for row in first.tolist() for _ in range(BEAMS)]
    sentences = SENTENCES
    for length in range(prompt, 70):
        beams = torch.randint(BEAMS, (sentences, BEAMS))
        if length == 40:
            sentences = 2
            cache.keep_sentences(torch.tensor([2, 0]))
            beams, own = beams[[2, 0]], own[2 * BEAMS :] + own[:BEAMS]
        cache.reorder(beams)
        own = [list(own[row]) for row in (beams + BEAMS * torch.arange(sentences)[:, None]).flatten()]
        keys = torch.rand(sentences * BEAMS, 1)
        for row, key in zip(own, keys[:, 0].tolist(), strict=True):
            row.append((length, key))
        assert seen(cache, step(cache, keys)) == own
        assert cache.get_seq_length() == length + 1
    # Beams that descend from the same ones share their tokens: there are not BEAMS times as many.
    assert cache.bias.shape[3] < 70 + 20 * BEAMS


def test_without_beams_keys_are_only_appended():
    cache, keys = SearchCache(), torch.rand(SENTENCES, 40)
    for length in range(40):
        found = step(cache, keys[:, length : length + 1])
    assert torch.equal(found[:, 0, :, 0], keys)
    cache.keep_sentences(torch.tensor([1]))
    assert torch.equal(step(cache, torch.rand(1, 1))[:, 0, :40, 0], keys[1:2])
    assert cache.bias is None

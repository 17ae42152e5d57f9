"""
Captured decoding steps, with a cache of fixed size: the tokens of Transformers' loops, and what happens where steps go
wrong. Here CUDA graphs are stand-ins on the CPU; those of a GPU are tested in tests/gpu.
"""

import copy
import logging
import threading
from functools import partial

import pytest
import torch
from conftest import FEW_LAYERS, every_choice_and_slowly_every_variant, padded
from cuda_graphs import capture_on_cpu
from search_cases import SETTINGS, check_random_cases, inherited, same
from transformers import MarianConfig, MarianMTModel
from waiting import wait_until

from modeling_scratch.errors import UserError
from modeling_scratch.inference import captured_decoding
from modeling_scratch.inference.captured_decoding import CapturedDecoder, FixedCache, _CapturedStep, capture_decoding
from modeling_scratch.inference.ensemble import Ensemble
from modeling_scratch.model import masking, position_embeddings

pytest_plugins = ["search_fixtures"]


@pytest.fixture
def steps(monkeypatch):
    """Lets the CPU take the place of a GPU. For each step that was replayed: whether it was the first of its search."""
    monkeypatch.setattr(captured_decoding, "_DEVICES", {"cpu"})
    capture_on_cpu(monkeypatch)
    for module in (masking, position_embeddings):  # as on a GPU, where nobody looks at values on the way
        monkeypatch.setattr(module, "can_look_at", lambda tensor: False)
    made, replay = [], _CapturedStep.replay
    monkeypatch.setattr(_CapturedStep, "replay", lambda self, first: made.append(first) or replay(self, first))
    return made


@pytest.fixture
def trusted(steps, monkeypatch):
    """The same, with captured steps that count as checked."""
    monkeypatch.setattr(_CapturedStep, "is_checked", property(lambda self: True, lambda self, value: None), False)
    return steps


@pytest.fixture
def search(models, steps):
    """A model whose decoding steps are captured, and a function that searches with it."""
    model, source = next(iter(models()))
    capture_decoding(model)
    return model, partial(model.generate, **source, max_new_tokens=9, do_sample=False)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_tokens_are_those_of_the_inherited_loops(settings, models, steps):
    """In the first search, which is checked, and in the next one, which is not."""
    for number, (model, source) in enumerate(models()):
        capture_decoding(model)
        options = {"max_new_tokens": 9, "do_sample": False} | settings
        if number:
            options |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        torch.manual_seed(number)
        expected = inherited(model, **source, **options)
        for _ in range(2):
            steps.clear()
            torch.manual_seed(number)
            same(model.generate(**source, **options), expected)
            assert len(steps) > 2


@every_choice_and_slowly_every_variant
@pytest.mark.parametrize("beams", [1, 3])
def test_every_model_is_searched_as_it_is(fields, beams, make_wide_model, sentences, trusted):
    model = make_wide_model(**FEW_LAYERS, **fields)
    model.generation_config.eos_token_id = None
    capture_decoding(model)
    for rows in (len(sentences), 3, len(sentences)):  # a captured step serves again, and what it held is no longer seen
        ids, mask = padded(sentences[:rows], 9)
        options = {
            "input_ids": ids,
            "attention_mask": mask,
            "num_beams": beams,
            "max_new_tokens": 8,
            "do_sample": False,
        }
        trusted.clear()
        same(model.generate(**options), inherited(model, **options))
        assert len(trusted) == 8


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_cases(count, make_model, monkeypatch, loops, trusted):
    def make_captured(**fields):
        model = make_model(**fields)
        capture_decoding(model)
        return model

    check_random_cases(count, 5000, make_captured, monkeypatch, loops)
    assert len(trusted) > 5 * count


@pytest.mark.parametrize("beams", [1, 3])
def test_steps_that_differ_from_plain_ones_are_given_up(beams, search, steps, monkeypatch, caplog):
    model, generate = search
    monkeypatch.setattr(FixedCache, "close_step", lambda self: self.slots.add_(self.beams))  # positions stay at 0
    expected = inherited(model, **generate.keywords, num_beams=beams)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(generate(num_beams=beams), expected)
    assert steps == [True, False]
    assert [record.message for record in caplog.records if "captured" in record.message] == [
        "decoding steps are not captured, which is slower: here they differ from plain ones"
    ]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("operation not permitted")])
def test_what_cannot_be_captured_is_not_tried_again(error, search, steps, monkeypatch):
    model, generate = search
    expected, tried = inherited(model, **generate.keywords), []

    def fail(*_, **__):
        tried.append(True)
        raise error

    monkeypatch.setattr(torch.cuda, "graph", fail)
    for _ in range(3):
        assert torch.equal(generate(), expected)
    assert len(tried) == 1
    assert not steps


def test_steps_of_long_searches_are_not_captured(search, steps):
    model, generate = search
    options = {"max_new_tokens": captured_decoding._MOST_STEPS}
    assert torch.equal(generate(**options), inherited(model, **generate.keywords | options))
    assert not steps


def test_an_ensemble_other_code_and_another_device_are_refused(make_model, monkeypatch):
    with pytest.raises(UserError, match="this one is on the cpu"):
        capture_decoding(make_model())
    monkeypatch.setattr(captured_decoding, "_DEVICES", {"cpu"})
    with pytest.raises(UserError, match="this one is an ensemble"):
        capture_decoding(Ensemble([make_model(), make_model()]))
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 9, "pad_token_id": 0}
    with pytest.raises(UserError, match="this one is of other code"):
        capture_decoding(MarianMTModel(MarianConfig(**sizes, encoder_attention_heads=1, decoder_attention_heads=1)))


def test_weights_may_change_in_place(search, steps):
    model, generate = search
    before = generate()
    for parameter in model.parameters():
        parameter.data.neg_()
    steps.clear()
    found = generate()
    assert steps
    assert not torch.equal(found, before)
    assert torch.equal(found, inherited(model, **generate.keywords))


def test_autocast_is_part_of_a_captured_step(search, steps):
    model, generate = search
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = generate(), inherited(model, **generate.keywords)
    assert (found == expected).float().mean() > 0.8  # rounding decides about some
    assert torch.equal(generate(), inherited(model, **generate.keywords))


def test_a_copy_captures_steps_of_its_own(search, steps):
    model, generate = search
    expected = generate()
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.neg_()
    assert not torch.equal(other.generate(**generate.keywords), expected)
    assert torch.equal(generate(), expected)


def test_threads_do_not_share_captured_steps(search, steps, monkeypatch):
    """While one thread searches, another searches with its own."""
    _, generate = search
    expected, inside, leave, found = generate(), threading.Event(), threading.Event(), []
    step, first = CapturedDecoder.__call__, []

    def waiting(self, tokens):
        logits = step(self, tokens)
        if not first:
            first.append(True)
            inside.set()
            wait_until(leave.is_set)
        return logits

    monkeypatch.setattr(CapturedDecoder, "__call__", waiting)
    thread = threading.Thread(target=lambda: found.append(generate()))
    thread.start()
    wait_until(inside.is_set)
    steps.clear()
    assert torch.equal(generate(), expected)
    assert steps
    leave.set()
    thread.join()
    assert torch.equal(found[0], expected)


def test_captured_steps_are_few(search, steps, monkeypatch):
    monkeypatch.setattr(captured_decoding, "_MOST_SHAPES", 3)
    model, generate = search
    expected = {}
    for _ in range(2):
        for beams in (1, 2, 3, 4):
            found = generate(num_beams=beams)
            assert torch.equal(expected.setdefault(beams, found), found)
            assert len(model.faster_decoder.__self__.by_shape) <= 3


def test_what_was_not_a_number_does_not_stay(search, steps):
    """A search whose states are not finite leaves the next one alone."""
    model, generate = search
    expected = generate()
    embeddings = model.get_input_embeddings().weight.data
    kept = embeddings.clone()
    embeddings.fill_(torch.nan)
    generate()
    embeddings.copy_(kept)
    steps.clear()
    assert torch.equal(generate(), expected)
    assert steps


@pytest.mark.parametrize("beams", [1, 3])
def test_ids_of_any_integer_type(beams, search, steps):
    model, generate = search
    start = torch.ones(len(generate.keywords["input_ids"]), 1, dtype=torch.int32)
    options = {"decoder_input_ids": start, "num_beams": beams}
    assert torch.equal(generate(**options), inherited(model, **generate.keywords, **options))
    assert steps

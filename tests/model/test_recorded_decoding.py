"""
Decoding with a cache of fixed size, whose steps GPUs record: the tokens of Transformers' loops, and when it is used.
The steps run unrecorded here; tests/gpu records them.
"""

import copy
import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from conftest import FEW_LAYERS, every_choice_and_slowly_every_variant, padded
from search_cases import SETTINGS, borrow_at_first_use, check_random_cases, enliven, inherited, same
from torch import nn
from transformers import MaxLengthCriteria, StoppingCriteriaList

from modeling_scratch.inference.ensemble import Ensemble
from modeling_scratch.model import recorded_decoding
from modeling_scratch.model.recorded_decoding import RecordedDecoder, _Recording, _Recordings, drop_recordings

pytest_plugins = ["search_fixtures"]

ONE = {"input_ids": torch.tensor([[5, 6, 2]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}


@pytest.fixture
def recorded(monkeypatch):
    """Lets the CPU take the place of a GPU. The number of steps that each recording has for each that a search made."""
    monkeypatch.setattr(recorded_decoding, "_DEVICES", {"cpu"})
    rounded = recorded_decoding._rounded
    monkeypatch.setattr(recorded_decoding, "_LEAST_STEPS", 4)
    monkeypatch.setattr(recorded_decoding, "_GROWTH", 2)
    # The caches begin with four steps, so they must grow.
    monkeypatch.setattr(
        recorded_decoding, "_rounded", lambda size, *more: 4 if more == (4, 2) else rounded(size, *more)
    )
    steps, step = [], _Recording.step
    monkeypatch.setattr(_Recording, "step", lambda self, *args: steps.append(self.steps) or step(self, *args))
    return steps


@pytest.fixture
def at_once(recorded, monkeypatch):
    """The same, with recordings from the first use of a shape on."""
    borrow_at_first_use(monkeypatch)
    return recorded


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_tokens_are_those_of_the_inherited_loops(settings, models, at_once):
    for number, (model, source) in enumerate(models()):
        options = {"max_new_tokens": 9, "do_sample": False} | settings
        if number:
            options |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        torch.manual_seed(number)
        found = model.generate(**source, **options)
        assert {4, 8} <= set(at_once)
        torch.manual_seed(number)
        same(found, inherited(model, **source, **options))


@every_choice_and_slowly_every_variant
@pytest.mark.parametrize("beams", [1, 3])
def test_every_model_is_searched_as_it_is(fields, beams, make_wide_model, sentences, at_once):
    model = make_wide_model(**FEW_LAYERS, **fields)
    model.generation_config.eos_token_id = None  # eight tokens, so the cache must grow
    for rows in (len(sentences), 3, len(sentences)):  # a recording serves again, and what it held is no longer seen
        ids, mask = padded(sentences[:rows], 9)
        options = {
            "input_ids": ids,
            "attention_mask": mask,
            "num_beams": beams,
            "max_new_tokens": 8,
            "do_sample": False,
        }
        at_once.clear()
        same(model.generate(**options), inherited(model, **options))
        assert len(at_once) == 8


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_cases(count, make_model, monkeypatch, loops, at_once):
    check_random_cases(count, 5000, make_model, monkeypatch, loops)
    assert len(at_once) > 5 * count


def test_the_mean_of_probabilities_is_not_recorded(make_model, sentences, at_once):
    ids, mask = padded(sentences, 9)
    Ensemble([make_model(), make_model()]).generate(ids, attention_mask=mask, max_new_tokens=3)
    assert not at_once


@pytest.fixture
def search(models):
    """A model, and a function that searches with it."""
    model, source = next(iter(models()))
    return model, partial(model.generate, **source, max_new_tokens=9, do_sample=False)


def test_a_shape_is_recorded_when_it_comes_again(search, recorded):
    model, generate = search
    first = generate()
    assert not recorded
    assert torch.equal(generate(), first)
    assert recorded
    made = len(recorded_decoding._ALL[model].by_shape)
    generate()
    assert len(recorded_decoding._ALL[model].by_shape) == made


class _Adapter(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, states):
        return -self.layer(states)


def _hook(model):
    model.lm_head.register_forward_hook(lambda module, inputs, logits: -logits)


def _adapt(model):
    layer = model.model.decoder.layers[0]
    layer.feed_forward = _Adapter(layer.feed_forward)


def _patch(model):
    model.lm_head.forward = lambda states: -nn.functional.linear(states, model.lm_head.weight)


def _new_weight(model):
    model.lm_head.weight = nn.Parameter(-model.lm_head.weight.detach())


def _new_dtype(model):
    model.to(torch.float32)


def _new_scale(model):
    model.model.decoder.embed_scale = 0.0


@pytest.mark.parametrize(
    ("change", "is_recorded"),
    [(_hook, False), (_adapt, False), (_patch, False), (_new_weight, True), (_new_dtype, True), (_new_scale, True)],
)
def test_a_changed_model_is_searched_as_it_is(change, is_recorded, search, at_once):
    model, generate = search
    before = generate()
    old = list(recorded_decoding._ALL[model].by_shape.values())
    change(model)
    at_once.clear()
    found = generate()
    assert torch.equal(found, inherited(model, **generate.keywords))
    assert not torch.equal(found, before) or change is _new_dtype
    assert bool(at_once) == is_recorded
    assert not any(new in old for new in recorded_decoding._ALL[model].by_shape.values())


def test_weights_may_change_in_place(search, at_once):
    model, generate = search
    before = generate()
    for parameter in model.parameters():
        parameter.data.neg_()
    found = generate()
    assert at_once
    assert not torch.equal(found, before)
    assert torch.equal(found, inherited(model, **generate.keywords))


def test_training_mode_is_not_recorded(search, at_once):
    model, generate = search
    model.train()
    generate()
    assert not at_once


def test_custom_processors_are_not_recorded(search, at_once):
    _, generate = search
    generate(logits_processor=[lambda ids, scores: scores])
    assert not at_once


def test_autocast_is_part_of_a_recording(search, at_once):
    """And weights that change between its searches are narrowed again."""
    model, generate = search
    model.float()
    for sign in (1, -1):
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = generate(), inherited(model, **generate.keywords)
        assert (found == expected).float().mean() > 0.8  # rounding decides about some
        assert torch.equal(generate(), inherited(model, **generate.keywords))
        for parameter in model.parameters():
            parameter.data.mul_(-sign)


def test_recordings_do_not_keep_a_model(make_model, at_once):
    model = make_model()
    model.generate(**ONE, max_new_tokens=3)
    assert at_once
    model = weakref.ref(model)
    gc.collect()
    assert model() is None


def test_a_copy_has_recordings_of_its_own(search, at_once):
    model, generate = search
    expected = generate()
    other = enliven(copy.deepcopy(model), 4)
    assert not torch.equal(other.generate(**generate.keywords), expected)
    assert torch.equal(generate(), expected)


def test_threads_do_not_share_a_recording(search, at_once, monkeypatch):
    """While one search has it, another runs without."""
    _, generate = search
    expected, inside, leave, found = generate(), threading.Event(), threading.Event(), []
    step, first = RecordedDecoder.__call__, []

    def waiting(self, tokens):
        logits = step(self, tokens)
        if not first:
            first.append(self)
            inside.set()
            assert leave.wait(60)
        return logits

    monkeypatch.setattr(RecordedDecoder, "__call__", waiting)
    thread = threading.Thread(target=lambda: found.append(generate()))
    thread.start()
    assert inside.wait(60)
    at_once.clear()
    assert torch.equal(generate(), expected)
    assert not at_once
    leave.set()
    thread.join()
    assert torch.equal(found[0], expected)
    assert torch.equal(generate(), expected)
    assert at_once


def test_recordings_are_few(search, at_once, monkeypatch):
    monkeypatch.setattr(recorded_decoding, "_MOST_SHAPES", 3)
    model, generate = search
    expected = {}
    for _ in range(2):
        for beams in (1, 2, 3, 4):
            found = generate(num_beams=beams)
            assert torch.equal(expected.setdefault(beams, found), found)
            kept = filter(None, recorded_decoding._ALL[model].by_shape.values())
            assert len(list(kept)) <= 3


def test_a_recording_that_would_be_too_large_is_not_made(search, at_once, monkeypatch):
    model, generate = search
    expected = generate()
    recorded_decoding._ALL[model].by_shape.clear()
    monkeypatch.setattr(_Recordings, "_make_room", lambda self, size, device: False)
    at_once.clear()
    assert torch.equal(generate(), expected)
    assert not at_once


def test_a_search_that_outgrows_memory_continues_unrecorded(search, at_once, monkeypatch):
    model, generate = search
    expected = inherited(model, **generate.keywords)
    rooms = iter([True])
    monkeypatch.setattr(_Recordings, "_make_room", lambda self, size, device: next(rooms, False))
    assert torch.equal(generate(), expected)
    assert {4, 8} <= set(at_once)


def test_a_shape_that_cannot_be_recorded_is_not_tried_again(search, at_once, monkeypatch):
    model, generate = search
    expected, tried = inherited(model, **generate.keywords), []

    def fail(self, model):
        tried.append(self)
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(_Recording, "record", fail)
    for _ in range(3):
        assert torch.equal(generate(), expected)
    assert len(tried) == 1
    assert not at_once


def test_what_was_not_a_number_does_not_stay(search, at_once):
    """A search whose states are not finite leaves the next one alone."""
    model, generate = search
    expected = generate()
    embeddings = model.get_input_embeddings().weight.data
    kept = embeddings.clone()
    embeddings.fill_(torch.nan)
    generate()
    embeddings.copy_(kept)
    at_once.clear()
    assert torch.equal(generate(), expected)
    assert at_once


def test_the_source_is_encoded_in_the_first_step(search, at_once):
    """And not before. Where it is encoded already, or not given as ids and a mask, the search is not recorded."""
    model, generate = search
    expected, inputs = generate(), dict(generate.keywords)
    calls, forward = [], type(model.get_encoder()).forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(model.get_encoder()), "forward", lambda *args, **kwargs: calls.append(1) or forward(*args, **kwargs)
        )
        assert torch.equal(generate(), expected)
    assert len(calls) == 1
    ids = inputs.pop("input_ids")
    at_once.clear()
    states = model.get_encoder()(ids, inputs["attention_mask"])
    assert torch.equal(model.generate(encoder_outputs=states, **inputs), expected)
    assert torch.equal(model.generate(inputs_embeds=model.get_input_embeddings()(ids), **inputs), expected)
    positions = (inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    assert torch.equal(model.generate(ids, position_ids=positions, **inputs), expected)
    options = {"max_new_tokens": 9, "do_sample": False}
    assert torch.equal(model.generate(ids, **options), inherited(model, input_ids=ids, **options))
    assert not at_once
    assert torch.equal(model.generate(ids, **inputs), expected)
    assert at_once


@pytest.mark.parametrize("beams", [1, 3])
def test_ids_of_any_integer_type(beams, search, at_once):
    model, generate = search
    start = torch.ones(len(generate.keywords["input_ids"]), 1, dtype=torch.int32)
    options = {"decoder_input_ids": start, "num_beams": beams}
    assert torch.equal(generate(**options), inherited(model, **generate.keywords, **options))
    assert at_once


def test_a_search_may_end_at_the_last_learned_position(make_wide_model, at_once):
    model = make_wide_model(position_embedding_type="learned", max_position_embeddings=8)
    options = ONE | {"max_new_tokens": 50, "do_sample": False, "eos_token_id": None}
    options["stopping_criteria"] = StoppingCriteriaList([MaxLengthCriteria(9)])
    assert torch.equal(model.generate(**options), inherited(model, **options))
    assert at_once


def test_compiled_layers_and_accelerate_s_functions_are_not_recorded(search, at_once):
    model, generate = search
    for change, undo in (
        (lambda: model.lm_head.compile(backend="eager"), lambda: setattr(model.lm_head, "_compiled_call_impl", None)),
        (lambda: setattr(model, "_original_forward", model.forward), lambda: delattr(model, "_original_forward")),
    ):
        change()
        generate()
        assert not at_once
        undo()
        generate()
        assert at_once
        at_once.clear()


def test_a_head_of_another_size_than_the_config(make_wide_model, at_once):
    model = make_wide_model(tie_word_embeddings=False)
    model.lm_head = nn.Linear(model.config.d_model, 50).double()
    options = ONE | {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(**options), inherited(model, **options))
    assert at_once


def test_an_embedding_that_both_sides_share_is_watched(make_wide_model, at_once):
    model = make_wide_model(tie_word_embeddings=False)
    model.set_input_embeddings(model.get_input_embeddings())
    assert model.get_decoder().embed_tokens is model.get_encoder().embed_tokens
    model.generate(**ONE, max_new_tokens=3)
    assert at_once
    at_once.clear()
    model.get_decoder().embed_tokens.register_forward_hook(lambda module, inputs, states: -states)
    model.generate(**ONE, max_new_tokens=3)
    assert not at_once


def test_dropped_recordings_are_made_again(search, at_once):
    model, generate = search
    expected = generate()
    drop_recordings(model)
    assert model not in recorded_decoding._ALL
    assert torch.equal(generate(), expected)

"""Greedy and beam search: the tokens of GenerationMixin's own loops, whatever the settings; what they save."""

import platform

import peft
import pytest
import torch
from conftest import SMALL_MODEL, every_choice_and_variant, padded
from transformers import GenerationMixin, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration, decoder_steps
from modeling_scratch.attention import ScratchSelfAttention
from modeling_scratch.decoder_steps import DecoderSteps, can_step
from modeling_scratch.decoding import ScratchDecoding, best_tokens
from modeling_scratch.dropout import ScratchDropout

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
}
VOCABULARIES = [61, 3001]


def enliven(model, seed):
    """Larger weights, by which every change of the model changes what it says."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.35)
    return model


@pytest.fixture(params=VOCABULARIES)
def models(request):
    """Models whose sentences end at different places, and what they read."""

    def make():
        torch.manual_seed(0)
        fields = SMALL_MODEL | {"vocab_size": request.param, "lm_head_bias": True}
        model = ScratchForConditionalGeneration(ScratchConfig(**fields)).eval()
        for seed in range(8):
            enliven(model, seed)
            torch.nn.init.normal_(model.lm_head.bias, std=0.5)
            model.lm_head.weight.data[2] *= 3.0  # the end is now likely, now not
            sentences = [torch.randint(4, request.param, (length,)) for length in (7, 4, 5, 9, 3, 6)]
            yield model, dict(zip(("input_ids", "attention_mask"), padded(sentences, 9), strict=True))

    return make


def spied(loop, ran):
    def spy(*args, **kwargs):
        ran.append(loop.__name__)
        return loop(*args, **kwargs)

    return spy


@pytest.fixture
def loops(monkeypatch):
    """Names of GenerationMixin's own loops, each time that one runs."""
    ran = []
    for name in ("_sample", "_beam_search"):
        monkeypatch.setattr(GenerationMixin, name, spied(getattr(GenerationMixin, name), ran))
    return ran


def inherited(model, **settings) -> torch.Tensor:
    """By GenerationMixin's loops."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_sample", "_beam_search"):
            patch.setattr(ScratchDecoding, name, getattr(GenerationMixin, name))
        patch.delattr(ScratchDecoding, "_reorder_cache")
        return model.generate(**settings)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_tokens_are_those_of_the_inherited_loops(settings, models, loops):
    lengths = set()
    for model, source in models():
        options = {"max_new_tokens": 12, "do_sample": False} | settings
        loops.clear()
        found = model.generate(**source, **options)
        assert not loops
        assert torch.equal(found, inherited(model, **source, **options))
        lengths |= set((found == 2).int().argmax(dim=1).tolist())
    assert len(lengths) > 1  # they end at different places


@every_choice_and_variant
@pytest.mark.parametrize("beams", [1, 3])
def test_every_model_steps_as_its_forward_pass(fields, beams, make_model, sentences, monkeypatch):
    monkeypatch.setattr(decoder_steps, "_LARGE", 0)  # with oneDNN's products; the small models above do without
    model = make_model(**fields)
    model.generation_config.eos_token_id = None  # twenty places: the caches grow
    ids, mask = padded(sentences, 9)
    assert can_step(model)
    for source in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        options = {"num_beams": beams, "max_new_tokens": 20, "do_sample": False}
        assert torch.equal(model.generate(**source, **options), inherited(model, **source, **options))


@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_done_leaves_the_batch(beams, models, monkeypatch):
    call, rows, left = DecoderSteps.__call__, [], 0
    monkeypatch.setattr(DecoderSteps, "__call__", lambda self, tokens: rows.append(len(tokens)) or call(self, tokens))
    for model, source in models():
        rows.clear()
        options = {"num_beams": beams, "max_new_tokens": 30, "do_sample": False}
        found = model.generate(**source, **options)
        assert rows[0] == 6 * beams
        assert rows == sorted(rows, reverse=True)
        left += rows[-1] < rows[0]
        assert torch.equal(found, inherited(model, **source, **options))
    assert left


def test_generation_under_autocast(make_model, sentences, monkeypatch, loops):
    monkeypatch.setattr(decoder_steps, "_LARGE", 0)
    decoder_steps._onednn.cache_clear()
    model, (ids, mask) = enliven(make_model(), 1), padded(sentences, 9)
    options = {"input_ids": ids, "attention_mask": mask, "num_beams": 2, "max_new_tokens": 8, "do_sample": False}
    with torch.autocast("cpu", torch.bfloat16):
        found = model.generate(**options)
        assert not loops
        assert torch.equal(found, inherited(model, **options))


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_a_long_beginning_is_read_at_once(settings, make_model, sentences, monkeypatch, loops):
    """Whatever the positions; `dynamic` ones depend on how much is read together."""
    call, widths = DecoderSteps.__call__, []
    monkeypatch.setattr(
        DecoderSteps, "__call__", lambda self, tokens: widths.append(tokens.shape[1]) or call(self, tokens)
    )
    ids, mask = padded(sentences, 9)
    beginning = torch.randint(4, 61, (3, 40), generator=torch.Generator().manual_seed(3))
    beginning[:, 0] = 1
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}
    for fields in (
        {},
        {"position_embedding_type": "learned"},
        {"position_embedding_type": "rotary", "rope_parameters": dynamic, "max_position_embeddings": 16},
    ):
        model, again = (enliven(make_model(**fields), 1) for _ in range(2))  # a model remembers how far it has read
        widths.clear()
        options = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": beginning, "max_new_tokens": 6}
        found = model.generate(**options, **settings, do_sample=False, eos_token_id=None)
        assert widths == [40, 1, 1, 1, 1, 1]
        assert not loops
        assert torch.equal(found, inherited(again, **options, **settings, do_sample=False, eos_token_id=None))
        loops.clear()


def hooked(model):
    model.model.decoder.layers[0].self_attn.q_proj.register_forward_hook(lambda module, inputs, output: -9 * output)
    return model


def patched(model):
    feed_forward = model.model.decoder.layers[1].feed_forward
    forward = feed_forward.forward
    feed_forward.forward = lambda states: forward(states) * 3
    return model


def hooked_head(model):
    """Which is written for what the model gives it: (batch_size, length, d_model)."""

    def ban(module, inputs, logits):
        logits[:, -1, 30:] = -100.0

    model.lm_head.register_forward_hook(ban)
    return model


def hooked_embedding(model):
    model.model.decoder.embed_tokens.register_forward_hook(lambda module, inputs, output: output.flip(-1))
    return model


def patched_norm(model):
    norm = model.model.decoder.layer_norm
    norm.forward = lambda states: torch.nn.functional.layer_norm(states, norm.normalized_shape).flip(-1)
    return model


def with_dropout(model):
    """As Monte Carlo dropout switches it on."""
    for module in model.model.decoder.layers.modules():
        if isinstance(module, ScratchDropout):
            module.p = 0.5
            module.train()
    return model


def with_a_prefix(model):
    config = peft.PrefixTuningConfig(
        task_type="SEQ_2_SEQ_LM",
        num_virtual_tokens=4,
        num_layers=3,
        token_dim=32,
        num_attention_heads=2,
        num_transformer_submodules=2,
    )
    adapted = peft.get_peft_model(model, config).eval()
    torch.nn.init.normal_(adapted.prompt_encoder.default.embedding.weight, std=5.0)
    return adapted


class Masking(ScratchForConditionalGeneration):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits[..., 30:] = -100.0
        return outputs


class Preparing(ScratchForConditionalGeneration):
    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        return inputs | {"decoder_input_ids": (inputs["decoder_input_ids"] + 1) % 50}


def as_a(subclass):
    def change(model):
        model.__class__ = subclass
        return model

    return change


CHANGES = {
    "a hook": hooked,
    "a forward of its own": patched,
    "a hook of the head": hooked_head,
    "a hook of the embedding": hooked_embedding,
    "another norm": patched_norm,
    "dropout": with_dropout,
    "a prefix": with_a_prefix,
    "another forward": as_a(Masking),
    "other inputs": as_a(Preparing),
}


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_is_called(change, beams, make_model, sentences, loops):
    """By the inherited loops, with the model's own forward pass."""
    ids, mask = padded(sentences, 9)
    options = {"num_beams": beams, "max_new_tokens": 8, "do_sample": False, "attention_mask": mask}
    before = enliven(make_model(), 1).generate(ids, **options)
    assert not loops
    changed = change(enliven(make_model(), 1))
    torch.manual_seed(0)
    found = changed.generate(input_ids=ids, **options)
    assert loops == ["_sample" if beams == 1 else "_beam_search"]
    torch.manual_seed(0)
    assert torch.equal(found, inherited(changed, input_ids=ids, **options))
    assert not torch.equal(found, before)


def test_what_cannot_be_stepped_through(make_model, monkeypatch):
    assert can_step(make_model())
    for patch in (
        lambda change: change.setattr(ScratchSelfAttention, "forward", None),
        lambda change: change.setattr(ScratchForConditionalGeneration, "forward", None),
        lambda change: change.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", None),
        lambda change: change.setattr(torch.nn.modules.module, "_global_forward_hooks", {0: None}),
    ):
        with monkeypatch.context() as change:
            patch(change)
            assert not can_step(make_model())
        assert can_step(make_model())
    assert not can_step(make_model().train())
    eager = make_model()
    eager.set_attn_implementation("eager")
    assert not can_step(eager)
    assert not can_step(torch.ao.quantization.quantize_dynamic(make_model(), {torch.nn.Linear}))


@pytest.mark.parametrize("target", ["q_proj", "lm_head", "embed_tokens"])
def test_each_sentence_may_have_its_adapter(target, models):
    """Which are as many as the sentences, so that none of those may leave the batch."""
    for model, source in models():
        model.generation_config.eos_token_id = [2, 3, 5, 7, 11, 13, 17]  # sentences end early, and at different places
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=[target], init_lora_weights=False))
        adapted.add_adapter("other", peft.LoraConfig(target_modules=[target], init_lora_weights=False))
        adapted.eval()
        options = source | {"max_new_tokens": 12, "do_sample": False}
        mixed = adapted.generate(**options, adapter_names=["default", "other", "__base__"] * 2)
        adapted.set_adapter("other")
        alone = adapted.generate(**options)
        width = min(mixed.shape[1], alone.shape[1])
        assert torch.equal(mixed[1::3, :width], alone[1::3, :width])
        adapted.unload()


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "lm_head"])
def test_a_lora_trains_and_is_heeded(name, make_model, sentences):
    """Where projections could be packed, an adapter on one of them still takes effect, trained and generating."""
    ids, mask = padded(sentences, 9)
    options = {"input_ids": ids, "attention_mask": mask, "num_beams": 2, "max_new_tokens": 8, "do_sample": False}
    labels = torch.tensor([[9, 8, 7, 2]] * 3)
    before = make_model(tie_word_embeddings=False).generate(**options)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(make_model(tie_word_embeddings=False), peft.LoraConfig(r=4, target_modules=[name]))
    optimizer = torch.optim.Adam([weight for weight in adapted.parameters() if weight.requires_grad], lr=0.05)
    losses = []
    for _ in range(30):
        losses.append(adapted(input_ids=ids, attention_mask=mask, labels=labels, skip_logits=True).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.05
    adapted.eval()
    found = adapted.generate(**options)
    assert not torch.equal(found, before)
    assert torch.equal(found, adapted.merge_and_unload().generate(**options))


@pytest.mark.parametrize("bias", [True, False])
def test_products(bias, monkeypatch):
    monkeypatch.setattr(decoder_steps, "_LARGE", 0)
    layer = torch.nn.Linear(24, 40, bias=bias)
    inputs = torch.randn(5, 1, 24)
    decoder_steps._onednn.cache_clear()
    state = torch.get_rng_state()
    if platform.machine() == "x86_64":
        assert decoder_steps._onednn() is not None
    with torch.no_grad():
        torch.testing.assert_close(decoder_steps._product(inputs, layer.weight, layer.bias), layer(inputs))
        assert torch.equal(torch.get_rng_state(), state)  # a run continued would draw anew
        with torch.autocast("cpu", torch.bfloat16):
            assert decoder_steps._product(inputs, layer.weight, layer.bias).dtype == torch.bfloat16
        half = decoder_steps._product(inputs.bfloat16(), layer.weight.bfloat16(), None)
        assert half.dtype == torch.bfloat16
    decoder_steps._product(inputs, layer.weight, layer.bias).sum().backward()
    assert layer.weight.grad is not None


class Every(StoppingCriteria):
    """Knows rows by their numbers."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(len(input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool)


class EveryOfItsOwnLength(MaxLengthCriteria):
    """As Every, but of a class that would judge each row by itself."""

    def __init__(self):
        super().__init__(max_length=100)
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        return Every.__call__(self, input_ids, scores)


@pytest.mark.parametrize("kind", [Every, EveryOfItsOwnLength])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_no_row_leaves_where_a_criterion_may_know_it(settings, kind, models):
    left = 0
    for model, source in models():
        options = source | {"max_new_tokens": 12, "do_sample": False} | settings
        seen = []
        for known in (False, True):
            criterion = kind()
            if known:
                criterion.is_rowwise = True
            found = model.generate(**options, stopping_criteria=StoppingCriteriaList([criterion]))
            assert torch.equal(found, model.generate(**options))
            seen.append(set(criterion.seen))
        assert len(seen[0]) == 1
        left += len(seen[1]) > 1
    assert left  # of some models rows leave where they may


class Large(StoppingCriteria):
    """Ends a row at a token of the upper half."""

    is_rowwise = True

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] > 30


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_other_ends_than_a_token(settings, models, loops):
    for model, source in models():
        model.generation_config.eos_token_id = None
        options = {"max_new_tokens": 12, "do_sample": False, "stopping_criteria": StoppingCriteriaList([Large()])}
        found = model.generate(**source, **options | settings)
        assert not loops
        assert torch.equal(found, inherited(model, **source, **options | settings))
        loops.clear()


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
def test_everything_else_is_inherited(settings, models, loops):
    model, source = next(iter(models()))
    options = {"max_new_tokens": 6, "do_sample": False} | settings
    torch.manual_seed(3)
    found = model.generate(**source, **options)
    assert len(loops) == 1
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


@pytest.mark.parametrize("shape", [(6, 5), (1, 9), (6, 1)])
def test_masks_of_another_shape_are_refused(shape, models):
    model, source = next(iter(models()))
    encoded = model.get_encoder()(**source)
    with pytest.raises(ValueError, match="attention_mask"):
        model.generate(encoder_outputs=encoded, attention_mask=torch.ones(shape).long(), max_new_tokens=4)


def test_errors_are_those_of_the_inherited_loops(models):
    model, source = next(iter(models()))
    with pytest.raises(ValueError, match="low_memory"):
        model.generate(**source, num_beams=2, low_memory=True)
    encoded = model.get_encoder()(source["input_ids"][:1])
    for beams in (1, 2):
        with pytest.raises(ValueError, match="this target needs"):
            model.generate(encoder_outputs=encoded, decoder_input_ids=torch.ones(4, 1).long(), num_beams=beams)

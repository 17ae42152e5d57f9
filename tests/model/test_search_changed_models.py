"""Models that something has changed (hooks, adapters, subclasses, shards): our own search follows."""

import peft
import pytest
import torch
from conftest import FEW_LAYERS, ROOT, SHALLOW, padded, run_command
from search_cases import enliven
from transformers import GenerationMixin

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.training.fused_loss import fused_cross_entropy

pytest_plugins = ["search_fixtures"]


def hooked(model):
    model.model.decoder.layers[0].self_attn.q_proj.register_forward_hook(lambda module, inputs, output: -9 * output)
    return model


def patched(model):
    feed_forward = model.model.decoder.layers[1].feed_forward
    forward = feed_forward.forward
    feed_forward.forward = lambda states: forward(states) * 3
    return model


def patched_projection(model):
    projection = model.model.decoder.layers[1].feed_forward.up_proj
    forward = projection.forward
    projection.forward = lambda states: forward(states) * 3
    return model


def hooked_head(model):
    """The hook expects the shape that the model gives it, (batch_size, length, vocabulary)."""

    def ban(module, inputs, logits):
        logits[:, -1, 30:] = -100.0

    model.lm_head.register_forward_hook(ban)
    return model


def steered(where):
    """Activation steering: a vector is added to the states of the last position, (batch_size, d_model)."""

    def steer(model):
        vector = 3 * torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

        def add(states):
            states = states.clone()
            states[:, -1] += vector
            return states

        where(model, add)
        return model

    return steer


def hook_layer(model, add):
    layer = model.model.decoder.layers[0]
    layer.register_forward_hook(lambda module, inputs, output: (add(output[0]), *output[1:]))


def hook_output_of_attention(model, add):
    projection = model.model.decoder.layers[1].self_attn.o_proj
    projection.register_forward_pre_hook(lambda module, inputs: (add(inputs[0]),))


def hook_input_of_head(model, add):
    model.lm_head.register_forward_pre_hook(lambda module, inputs: (add(inputs[0]),))


def hooked_embedding(model):
    model.model.decoder.embed_tokens.register_forward_hook(lambda module, inputs, output: output.flip(-1))
    return model


def patched_norm(model):
    norm = model.model.decoder.layer_norm
    norm.forward = lambda states: torch.nn.functional.layer_norm(states, norm.normalized_shape).flip(-1)
    return model


def with_dropout(model):
    """As in Monte Carlo dropout."""
    for module in model.model.decoder.layers.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
            module.train()
    return model


class AlwaysDropout(torch.nn.Dropout):
    def forward(self, states):
        return torch.nn.functional.dropout(states, 0.5)


def with_dropout_always(model):
    for module in model.model.decoder.layers.modules():
        if isinstance(module, torch.nn.Dropout):
            module.__class__ = AlwaysDropout
    return model


def with_a_prefix(model):
    config = peft.PrefixTuningConfig(
        task_type="SEQ_2_SEQ_LM",
        num_virtual_tokens=4,
        num_layers=FEW_LAYERS["decoder_layers"],
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


class Padded(ScratchForConditionalGeneration):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = torch.nn.functional.pad(-outputs.logits, (0, 3))[..., :-3]  # not contiguous
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
    "a projection's forward": patched_projection,
    "a hook of the head": hooked_head,
    "a hook of the embedding": hooked_embedding,
    "a layer that is steered": steered(hook_layer),
    "attention that is steered": steered(hook_output_of_attention),
    "a head that is steered": steered(hook_input_of_head),
    "another norm": patched_norm,
    "dropout": with_dropout,
    "dropout of another class": with_dropout_always,
    "a prefix": with_a_prefix,
    "another forward": as_a(Masking),
    "logits of a wider tensor": as_a(Padded),
    "other inputs": as_a(Preparing),
}
INHERITED = ("a prefix", "other inputs")  # these prepare their own inputs


@pytest.mark.parametrize("settings", [{}, {"num_beams": 4, "no_repeat_ngram_size": 2}])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_is_called(name, settings, make_wide_model, sentences, loops, monkeypatch):
    ids, mask = padded(sentences, 9)
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": mask} | settings
    if "dropout" in name:
        options["eos_token_id"] = None  # if rows left, other numbers would be drawn
    before = enliven(make_wide_model(**FEW_LAYERS), 1).generate(ids, **options)
    loops.clear()
    changed = CHANGES[name](enliven(make_wide_model(**FEW_LAYERS), 1))
    torch.manual_seed(0)
    found = changed.generate(input_ids=ids, **options)
    assert bool(loops) == (name not in INHERITED)
    assert not torch.equal(found, before)
    if not settings or "dropout" not in name:  # with beams, cross-attention draws in another order
        torch.manual_seed(0)
        monkeypatch.setattr(ScratchForConditionalGeneration, "generate", GenerationMixin.generate)
        assert torch.equal(found, changed.generate(input_ids=ids, **options))


@pytest.mark.parametrize("kind", ["attentions", "hidden_states"])
def test_what_was_recorded_once_changes_nothing(kind, models, loops):
    model, source = next(iter(models()))
    model(**source, decoder_input_ids=source["input_ids"][:, :2], **{f"output_{kind}": True})
    model.generate(**source, max_new_tokens=4)
    assert loops == ["sample"]


# PEFT, about an adapter on tied weights: this test neither merges nor saves it.
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True` and a tied layer:UserWarning")
@pytest.mark.parametrize("target", ["q_proj", "lm_head", "embed_tokens"])
def test_each_sentence_may_have_its_adapter(target, models):
    """There is one adapter per sentence, so none may leave the batch."""
    for model, source in models():
        model.generation_config.eos_token_id = [2, 3, 5, 7, 11, 13, 17]  # sentences end early, at different places
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
def test_a_lora_trains_and_is_heeded(name, make_wide_model, sentences):
    ids, mask = padded(sentences, 9)
    options = {"input_ids": ids, "attention_mask": mask, "num_beams": 2, "max_new_tokens": 8, "do_sample": False}
    labels = torch.tensor([[9, 8, 7, 2]] * 3)
    before = make_wide_model(tie_word_embeddings=False, **SHALLOW).generate(**options)
    torch.manual_seed(0)
    model = make_wide_model(tie_word_embeddings=False, **SHALLOW)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=[name]))
    optimizer = torch.optim.Adam([weight for weight in adapted.parameters() if weight.requires_grad], lr=0.05)
    losses = []
    for _ in range(15):
        outputs = adapted(input_ids=ids, attention_mask=mask, labels=labels, fused_loss=fused_cross_entropy)
        losses.append(outputs.loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.05
    adapted.eval()
    found = adapted.generate(**options)
    assert not torch.equal(found, before)
    assert torch.equal(found, adapted.merge_and_unload().generate(**options))


SHARDED = """
import sys, torch
sys.path[:0] = [{root!r}, {tests!r}]
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from conftest import SMALL_MODEL
from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
torch.distributed.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
torch.manual_seed(0)
model = ScratchForConditionalGeneration(ScratchConfig(**SMALL_MODEL, tie_word_embeddings=False)).double().eval()
ids = torch.randint(4, 61, (3, 7))
expected = [model.generate(ids, max_new_tokens=5, num_beams=beams) for beams in (1, 2)]
for layer in [*model.model.encoder.layers, *model.model.decoder.layers]:
    fully_shard(layer)
fully_shard(model)
register_fsdp_forward_method(model, "generate")
for beams, tokens in zip((1, 2), expected):
    assert torch.equal(model.generate(ids, max_new_tokens=5, num_beams=beams), tokens)
model(ids, labels=ids).loss.backward()
print("done")
"""


@pytest.mark.slow
def test_sharded_models_generate(tmp_path):
    result = run_command("-c", SHARDED.format(root=str(ROOT), tests=str(ROOT / "tests"), store=tmp_path / "store"))
    assert "done" in result.stdout, result.stderr

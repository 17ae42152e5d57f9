"""Conversion from and to torch.nn.Transformer: the same logits, or an error."""

import pytest
import torch
from foreign_models import NAMES, SETTINGS, SPECIAL, identical, randomise, scratch, tutorial
from torch import nn

from modeling_scratch.apps.convert import from_torch, to_torch

# torch's note that a faster path is not taken
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")


@pytest.mark.parametrize(("old", "new"), [("", ""), ("", "module."), ("transformer.", "")])
@torch.no_grad()
def test_a_translator_from_pytorch_s_tutorial_has_equal_logits(old, new):
    """Also as saved by DataParallel, and as a subclass of torch.nn.Transformer."""
    user = tutorial()
    state = {f"{new}{name.removeprefix(old)}": weight for name, weight in user.state_dict().items()}
    names = {role: f"{new}{name}" for role, name in NAMES.items()}
    model = from_torch(state, **names, **SETTINGS, **SPECIAL)
    random = torch.Generator().manual_seed(5)
    src, trg = (torch.randint(4, 29, (length, 3), generator=random) for length in (9, 7))
    padding = torch.arange(9) >= torch.tensor([[9], [5], [2]])
    expected = user(src, trg, padding).transpose(0, 1)
    logits = model(input_ids=src.T, attention_mask=~padding, decoder_input_ids=trg.T).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    config = model.config
    shape = (config.vocab_size, config.decoder_vocab_size, config.encoder_layers, config.decoder_layers, config.d_model)
    assert shape == (31, 29, 2, 3, 24)
    assert (config.encoder_ffn_dim, config.lm_head_bias, config.final_norm) == (40, True, True)
    assert (config.decoder_start_token_id, config.pad_token_id, config.unk_token_id) == (2, 1, 0)
    assert model.generation_config.max_length == config.max_position_embeddings


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"norms": False}, {"activation": "gelu", "layer_norm_eps": 1e-3}]
)
@torch.no_grad()
def test_any_torch_transformer_has_equal_logits_and_converts_back(norm_first, options):
    options = dict(options)
    norms = options.pop("norms", True)
    user = nn.Module()
    user.transformer = nn.Transformer(24, 3, 2, 3, 40, batch_first=True, norm_first=norm_first, **options)
    if not norms:
        user.transformer.encoder.norm = user.transformer.decoder.norm = None
    user.src, user.tgt, user.out = nn.Embedding(31, 24), nn.Embedding(29, 24), nn.Linear(24, 29, bias=False)
    randomise(user.double())
    settings = {"num_heads": 3, "norm_position": "pre" if norm_first else "post", "scale_embedding": False}
    settings |= {
        "activation_function": options.get("activation", "relu"),
        "norm_eps": options.get("layer_norm_eps", 1e-5),
    }
    names = {"source_embedding": "src", "target_embedding": "tgt", "output_projection": "out"}
    model = from_torch(user.state_dict(), **names, **settings, **SPECIAL)
    assert model.dtype == torch.float64
    ids = [torch.randint(0, 29, (2, length)) for length in (8, 6)]
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    positioned = []
    for embedding, tokens in zip((user.src, user.tgt), ids, strict=True):
        angles = torch.arange(8).double()[:, None] / 10000 ** (torch.arange(0, 24, 2).double() / 24)
        sines = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        positioned.append(embedding(tokens) + sines[: tokens.shape[1]])
    causal = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    hidden = {"src_key_padding_mask": mask == 0, "memory_key_padding_mask": mask == 0}
    expected = user.out(user.transformer(*positioned, tgt_mask=causal, **hidden))
    logits = model(input_ids=ids[0], attention_mask=mask, decoder_input_ids=ids[1]).logits
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
    back = to_torch(model)
    assert identical(back.transformer, user.transformer)
    torch.testing.assert_close(back(ids[0], mask, ids[1]), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "fields",
    [{}, {"norm_position": "pre", "final_norm": True}, {"tie_word_embeddings": False, "activation_function": "gelu"}],
)
def test_scratch_to_torch_and_back_is_bit_identical(fields):
    model = scratch(**fields, norm_eps=1e-6, dropout=0.3, attention_dropout=0.3, activation_dropout=0.3)
    given = {name: getattr(model.config, name) for name in [*SPECIAL, "norm_position", "activation_function"]}
    given |= {"num_heads": 4, "scale_embedding": True, "norm_eps": 1e-6, "dropout": 0.3}
    again = from_torch(to_torch(model).state_dict(), **given)
    assert identical(again, model)
    same = ["norm_position", "norm_eps", "dropout", "attention_dropout", "activation_dropout", "activation_function"]
    for name in [*same, "tie_word_embeddings", "share_encoder_decoder_embeddings", "final_norm", "lm_head_bias"]:
        assert getattr(again.config, name) == getattr(model.config, name), name
    assert again.lm_head.weight is not model.lm_head.weight


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"transformer.encoder.layers.1.norm2.bias": None}, {}, "Missing .*transformer.encoder.layers.1.norm2.bias"),
        ({"transformer.extra": torch.ones(2)}, {}, "no counterpart of transformer.extra"),
        ({"positions": torch.ones(9, 24)}, {}, "positions"),
        ({"transformer.decoder.layers.2.linear1.weight": torch.ones(41, 24)}, {}, r"mismatch .*2.linear1.*\[41, 24\]"),
        ({"transformer.decoder.layers.0.linear1.weight": None}, {}, "decoder.layers.0.linear1.weight is missing"),
        ({"generator.bias": torch.ones(29).double()}, {}, "torch.float32, torch.float64"),
        ({"epoch": 3}, {}, "not a state dict: epoch"),
        ({"other.encoder.layers.0.self_attn.in_proj_weight": torch.ones(72, 24)}, {}, "several .*'other.'"),
        ({"transformer.encoder.layers.0.self_attn.in_proj_weight": None}, {}, "not the weights of a torch.nn.Trans"),
        ({}, {"target_embedding": "embedding"}, "target_embedding: .* 'embedding.weight'"),
        ({}, {"source_embedding": "generator.bias"}, r"has the shape \(29,\)"),
        ({}, {"output_projection": "tgt_tok_emb.embedding"}, "no counterpart of generator.weight, generator.bias"),
        ({}, {"num_heads": 5}, "encoder_attention_heads"),
    ],
)
def test_torch_weights_that_do_not_fit_are_refused(changes, arguments, message):
    state = {name: value for name, value in (tutorial().state_dict() | changes).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        from_torch(state, **(NAMES | SETTINGS | SPECIAL | arguments))


def test_to_torch_names_every_field_that_does_not_fit():
    fields = {"norm_type": "rms_norm", "gated_ffn": True, "position_embedding_type": "alibi"}
    fields |= {"activation_function": "silu", "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "ffn_bias": False}
    fields |= {"share_layers": True, "final_norm": "decoder"}
    with pytest.raises(ValueError, match=r"torch\.nn\.Transformer cannot express this model") as error:
        to_torch(scratch(**fields))
    for name, value in fields.items():
        assert f"{name} is {value!r}" in str(error.value)
    with pytest.raises(ValueError, match="the norms' biases must be 0"):
        to_torch(scratch(attention_bias=False, ffn_bias=False))

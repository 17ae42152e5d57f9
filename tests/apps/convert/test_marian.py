"""Conversion from and to MarianMTModel: the same logits and tokens, or an error."""

import copy

import peft
import pytest
import torch
from foreign_models import SHAPES, batch, identical, marian, scratch
from torch import nn

from modeling_scratch.apps.convert import from_marian, to_marian, to_torch
from modeling_scratch.loading import load_translator

# torch's note that a faster path is not taken
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")


@pytest.fixture(scope="module", params=SHAPES)
def pair(request):
    """A Marian model and its conversion."""
    model = marian(request.param)
    return model, from_marian(model)


@torch.no_grad()
def test_logits_and_config_are_equal(pair):
    inputs = batch(pair[0])
    decoder_input_ids = torch.randint(0, 50, (3, 11), generator=torch.Generator().manual_seed(3))
    theirs, ours = (model(**inputs, decoder_input_ids=decoder_input_ids).logits for model in pair)
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    theirs, ours = (model.config for model in pair)
    same = ["d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim", "activation_function"]
    same += ["pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "dropout", "attention_dropout"]
    same += ["scale_embedding", "init_std", "max_position_embeddings", "vocab_size", "tie_word_embeddings"]
    for name in [*same, "share_encoder_decoder_embeddings"]:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.target_vocab_size == theirs.decoder_vocab_size
    assert ours.unk_token_id is None  # Marian's config does not have it


@pytest.mark.parametrize(
    "decoding",
    [
        {},
        {"num_beams": 1},
        {"num_beams": 5, "length_penalty": 2.0, "early_stopping": True},
        {"num_beams": 4, "num_return_sequences": 3},
        {"num_beams": 1, "do_sample": True, "temperature": 1.3, "top_k": 20},
    ],
    ids=str,
)
@pytest.mark.parametrize("pair", ["opus", "two vocabularies"], indirect=True)
def test_generated_tokens_and_scores_are_equal(pair, decoding):
    outputs = []
    for model in (copy.deepcopy(original).double() for original in pair):
        torch.manual_seed(4)
        returned = {"output_scores": True, "return_dict_in_generate": True}
        outputs.append(model.generate(**batch(pair[0]), **decoding, **returned))
    assert torch.equal(*(output.sequences for output in outputs))
    assert outputs[0].sequences.unique().numel() > 8
    if "sequences_scores" in outputs[0]:
        torch.testing.assert_close(outputs[1].sequences_scores, outputs[0].sequences_scores, atol=1e-5, rtol=0)


def test_a_round_trip_is_bit_identical(pair):
    once = to_marian(pair[1])
    assert identical(once, pair[0])
    assert identical(from_marian(once), pair[1])


@pytest.mark.parametrize(
    "fields",
    [
        {"activation_function": "gelu", "scale_embedding": False},
        {"decoder_vocab_size": 40, "share_encoder_decoder_embeddings": False, "encoder_attention_heads": 8},
        {"tie_word_embeddings": False, "decoder_ffn_dim": 24, "init_std": 0.01},
        {"lm_head_bias": False},
    ],
    ids=str,
)
@torch.no_grad()
def test_converting_to_marian_keeps_logits_and_special_tokens(fields):
    model = scratch(**fields)
    converted = to_marian(model)
    inputs = {"input_ids": torch.arange(5, 17).view(2, 6), "decoder_input_ids": torch.arange(5, 13).view(2, 4)}
    torch.testing.assert_close(converted(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=0)
    assert converted.config.forced_eos_token_id is None  # MarianConfig's default would force token 0
    again = from_marian(converted)
    if not model.config.lm_head_bias:  # Marian always has one
        assert not again.lm_head.bias.any()
        again.lm_head.bias = None
    assert identical(again, model)
    for name in ("bos_token_id", "eos_token_id", "unk_token_id", "decoder_start_token_id", "pad_token_id"):
        assert getattr(again.config, name) == getattr(model.config, name)


def test_dtype_mode_and_generation_settings_are_kept(tmp_path):
    model = marian().half()
    model.generation_config.update(bad_words_ids=[[60], [7]], max_length=12)
    converted = from_marian(model)
    assert {weight.dtype for weight in converted.parameters()} == {torch.float16}
    assert not converted.training
    assert from_marian(marian().train()).training
    back = to_marian(converted)
    assert identical(back, model)
    converted.save_pretrained(tmp_path)
    reloaded = load_translator(str(tmp_path))
    assert reloaded.dtype == torch.float16
    assert identical(reloaded, converted)
    for result in (converted, back, reloaded):
        assert result.generation_config.to_dict() == model.generation_config.to_dict()
        assert result.generation_config is not model.generation_config
    double = marian().double()
    inputs = batch(double) | {"decoder_input_ids": torch.arange(1, 7).view(3, 2)}
    difference = double(**inputs).logits - from_marian(double)(**inputs).logits
    assert difference.abs().max() < 1e-6  # not 0, since Marian's table of positions is in float32


def test_generation_beyond_marian_s_positions_is_a_warning(caplog):
    model = scratch(max_position_embeddings=16)
    model.generation_config.max_new_tokens = 17
    to_marian(model)
    assert "max_position_embeddings (16)" in caplog.text


def test_to_marian_names_every_field_that_does_not_fit():
    fields = {"norm_position": "pre", "final_norm": True, "norm_type": "rms_norm", "norm_eps": 1e-6, "gated_ffn": True}
    fields |= {"position_embedding_type": "rotary", "attention_bias": False, "ffn_bias": False, "share_layers": True}
    needed = ["'post'", "False", "'layer_norm'", "1e-05", "False", "'sinusoidal'", "True", "True", "False"]
    with pytest.raises(ValueError, match="decoder_start_token_id is None") as error:
        to_marian(scratch(**fields, decoder_start_token_id=None))
    for (name, value), must in zip(fields.items(), needed, strict=True):
        assert f"{name} is {value!r} and must be {must}" in str(error.value)


def test_marian_models_with_other_positions_or_heads_are_refused():
    model = marian()
    model.model.decoder.embed_positions.weight.data[3, 4] += 0.1
    with pytest.raises(ValueError, match=r"model.decoder.embed_positions.weight"):
        from_marian(model)
    other = marian("shared, not tied")
    other.model.decoder.embed_tokens = nn.Embedding(70, 32)
    with pytest.raises(ValueError, match=r"lm_head.weight has 61 rows and .* has 70"):
        from_marian(other)


@pytest.mark.parametrize("convert", [from_marian, to_marian, to_torch])
def test_models_with_adapters_are_refused(convert):
    plain = marian() if convert is from_marian else scratch(norm_position="post", final_norm=False)
    model = peft.get_peft_model(plain, peft.LoraConfig(target_modules=["q_proj"])).base_model.model
    with pytest.raises(ValueError, match=r"base_layer.*merge_and_unload"):
        convert(model)

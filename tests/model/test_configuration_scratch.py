"""ScratchConfig: choices and contradictions, the checks of its fields in recipes, loading."""

import json
import re

import pytest
from conftest import SMALL_MODEL
from transformers import AutoConfig

from modeling_scratch import ScratchConfig
from modeling_scratch.errors import UserError
from modeling_scratch.loading import load_config
from modeling_scratch.recipe.reading import check_fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 30}, "d_model (30) must be divisible by encoder_attention_heads (4)"),
        ({"decoder_attention_heads": 7}, "decoder_attention_heads (7)"),
        ({"encoder_attention_heads": 0}, "encoder_attention_heads (0)"),
        ({"decoder_vocab_size": 70}, "share_encoder_decoder_embeddings"),
        ({"position_embedding_type": "rotary", "d_model": 36, "encoder_attention_heads": 4}, "even"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "default or linear"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"norm_position": "before"}, "norm_position is 'before'; it must be one of 'pre', 'post'"),
        ({"final_norm": 1}, "final_norm is 1; it must be one of True"),
    ],
)
def test_a_wrong_choice_or_a_contradiction_is_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ScratchConfig(**(SMALL_MODEL | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_position_embeddings": "64"}, "max_position_embeddings is '64'; it must be of type int"),
        ({"d_model": "32"}, "d_model is '32'; it must be of type int"),
        ({"encoder_ffn_dim": 64.0}, "encoder_ffn_dim is 64.0; it must be of type int"),
        ({"norm_eps": None}, "norm_eps is None; it must be of type float"),
        ({"share_layers": "no"}, "share_layers is 'no'; it must be of type bool"),
        ({"vocab_size": True}, "vocab_size is True; it must be of type int"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'; it must be of type int | list[int] | None"),
    ],
)
def test_a_value_of_another_type_in_a_config_file_is_named(fields, message, tmp_path):
    """Text for a number was an error in the middle of a translation, and text for a truth value was true."""
    ScratchConfig(**SMALL_MODEL).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | fields))
    with pytest.raises(UserError, match=re.escape(message)):
        load_config(str(tmp_path))
    ScratchConfig(**SMALL_MODEL, dropout=0, eos_token_id=[2, 3], pad_token_id=None)  # integers may be floats


def test_the_older_name_of_rope_type_is_understood():
    config = ScratchConfig(position_embedding_type="rotary", rope_parameters={"type": "linear", "factor": 2.0})
    assert config.rope_parameters == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": "512"}, "d_model: must be an integer"),
        ({"d_model": True}, "d_model: must be an integer"),
        ({"dropout": None}, "dropout: must be a number"),
        ({"dropout": 1.5}, "dropout: must be less than 1"),
        ({"activation_dropout": -0.1}, "activation_dropout: must be greater than or equal to 0"),
        ({"decoder_vocab_size": 0}, "decoder_vocab_size: must be greater than or equal to 1"),
        ({"norm_eps": 0.0}, "norm_eps: must be greater than 0"),
        ({"init_std": float("inf")}, "init_std: must be a finite number"),
        ({"gated_ffn": 1}, "gated_ffn: must be true or false"),
        ({"activation_function": None}, "activation_function: must be text"),
        ({"activation_function": "rellu"}, "relu6"),
        ({"pad_token_id": -1}, "pad_token_id: must be greater than or equal to 0"),
        ({"norm_position": "before"}, "norm_position: must be 'pre' or 'post'"),
        ({"final_norm": "encoder"}, "final_norm: must be True, False or 'decoder'"),
        ({"droput": 0.1}, "did you mean 'dropout'?"),
        ({"hidden_size": 64}, "did you mean 'd_model'?"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type: must be 'default' or 'linear'"),
        ({"rope_parameters": {"factor": -2.0}}, "rope_parameters.factor: must be greater than or equal to 1"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_parameters.rope_theta: must be a finite number"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary"),
    ],
)
def test_recipes_check_the_type_and_range_of_every_field(fields, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check_fields(fields, "model")


def test_recipes_take_integers_for_floats():
    check_fields({"dropout": 0, "rope_parameters": {"rope_theta": 500}}, "model")


def test_a_loaded_config_keeps_unknown_keys(tmp_path):
    ScratchConfig(**SMALL_MODEL).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(content | {"written_by_another_tool": 7, "target_vocab_size": 5, "fields": 1})
    )
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.written_by_another_tool == 7
    assert config.target_vocab_size == SMALL_MODEL["vocab_size"]
    assert "vocab_size" in config.fields()


def test_a_loaded_config_equals_the_saved_one(tmp_path):
    fields = {"decoder_vocab_size": 70, "share_encoder_decoder_embeddings": False, "init_std": 0.02, "gated_ffn": True}
    fields |= {"final_norm": "decoder", "share_layers": True, "position_embedding_type": "alibi"}
    config = ScratchConfig(**(SMALL_MODEL | fields))
    config.save_pretrained(tmp_path)
    loaded = ScratchConfig.from_pretrained(tmp_path)
    for name in ScratchConfig.fields():
        assert getattr(loaded, name) == getattr(config, name), name
    assert loaded.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}


def test_generic_names_of_transformers_are_understood():
    config = ScratchConfig(**SMALL_MODEL)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 2, 4)
    decoder = config.get_text_config(decoder=True)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads) == (3, 2)

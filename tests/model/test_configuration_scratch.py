"""ScratchConfig: types, ranges, contradictions, unknown names, round trips."""

import json
import re

import pytest
from conftest import SMALL_MODEL
from transformers import AutoConfig

from modeling_scratch import ScratchConfig
from modeling_scratch.model import configuration_scratch


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"d_model": 30, "encoder_attention_heads": 4},
            "d_model (30) must be divisible by encoder_attention_heads (4)",
        ),
        ({"decoder_attention_heads": 7}, "decoder_attention_heads (7)"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"activation_dropout": -0.1}, "activation_dropout is -0.1"),
        ({"encoder_layers": -1}, "encoder_layers is -1"),
        ({"decoder_layers": 0}, "decoder_layers is 0"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"activation_function": "rellu"}, "did you mean relu"),
        ({"decoder_vocab_size": 70}, "share_encoder_decoder_embeddings needs one vocabulary"),
        ({"pad_token_id": 61}, "pad_token_id is 61"),
        ({"eos_token_id": [2, 99]}, "eos_token_id is 99"),
        ({"position_embedding_type": "rotary", "d_model": 36, "encoder_attention_heads": 4}, "must be even"),
        ({"eos_token_id": []}, "eos_token_id is an empty list"),
    ],
)
def test_out_of_range(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ScratchConfig(**(SMALL_MODEL | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": "512"}, "d_model is '512'; it must be int"),
        ({"d_model": True}, "d_model is True; it must be int"),
        ({"dropout": "0.1"}, "dropout is '0.1'; it must be float"),
        ({"dropout": None}, "dropout is None; it must be float"),
        ({"gated_ffn": 1}, "gated_ffn is 1; it must be bool"),
        ({"share_layers": "yes"}, "share_layers is 'yes'; it must be bool"),
        ({"activation_function": None}, "activation_function is None; it must be str"),
        ({"norm_position": "before"}, "norm_position is 'before'; it must be .*pre.*post"),
        ({"position_embedding_type": "rope"}, "position_embedding_type is 'rope'; it must be .*rotary.*alibi"),
        ({"final_norm": "encoder"}, "final_norm is 'encoder'; it must be .*bool.*decoder"),
        ({"final_norm": 1}, "final_norm is 1; it must be .*bool.*decoder"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id"),
    ],
)
def test_wrong_type(fields, message):
    with pytest.raises(ValueError, match=message):
        ScratchConfig(**fields)


def test_unknown_field_names_the_closest():
    with pytest.raises(ValueError, match="no field 'droput'; did you mean dropout"):
        ScratchConfig(droput=0.1)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "yarn"}, "rope_type is 'yarn'; it must be default or linear"),
        ({"rope_type": "linear"}, "factor is None; with 'linear' it must be at least 1"),
        ({"rope_type": "linear", "factor": -2.0}, "factor is -2.0"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_theta": "x"}, "rope_theta is 'x'"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"rope_typ": "linear"}, "no key 'rope_typ'"),
        ({"partial_rotary_factor": 0.5}, "no key 'partial_rotary_factor'"),
    ],
)
def test_rope_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        ScratchConfig(position_embedding_type="rotary", rope_parameters=parameters)


def test_integer_where_a_float_is_meant():
    assert ScratchConfig(dropout=0).dropout == 0


def test_loaded_config_keeps_unknown_keys(tmp_path, monkeypatch):
    ScratchConfig(**SMALL_MODEL).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(content | {"written_by_another_tool": 7, "target_vocab_size": 5, "field_names": 1})
    )
    messages = []
    monkeypatch.setattr(configuration_scratch.logger, "warning", messages.append)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.written_by_another_tool == 7
    assert config.target_vocab_size == SMALL_MODEL["vocab_size"]
    assert "vocab_size" in config.field_names()
    assert len(messages) == 1
    assert "written_by_another_tool" in messages[0]


def test_round_trip(tmp_path):
    fields = {"decoder_vocab_size": 70, "share_encoder_decoder_embeddings": False, "init_std": 0.02, "gated_ffn": True}
    fields |= {"final_norm": "decoder", "share_layers": True, "position_embedding_type": "alibi"}
    config = ScratchConfig(**(SMALL_MODEL | fields))
    config.save_pretrained(tmp_path)
    loaded = ScratchConfig.from_pretrained(tmp_path)
    for name in ScratchConfig.field_names():
        assert getattr(loaded, name) == getattr(config, name), name
    assert loaded.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}


def test_generic_names_and_the_decoder_s_view():
    config = ScratchConfig(**SMALL_MODEL)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 2, 4)
    decoder = config.get_text_config(decoder=True)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads) == (3, 2)

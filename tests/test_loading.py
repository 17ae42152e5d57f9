"""
Names that are no model: an error at once, which says where the name is missing. Models without generation settings: an
error or a warning, since Transformers 5.24 says nothing, searches greedily and ends after 20 tokens, or never.
"""

import json
from pathlib import Path

import pytest
from foreign_models import marian

from modeling_scratch.errors import UserError
from modeling_scratch.loading import load_config, load_translator


def client_load(name: str) -> str:
    try:
        load_config(name)
    except UserError as error:
        return str(error)
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["runs/ner", "./runs/ner", "ABSOLUTE/runs/ner", "a/b/runs", "a//b"])
def test_a_path_without_a_folder_is_an_error_that_names_a_similar_folder(name, tmp_path, monkeypatch):
    (tmp_path / "runs" / "near").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no such folder") as found:
        load_config(name.replace("ABSOLUTE", str(tmp_path)))
    assert ("did you mean" in str(found.value)) == ("ner" in name)
    assert ("runs/near?" in str(found.value)) == ("ner" in name)


def test_a_name_that_is_not_on_the_hub_is_requested_once(hub, client):
    assert "no such model on the Hub" in client(client_load, name="ada/none")
    hub.fail("reset", times=None)
    assert "the Hub does not answer" in client(client_load, name="ada/none")
    assert len(hub.requests) == 2


def test_other_failures_of_the_hub_are_left_to_its_library(hub, client):
    hub.create("ada/empty")
    assert "config.json" in client(client_load, name="ada/empty")


GENERATION = {"max_new_tokens": 64, "num_beams": 4, "eos_token_id": 2, "decoder_start_token_id": 1}


@pytest.fixture
def saved(make_model, tmp_path):
    model = make_model(encoder_layers=1, decoder_layers=1)
    model.generation_config.update(**GENERATION)
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is missing"),
        (b"\xef\xbb\xbf" + json.dumps(GENERATION).encode(), "BOM"),
        (json.dumps(GENERATION).encode()[:-5], "line 1"),
        (b"[64]", "found list"),
        (b"{}", "neither max_new_tokens nor max_length"),
        (json.dumps(GENERATION | {"max_new_tokens": None}).encode(), "neither max_new_tokens nor max_length"),
    ],
    ids=["missing", "byte order mark", "cut off", "list", "no settings", "no length"],
)
def test_a_model_without_its_generation_settings_is_refused(content, words, saved):
    (saved / "generation_config.json").unlink()
    if content is not None:
        (saved / "generation_config.json").write_bytes(content)
    with pytest.raises(UserError, match=words) as found:
        load_translator(str(saved))
    assert "generation_config.json" in str(found.value)
    assert "copy it" in str(found.value)


@pytest.mark.parametrize("key", ["eos_token_id", "decoder_start_token_id"])
def test_token_ids_that_generation_settings_lack_are_those_of_the_config(key, saved, caplog):
    rest = {name: value for name, value in GENERATION.items() if name != key}
    (saved / "generation_config.json").write_text(json.dumps(rest))
    assert getattr(load_translator(str(saved)).generation_config, key) == GENERATION[key]
    assert f"generation_config.json has no {key}" in caplog.text


@pytest.mark.parametrize("key", ["eos_token_id", "decoder_start_token_id"])
def test_token_ids_that_are_not_those_of_the_config_are_named(key, saved, caplog):
    """A further end token is the caller's business; one outside the vocabulary never ends anything."""
    path = saved / "generation_config.json"
    path.write_text(json.dumps(GENERATION | {"eos_token_id": [GENERATION["eos_token_id"], 7]}))
    load_translator(str(saved))
    assert not caplog.text
    path.write_text(json.dumps(GENERATION | {key: 7}))
    load_translator(str(saved))
    assert f"{key} is 7, but {GENERATION[key]} in config.json" in caplog.text
    path.write_text(json.dumps(GENERATION | {key: 999}))
    with pytest.raises(UserError, match=f"{key} is 999, but the vocabulary has ids below"):
        load_translator(str(saved))


def test_a_model_that_was_saved_without_settings_loads_with_a_warning(caplog):
    load_translator(str(Path(__file__).parent / "model" / "frozen_checkpoint" / "shared"))
    assert "outputs end after 20 tokens" in caplog.text


def test_generation_settings_of_another_project_may_leave_the_length_to_the_caller(tmp_path, caplog):
    marian().save_pretrained(tmp_path)
    settings = {"num_beams": 6, "eos_token_id": 2, "decoder_start_token_id": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert load_translator(str(tmp_path)).generation_config.num_beams == 6
    assert "sets neither max_new_tokens nor max_length: outputs end after 20 tokens" in caplog.text


def test_settings_in_the_config_of_another_project_are_enough(tmp_path, caplog):
    """As in the older checkpoints of OPUS-MT."""
    marian().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_length": 512, "num_beams": 6}))
    settings = load_translator(str(tmp_path)).generation_config
    assert (settings.max_length, settings.num_beams) == (512, 6)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"generation_config.json is missing"):
        load_translator(str(tmp_path))
    assert not caplog.text

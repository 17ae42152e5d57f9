"""Names that are no model: an error at once, which says where the name is missing."""

import pytest

from modeling_scratch.errors import UserError
from modeling_scratch.loading import load_config


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

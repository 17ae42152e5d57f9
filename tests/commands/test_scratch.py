"""The command `scratch`, as it is installed: in an empty folder, with recipes by name."""

import pytest
from typer.testing import CliRunner

from modeling_scratch.__main__ import app


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def scratch(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_recipes_are_listed_with_a_line_each():
    names = [line.split(maxsplit=1) for line in scratch("recipes").splitlines()]
    assert [name for name, _ in names] == [
        "embedded",
        "fine-tune",
        "multi30k-de-en",
        "multi30k-en-de",
        "own-text",
        "wmt14-en-de",
    ]
    assert all(len(what) > 20 for _, what in names)


def test_help_names_every_command_and_where_keys_are_explained():
    listed = scratch("--help")
    for command in (
        "train",
        "evaluate",
        "compare",
        "improve",
        "translate",
        "upload",
        "convert",
        "figures",
        "corpus",
        "recipes",
    ):
        assert f" {command} " in listed
        assert scratch(command, "--help")
    assert "schema.py" in scratch("train", "--help").replace("\n", "")


@pytest.mark.parametrize("config", ["embedded", "own-text"])
def test_recipes_are_found_by_name(config, tmp_path):
    (tmp_path / "embedded").mkdir()  # a folder of the user's
    if config == "own-text":
        scratch("corpus", "my-text", "--train-size", "300")
    small = ["tokenizer.vocab_size=400", "data.embedded_size=300", "model.overrides={d_model: 32, encoder_layers: 1}"]
    said = scratch("train", "--config", config, *small, "optimization.max_epochs=1", "--dry-run", "--processes", "2")
    assert "each of 2 processes" in said

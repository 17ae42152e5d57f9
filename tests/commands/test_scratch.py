"""The command `scratch`, as it is installed: in an empty folder, with recipes by name."""

import pytest
from conftest import run_command
from typer.testing import CliRunner

from modeling_scratch.__main__ import COMMANDS, app


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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_listed_and_has_help(command):
    assert f" {command} " in scratch("--help")
    assert scratch(command, "--help")


def test_the_help_of_training_says_where_keys_are_explained():
    assert "schema.py" in scratch("train", "--help").replace("\n", "")


def test_help_does_not_wait_for_torch():
    script = "import sys; from runpy import run_module; sys.argv = ['scratch', '--help']\n"
    script += "try: run_module('modeling_scratch', run_name='__main__')\n"
    script += "finally: print('torch' in sys.modules)"
    assert run_command("-c", script).stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("config", ["embedded", "own-text"])
def test_recipes_are_found_by_name(config, tmp_path):
    (tmp_path / "embedded").mkdir()  # a folder of the user's
    if config == "own-text":
        scratch("corpus", "my-text", "--train-size", "300")
    small = ["tokenizer.vocab_size=400", "data.embedded_size=300", "model.overrides={d_model: 32, encoder_layers: 1}"]
    said = scratch("train", "--config", config, *small, "optimization.max_epochs=1", "--dry-run", "--processes", "2")
    assert "each of 2 processes" in said

"""The command `scratch` in an empty folder: its list of commands, help, and recipes by name."""

import re

import pytest
from conftest import ROOT, run_command
from typer.testing import CliRunner

from modeling_scratch.commands import COMMANDS, app


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def scratch(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_recipe_is_listed_with_its_purpose():
    rows = [line.split(maxsplit=1) for line in scratch("recipes").splitlines()]
    assert {name for name, _ in rows} == {path.stem for path in (ROOT / "configuration" / "recipes").glob("*.yaml")}
    assert all(len(purpose) > 20 for _, purpose in rows)


def test_every_command_is_listed():
    modules = (ROOT / "modeling_scratch" / "commands").glob("[!_]*.py")
    found = [path.stem for path in modules if re.search(r"^(def main\(|app = )", path.read_text(), re.MULTILINE)]
    assert sorted(COMMANDS) == sorted(found)
    listed = scratch("--help")
    assert all(f" {command} " in listed for command in found)


def test_importing_the_package_changes_nothing_outside_it(tmp_path):
    """Whatever the importing script is called."""
    importing = (
        "import logging, os, signal, sys, warnings\n"
        "from importlib import import_module\n"
        "def state():\n"
        "    handlers = [signal.getsignal(number) for number in signal.valid_signals()]\n"
        "    errors = sys.stdout.errors, sys.stderr.errors, sys.excepthook, list(warnings.filters)\n"
        "    return dict(os.environ), handlers, errors, list(sys.meta_path), list(logging.root.handlers)\n"
        "before = state()\n"
        "import modeling_scratch.__main__\n"
        f"for command in {list(COMMANDS)}:\n"
        "    import_module(f'modeling_scratch.commands.{command}')\n"
        "assert state() == before\n"
    )
    for name in ("scratch", "train.py"):
        (tmp_path / name).write_text(importing)
        done = run_command(str(tmp_path / name))
        assert done.returncode == 0, done.stderr


def test_help_and_lists_are_shown_without_importing_torch():
    """All in one process."""
    calls = [["recipes"], ["--help"], *([command, "--help"] for command in COMMANDS)]
    code = (
        "import sys\n"
        "from modeling_scratch.__main__ import main\n"
        f"for arguments in {calls}:\n"
        "    sys.argv[1:] = arguments\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, arguments\n"
        "    assert 'torch' not in sys.modules, arguments\n"
    )
    done = run_command("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == len(calls) - 1


def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path):
    """The help has an ellipsis, and folders may have any name."""
    command = ["-m", "modeling_scratch"]
    locale = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = run_command(*command, "corpus", "embedded", str(tmp_path / "日"), "--train-size", "9", **locale)
    assert done.returncode == 0, done.stderr
    assert "\\u65e5/train.en" in done.stdout
    done = run_command(*command, "serve", "--help", **locale)
    assert done.returncode == 0, done.stderr


def test_standard_output_may_be_any_object():
    code = (
        "import io, sys\n"
        "sys.stdout = io.StringIO()\n"
        "from modeling_scratch.__main__ import main\n"
        "try:\n"
        "    main('recipes')\n"
        "finally:\n"
        "    print(sys.stdout.getvalue(), file=sys.stderr)\n"
    )
    done = run_command("-c", code)
    assert done.returncode == 0, done.stderr
    assert "multi30k-en-de" in done.stderr


@pytest.mark.parametrize("config", ["embedded", "own-text"])
def test_recipes_are_found_by_name(config, tmp_path):
    (tmp_path / "embedded").mkdir()  # a folder of that name is not the recipe
    if config == "own-text":
        scratch("corpus", "embedded", "my-text", "--train-size", "300")
    small = ["tokenizer.vocab_size=400", "data.embedded_size=300", "model.overrides={d_model: 32, encoder_layers: 1}"]
    output = scratch("train", "--config", config, *small, "optimization.max_epochs=1", "--dry-run", "--processes", "2")
    assert "per process (2)" in output


def test_upload_checks_a_model_in_a_process_in_which_nothing_else_was_imported(trained):
    result = run_command("-m", "modeling_scratch", "upload", str(trained), "user/name", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "a clean process without this project: the same ids" in result.stdout + result.stderr

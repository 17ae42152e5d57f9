"""The command `scratch` in an empty folder: its list of commands, help, and recipes by name."""

import re
import sys

import pytest
from conftest import ROOT, run_command
from typer.testing import CliRunner

import modeling_scratch
from modeling_scratch.__main__ import COMMANDS, app


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
    modules = (ROOT / "modeling_scratch" / "commands").glob("*.py")
    found = [path.stem for path in modules if re.search(r"^(def main\(|app = )", path.read_text(), re.MULTILINE)]
    assert sorted(COMMANDS) == sorted(found)
    listed = scratch("--help")
    assert all(f" {command} " in listed for command in found)


@pytest.mark.parametrize(
    ("is_command", "line", "started"),
    [
        (True, "python -m modeling_scratch translate", "-m"),
        (True, "python -um modeling_scratch.apps.convert", "-m"),
        (True, "python -mmodeling_scratch", "-m"),
        (True, "python train.py", "ROOT/train.py"),
        (True, "python hub_upload.py", "hub_upload.py"),
        (True, "scratch train", "INSTALLED/scratch"),
        (False, "python -m modeling_scratch_too", "-m"),
        (False, "python -m pytest", "-m"),
        (False, "python -c pass", "-c"),
        (False, "somebody's", "THEIRS/scratch"),
        (False, "python train.py", "THEIRS/train.py"),
    ],
)
def test_our_commands_are_recognized(is_command, line, started, tmp_path, monkeypatch):
    """They import the model late. Elsewhere, importing the package registers it with the Auto classes."""
    (tmp_path / "scratch").write_text("import modeling_scratch\n")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "scratch").write_text("import sys\nfrom modeling_scratch.__main__ import app\n")
    folders = {"ROOT": ROOT, "THEIRS": tmp_path, "INSTALLED": tmp_path / "installed"}
    for name, folder in folders.items():
        started = started.replace(name, str(folder))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [started])
    monkeypatch.setattr(sys, "orig_argv", line.split())
    assert modeling_scratch._is_command() == is_command


def test_help_and_lists_are_shown_without_importing_torch(tmp_path):
    """In one process that looks like the installed command."""
    calls = [["recipes"], ["--help"], *([command, "--help"] for command in COMMANDS)]
    (tmp_path / "scratch").write_text(
        "import sys\n"
        "from modeling_scratch.__main__ import app\n"
        f"for arguments in {calls}:\n"
        "    try:\n"
        "        app(arguments)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, arguments\n"
        "    assert 'torch' not in sys.modules, arguments\n"
    )
    done = run_command(str(tmp_path / "scratch"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == len(calls) - 1


def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path):
    """The help has an ellipsis, and folders may have any name."""
    command = ["-m", "modeling_scratch"]
    locale = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = run_command(*command, "corpus", str(tmp_path / "日"), "--train-size", "9", **locale)
    assert done.returncode == 0, done.stderr
    assert "\\u65e5/train.en" in done.stdout
    done = run_command(*command, "serve", "--help", **locale)
    assert done.returncode == 0, done.stderr


def test_standard_output_may_be_any_object(tmp_path):
    (tmp_path / "scratch").write_text(
        "import io, sys\n"
        "sys.stdout = io.StringIO()\n"
        "from modeling_scratch.__main__ import app\n"
        "try:\n"
        "    app(['recipes'])\n"
        "finally:\n"
        "    print(sys.stdout.getvalue(), file=sys.stderr)\n"
    )
    done = run_command(str(tmp_path / "scratch"))
    assert done.returncode == 0, done.stderr
    assert "multi30k-en-de" in done.stderr


@pytest.mark.parametrize("config", ["embedded", "own-text"])
def test_recipes_are_found_by_name(config, tmp_path):
    (tmp_path / "embedded").mkdir()  # a folder of that name is not the recipe
    if config == "own-text":
        scratch("corpus", "my-text", "--train-size", "300")
    small = ["tokenizer.vocab_size=400", "data.embedded_size=300", "model.overrides={d_model: 32, encoder_layers: 1}"]
    output = scratch("train", "--config", config, *small, "optimization.max_epochs=1", "--dry-run", "--processes", "2")
    assert "per process (2)" in output


def test_upload_checks_a_model_in_a_process_in_which_nothing_else_was_imported(trained):
    result = run_command("-m", "modeling_scratch", "upload", str(trained), "user/name", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "a clean process without this project: the same ids" in result.stdout + result.stderr

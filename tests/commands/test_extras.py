"""The base requirements suffice to load, translate and convert; other commands name the extra they need."""

import os
import re
import socket
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from transformers import AutoModelForSeq2SeqLM
from translators import best
from waiting import LONGEST

from modeling_scratch.loading import load_tokenizers

SITE = Path(sysconfig.get_paths()["purelib"])


def closure(requirements: list[str]) -> set[str]:
    """The distributions that pip would install for these requirements, without extras."""
    found: set[str] = set()
    while requirements:
        requirement = Requirement(requirements.pop())
        name = requirement.name.lower().replace("_", "-")
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            requirements += distribution(name).requires or []
    return found


def isolated(folder: Path, *extras: str):
    """A function that runs Python with only the base requirements and those of some extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [
        *project["dependencies"],
        *(each for extra in extras for each in project["optional-dependencies"][extra]),
    ]
    for name in closure([each for each in required if not each.startswith("modeling-scratch")]):
        for top in {file.parts[0] for file in distribution(name).files or [] if file.parts[0] not in ("..", "")}:
            if (SITE / top).exists() and not (folder / top).exists():
                (folder / top).symlink_to(SITE / top)

    def run(*command: str, text: str = "") -> subprocess.CompletedProcess:
        start = f"import runpy, sys; sys.path[:0] = ['{ROOT}', '{folder}']; sys.argv = sys.argv[1:]; "
        start += "name = sys.argv[0]; run = runpy.run_path if name.endswith('.py') else runpy.run_module; "
        start += "run(name, run_name='__main__', **({} if name.endswith('.py') else {'alter_sys': True}))"
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", start, *command],
            input=text,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONUTF8": "1"},
            timeout=LONGEST,
        )

    return run


@pytest.fixture(scope="session")
def run_base(tmp_path_factory):
    return isolated(tmp_path_factory.mktemp("site"))


@pytest.mark.slow
def test_translations_are_those_of_the_full_environment(run_base, trained):
    result = run_base("modeling_scratch", "translate", str(trained), text="The dog sees the cat.\n\nA bird.\n")
    assert result.returncode == 0, result.stderr
    model, tokenizers = AutoModelForSeq2SeqLM.from_pretrained(trained), load_tokenizers(str(trained))
    first, second = best(model, *tokenizers, ["The dog sees the cat.", "A bird."])
    assert result.stdout.split("\n") == [first, "", second, ""]


@pytest.mark.slow
def test_the_service_starts_with_its_extra(tmp_path, trained):
    """It ends when it binds its address, which is in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = isolated(tmp_path, "text", "serve")("modeling_scratch", "serve", str(trained), "--port", port)
    assert re.fullmatch(rf"error: .*{port}: Address already in use.*\n", result.stderr)


@pytest.mark.slow
def test_models_are_converted_without_extras(run_base, make_model, tmp_path):
    same = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_attention_heads": 4}
    make_model(**same).save_pretrained(tmp_path / "model")
    result = run_base("modeling_scratch", "convert", "to-torch", str(tmp_path / "model"), str(tmp_path / "weights.pt"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "weights.pt").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["train.py"], ["hub_upload.py", "runs/x", "a/b"], ["train.py", "--dry-run"], ["figures", "architecture"]],
    ids=" ".join,
)
def test_commands_name_the_missing_extra(run_base, command):
    name, *arguments = command
    result = run_base(*([str(ROOT / name)] if name.endswith(".py") else ["modeling_scratch", name]), *arguments)
    assert result.returncode == 2, result.stderr
    assert re.fullmatch(r"error: this needs \w+, .*pip install 'modeling-scratch\[\w+\]'\n", result.stderr)

"""docs/jobs/train.py, which uv starts in an environment of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT, SMALL_RUN, run_command

SCRIPT = ROOT / "docs" / "jobs" / "train.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# As in PEP 723.
METADATA = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


def test_the_script_depends_on_this_project_from_git():
    (block,) = METADATA.finditer(SCRIPT.read_text(encoding="utf-8"))
    metadata = tomllib.loads("".join(line[2:] or "\n" for line in block["content"].splitlines(keepends=True)))
    (requirement,) = metadata["dependencies"]
    name, extra = re.fullmatch(r"(.+)\[(.+)\]", requirement).groups()
    assert name == PROJECT["name"]
    assert extra in PROJECT["optional-dependencies"]
    assert metadata["requires-python"] == PROJECT["requires-python"]
    assert metadata["tool"]["uv"]["sources"].keys() == {name}
    assert metadata["tool"]["uv"]["sources"][name].keys() == {"git"}


@pytest.mark.slow
def test_the_script_passes_its_arguments_to_scratch_train():
    done = run_command(str(SCRIPT), "--config", "dates", "optimization.max_step=1")
    assert done.returncode == 2
    assert "optimization.max_steps" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("uv"), reason="uv is not installed")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is not a checkout")
def test_uv_trains_the_committed_code_in_a_clean_folder(tmp_path):
    """With the pinned versions, which uv fetches, and the local repository in place of the address in the script."""
    text = SCRIPT.read_text(encoding="utf-8")
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pinned = text.replace("# ///\n", f"# [tool.uv]\n# constraint-dependencies = {json.dumps(pins)}\n# ///\n", 1)
    script = tmp_path / "train.py"
    script.write_text(pinned, encoding="utf-8")
    (address,) = re.findall(r'git = "(.+)"', text)
    local = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": address,
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | local
    (tmp_path / "clean").mkdir()
    subprocess.run(
        ["uv", "run", "--python", sys.executable, script, *SMALL_RUN, "optimization.max_steps=2"],
        cwd=tmp_path / "clean",
        env=environment,
        check=True,
    )
    assert (tmp_path / "clean" / "runs" / "embedded" / "model.safetensors").is_file()

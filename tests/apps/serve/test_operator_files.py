"""The files for operators: systemd, nginx and Compose accept them, where installed, and they fit the command."""

import re
import shutil
import subprocess

import pytest
import yaml
from conftest import ROOT
from typer.testing import CliRunner

from modeling_scratch.commands import app

FOLDER = ROOT / "configuration" / "serve"


def needs(program: str):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"needs {program}")


@needs("systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "scratch-serve.service"
    text = (FOLDER / unit.name).read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/scratch/bin/scratch", shutil.which("true")), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@needs("nginx")
def test_nginx_accepts_the_site(tmp_path):
    settings = tmp_path / "nginx.conf"
    site = (FOLDER / "nginx.conf").read_text(encoding="utf-8")
    settings.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{site}}}\n", encoding="utf-8")
    done = subprocess.run(["nginx", "-t", "-c", settings], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs("docker-compose")
def test_compose_accepts_its_file():
    done = subprocess.run(["docker-compose", "--file", FOLDER / "compose.yaml", "config"], capture_output=True)
    assert done.returncode == 0, done.stderr


def test_they_start_the_service_with_options_and_variables_that_exist():
    known = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]["scratch-serve"]
    unit = (FOLDER / "scratch-serve.service").read_text(encoding="utf-8")
    container = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    started = re.findall(r"^ExecStart=.*|^ENTRYPOINT .*", f"{unit}\n{container}", re.MULTILINE)
    assert len(started) == 2
    for name in re.findall(r"--[a-z-]+", " ".join([*started, *service["command"]])):
        assert f"{name} " in known, name
    for name in re.findall(r"SCRATCH_\w+", " ".join([unit, *service["environment"]])):
        assert name in known, name

"""A resumed run has as many threads as before, and waiting threads give up their cores after a while."""

import json
import os
import subprocess
import sys
import tomllib

import pytest
import torch
from conftest import ROOT, quick_run

from modeling_scratch.__main__ import SPIN_COUNT
from modeling_scratch.run.folder import STATE
from modeling_scratch.run.progress import Progress
from modeling_scratch.training import setup

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def threads(monkeypatch):
    """The number of threads that PyTorch is set to, without the threads, which would slow down other tests."""
    number_of_threads = [1]
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "get_num_threads", lambda: number_of_threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: number_of_threads.__setitem__(0, number))
    return number_of_threads


def test_a_resumed_run_has_as_many_threads_as_before(threads, tmp_path, capsys):
    threads[0] = 2
    run = quick_run(tmp_path / "run", "optimization.max_steps=1")
    assert json.loads((run / "checkpoints" / "step-0000001" / STATE).read_text())["threads"] == 2
    for updates, default, expected in ((2, 4, 2), (3, 1, 1)):
        threads[0] = default
        quick_run(run, f"optimization.max_steps={updates}", resume=True)
        assert threads[0] == expected
        assert ("rounding differs" in capsys.readouterr().err) == (expected == 1)


def test_omp_num_threads_takes_precedence(threads, monkeypatch, caplog):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    setup.keep_threads(3)
    assert threads[0] == 1
    assert "rounding differs" in caplog.text


def test_only_a_single_process_on_the_cpu_keeps_its_threads():
    assert Progress(processes=1, device="cpu", threads=3).threads_on_cpu() == 3
    assert Progress(processes=2, device="cpu", threads=1).threads_on_cpu() == 0
    assert Progress(processes=1, device="cuda", threads=8).threads_on_cpu() == 0


# What a script that an installer writes does for `scratch`.
SCRIPT = "import sys; from {} import {} as main; sys.exit(main())".format(*PROJECT["scripts"]["scratch"].split(":"))


@pytest.mark.parametrize(
    "command",
    [["train.py"], ["hub_upload.py", "x", "y/z"], ["-m", "modeling_scratch", "train"], ["-c", SCRIPT, "train"]],
    ids=["train.py", "hub_upload.py", "module", "script"],
)
def test_commands_limit_how_long_threads_spin_unless_the_user_has_set_it(command, tmp_path):
    """They set it, and the number of kernels that oneDNN caches, before torch is imported."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    (tmp_path / "typer.py").write_text(  # in place of what all of them import first
        "import json, os, sys\n"
        "assert 'torch' not in sys.modules\n"
        f"print(json.dumps([os.environ.get(name) for name in {names}]), flush=True)\n"
        "os._exit(0)\n"
    )
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    for given, expected in (
        ({}, [None, SPIN_COUNT, "8192"]),
        ({"GOMP_SPINCOUNT": "7", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "9"}, [None, "7", "9"]),
        ({"OMP_WAIT_POLICY": "passive"}, ["passive", None, "8192"]),
    ):
        environment = inherited | {"PYTHONPATH": f"{tmp_path}:{ROOT}"} | given
        started = [sys.executable, *command]
        done = subprocess.run(started, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == expected

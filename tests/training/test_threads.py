"""A resumed run has as many threads as before, and waiting threads give up their cores after a while."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, quick_run

from modeling_scratch import SPIN_COUNT
from modeling_scratch.training import processes
from modeling_scratch.training.folder import STATE
from modeling_scratch.training.progress import Progress


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
    processes.keep_threads(3)
    assert threads[0] == 1
    assert "rounding differs" in caplog.text


def test_only_a_single_process_on_the_cpu_keeps_its_threads():
    assert Progress(processes=1, device="cpu", threads=3).threads_on_cpu() == 3
    assert Progress(processes=2, device="cpu", threads=1).threads_on_cpu() == 0
    assert Progress(processes=1, device="cuda", threads=8).threads_on_cpu() == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, None)],
)
def test_commands_limit_how_long_threads_spin_unless_the_user_has_set_it(given, expected):
    code = "import os, sys; sys.argv = ['train.py']; import modeling_scratch; print(os.environ.get('GOMP_SPINCOUNT'))"
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(expected)

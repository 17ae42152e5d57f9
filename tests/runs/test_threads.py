"""Threads of a training: no more than there are idle cores, the same on resume."""

import json
import logging
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import quick_run

from modeling_scratch.runs import threads
from modeling_scratch.runs.checkpoint_store import STATE


@pytest.fixture
def machine(monkeypatch, caplog):
    """A function that makes this a machine with so many cores, of which other processes keep some busy."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    caplog.set_level(logging.INFO, logger="modeling_scratch")
    before = torch.get_num_threads()

    def machine(cores: int, user: float = 0.0, system: float = 0.0, threads_by_default: int | None = None) -> None:
        here = 0.7  # a core that this process uses itself
        clocks = iter([(100.0, 5.0, 1.0), (104.0, 5.0 + 4 * (user + system + here), 1.0 + 4 * here)])
        monkeypatch.setattr(threads._Watch, "_clocks", lambda self: next(clocks))
        monkeypatch.setattr(psutil, "cpu_count", lambda: cores)
        monkeypatch.setattr(threads, "watch", threads._Watch())
        monkeypatch.setattr(threads, "_default_threads", lambda: threads_by_default or cores)

    yield machine
    torch.set_num_threads(before)


def cpu(processes: int = 1) -> SimpleNamespace:
    return SimpleNamespace(device=torch.device("cpu"), num_processes=processes)


@pytest.mark.parametrize(
    ("cores", "user", "system", "by_default", "expected"),
    [
        (2, 0.0, 0.0, 2, 2),
        (2, 0.3, 0.1, 2, 2),
        (2, 0.9, 0.1, 2, 1),
        (2, 2.0, 0.0, 2, 1),
        (8, 3.0, 0.0, 8, 5),
        (16, 3.0, 0.0, 8, 8),  # two hardware threads a core: PyTorch has a thread for each core
        (64, 40.0, 0.0, 2, 2),  # a container with two of a large machine's cores
    ],
)
def test_there_are_no_more_than_idle_cores(machine, cores, user, system, by_default, expected, caplog):
    machine(cores, user, system, by_default)
    threads.choose_threads(cpu())
    assert torch.get_num_threads() == expected
    said = f"threads: {expected} and not {by_default}, as other processes use {user + system:.1f} of {cores} cores"
    assert (said in caplog.text) == (expected != by_default)


def test_the_environment_and_launchers_and_gpus_decide(machine, monkeypatch):
    machine(4, user=3.0)
    torch.set_num_threads(3)
    threads.choose_threads(cpu(processes=2))
    threads.choose_threads(SimpleNamespace(device=torch.device("cuda"), num_processes=1))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    threads.choose_threads(cpu())
    assert torch.get_num_threads() == 3


def test_a_resumed_run_has_as_many_as_before(machine, tmp_path, capsys):
    machine(4, user=2.0)
    run = quick_run(tmp_path / "run", "optimization.max_steps=2")
    assert json.loads((run / "checkpoints" / "step-0000002" / STATE).read_text())["threads"] == 2
    machine(4)
    quick_run(tmp_path / "run", "optimization.max_steps=3", resume=True)
    assert torch.get_num_threads() == 2
    assert "threads: 2 and not 4, as the run trained before" in capsys.readouterr().err
    machine(1)
    quick_run(tmp_path / "run", "optimization.max_steps=4", resume=True)
    assert torch.get_num_threads() == 1


def test_other_processes_are_seen():
    spin = "import time; began = time.monotonic()\nwhile time.monotonic() < began + 60: pass"
    watch = threads._Watch()
    with subprocess.Popen([sys.executable, "-c", spin]) as other:
        assert watch.busy_cores() > 0.3  # it shares the cores with other tests
        other.kill()

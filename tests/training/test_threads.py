"""Threads of a training: no more than there are idle cores, the same on resume."""

import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import ROOT, quick_run

from modeling_scratch import _spin_count
from modeling_scratch.training import processes as threads
from modeling_scratch.training.checkpoints import Progress
from modeling_scratch.training.folder import STATE


@pytest.fixture
def machine(monkeypatch, caplog):
    """A function that gives this process so many cores, of which other processes keep some busy."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    caplog.set_level(logging.INFO, logger="modeling_scratch")
    before = torch.get_num_threads()

    def machine(cores: int, busy: float = 0.0, by_default: int | None = None) -> None:
        here = 0.7  # a core that this process uses itself
        clocks = iter([(100.0, 5.0, 1.0), (104.0, 5.0 + 4 * (busy + here), 1.0 + 4 * here)])
        monkeypatch.setattr(threads, "_clocks", lambda: next(clocks))
        monkeypatch.setattr(threads, "_RECENT", 1e9)
        monkeypatch.setattr(threads, "_cores", lambda: list(range(cores)))
        monkeypatch.setattr(threads, "watch", threads._Watch())
        monkeypatch.setattr(threads, "_default_threads", lambda: by_default or cores)

    yield machine
    torch.set_num_threads(before)


def cpu(processes: int = 1) -> SimpleNamespace:
    return SimpleNamespace(device=torch.device("cpu"), num_processes=processes)


@pytest.mark.parametrize(
    ("cores", "busy", "by_default", "expected"),
    [
        (2, 0.0, 2, 2),
        (2, 0.4, 2, 2),
        (2, 1.0, 2, 1),
        (2, 2.0, 2, 1),
        (8, 3.0, 8, 5),
        (16, 3.0, 8, 8),  # two hardware threads a core: PyTorch has a thread for each core
    ],
)
def test_there_are_no_more_than_idle_cores(machine, cores, busy, by_default, expected, caplog):
    machine(cores, busy, by_default)
    threads.choose_threads(cpu())
    assert torch.get_num_threads() == expected
    said = f"threads: {expected} and not {by_default}, as other processes use {busy:.1f} of {cores} cores"
    assert (said in caplog.text) == (expected != by_default)


def test_the_environment_and_launchers_and_gpus_decide(machine, monkeypatch):
    machine(4, busy=3.0)
    torch.set_num_threads(3)
    threads.choose_threads(cpu(processes=2))
    threads.choose_threads(SimpleNamespace(device=torch.device("cuda"), num_processes=1))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    threads.choose_threads(cpu())
    assert torch.get_num_threads() == 3


@pytest.fixture
def one_thread(monkeypatch):
    """PyTorch reports the number it was told, but computes with one thread: several would spin on busy cores."""
    told = [torch.get_num_threads()]
    monkeypatch.setattr(torch, "set_num_threads", lambda number: told.__setitem__(0, number))
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[0])


def test_a_resumed_run_has_as_many_as_before(one_thread, machine, tmp_path, capsys):
    machine(4, busy=2.0)
    run = quick_run(tmp_path / "run", "optimization.max_steps=1")
    assert json.loads((run / "checkpoints" / "step-0000001" / STATE).read_text())["threads"] == 2
    machine(4)
    quick_run(tmp_path / "run", "optimization.max_steps=2", resume=True)
    assert torch.get_num_threads() == 2
    said = capsys.readouterr().err
    assert "threads: 2 and not 4, as the run trained before" in said
    assert "rounding" not in said
    machine(1)
    quick_run(tmp_path / "run", "optimization.max_steps=3", resume=True)
    assert torch.get_num_threads() == 1
    assert "threads: 1 instead of 2: the rounding differs from here on" in capsys.readouterr().err


def test_only_a_process_alone_on_the_cpu_has_a_number_to_keep():
    assert Progress(processes=1, device="cpu", threads=3).threads_on_cpu() == 3
    assert Progress(processes=2, device="cpu", threads=1).threads_on_cpu() == 0
    assert Progress(processes=1, device="cuda", threads=8).threads_on_cpu() == 0


def test_only_own_cores_and_a_recent_moment_count(monkeypatch):
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system does not say which cores a process may use")
    times = [SimpleNamespace(user=10.0, system=1.0, nice=3.0), SimpleNamespace(user=500.0, system=0.0, nice=0.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(os, "nice", lambda change: 0)
    assert threads._clocks()[1] == 11.0
    monkeypatch.setattr(threads, "_SECONDS", 0.0)
    watch = threads._Watch()
    watch.before = (watch.before[0] - 3600.0, 0.0, 0.0)
    assert watch.busy_cores() == 0.0


@pytest.mark.parametrize(
    ("described", "turns"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", "2000"),
        ("processor\t: 0\nvendor_id\t: GenuineIntel\n", "16000"),
        ("processor\t: 0\nBogoMIPS\t: 243.75\n", None),  # ARM
        (None, None),  # not Linux
    ],
)
def test_how_long_waiting_threads_spin(described, turns, tmp_path):
    if described is not None:
        (tmp_path / "cpuinfo").write_text(described)
    assert _spin_count(tmp_path / "cpuinfo") == turns


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, _spin_count()), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, None)],
)
def test_commands_set_it_unless_the_user_has(given, expected):
    shown = "import os, sys; sys.argv = ['train.py']; import modeling_scratch; print(os.environ.get('GOMP_SPINCOUNT'))"
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    command = [sys.executable, "-c", shown]
    found = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(expected)

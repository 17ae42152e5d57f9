"""train.py as a process among others: its output, its signals, the files it leaves, the processes it waits for."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from conftest import ROOT, SMALL_RUN, few_sentences, quick_run
from forked import start_group
from train_on_processes import train_and_die

from modeling_scratch.errors import UserError
from modeling_scratch.hub import push as hub
from modeling_scratch.training import log
from modeling_scratch.training import train as loop
from modeling_scratch.training.stopping import StopRequest

SHORT = ["optimization.max_steps=2", "evaluation.every=2", "checkpoints.every=2"]


# -- output ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pushes(monkeypatch):
    """The repositories that are pushed to."""
    pushed: list[str] = []
    monkeypatch.setattr("modeling_scratch.hub.push.check_destination", lambda recipe: None)
    monkeypatch.setattr(
        hub,
        "push_run",
        lambda recipe: pushed.append(recipe.hub.repository) or hub.Pushed("https://hub/1", True, "ada/model", "1"),
    )
    return pushed


def test_a_run_ends_with_the_line_that_loads_it(pushes, tmp_path, capsys):
    quick_run(tmp_path / "run", *SHORT, "hub.repository=ada/model")
    line = 'AutoModelForSeq2SeqLM.from_pretrained("ada/model", revision="1", trust_remote_code=True)'
    assert capsys.readouterr().out.endswith(f"pushed: https://hub/1\n  {line}\n")


def test_a_push_that_fails_leaves_the_report(pushes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hub, "push_run", lambda recipe: (_ for _ in ()).throw(UserError("no connection")))
    with pytest.raises(SystemExit) as end:
        quick_run(tmp_path / "run", *SHORT, "hub.repository=ada/model")
    assert end.value.code == 2
    output = capsys.readouterr()
    assert "The model is in" in output.out
    assert "error: no connection" in output.err


def test_ctrl_c_in_the_push_says_that_the_model_is_whole_and_how_to_push_it(tmp_path, monkeypatch, capsys):
    def interrupted(folder, options):
        raise KeyboardInterrupt

    monkeypatch.setattr("modeling_scratch.hub.push.check_destination", lambda recipe: None)
    monkeypatch.setattr(hub, "push", interrupted)
    run = tmp_path / "run"
    with pytest.raises(SystemExit) as end:
        quick_run(run, *SHORT, "hub.repository=ada/model")
    assert end.value.code == 130
    output = capsys.readouterr()
    assert f"scratch upload {run} ada/model" in output.err
    assert "The model is in" in output.out


def test_a_log_without_a_terminal_says_what_is_left_and_what_it_does(tmp_path, capsys):
    quick_run(tmp_path / "run", "optimization.max_steps=4", "evaluation.every=2")
    output = capsys.readouterr().err
    assert re.search(r"step 2 of 4: loss [\d.]+, [\d,]+ target tokens/s, about \d+ s left", output)
    assert "translating the 40 sentences of the test split with the final weights" in output
    assert "\r" not in output


def test_the_time_left_does_not_count_compiling(tmp_path, monkeypatch, capsys):
    offset = 0

    def compiling(*args):  # as if it took an hour
        nonlocal offset
        offset = 3600

    monkeypatch.setattr(loop, "make_graphs", compiling)
    monkeypatch.setattr(log, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + offset))
    quick_run(tmp_path / "run", "compile=true", "optimization.max_steps=4", "evaluation.every=2")
    assert offset == 3600
    assert re.search(r"step 2 of 4: .*, about \d+ s left", capsys.readouterr().err)


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_honour_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        quick_run(tmp_path / "run", "optimization.max_steps=2", "checkpoints.average_last=2", "checkpoints.every=1")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 40
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == {
        path.name: oct(0o640) for path in files
    }


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.2, 1.5])
def test_ctrl_c_while_python_imports_prints_no_page(seconds, tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # as in a foreground
        )
        for command in ([str(ROOT / "train.py")], ["-m", "modeling_scratch", "translate", "x"])
    ]
    for process in processes:
        used = psutil.Process(process.pid).cpu_times
        while process.poll() is None and sum(used()[:2]) < seconds:  # of the processor: the machine may be busy
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
    for process in processes:
        output = process.communicate(timeout=60)[1]
        assert process.returncode in (-signal.SIGINT, 130)
        assert "Traceback" not in output
    assert not any(tmp_path.iterdir())


def test_nohup_is_respected(monkeypatch, tmp_path):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number == signal.SIGHUP else None)
    with StopRequest() as stop:
        assert signal.SIGHUP not in stop._before
        assert signal.SIGTERM in stop._before


# -- other processes ---------------------------------------------------------------------------------------------------


def test_a_process_that_is_lost_while_the_folder_is_made_ends_the_others_at_once(tmp_path):
    options = [*SMALL_RUN, *few_sentences(), *SHORT, f"output_dir={tmp_path / 'run'}"]
    lost, other = start_group(tmp_path / "output", train_and_die, [["recipe.yaml", *options]] * 2)
    assert lost.end() == -signal.SIGKILL
    assert other.end(20) == 2
    assert other.said.splitlines()[-1].startswith("error: process 1: another process has ended or cannot be reached")

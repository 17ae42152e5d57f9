"""train.py as a process: its output, its files, and signals."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import nullcontext

import pytest
from conftest import ROOT, quick_run
from waiting import LONGEST, wait_until

from modeling_scratch.commands import improve, recipes
from modeling_scratch.commands.cli import reporting
from modeling_scratch.errors import UserError
from modeling_scratch.hub import push as hub

SHORT = ["optimization.max_steps=2", "evaluation.every=2", "checkpoints.every=2"]


# -- output ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pushes(monkeypatch):
    """Replaces pushes, and records their repositories."""
    pushed: list[str] = []
    monkeypatch.setattr("modeling_scratch.hub.push.check_destination", lambda recipe: None)
    monkeypatch.setattr(
        hub,
        "push_run",
        lambda recipe: pushed.append(recipe.hub.repository) or hub.Pushed("https://hub/1", True, "ada/model", "1"),
    )
    return pushed


def test_a_run_that_pushes_ends_with_the_line_that_loads_the_model(pushes, tmp_path, capsys):
    quick_run(tmp_path / "run", *SHORT, "hub.repository=ada/model")
    line = 'AutoModelForSeq2SeqLM.from_pretrained("ada/model", revision="1", trust_remote_code=True)'
    assert capsys.readouterr().out.endswith(f"pushed: https://hub/1\n  {line}\n")


def test_a_failed_push_still_reports_the_folder(pushes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hub, "push_run", lambda recipe: (_ for _ in ()).throw(UserError("no connection")))
    with pytest.raises(SystemExit) as end:
        quick_run(tmp_path / "run", *SHORT, "hub.repository=ada/model")
    assert end.value.code == 2
    output = capsys.readouterr()
    assert "The model is in" in output.out
    assert "error: no connection" in output.err


def test_after_ctrl_c_during_the_push_the_command_to_push_is_shown(tmp_path, monkeypatch, capsys):
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


@pytest.fixture
def unwritable(monkeypatch):
    """Replaces standard output by a full disk, or by a pipe whose reader has closed it."""

    def replace(kind: str) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        if kind == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), writing)
        monkeypatch.setattr(sys, "stdout", os.fdopen(writing, "w"))

    return replace


@pytest.mark.parametrize(("kind", "code"), [("full", 2), ("closed", 0)])
def test_a_report_that_cannot_be_printed_prevents_no_push(
    kind, code, pushes, trained, tmp_path, unwritable, monkeypatch, capsys
):
    """What is asked for after the run is done first, and the exit code is that of the run where nobody reads."""
    run = shutil.copytree(trained, tmp_path / "run")
    monkeypatch.setattr("modeling_scratch.apps.experiments.improve.improve", lambda *_: None)
    unwritable(kind)
    with pytest.raises(SystemExit) if code else nullcontext() as end:
        quick_run(run, "hub.repository=ada/first", auto_resume=True)
    assert (end.value.code if end else 0) == code
    unwritable(kind)
    with pytest.raises(SystemExit) if code else nullcontext() as end:
        improve.main(run, ["hub.repository=ada/second"])  # also prints the stages before its work
    assert (end.value.code if end else 0) == code
    assert pushes == ["ada/first", "ada/second"]
    assert capsys.readouterr().err.count("the run is finished; its report could not be printed: ") == 2


@pytest.mark.parametrize(("kind", "code"), [("full", 2), ("closed", 141)])
def test_a_list_that_cannot_be_printed_is_an_error(kind, code, unwritable):
    unwritable(kind)
    with pytest.raises(SystemExit) as end:
        recipes.main()
    assert end.value.code == code


def test_after_an_error_the_report_so_far_is_printed(capsys):
    """As when a second push fails."""

    def push_two():
        with reporting("both are pushed") as lines:
            lines.append("pushed: the first")
            raise UserError

    with pytest.raises(UserError):
        push_two()
    assert capsys.readouterr().out == "pushed: the first\n"


def test_the_log_without_a_terminal_has_lines_with_the_remaining_time(tmp_path, capsys):
    quick_run(tmp_path / "run", "optimization.max_steps=4", "evaluation.every=2")
    output = capsys.readouterr().err
    assert re.search(r"step 2 of 4: loss [\d.]+, [\d,]+ target tokens/s, about \d+ s left", output)
    assert "scoring the final weights on the 40 pairs of the test split" in output
    assert "\r" not in output


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


@pytest.mark.parametrize("module", ["typer", "torch"])  # imported first, and last
def test_ctrl_c_during_imports_prints_no_traceback(module, tmp_path):
    for folder in ("modules", "importing", "here"):
        (tmp_path / folder).mkdir()
    importing = f"import os, signal\nopen(f'{tmp_path}/importing/{{os.getpid()}}', 'w').close()\nsignal.pause()\n"
    (tmp_path / "modules" / f"{module}.py").write_text(importing)
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path / "here",
            env={**os.environ, "PYTHONPATH": f"{tmp_path / 'modules'}:{ROOT}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # as in the foreground
        )
        for command in ([str(ROOT / "train.py")], ["-m", "modeling_scratch", "translate", "x"])
    ]
    for process in processes:
        wait_until((tmp_path / "importing" / str(process.pid)).exists)
        process.send_signal(signal.SIGINT)
    for process in processes:
        output = process.communicate(timeout=LONGEST)[1]
        assert process.returncode in (-signal.SIGINT, 130)
        assert "Traceback" not in output
    assert not any((tmp_path / "here").iterdir())

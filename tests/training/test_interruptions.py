"""A run that is stopped, killed, or out of disk or memory loses nothing and can be resumed."""

import math
import os
import re
import signal
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import ROOT, SMALL_RUN, Killed, equal_weights, few_sentences, quick_run, read_metrics
from forked import run_group, start, start_group
from train_on_processes import fail_on_the_second, leave_a_data_worker, train_one

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.commands.cli import one_line_errors
from modeling_scratch.errors import Stopped
from modeling_scratch.run import checkpoints
from modeling_scratch.run.folder import CheckpointStore, RunFolder
from modeling_scratch.run.processes import StopRequest

sys.path.insert(0, str(ROOT / "benchmarks"))
from resume import INTERVAL, survive

# Eight updates with four checkpoints and two evaluations, in each of which a run may be interrupted.
AVERAGING = ["checkpoints.average_last=2", "checkpoints.every=2", "evaluation.every=4"]
AVERAGING += ["optimization.max_steps=8", "optimization.warmup_steps=4"]
SHORT = ["optimization.max_steps=4"]
ENDLESS = ["optimization.max_steps=100000", "evaluation.every=100000", "checkpoints.every=100000"]


def records(run: Path) -> list[tuple]:
    """The losses and learning rate of every update, and all scores."""
    names = ("step", "epoch", "split", "loss", "cross_entropy", "learning_rate", "bleu", "chrf", "final")
    return [tuple(map(record.get, names)) for record in read_metrics(run) if record["split"] != "run"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return quick_run(tmp_path_factory.mktemp("whole") / "run", *AVERAGING)


def steps(run: Path) -> list[int]:
    return RunFolder(run).checkpoints.steps()


# -- stopped on request ------------------------------------------------------------------------------------------------


def before_call(patch, method: str, number: int, do, training: bool | None = None) -> None:
    """Call `do` before the n-th call of a method of the model, counting only calls in training mode or out of it."""
    function, calls = getattr(ScratchForConditionalGeneration, method), count(1)

    def called(self, *arguments, **options):
        if training in (None, self.training) and next(calls) == number:
            do()
        return function(self, *arguments, **options)

    patch.setattr(ScratchForConditionalGeneration, method, called)


@pytest.mark.parametrize(
    ("method", "call", "training", "step"),
    [
        pytest.param("forward", 4, True, 4, id="where a checkpoint and an evaluation are due"),
        pytest.param("generate", 1, None, 4, id="in the translations of an evaluation"),
        pytest.param("generate", 3, None, 8, id="while the final model is scored"),
    ],
)
def test_a_stopped_run_resumes_with_the_same_updates_and_scores(
    method, call, training, step, whole, tmp_path, monkeypatch, stops
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        before_call(patch, method, call, lambda: signal.raise_signal(signal.SIGTERM), training)
        log = stops(run, *AVERAGING)
    assert f"stopped by SIGTERM after update {step} of 8" in log or (step == 8 and "stopped while" in log)
    assert step in steps(run)
    quick_run(run, *AVERAGING, resume=True)
    assert records(run) == records(whole)
    assert equal_weights(run, whole)


def test_a_run_stops_at_max_minutes(whole, tmp_path, stops):
    assert "after update 1 of 8" in stops(tmp_path / "run", *AVERAGING, max_minutes=0)
    quick_run(tmp_path / "run", *AVERAGING, resume=True)
    assert equal_weights(tmp_path / "run", whole)


def test_a_launcher_that_restarts_what_fails_is_told_that_a_stopped_run_succeeded(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(SystemExit) as ended, one_line_errors(False):
        raise Stopped("stopped by --max-minutes 0")
    assert (ended.value.code, capsys.readouterr().err) == (0, "stopped by --max-minutes 0\n")


def test_the_minutes_of_a_restarted_process_are_those_of_its_launcher(monkeypatch):
    launcher = SimpleNamespace(create_time=lambda: time.time() - 3600)
    monkeypatch.setattr(psutil, "Process", {os.getppid(): launcher}.get)
    assert not StopRequest(60)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert StopRequest(60)
    assert not StopRequest(120)


def test_a_stopped_run_can_be_ended_where_it_stopped(tmp_path, stops):
    """It is evaluated, averaged and scored like a run of that length."""
    options = [*AVERAGING, "optimization.schedule=constant"]
    stops(tmp_path / "run", *options, max_minutes=0)
    quick_run(tmp_path / "run", *options, "optimization.max_steps=1", resume=True)
    other = quick_run(tmp_path / "whole", *options, "optimization.max_steps=1")
    assert records(tmp_path / "run") == records(other)
    assert equal_weights(tmp_path / "run", other)


def test_two_interrupts_end_a_run_at_once(tmp_path, monkeypatch):
    interrupt = lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)]  # noqa: E731
    before_call(monkeypatch, "forward", 5, interrupt, training=True)
    with pytest.raises(SystemExit) as stop:
        quick_run(tmp_path / "run")
    assert stop.value.code == 130
    assert not steps(tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_requests_a_stop(number):
    with StopRequest() as stop:
        assert not stop
        signal.raise_signal(number)
        assert stop
    assert stop.reason == number.name


def test_under_nohup_sighup_is_ignored(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number == signal.SIGHUP else None)
    with StopRequest() as stop:
        assert signal.SIGHUP not in stop._before
        assert signal.SIGTERM in stop._before


def test_a_process_that_dies_ends_the_others(tmp_path):
    options = [*SMALL_RUN, *few_sentences(), *ENDLESS, f"output_dir={tmp_path / 'run'}"]
    first, second = start_group(tmp_path, train_one, [options] * 2)
    first.wait_for("step 2 ")
    second.kill()
    assert first.end() == 1
    assert "if another process ended before this one" in first.output


def test_an_error_on_one_process_ends_all(tmp_path):
    run_group(tmp_path, 2, fail_on_the_second, str(tmp_path / "error"))
    errors = [(tmp_path / f"error-{rank}").read_text() for rank in range(2)]
    assert errors[0].startswith("UserError: another process")
    assert errors[1] == "OSError: disk full"


def test_a_data_worker_does_not_outlive_its_process(tmp_path):
    """Workers ignore SIGTERM, by which multiprocessing ends children at exit."""
    assert start(tmp_path / "stderr", leave_a_data_worker).end() == 0


# -- killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "kills"), [("one", 3), ("two", 3), ("stream", 3), ("two-stream", 3), ("one-compiled", 1)]
)
def test_a_run_ended_by_signals_at_random_moments_resumes(mode, kills, tmp_path):
    outcome = survive(mode, kills, tmp_path)
    assert outcome.kills == kills
    assert outcome.identical
    assert outcome.same_scores
    assert outcome.most_lost <= INTERVAL


@pytest.mark.parametrize(
    ("kind", "write", "call"),
    [
        (CheckpointStore, "begin", 1),
        (RunFolder, "write_weights", 2),
        pytest.param(CheckpointStore, "finish", 2, marks=pytest.mark.slow),
        pytest.param(RunFolder, "keep_for_averaging", 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_after_a_write_resumes(kind, write, call, whole, tmp_path, monkeypatch):
    function, calls = getattr(kind, write), count(1)

    def killed(self, *arguments, **options):
        result = function(self, *arguments, **options)
        if next(calls) == call:
            raise Killed
        return result

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(kind, write, killed)
        with pytest.raises(Killed):
            quick_run(run, *AVERAGING)
    quick_run(run, *AVERAGING, auto_resume=True)
    assert records(run) == records(whole)
    assert equal_weights(run, whole)


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_written_leaves_no_files(tmp_path, monkeypatch, fails):
    save = torch.save

    def full(state, path):
        save(state, path)
        if path.name == "optimizer.bin" and "step-0000004" in str(path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    line = fails(tmp_path / "run", *SHORT, "checkpoints.every=2")
    assert re.search("update 4 .*No space left on device.*--resume", line)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-0000002"]


def test_an_update_whose_loss_is_not_finite_is_skipped(tmp_path, monkeypatch, capsys):
    forward, calls, weights = ScratchForConditionalGeneration.forward, count(1), {}

    def poisoned(self, *arguments, **options):
        output = forward(self, *arguments, **options)
        if self.training and (call := next(calls)) in (7, 8):
            weights[call] = {name: weight.clone() for name, weight in self.state_dict().items()}
            output.loss = tuple(each * (math.nan if call == 7 else 1) for each in output.loss)
        return output

    monkeypatch.setattr(ScratchForConditionalGeneration, "forward", poisoned)
    run = quick_run(tmp_path / "run", "optimization.max_steps=9")
    assert re.search("update 7: .*skipped", capsys.readouterr().err)
    assert all(torch.equal(weight, weights[7][name]) for name, weight in weights[8].items())
    updates = {record["step"]: record for record in read_metrics(run, "train")}
    assert updates[8]["loss"] < updates[1]["loss"]
    assert updates[9]["nonfinite_updates"] == 1


def test_out_of_memory_in_training_suggests_a_setting_that_works(tmp_path, monkeypatch, fails):
    """There is memory for 160 source tokens, padding included; a micro-batch has 256."""
    forward = ScratchForConditionalGeneration.forward

    def limited(self, input_ids=None, **inputs):
        if self.training and input_ids.numel() > 160:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(ScratchForConditionalGeneration, "forward", limited)
    run, cut = tmp_path / "run", "optimization.gradient_accumulation_steps"
    line = fails(run, *SHORT, f"{cut}=2")
    assert f"{cut}=4" in line
    quick_run(run, *SHORT, f"{cut}=4", overwrite=True)


def no_memory(self, *arguments, **options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def test_out_of_memory_names_what_needed_it(tmp_path, monkeypatch, fails):
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", no_memory)
        assert "optimizer" in fails(tmp_path / "run", *SHORT)
    monkeypatch.setattr(checkpoints, "whole_optimizer_state", no_memory)
    assert "checkpoint" in fails(tmp_path / "other", *SHORT)


def test_out_of_memory_in_translation_suggests_smaller_batches_with_which_the_run_resumes(tmp_path, monkeypatch, fails):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(ScratchForConditionalGeneration, "generate", no_memory)
        line = fails(run, *SHORT)
    smaller = ["evaluation.batch_size=64", "evaluation.batch_tokens=2048"]
    assert " ".join(smaller) in line
    quick_run(run, *SHORT, *smaller, resume=True)
    assert equal_weights(run, quick_run(tmp_path / "whole", *SHORT))

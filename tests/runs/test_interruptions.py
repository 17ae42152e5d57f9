"""Runs that are stopped, killed, or short of something: nothing is lost, and what goes on is what would have been."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL_RUN, read_metrics, run_training, small_run
from safetensors.torch import load_file

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.cli import STOPPED
from modeling_scratch.data.streaming import PairStream
from modeling_scratch.runs import faults
from modeling_scratch.runs.checkpoint_store import CheckpointStore, Snapshots, verify_checkpoint
from modeling_scratch.runs.folder import RunFolder
from modeling_scratch.runs.stopping import StopDecoding, StopRequest
from modeling_scratch.training import finish, loop, validation
from modeling_scratch.training import run as training
from modeling_scratch.training.validation import Validator

sys.path.insert(0, str(ROOT / "benchmarks"))
from resume import INTERVAL, LAUNCH, survive

STREAM = ["data.streaming=true", "data.shuffle_buffer=100"]
ENDLESS = ["optimization.max_steps=100000"]
AVERAGING = ["checkpoints.average_last=2", "checkpoints.every=5", "evaluation.every=10"]


def records(run: Path) -> list[tuple]:
    """Every update's loss and rate, and all scores."""
    names = ("step", "epoch", "split", "loss", "learning_rate", "bleu", "chrf", "final")
    return [tuple(map(record.get, names)) for record in read_metrics(run) if record["split"] != "run"]


def equal_weights(first: Path, second: Path) -> bool:
    weights = [load_file(run / "model.safetensors") for run in (first, second)]
    return all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


# -- stopped on request ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return small_run(tmp_path_factory.mktemp("whole") / "run", *AVERAGING)


def stopped(capsys, run: Path, *overrides: str, **options) -> str:
    """What a run says that ends with the exit code for it."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        small_run(run, *overrides, **options)
    assert stop.value.code == STOPPED == 75
    return capsys.readouterr().err


@pytest.mark.parametrize("when", ["update 8", "update 10", "loss", "decoding", "scoring"])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(when, whole, tmp_path, monkeypatch, capsys):
    """Between checkpoints; where a checkpoint and an evaluation are due; within an evaluation; within the last one."""

    def ask(run):
        run.stop.reason = "SIGTERM"

    with monkeypatch.context() as patch:
        if when.startswith("update"):
            update, at = loop._update, int(when.split()[1])

            def asked(self, *arguments):
                if self.progress.step + 1 == at:
                    ask(self)
                return update(self, *arguments)

            patch.setattr(loop, "_update", asked)
        elif when == "loss":
            patch.setattr(Validator, "loss", lambda self: ask(self) or training_loss(self))
        elif when == "decoding":
            patch.setattr(StopDecoding, "__call__", ask_while_decoding)
        else:
            score = finish._score
            patch.setattr(finish, "_score", lambda run: ask(run) or score(run))
        said = stopped(capsys, tmp_path / "run", *AVERAGING)
    step = {"update 8": 8, "scoring": 20}.get(when, 10)
    checkpoint = tmp_path / "run" / "checkpoints" / f"step-{step:07d}"
    verify_checkpoint(checkpoint)
    if when == "scoring":
        assert "stopped while the final model was scored; --resume scores it" in said
    else:
        assert f"stopped by SIGTERM after update {step} of 20; --resume continues from {checkpoint}" in said
        assert not any(record[:3:2] == (step, "validation") for record in records(tmp_path / "run"))
    small_run(tmp_path / "run", *AVERAGING, resume=True)
    assert records(tmp_path / "run") == records(whole)
    assert equal_weights(tmp_path / "run", whole)


def test_stopped_while_a_stream_is_read(tmp_path, monkeypatch, capsys):
    """Its pools fill one after another, which takes long: it leaves between them, without the update."""
    options = [*AVERAGING, *STREAM, "optimization.gradient_accumulation_steps=2", "data.max_source_tokens=32"]
    options += ["data.max_target_tokens=32"]
    whole = small_run(tmp_path / "whole", *options)
    read, pools = PairStream.read, []
    runs = []

    def asked(self, rows, count):
        pools.append(count)
        if count == 50 and pools.count(50) == 7:  # the fourth pool of the first of two readers
            runs[-1].stop.reason = "SIGTERM"
        return read(self, rows, count)

    with monkeypatch.context() as patch:
        begin = training.TrainingRun.__init__
        patch.setattr(training.TrainingRun, "__init__", lambda self, *args: runs.append(self) or begin(self, *args))
        patch.setattr(PairStream, "read", asked)
        said = stopped(capsys, tmp_path / "run", *options)
    step = int(re.search(r"stopped by SIGTERM after update (\d+) of 20", said)[1])
    assert step > 0
    assert max(record["step"] for record in read_metrics(tmp_path / "run", "train")) == step
    small_run(tmp_path / "run", *options, resume=True)
    assert records(tmp_path / "run") == records(whole)
    assert equal_weights(tmp_path / "run", whole)


def test_two_interrupts_end_it_at_once(tmp_path, monkeypatch):
    update = loop._update

    def interrupted(self, batch):
        if self.progress.step == 5:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
        return update(self, batch)

    monkeypatch.setattr(loop, "_update", interrupted)
    with pytest.raises(SystemExit) as stop:
        small_run(tmp_path / "run")
    assert stop.value.code == 130
    assert not (tmp_path / "run" / "checkpoints").exists()


training_loss = Validator.loss


def ask_while_decoding(self, input_ids, scores, **kwargs):
    self.request.reason = "SIGTERM"
    return torch.ones(input_ids.shape[0], dtype=torch.bool)


def test_the_clock(whole, tmp_path, capsys):
    assert "stopped by --max-minutes 0 after update 1 of 20" in stopped(
        capsys, tmp_path / "run", *AVERAGING, max_minutes=0
    )
    small_run(tmp_path / "run", *AVERAGING, resume=True)
    assert equal_weights(tmp_path / "run", whole)


def start(folder: Path, *overrides: str, launcher: tuple = ()) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *launcher, "train.py", *SMALL_RUN, *ENDLESS, f"output_dir={folder}", *overrides],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_update(process: subprocess.Popen) -> None:
    for line in process.stderr:
        if line.startswith("step 2 "):
            return
    raise AssertionError("it ended before it was asked")


def end(process: subprocess.Popen, seconds: float = 25) -> str:
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < seconds
    return said


def test_signals(tmp_path):
    """Three runs at once, and a fourth that is interrupted twice."""
    quiet = ["evaluation.every=100000", "checkpoints.every=100000"]
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGINT]
    runs = [start(tmp_path / str(index), *quiet) for index in range(len(numbers))]
    for process, number in zip(runs, numbers, strict=True):
        wait_for_update(process)
        os.kill(process.pid, number)
    os.kill(runs[3].pid, signal.SIGINT)
    for index, (process, number) in enumerate(zip(runs, numbers, strict=True)):
        said = end(process)
        if index == 3:
            assert process.returncode in (130, 75)  # two at once may count as one
            continue
        assert process.returncode == 75, said
        (line,) = [line for line in said.splitlines() if line.startswith("stopped by ")]
        assert line.startswith(f"stopped by {number.name} after update ")
        verify_checkpoint(Path(line.split("continues from ")[1]))


def test_a_launcher_that_is_ended(tmp_path):
    process = start(tmp_path / "run", "evaluation.every=100000", "checkpoints.every=100000", launcher=tuple(LAUNCH))
    wait_for_update(process)
    process.send_signal(signal.SIGTERM)
    said = end(process, 40)
    assert process.returncode != 0
    verify_checkpoint(Path(re.search(r"--resume continues from (\S+)", said)[1]))


def test_a_process_that_dies(tmp_path):
    """The others stop soon, and say why."""
    process = start(tmp_path / "run", launcher=tuple(LAUNCH))
    wait_for_update(process)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    workers = [int(pid) for pid in found.stdout.split()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    said = end(process, 45)
    assert process.returncode != 0
    assert re.search(r"error: process 0: another process has ended or cannot be reached .*--resume", said), said[-3000:]


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("kind", "after"),
    [(CheckpointStore, "begin"), (CheckpointStore, "finish"), (Snapshots, "keep"), (RunFolder, "write_weights")],
)
def test_killed_between_two_writes(kind, after, whole, tmp_path, monkeypatch):
    """Each time that a run has written one thing of several: of those of a checkpoint, and of an evaluation."""
    write, calls = getattr(kind, after), []

    def killed(self, *arguments, **options):
        result = write(self, *arguments, **options)
        calls.append(arguments)
        if len(calls) == at:
            raise Killed
        return result

    for at in (1, 2, 3):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(kind, after, killed)
            with pytest.raises(Killed):
                small_run(tmp_path / "run", *AVERAGING, overwrite=at > 1)
        resumes = any((tmp_path / "run" / "checkpoints").glob("step-*"))
        small_run(tmp_path / "run", *AVERAGING, resume=resumes, overwrite=not resumes)
        assert records(tmp_path / "run") == records(whole)
        assert equal_weights(tmp_path / "run", whole)


# -- killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        ("one", 1),
        *(pytest.param(mode, 3, marks=pytest.mark.slow) for mode in ("one", "two", "stream", "two-stream")),
        pytest.param("one-compiled", 1, marks=pytest.mark.slow),
    ],
)
def test_killed(mode, kills, tmp_path):
    outcome = survive(mode, kills, tmp_path)
    assert outcome.kills == kills
    assert outcome.identical
    assert outcome.same_scores
    assert outcome.most_lost <= INTERVAL


# -- faults ------------------------------------------------------------------------------------------------------------


def fails(capsys, *overrides: str, **options) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run_training(*SMALL_RUN, *overrides, **options)
    assert stop.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_fills_up(small_disk, whole, capsys):
    """The checkpoints before are whole, and with more room the run goes on from them."""
    run = small_disk / "run"
    options = [*AVERAGING, "checkpoints.every=2", "checkpoints.keep_last=100", f"output_dir={run}"]
    line = fails(capsys, *options)
    assert "cannot be written" in line
    assert "bytes are free" in line
    checkpoints = sorted((run / "checkpoints").iterdir())
    assert checkpoints
    for checkpoint in checkpoints:
        verify_checkpoint(checkpoint)
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    run_training(*SMALL_RUN, *options, resume=True)
    assert [record[:4] for record in records(run) if record[2] == "train"] == [
        record[:4] for record in records(whole) if record[2] == "train"
    ]


def test_a_checkpoint_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    save = torch.save

    def full(state, path):
        save(state, path)
        if path.name == "optimizer.bin" and "step-0000020" in str(path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    line = fails(capsys, f"output_dir={tmp_path / 'run'}")
    assert re.search(r"the checkpoint of update 20 cannot be written .*No space left on device.*then --resume", line)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-0000010"]


def test_updates_that_are_not_finite_are_skipped(tmp_path, monkeypatch, caplog):
    """One such loss, at update 7: the weights stay as they were, and the run goes on."""
    update = loop._update
    seen = {}

    def poisoned(self, batch):
        if self.progress.step + 1 != 7:
            return update(self, batch)
        before = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        batch.micro_batches = iter([{**micro, "labels": micro["labels"]} for micro in batch.micro_batches])
        batch.target_tokens = 0  # by which the loss is divided
        result = update(self, batch)
        seen["same"] = all(torch.equal(weight, before[name]) for name, weight in self.model.state_dict().items())
        return result

    monkeypatch.setattr(loop, "_update", poisoned)
    with caplog.at_level("WARNING", logger="modeling_scratch"):
        monkeypatch.setattr(loop.logger, "propagate", True)
        run = small_run(tmp_path / "run")
    assert seen["same"]
    losses = {record["step"]: record for record in read_metrics(run, "train")}
    assert losses[8]["loss"] < losses[1]["loss"]
    assert losses[20]["nonfinite_updates"] == 1


@pytest.fixture
def little_memory(monkeypatch):
    """Forward passes of more than so many source tokens, padding included, find no memory."""
    forward = ScratchForConditionalGeneration.forward

    def limit(tokens: int) -> None:
        def limited(self, input_ids=None, **inputs):
            if input_ids is not None and input_ids.numel() > tokens:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
            return forward(self, input_ids=input_ids, **inputs)

        monkeypatch.setattr(ScratchForConditionalGeneration, "forward", limited)

    return limit


def test_a_lack_of_memory_says_what_fits(little_memory, tmp_path, monkeypatch, capsys):
    """The number that it says is enough, and half of it is not."""
    little_memory(160)  # a micro-batch has up to 256
    options = [f"output_dir={tmp_path / 'run'}", "evaluation.batch_size=2", "optimization.max_steps=4"]
    line = fails(capsys, *options, "optimization.gradient_accumulation_steps=2")
    found = re.search(r"out of memory on cpu with \((\d+), (\d+)\) source and \(\d+, \d+\) target tokens at once", line)
    assert int(found[1]) * int(found[2]) > 160
    steps = int(re.search(r"set optimization.gradient_accumulation_steps=(\d+), which changes no update", line)[1])
    assert f"optimization.tokens_per_batch={512 * 2 // steps}, which does" in line
    fewer = fails(capsys, *options, f"optimization.gradient_accumulation_steps={steps // 2}", overwrite=True)
    assert f"gradient_accumulation_steps={steps}," in fewer
    monkeypatch.setattr(validation, "EVALUATION_TOKENS", 160)
    run_training(*SMALL_RUN, *options, f"optimization.gradient_accumulation_steps={steps}", overwrite=True)


def test_a_lack_of_memory_for_one_pair_for_the_optimizer_for_translations(little_memory, tmp_path, monkeypatch, capsys):
    options = [f"output_dir={tmp_path / 'run'}", "optimization.max_steps=4"]
    little_memory(1)
    assert "not even one pair fits: use a smaller model" in fails(capsys, *options)
    little_memory(512)

    def generate(self, *arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    whole = small_run(tmp_path / "whole", options[1])
    with monkeypatch.context() as patch:
        patch.setattr(ScratchForConditionalGeneration, "generate", generate)
        line = fails(capsys, *options, overwrite=True)
    smaller = ["evaluation.batch_size=64", "evaluation.batch_tokens=2048"]
    assert f"translating the validation split: set {' '.join(smaller)}, and --resume" in line
    run_training(*SMALL_RUN, *options, *smaller, resume=True)
    assert equal_weights(tmp_path / "run", whole)

    def step(self, closure=None):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step)
        line = fails(capsys, *options, overwrite=True)
    assert "for the optimizer, whose states are 8 bytes a parameter: use a smaller model, or set optimization" in line


def test_a_damaged_cache_says_what_to_delete(tmp_path, capsys):
    import datasets

    from modeling_scratch.data.corpus import write_corpus

    write_corpus(tmp_path / "text", 300)
    files = [f"data.{split}_files={tmp_path / 'text' / split}" for split in ("train", "validation", "test")]
    before = set(Path(datasets.config.HF_DATASETS_CACHE).rglob("*.arrow"))
    small_run(tmp_path / "run", *files, "optimization.max_steps=2")
    new = set(Path(datasets.config.HF_DATASETS_CACHE).rglob("*.arrow")) - before
    assert new
    for path in new:
        content = path.read_bytes()
        for damage in (content[: len(content) // 2], bytes(len(content))):
            path.write_bytes(damage)
            line = fails(capsys, *files, f"output_dir={tmp_path / 'new'}")
            assert "a file in the cache of datasets is damaged" in line
            assert str(datasets.config.HF_DATASETS_CACHE) in line
        path.write_bytes(content)


def test_what_fails_on_one_process_fails_on_all():
    """`together` with a stand-in for the other process."""

    class Others:
        num_processes = 2

    def gather(said, monkeypatch, other):
        monkeypatch.setattr(faults, "gather_object", lambda mine: [*mine, other])

    with pytest.MonkeyPatch.context() as patch:
        gather(None, patch, "OSError: disk full")
        with pytest.raises(ValueError, match="another process failed: OSError: disk full"):
            faults.together(Others(), lambda: 1)
        gather(None, patch, None)
        assert faults.together(Others(), lambda: 1) == 1
        with pytest.raises(KeyError):
            faults.together(Others(), lambda: {}["x"])


def test_a_clock_that_jumps(monkeypatch):
    """The time of day takes no part."""
    request = StopRequest(max_minutes=1)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert not request


def test_state_files_are_json(trained):
    state = json.loads((trained / "checkpoints" / "step-0000020" / "training_state.json").read_text())
    assert state["step"] == 20
    assert not state["unsettled"]

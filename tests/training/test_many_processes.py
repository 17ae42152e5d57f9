"""What shows only with several launchers, several nodes or several kinds of device; dry runs; the SLURM script."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from conftest import ROOT, SMALL_RUN, few_sentences, quick_run, read_metrics, run_command, run_training
from filelock import FileLock
from forked import as_one_of_nodes, port_of_launchers, start_group
from torch.distributed.run import get_args_parser as torchrun_parser
from train_on_processes import train_as_on_a_node

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.training import checkpoints
from modeling_scratch.training import run as training_run
from modeling_scratch.training.checkpoints import Progress, _differences, _random_states, _restore_random_states
from modeling_scratch.training.finish import has_results
from modeling_scratch.training.folder import RunFolder

sys.path.insert(0, str(ROOT / "benchmarks"))
from resume import LAUNCH

# -- processes that do not see or have the same ------------------------------------------------------------------------


def refused(folder: Path, *options_of_each: list[str]) -> str:
    """What the processes of a run say, each started with options of its own, when the run is refused."""
    children = start_group(folder / "said", train_as_on_a_node, [[*SMALL_RUN, *options] for options in options_of_each])
    assert [child.end() for child in children] == [2] * len(children)
    return "".join(child.said for child in children)


def test_a_folder_that_was_there_is_left_if_the_processes_disagree(tmp_path):
    """It may be a mount point, or as here a link."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "run").symlink_to("volume")
    said = refused(tmp_path, *([f"output_dir={tmp_path / 'run'}", *own] for own in other_data(tmp_path)))
    assert "error: the processes do not agree on training data" in said
    assert (tmp_path / "run").is_symlink()
    assert not [path for path in (tmp_path / "volume").iterdir() if path.name != ".lock"]


def test_folders_that_the_processes_do_not_share_are_refused(tmp_path):
    said = refused(tmp_path, *([f"output_dir={tmp_path / str(rank)}"] for rank in range(2)))
    line = rf"error: process 1 does not see what process 0 writes to {tmp_path}/0: set output_dir to a folder that all"
    assert re.search(line, said), said
    assert [path.name for path in tmp_path.iterdir()] == ["said"]


def other_data(folder: Path) -> list[list[str]]:
    """The options of two processes that read different pairs."""
    options = []
    for rank, word in enumerate(("Haus", "Baum")):
        own = folder / f"data-{rank}"
        own.mkdir()
        (own / "train.en").write_text("".join(f"a small house {number}\n" for number in range(400)))
        (own / "train.de").write_text("".join(f"ein kleines {word} {number}\n" for number in range(400)))
        options.append([f"data.train_files={own / 'train'}", "data.validation_size=20"])
    return options


def test_other_data_is_refused(tmp_path):
    said = refused(tmp_path, *([f"output_dir={tmp_path / 'run'}", *own] for own in other_data(tmp_path)))
    assert re.search(r"error: the processes do not agree on training data, by SHA-256: \w+ on process 0", said), said
    assert not (tmp_path / "run").exists()


def test_other_recipes_are_refused(tmp_path):
    rates = (f"optimization.learning_rate={rate}" for rate in ("1e-3", "2e-3"))
    said = refused(tmp_path, *([f"output_dir={tmp_path / 'run'}", rate] for rate in rates))
    assert "do not agree on optimization.learning_rate: 0.001 on process 0, 0.002 on process 1" in said
    assert not (tmp_path / "run").exists()


# -- launchers ---------------------------------------------------------------------------------------------------------


def launch_two_nodes(options_of_each: list[list[str]]) -> tuple[list[int], str]:
    """Two launchers by the command of docs/scaling.md, with a process each: exit codes, and what they said."""
    port, nodes = port_of_launchers(), []
    for rank, options in enumerate(options_of_each):
        command = [sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision", "no"]
        command += ["--config_file", "configuration/accelerate/ddp-nodes.yaml", *as_one_of_nodes(rank, 2, port)]
        command += ["train.py", *SMALL_RUN, *options]
        nodes.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    said = [node.communicate(timeout=120)[1] for node in nodes]
    return [node.returncode for node in nodes], "".join(said)


@pytest.mark.slow
def test_the_launchers_of_two_nodes_train_one_model(tmp_path):
    codes, said = launch_two_nodes([[f"output_dir={tmp_path / 'run'}"]] * 2)
    assert codes == [0, 0], said
    assert len(read_metrics(tmp_path / "run", "train")) == 20
    assert not list((tmp_path / "run").glob(".seen-by-all-*"))


@pytest.mark.slow
def test_the_launchers_of_two_nodes_that_share_nothing_are_refused(tmp_path):
    codes, said = launch_two_nodes([[f"output_dir={tmp_path / str(rank)}"] for rank in range(2)])
    assert 0 not in codes
    assert "error: process 1 does not see what process 0 writes to" in said, said
    assert not list(tmp_path.iterdir())
    codes, said = launch_two_nodes([[f"output_dir={tmp_path / 'run'}", *own] for own in other_data(tmp_path)])
    assert 0 not in codes
    assert "error: the processes do not agree on training data" in said, said
    assert not (tmp_path / "run").exists()


DYING = """
import os, runpy, signal, sys
sys.path.insert(0, {root!r})
import torch
step, calls = torch.optim.AdamW.step, []

def die_once(self, *arguments, **options):
    calls.append(1)
    if len(calls) == 14 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *arguments, **options)

torch.optim.AdamW.step = die_once
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_a_launcher_that_restarts_its_workers_goes_on(tmp_path):
    """With the weights of a run that nothing has disturbed."""
    script = tmp_path / "dying.py"
    script.write_text(DYING.format(root=str(ROOT), script=str(ROOT / "train.py")))
    # By default the launcher's store keeps the addresses of the dead, and whether restarts connect is a matter of luck.
    restarts = ["--max_restarts", "1", "--rdzv_backend", "c10d", "--main_process_ip", "127.0.0.1"]
    restarts += ["--main_process_port", str(port_of_launchers())]
    for name, program in (("whole", str(ROOT / "train.py")), ("run", str(script))):
        options = [*SMALL_RUN, "--resume", "auto", f"output_dir={tmp_path / name}"]
        result = run_command(*LAUNCH, *restarts, program, *options, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        assert result.returncode == 0, result.stderr
    assert "resuming from" in result.stderr
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]


# -- resuming ------------------------------------------------------------------------------------------------------


TWO_UPDATES, FOUR_UPDATES = ["optimization.max_steps=2"], ["optimization.max_steps=4"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return quick_run(tmp_path_factory.mktemp("runs") / "whole", *FOUR_UPDATES)


@pytest.fixture(scope="module")
def after_two_updates(tmp_path_factory):
    return quick_run(tmp_path_factory.mktemp("runs") / "run", *TWO_UPDATES)


@pytest.fixture
def two_updates(after_two_updates, tmp_path):
    return shutil.copytree(after_two_updates, tmp_path / "run", ignore=shutil.ignore_patterns(".lock"))


def test_resume_auto_begins_and_goes_on(whole, tmp_path, capsys):
    """One command line for a first start, for a start after a kill, and for one too many."""
    run, weights = tmp_path / "run", (whole / "model.safetensors").read_bytes()
    with pytest.raises(SystemExit) as ended:
        quick_run(run, *FOUR_UPDATES, "auto", resume=True, max_minutes=0)
    assert ended.value.code == 75
    assert len(read_metrics(run, "train")) == 1
    quick_run(run, *FOUR_UPDATES, "auto", resume=True)
    assert (run / "model.safetensors").read_bytes() == weights
    records = read_metrics(run)
    quick_run(run, *FOUR_UPDATES, "auto", resume=True)  # finished: it stays as it is
    assert f"{run} is finished; --resume alone scores it again" in capsys.readouterr().out
    assert (run / "model.safetensors").read_bytes() == weights
    assert read_metrics(run) == records
    quick_run(run, *FOUR_UPDATES, "auto", "evaluation.num_beams=1", resume=True)  # scores it again
    assert len(read_metrics(run)) == len(records) + 1
    assert (run / "model.safetensors").read_bytes() == weights


def test_resume_auto_begins_again_where_there_is_no_checkpoint(two_updates):
    for path in [*two_updates.glob("checkpoints/step-*/*"), two_updates / "model.safetensors"]:
        path.unlink()
    for path in two_updates.glob("checkpoints/step-*"):
        path.rmdir()
    (two_updates / "metrics.jsonl").unlink()  # it would say that the run was finished
    quick_run(two_updates, "optimization.max_steps=3", "auto", resume=True)
    assert [record["step"] for record in read_metrics(two_updates, "train")] == [1, 2, 3]


def test_resume_auto_waits_for_the_lock_before_it_decides(two_updates, tmp_path):
    """The run that a scheduler is ending may be writing its first checkpoint."""
    moved = shutil.move(two_updates / "checkpoints", tmp_path / "checkpoints")
    weights = (two_updates / "model.safetensors").read_bytes()
    (two_updates / "model.safetensors").unlink()

    def end():
        time.sleep(2)
        shutil.move(moved, two_updates / "checkpoints")
        (two_updates / "model.safetensors").write_bytes(weights)
        held.release()

    held = FileLock(two_updates / ".lock", thread_local=False)
    held.acquire()
    thread = threading.Thread(target=end)
    thread.start()
    quick_run(two_updates, "optimization.max_steps=3", "auto", resume=True)
    thread.join()
    assert [record["step"] for record in read_metrics(two_updates, "train")] == [1, 2, 3]
    assert len([each for each in read_metrics(two_updates) if each["split"] == "run"]) == 2  # it was resumed


def test_resume_auto_leaves_a_finished_run_that_was_moved(two_updates, tmp_path, capsys):
    moved = tmp_path / "moved"
    shutil.copytree(two_updates, moved)
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*")}
    quick_run(moved, *TWO_UPDATES, "auto", "evaluation.batch_size=3", resume=True)
    assert "is finished; --resume alone scores it again" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == before


LOST = ("model.safetensors", "config.json", "tokenizer.json", "generation_config.json", "modeling_scratch.py")


@pytest.mark.parametrize("lost", [*LOST, "translations/test.txt", "translations/test.txt, after a line"])
def test_resume_auto_makes_again_what_a_finished_run_has_lost(lost, two_updates, capsys):
    lost, *cut = lost.split(",")
    before = (two_updates / lost).read_bytes()
    (two_updates / lost).unlink()
    if cut:
        (two_updates / lost).write_bytes(before[: before.index(b"\n") + 1])
    quick_run(two_updates, *TWO_UPDATES, "auto", resume=True)
    assert "was finished, but not all that it left is there" in capsys.readouterr().err
    assert has_results(two_updates)
    if lost != "config.json":  # which now names its dtype, as that of a resumed run does
        assert (two_updates / lost).read_bytes() == before


def test_resume_auto_says_when_a_finished_run_has_lost_everything(two_updates, capsys):
    """Its scores are still worth something."""
    shutil.rmtree(two_updates / "checkpoints")
    (two_updates / "model.safetensors").unlink()
    records = read_metrics(two_updates)
    with pytest.raises(SystemExit) as ended:
        quick_run(two_updates, *TWO_UPDATES, "auto", resume=True)
    assert ended.value.code == 2
    assert "holds no checkpoint to resume from; start again with --overwrite" in capsys.readouterr().err
    assert read_metrics(two_updates) == records


def test_a_checkpoint_that_another_process_has_written_meanwhile_stays(two_updates, tmp_path, monkeypatch, capsys):
    """While the data were prepared, without a lock, as there was no folder."""
    run, prepare = tmp_path / "new", training_run.prepare_inputs

    def meanwhile(*args):
        shutil.copytree(two_updates, run, ignore=shutil.ignore_patterns(".lock"))
        return prepare(*args)

    monkeypatch.setattr(training_run, "prepare_inputs", meanwhile)
    with pytest.raises(SystemExit):
        quick_run(run, *TWO_UPDATES, "auto", resume=True)
    assert "already holds a run: continue it with --resume" in capsys.readouterr().err
    assert RunFolder(run).locked_can_go_on()


def test_resume_auto_deletes_nothing_that_took_time(two_updates, capsys):
    for weights in two_updates.glob("checkpoints/step-*/model.safetensors"):
        weights.write_bytes(b"damaged")
    assert RunFolder(str(two_updates)).locked_can_go_on()
    with pytest.raises(SystemExit):
        quick_run(two_updates, "optimization.max_steps=3", "auto", resume=True)
    assert "holds no checkpoint to resume from" in capsys.readouterr().err
    assert (two_updates / "model.safetensors").stat().st_size > 1000


def test_what_alters_no_update_may_change(two_updates, capsys):
    quick_run(two_updates, "optimization.max_steps=4", "logging_steps=2", "evaluation.num_beams=1", resume=True)
    names = "output_dir, optimization.max_steps, evaluation.num_beams, logging_steps"
    assert f"the recipe differs from that of the run so far in {names}" in capsys.readouterr().err
    assert [record["step"] for record in read_metrics(two_updates, "train")] == [1, 2, 4]
    generation = json.loads((two_updates / "generation_config.json").read_text())
    assert generation.get("num_beams", 1) == 1


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose random state is `gpu[0]`."""
    state = [torch.arange(4, dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state[0])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda value: state.__setitem__(0, value))
    return state


# Of a single process, Accelerate's device has no index.
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "cpu"])
def test_random_states_are_of_the_device_of_the_process(device, gpu, tmp_path):
    torch.save(_random_states(torch.device(device)), tmp_path / "states")
    expected, was = torch.rand(3), gpu[0]
    gpu[0] = torch.arange(4, 8, dtype=torch.uint8)
    assert _restore_random_states(tmp_path / "states", torch.device(device))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(gpu[0], was) == (device != "cpu")


def test_a_gpu_has_no_random_states_of_the_cpu(gpu, tmp_path):
    torch.save(_random_states(torch.device("cpu")), tmp_path / "states")
    before = torch.get_rng_state()
    assert not _restore_random_states(tmp_path / "states", torch.device("cuda"))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_differs_is_named():
    one = Progress(processes=1, device="cpu", precision="no", compiled=False)
    two = Progress(processes=2, device="cuda", precision="bf16", compiled=True)
    assert _differences(one, one) == []
    assert _differences(one, two) == [
        "with 2 processes instead of 1",
        "on cuda instead of cpu",
        "in bf16 instead of full precision",
        "compiled instead of eager",
    ]


def test_a_checkpoint_of_the_cpu_goes_on_elsewhere(two_updates, monkeypatch, capsys):
    monkeypatch.setattr(checkpoints, "_differences", lambda before, now: ["on cuda instead of cpu"])
    quick_run(two_updates, "optimization.max_steps=3", resume=True)
    said = "the run continues on cuda instead of cpu: its batches stay the same, its dropout does not"
    assert said in capsys.readouterr().err
    assert [record["step"] for record in read_metrics(two_updates, "train")] == [1, 2, 3]


# -- what the documented commands mean to the launcher ---------------------------------------------------------------


def launcher_commands() -> list[str]:
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    return [found.group(1) for found in re.finditer(r"`(accelerate launch [^`]+)`", text.replace("\n", " "))]


@pytest.mark.parametrize("command", launcher_commands())
def test_the_launcher_understands_what_is_documented(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [{"RANK": "1", "ADDRESS": "127.0.0.1"}.get(word, word) for word in shlex.split(command)[2:]]
    if not any(word.endswith(".py") for word in words):
        words.append("train.py")
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    given = {word[2:] for word in words if word.startswith("--")}
    assert "rdzv_backend" in given or "ddp-nodes" not in command
    if "rdzv_backend" in given:
        assert arguments.rdzv_backend == "c10d"
    if arguments.config_file is None:
        return
    settings = yaml.safe_load((ROOT / arguments.config_file).read_text())
    flat = settings | settings.pop("fsdp_config", {}) | settings.pop("parallelism_config", {})
    flat = {key: value for key, value in flat.items() if not isinstance(value, dict)}
    understood = SimpleNamespace(**vars(arguments))
    for key, value in flat.items():
        if key in given or key in ("compute_environment", "distributed_type", "use_cpu"):
            continue
        assert str(getattr(understood, key)) == str(value), key
    assert understood.multi_gpu == (settings["distributed_type"] == "MULTI_GPU")
    assert understood.use_fsdp == (settings["distributed_type"] == "FSDP")


def test_torchrun_understands_what_is_documented():
    page = (ROOT / "docs" / "scaling.md").read_text()
    (command,) = re.findall(r"^export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\ntorchrun (.*)$", page, re.MULTILINE)
    arguments = torchrun_parser().parse_args(shlex.split(command))
    assert (arguments.nnodes, arguments.nproc_per_node, arguments.max_restarts) == ("2", "8", 3)
    assert (arguments.rdzv_backend, arguments.rdzv_endpoint) == ("c10d", "ADDRESS:29500")
    assert (arguments.training_script, arguments.training_script_args) == ("train.py", ["--resume", "auto"])


# -- checkpoints by the clock --------------------------------------------------------------------------------------


def test_checkpoints_by_the_clock(tmp_path, monkeypatch):
    """The main process's; and a run that is resumed from one of them makes the same updates."""
    monkeypatch.setattr(time, "monotonic", itertools.count(step=10).__next__)
    options = ["checkpoints.every=1m", "checkpoints.keep_last=100", "optimization.max_steps=10"]
    run = quick_run(tmp_path / "run", *options)
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert len(names) > 2
    assert names[-1] == "step-0000010"
    weights = (run / "model.safetensors").read_bytes()
    quick_run(run, *options, resume_from=names[0])
    assert (run / "model.safetensors").read_bytes() == weights


# -- before a machine is booked ------------------------------------------------------------------------------------


def dry_run(capsys, processes: int, *options: str) -> dict[str, str]:
    """What is said, by its first words."""
    capsys.readouterr()
    run_training(*SMALL_RUN, *options, dry_run=True, processes=processes)
    recipe, _, said = capsys.readouterr().out.partition("\nmodel: ")
    assert yaml.safe_load(recipe)["evaluation"]["batch_size"] == 128  # a default
    return dict(line.split(": ", 1) for line in f"model: {said}".splitlines())


def test_a_dry_run_says_what_each_process_would_do(tmp_path, monkeypatch, capsys):
    """As seen in an epoch of one process that cuts each update into the pieces of all of them."""
    cut, size = "optimization.gradient_accumulation_steps", "optimization.tokens_per_batch=2048"
    options = [*few_sentences(), size, "optimization.max_steps=50", f"{cut}=2", f"output_dir={tmp_path / 'run'}"]
    said = dry_run(capsys, 4, *options)
    assert not any(tmp_path.iterdir())
    sizes, forward = [], ScratchForConditionalGeneration.forward

    def watched(self, *arguments, labels=None, **inputs):
        if self.training:
            sizes.append(labels.numel())
        return forward(self, *arguments, labels=labels, **inputs)

    monkeypatch.setattr(ScratchForConditionalGeneration, "forward", watched)
    epoch = ["optimization.max_epochs=1", "optimization.max_steps=null", "evaluation.every=epoch"]
    run = quick_run(tmp_path / "run", *epoch, size, f"{cut}=8")
    updates, model = len(read_metrics(run, "train")), ScratchForConditionalGeneration.from_pretrained(run)
    expected = f"in an update: 2; padded target tokens in one: at most {max(sizes)}"
    assert said["each of 4 processes"].endswith(expected)
    assert said["updates"].startswith(f"50, {updates} an epoch, of ")
    assert said["model"].startswith(f"{model.num_parameters():,} parameters")


def test_a_dry_run_leaves_nothing_but_data_in_the_cache(tmp_path, monkeypatch, capsys):
    data, cache = few_sentences(), Path(datasets.config.HF_DATASETS_CACHE)
    monkeypatch.chdir(tmp_path)

    def left() -> set[Path]:
        paths = {path for folder in (tmp_path, Path(os.environ["HF_HOME"])) for path in folder.rglob("*")}
        return {path for path in paths if not path.is_relative_to(cache)}

    before = left()
    run_training(*SMALL_RUN, *data, f"output_dir={tmp_path / 'run'}", dry_run=True)
    assert re.search(r"^time: about .* target tokens a second, from 5 updates", capsys.readouterr().out, re.MULTILINE)
    assert left() == before
    cached = set(cache.rglob("*"))
    run_training(*SMALL_RUN, *data, f"output_dir={tmp_path / 'run'}", "optimization.max_steps=1")
    assert set(cache.rglob("*")) == cached  # which the run has used


def test_a_dry_run_says_when_processes_would_be_idle(tmp_path, capsys):
    said = dry_run(capsys, 64, f"output_dir={tmp_path / 'run'}")
    (idle,) = [line for line in said if line.startswith("of ")]
    parts, empty = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", idle)[:2])
    assert parts % 64 == 0
    assert 0 < empty < parts
    assert "fewer processes" in said[idle]


def test_a_dry_run_of_a_stream(tmp_path, capsys):
    stream = ["data.streaming=true", "optimization.max_steps=70"]
    said = dry_run(capsys, 2, *stream, f"output_dir={tmp_path / 'run'}")
    assert said["updates"].startswith("70, of at most 512 padded tokens each")
    assert said["each of 2 processes"].endswith("at most 256")
    with pytest.raises(SystemExit):
        run_training(*SMALL_RUN, *stream, f"output_dir={tmp_path / 'run'}", dry_run=True, processes=9)
    assert "leaves 56 tokens for each of 9 parts" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


# -- SLURM ---------------------------------------------------------------------------------------------------------

# Two nodes on this machine, of one process each. By their addresses, which are one, they could not tell who is first.
STUBS = {
    "scontrol": "echo 127.0.0.1; echo 127.0.0.2",
    "srun": 'for node in 0 1; do SLURM_NODEID=$node "$@" & done; wait -n && wait -n',
    "accelerate": """
shift
for word; do
    shift
    [ "$previous" = --main_process_port ] && word=PORT
    previous=$word
    set -- "$@" "$word"
done
exec PYTHON -m accelerate.commands.launch --rdzv_conf is_host=$((SLURM_NODEID == 0)) "$@"
""",
}


@pytest.mark.slow
def test_the_slurm_script(tmp_path):
    """As a job and, requeued, as one that finds the run finished."""
    port = str(port_of_launchers())
    for name, text in STUBS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/bash\n" + text.replace("PORT", port).replace("PYTHON", sys.executable))
        path.chmod(0o755)
    job = {
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_CPUS_PER_TASK": "1",
    }
    job |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    command = ["bash", "configuration/slurm.sh", *SMALL_RUN, f"output_dir={tmp_path / 'run'}"]
    for said in ("step 20 of 20", "is finished"):
        result = subprocess.run(
            command, cwd=ROOT, env=os.environ | job, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, result.stderr
        assert said in result.stderr + result.stdout
    record = read_metrics(tmp_path / "run", "run")[0]
    assert (record["processes"], record["mixed_precision"]) == (2, "bf16")

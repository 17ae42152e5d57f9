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

import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from conftest import ROOT, SMALL_RUN, equal_weights, quick_run, read_metrics, run_command
from filelock import FileLock
from forked import as_one_of_nodes, port_of_launchers, start_group
from torch.distributed.run import get_args_parser as torchrun_parser
from train_on_processes import train_as_on_a_node

from modeling_scratch.training import checkpoints
from modeling_scratch.training.checkpoints import _differences, _random_states, _restore_random_states
from modeling_scratch.training.progress import Progress

sys.path.insert(0, str(ROOT / "benchmarks"))
from resume import LAUNCH

# -- processes that do not see or have the same ------------------------------------------------------------------------


def refused(folder: Path, *options_of_each: list[str]) -> str:
    """The output of the processes of a run that must be refused, each started with options of its own."""
    children = start_group(
        folder / "output", train_as_on_a_node, [[*SMALL_RUN, *options] for options in options_of_each]
    )
    assert [child.end() for child in children] == [2] * len(children)
    return "".join(child.said for child in children)


def test_folders_that_the_processes_do_not_share_are_refused(tmp_path):
    output = refused(tmp_path, *([f"output_dir={tmp_path / str(rank)}"] for rank in range(2)))
    line = rf"error: process 1 does not see what process 0 writes to {tmp_path}/0: set output_dir to a folder that all"
    assert re.search(line, output), output
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


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


@pytest.mark.parametrize("exists", [False, True])
def test_other_data_is_refused(exists, tmp_path):
    """A folder that was there is left: it may be a mount point, or as here a link."""
    if exists:
        (tmp_path / "volume").mkdir()
        (tmp_path / "run").symlink_to("volume")
    messages = refused(tmp_path, *([f"output_dir={tmp_path / 'run'}", *own] for own in other_data(tmp_path)))
    assert "error: the processes do not agree on training data" in messages
    assert (tmp_path / "run").is_symlink() == (tmp_path / "run").exists() == exists
    assert not [path for path in tmp_path.glob("volume/*") if path.name != ".lock"]


def test_other_recipes_are_refused(tmp_path):
    rates = (f"optimization.learning_rate={rate}" for rate in ("1e-3", "2e-3"))
    output = refused(tmp_path, *([f"output_dir={tmp_path / 'run'}", rate] for rate in rates))
    assert "do not agree on optimization.learning_rate: 0.001 on process 0, 0.002 on process 1" in output
    assert not (tmp_path / "run").exists()


# -- launchers ---------------------------------------------------------------------------------------------------------


def launch_two_nodes(options_of_each: list[list[str]]) -> tuple[list[int], str]:
    """Two launchers by the command of docs/scaling.md, with a process each: exit codes, and their output."""
    port, nodes = port_of_launchers(), []
    for rank, options in enumerate(options_of_each):
        command = [sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision", "no"]
        command += ["--config_file", "configuration/accelerate/ddp-nodes.yaml", *as_one_of_nodes(rank, 2, port)]
        command += ["train.py", *SMALL_RUN, *options]
        nodes.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    output = [node.communicate(timeout=120)[1] for node in nodes]
    return [node.returncode for node in nodes], "".join(output)


@pytest.mark.slow
def test_the_launchers_of_two_nodes_train_one_model(tmp_path):
    codes, output = launch_two_nodes([[f"output_dir={tmp_path / 'run'}"]] * 2)
    assert codes == [0, 0], output
    assert len(read_metrics(tmp_path / "run", "train")) == 20
    assert not list((tmp_path / "run").glob(".seen-by-all-*"))


@pytest.mark.slow
def test_the_launchers_of_two_nodes_that_share_nothing_are_refused(tmp_path):
    codes, output = launch_two_nodes([[f"output_dir={tmp_path / str(rank)}"] for rank in range(2)])
    assert 0 not in codes
    assert "error: process 1 does not see what process 0 writes to" in output, output
    assert not list(tmp_path.iterdir())
    codes, output = launch_two_nodes([[f"output_dir={tmp_path / 'run'}", *own] for own in other_data(tmp_path)])
    assert 0 not in codes
    assert "error: the processes do not agree on training data" in output, output
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
def test_a_launcher_that_restarts_its_workers_resumes(tmp_path):
    """With the weights of a run that nothing has disturbed."""
    script = tmp_path / "dying.py"
    script.write_text(DYING.format(root=str(ROOT), script=str(ROOT / "train.py")))
    # By default the launcher's store keeps the addresses of the dead, and whether restarts connect is a matter of luck.
    restarts = ["--max_restarts", "1", "--rdzv_backend", "c10d", "--main_process_ip", "127.0.0.1"]
    restarts += ["--main_process_port", str(port_of_launchers())]
    for name, program in (("whole", str(ROOT / "train.py")), ("run", str(script))):
        options = [*SMALL_RUN, "--auto-resume", f"output_dir={tmp_path / name}"]
        result = run_command(*LAUNCH, *restarts, program, *options, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        assert result.returncode == 0, result.stderr
    assert "resuming from" in result.stderr
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]


# -- resuming automatically --------------------------------------------------------------------------------------------


TWO_UPDATES, FOUR_UPDATES = ["optimization.max_steps=2"], ["optimization.max_steps=4"]


@pytest.fixture(scope="module")
def after_two_updates(tmp_path_factory):
    return quick_run(tmp_path_factory.mktemp("runs") / "run", *TWO_UPDATES)


@pytest.fixture
def two_updates(after_two_updates, tmp_path):
    return shutil.copytree(after_two_updates, tmp_path / "run", ignore=shutil.ignore_patterns(".lock"))


def test_one_command_line_begins_resumes_and_leaves_what_is_finished(tmp_path, capsys):
    run, whole = tmp_path / "run", quick_run(tmp_path / "whole", *FOUR_UPDATES)
    with pytest.raises(SystemExit) as ended:
        quick_run(run, *FOUR_UPDATES, auto_resume=True, max_minutes=0)
    assert ended.value.code == 75
    assert len(read_metrics(run, "train")) == 1
    quick_run(run, *FOUR_UPDATES, auto_resume=True)
    assert equal_weights(run, whole)
    moved = shutil.copytree(run, tmp_path / "moved", ignore=shutil.ignore_patterns(".lock"))
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*")}
    capsys.readouterr()
    quick_run(moved, *FOUR_UPDATES, "evaluation.batch_size=3", auto_resume=True)
    assert "is finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == before
    quick_run(moved, *FOUR_UPDATES, "evaluation.num_beams=1", auto_resume=True)  # other scores
    assert [record["num_beams"] for record in read_metrics(moved, "test")] == [1]
    assert equal_weights(moved, whole)


def test_a_run_without_a_checkpoint_begins_again(two_updates):
    shutil.rmtree(two_updates / "checkpoints")
    (two_updates / "model.safetensors").unlink()
    (two_updates / "metrics.jsonl").unlink()  # it would tell that the run was finished
    quick_run(two_updates, "optimization.max_steps=3", auto_resume=True)
    assert [record["step"] for record in read_metrics(two_updates, "train")] == [1, 2, 3]


def test_a_run_that_is_ending_is_waited_for(two_updates, tmp_path):
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
    quick_run(two_updates, "optimization.max_steps=3", auto_resume=True)
    thread.join()
    assert len(read_metrics(two_updates, "run")) == 2  # it was resumed


@pytest.mark.parametrize("lost", ["model.safetensors", "modeling_scratch.py", "translations/test.txt"])
def test_what_a_finished_run_has_lost_is_made_again(lost, two_updates, capsys):
    before = (two_updates / lost).read_bytes()
    (two_updates / lost).unlink()
    quick_run(two_updates, *TWO_UPDATES, auto_resume=True)
    assert f"lacks {lost}" in capsys.readouterr().err
    assert (two_updates / lost).read_bytes() == before


def test_a_finished_run_that_has_lost_everything_keeps_its_scores(two_updates, capsys):
    shutil.rmtree(two_updates / "checkpoints")
    (two_updates / "model.safetensors").unlink()
    records = read_metrics(two_updates)
    with pytest.raises(SystemExit) as ended:
        quick_run(two_updates, *TWO_UPDATES, auto_resume=True)
    assert ended.value.code == 2
    assert "holds no checkpoint to resume from" in capsys.readouterr().err
    assert read_metrics(two_updates) == records


def test_what_alters_no_update_may_change(two_updates, capsys):
    quick_run(two_updates, "optimization.max_steps=4", "logging_steps=2", "evaluation.num_beams=1", resume=True)
    names = "output_dir, optimization.max_steps, evaluation.num_beams, logging_steps"
    assert names in capsys.readouterr().err
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
    monkeypatch.setattr(checkpoints, "_differences", lambda saved, current: ["on cuda instead of cpu"])
    quick_run(two_updates, "optimization.max_steps=3", resume=True)
    output = "resuming on cuda instead of cpu"
    assert output in capsys.readouterr().err
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
    assert (arguments.training_script, arguments.training_script_args) == ("train.py", ["--auto-resume"])


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
    for words in ("step 20 of 20", "is finished"):
        result = subprocess.run(
            command, cwd=ROOT, env=os.environ | job, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, result.stderr
        assert words in result.stderr + result.stdout
    record = read_metrics(tmp_path / "run", "run")[0]
    assert (record["processes"], record["mixed_precision"]) == (2, "bf16")

"""Processes that must agree before they train, launchers of several nodes, and the documented launch commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from conftest import ROOT, SMALL_RUN, read_metrics, run_command
from forked import as_one_of_nodes, port_of_launchers, start_group
from torch.distributed.run import get_args_parser as torchrun_parser
from train_on_processes import train_as_on_a_node

sys.path.insert(0, str(ROOT / "benchmarks"))
from resume import LAUNCH

# -- processes that disagree -------------------------------------------------------------------------------------------


def refused(folder: Path, *options_of_each: list[str]) -> str:
    """Start a process for each list of options, which must all be refused, and return their output."""
    children = start_group(
        folder / "output", train_as_on_a_node, [[*SMALL_RUN, *options] for options in options_of_each]
    )
    assert [child.end() for child in children] == [2] * len(children)
    return "".join(child.output for child in children)


def test_processes_must_share_the_folder(tmp_path):
    output = refused(tmp_path, *([f"output_dir={tmp_path / str(rank)}"] for rank in range(2)))
    assert re.search(rf"error: process 1 .*{tmp_path}/0.*output_dir", output), output
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def other_data(folder: Path) -> list[list[str]]:
    """Options for two processes, each with its own training pairs."""
    options = []
    for rank, word in enumerate(("Haus", "Baum")):
        own = folder / f"data-{rank}"
        own.mkdir()
        (own / "train.en").write_text("".join(f"a small house {number}\n" for number in range(400)))
        (own / "train.de").write_text("".join(f"ein kleines {word} {number}\n" for number in range(400)))
        options.append([f"data.train_files={own / 'train'}", "data.validation_size=20"])
    return options


@pytest.mark.parametrize("exists", [False, True])
def test_processes_must_have_the_same_data(exists, tmp_path):
    """A folder that existed before is kept, since it may be a mount point or, as here, a link."""
    if exists:
        (tmp_path / "volume").mkdir()
        (tmp_path / "run").symlink_to("volume")
    output = refused(tmp_path, *([f"output_dir={tmp_path / 'run'}", *own] for own in other_data(tmp_path)))
    assert "training data" in output
    assert (tmp_path / "run").is_symlink() == (tmp_path / "run").exists() == exists
    assert not [path for path in tmp_path.glob("volume/*") if path.name != ".lock"]


def test_processes_must_have_the_same_recipe(tmp_path):
    rates = (f"optimization.learning_rate={rate}" for rate in ("1e-3", "2e-3"))
    output = refused(tmp_path, *([f"output_dir={tmp_path / 'run'}", rate] for rate in rates))
    assert "optimization.learning_rate: 0.001 on process 0, 0.002 on process 1" in output
    assert not (tmp_path / "run").exists()


# -- launchers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_launchers_of_two_nodes_train_one_model(tmp_path):
    """With the command of docs/scaling.md."""
    port, nodes = port_of_launchers(), []
    for rank in range(2):
        command = [sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision", "no"]
        command += ["--config_file", "configuration/accelerate/ddp-nodes.yaml", *as_one_of_nodes(rank, 2, port)]
        command += ["train.py", *SMALL_RUN, f"output_dir={tmp_path / 'run'}"]
        nodes.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    output = "".join(node.communicate(timeout=120)[1] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], output
    assert len(read_metrics(tmp_path / "run", "train")) == 20
    assert not list((tmp_path / "run").glob(".seen-by-all-*"))


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
    """With the same weights as an undisturbed run."""
    script = tmp_path / "dying.py"
    script.write_text(DYING.format(root=str(ROOT), script=str(ROOT / "train.py")))
    # By default the launcher's store keeps the addresses of dead workers, and a restart may or may not connect.
    restarts = ["--max_restarts", "1", "--rdzv_backend", "c10d", "--main_process_ip", "127.0.0.1"]
    restarts += ["--main_process_port", str(port_of_launchers())]
    for name, program in (("whole", str(ROOT / "train.py")), ("run", str(script))):
        options = [*SMALL_RUN, "--auto-resume", f"output_dir={tmp_path / name}"]
        result = run_command(*LAUNCH, *restarts, program, *options, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        assert result.returncode == 0, result.stderr
    assert "resuming from" in result.stderr
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]


# -- documented commands -----------------------------------------------------------------------------------------------


def launcher_commands() -> list[str]:
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    return [found.group(1) for found in re.finditer(r"`(accelerate launch [^`]+)`", text.replace("\n", " "))]


@pytest.mark.parametrize("command", launcher_commands())
def test_accelerate_understands_the_documented_commands(command, monkeypatch):
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


def test_torchrun_understands_the_documented_command():
    page = (ROOT / "docs" / "scaling.md").read_text()
    (command,) = re.findall(r"^export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\ntorchrun (.*)$", page, re.MULTILINE)
    arguments = torchrun_parser().parse_args(shlex.split(command))
    assert (arguments.nnodes, arguments.nproc_per_node, arguments.max_restarts) == ("2", "8", 3)
    assert (arguments.rdzv_backend, arguments.rdzv_endpoint) == ("c10d", "ADDRESS:29500")
    assert (arguments.training_script, arguments.training_script_args) == ("train.py", ["--auto-resume"])


# -- SLURM -------------------------------------------------------------------------------------------------------------

# Two nodes on this machine with a process each. Their addresses are equal, so an option says which one is the first.
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
def test_the_slurm_script_trains_and_a_requeued_job_finds_the_run_finished(tmp_path):
    port = str(port_of_launchers())
    for name, text in STUBS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/bash\n" + text.replace("PORT", port).replace("PYTHON", sys.executable))
        path.chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node[1-2]", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    job |= {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1", "SLURM_CPUS_PER_TASK": "1"}
    command = ["bash", "configuration/slurm.sh", *SMALL_RUN, f"output_dir={tmp_path / 'run'}"]
    for words in ("step 20 of 20", "is finished"):
        result = subprocess.run(
            command, cwd=ROOT, env=os.environ | job, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, result.stderr
        assert words in result.stderr + result.stdout
    record = read_metrics(tmp_path / "run", "run")[0]
    assert (record["processes"], record["mixed_precision"]) == (2, "bf16")

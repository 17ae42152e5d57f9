"""Processes that must agree before they train, launchers of several nodes, and the documented launch commands."""

import json
import os
import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import _filter_args, prepare_multi_gpu_env
from conftest import ROOT, SMALL_RUN, read_metrics, run_command
from forked import as_one_of_nodes, port_of_launchers, start_group
from torch.distributed import TCPStore, rendezvous
from torch.distributed.run import get_args_parser as torchrun_parser
from train_on_processes import train_one
from waiting import LONGEST

from modeling_scratch.commands.cli import one_line_errors
from modeling_scratch.training import setup

sys.path.insert(0, str(ROOT / "benchmarks"))
from resume import LAUNCH

# -- processes that disagree -------------------------------------------------------------------------------------------


def refused(folder: Path, *options_of_each: list[str]) -> str:
    """Start a process for each list of options, which must all be refused, and return their output."""
    children = start_group(folder / "output", train_one, [[*SMALL_RUN, *options] for options in options_of_each])
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
    output = "".join(node.communicate(timeout=LONGEST)[1] for node in nodes)
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
    restarts = ["--max_restarts", "1", "--rdzv_backend", "c10d"]
    for name, program in (("whole", str(ROOT / "train.py")), ("run", str(script))):
        options = [*SMALL_RUN, "--auto-resume", f"output_dir={tmp_path / name}"]
        result = run_command(*LAUNCH, *restarts, program, *options, PET_STANDALONE="1")
        assert result.returncode == 0, result.stderr
    assert "resuming from" in result.stderr
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_launcher_does_not_restart_a_run_that_stopped(tmp_path):
    options = [*SMALL_RUN, "--auto-resume", "--max-minutes", "0", f"output_dir={tmp_path / 'run'}"]
    restarts = ["--max_restarts", "3", "--rdzv_backend", "c10d"]
    result = run_command(*LAUNCH, *restarts, str(ROOT / "train.py"), *options, PET_STANDALONE="1")
    assert (result.returncode, result.stderr.count("stopped by --max-minutes")) == (0, 1), result.stderr
    assert len(read_metrics(tmp_path / "run", "run")) == 1


# The stores in which processes of one run find each other's addresses, before and after a launcher restarts them. That
# of torch 2.13's launcher is the same (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
@pytest.fixture
def restarted(monkeypatch):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    of_launcher = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    of_launcher |= {"TORCHELASTIC_RESTART_COUNT": "1", "GROUP_WORLD_SIZE": "1", "RANK": "0", "WORLD_SIZE": "2"}
    for name, value in of_launcher.items():
        monkeypatch.setenv(name, value)
    return store


def test_restarted_processes_do_not_read_the_addresses_of_dead_ones(restarted):
    restarted.set("rank 1", "of a dead process")
    meeting, longest = setup._meeting_of_this_start(), timedelta(seconds=LONGEST)
    (first, *_), (second, *_) = (next(rendezvous(meeting, rank, 2, timeout=longest)) for rank in range(2))
    assert not first.check(["rank 1"])
    second.set("rank 1", "alive")
    assert first.get("rank 1") == b"alive"


@pytest.mark.parametrize(
    ("variable", "value"), [("TORCHELASTIC_RESTART_COUNT", "0"), ("TORCHELASTIC_USE_AGENT_STORE", "False")]
)
def test_first_starts_and_those_with_their_own_store_meet_as_always(variable, value, restarted, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert setup._meeting_of_this_start() is None


def test_restarts_of_several_launchers_with_one_store_are_refused(restarted, monkeypatch, capsys):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as ended, one_line_errors(False, is_main=False):
        setup.make_accelerator()
    error = capsys.readouterr().err
    assert (ended.value.code, error.count("\n")) == (2, 1)
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in error
    assert "--auto-resume" in error


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
    [ "$previous" = --main_process_port ] && word=$FREE_PORT
    previous=$word
    set -- "$@" "$word"
done
exec $PYTHON -m accelerate.commands.launch --rdzv_conf is_host=$((SLURM_NODEID == 0)),read_timeout=$LONGEST "$@"
""",
}


def search_path(folder: Path, programs: dict[str, str]) -> str:
    """Write shell scripts into a folder, and return a search path that begins with it."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def launched_by_slurm(folder: Path, job: str, nodes: int = 1) -> SimpleNamespace:
    """
    Run the script as a job of SLURM whose launcher writes down its arguments and its environment. Returns those that
    torch's launcher gets from Accelerate, and the ids of the processes of the script and of srun.
    """
    note = folder / f"launched-{job}.json"
    programs = {
        "scontrol": "echo 127.0.0.1",
        "srun": f'echo $$ > {folder}/srun; exec "$@"',
        "accelerate": f"exec {sys.executable} -c 'import json, os, sys; json.dump("
        f'[sys.argv[2:], dict(os.environ)], open("{note}", "w"))\' "$@"',
    }
    variables = {"SLURM_JOB_ID": job, "SLURM_NNODES": str(nodes), "SLURM_NODEID": str(nodes - 1)}
    variables |= {"SLURM_GPUS_ON_NODE": "1", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NODELIST": "node"}
    variables |= {"PATH": search_path(folder / "bin", programs)}
    script = subprocess.Popen(["bash", "configuration/slurm.sh"], cwd=ROOT, env=os.environ | variables)
    assert script.wait(LONGEST) == 0
    words, environment = json.loads(note.read_text())
    with patch.dict(os.environ, environment), patch("accelerate.utils.launch.is_port_in_use", lambda port: False):
        arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
        prepare_multi_gpu_env(arguments)
        given = _filter_args(arguments, torchrun_parser(), ["--training_script", arguments.training_script])
    return SimpleNamespace(given=given, script=script.pid, srun=int((folder / "srun").read_text()))


@pytest.mark.parametrize("nodes", [1, 2])
def test_jobs_that_share_a_node_do_not_meet(nodes, tmp_path):
    """Accelerate 1.15 drops --main_process_ip and --main_process_port for one node (utils/launch.py)."""
    (first, other), again = (
        [launched_by_slurm(tmp_path, job, nodes).given for job in ("10041", "10042")],
        launched_by_slurm(tmp_path, "10041", nodes).given,
    )
    assert first.rdzv_backend == "c10d"
    assert first.rdzv_endpoint == again.rdzv_endpoint == "127.0.0.1:20041"
    assert first.rdzv_id == again.rdzv_id == "10041"
    assert (other.rdzv_endpoint, other.rdzv_id) == ("127.0.0.1:20042", "10042")


def test_a_signal_of_slurm_reaches_the_training_processes(tmp_path):
    """srun passes on what it gets, to the launcher alone if processes are tracked by cgroups (SLURM 22.05)."""
    launched = launched_by_slurm(tmp_path, "1")
    assert launched.srun == launched.script  # --signal=B:USR1 is sent to the script's process
    signals = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"}
    assert set(launched.given.signals_to_handle.split(",")) == signals


@pytest.mark.slow
def test_the_slurm_script_trains_and_a_requeued_job_finds_the_run_finished(tmp_path):
    job = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1"}
    job |= {"SLURM_CPUS_PER_TASK": "1", "PATH": search_path(tmp_path / "bin", STUBS)}
    job |= {"FREE_PORT": str(port_of_launchers()), "PYTHON": sys.executable, "LONGEST": f"{LONGEST:.0f}"}
    command = ["bash", "configuration/slurm.sh", *SMALL_RUN, f"output_dir={tmp_path / 'run'}"]
    for words in ("step 20 of 20", "is finished"):
        environment = os.environ | job
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST)
        assert result.returncode == 0, result.stderr
        assert words in result.stderr + result.stdout
    record = read_metrics(tmp_path / "run", "run")[0]
    assert (record["processes"], record["mixed_precision"]) == (2, "bf16")

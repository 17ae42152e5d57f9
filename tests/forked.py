"""
Starts processes of a run by forking a server that has imported everything, since a new interpreter takes longer to
start than a small run takes to train. The server starts with the first process and ends with the tests.
"""

import multiprocessing
import os
import random
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from torch.distributed import TCPStore
from waiting import LONGEST, wait_until

import modeling_scratch.training.train  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["forked", "train_on_processes"])


@dataclass
class Child:
    """A process, the file with its standard error, and the store by which its group connects."""

    process: ForkServerProcess
    file: Path
    store: TCPStore | None = None

    @property
    def output(self) -> str:
        """Its standard error so far."""
        return self.file.read_text() if self.file.exists() else ""

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def wait_for(self, words: str) -> None:
        """Wait until its output contains these words. Fails if it ends before."""
        wait_until(lambda: words in self.output or not self.process.is_alive())
        assert words in self.output, self.output

    def end(self) -> int:
        """Wait for its end and return its exit code, like subprocess. TimeoutError if it does not end."""
        self.process.join(LONGEST)
        if self.process.exitcode is None:
            self.kill()
            raise TimeoutError(f"it did not end within {LONGEST:g} seconds: {self.output}")
        return self.process.exitcode


def port_of_launchers() -> int:
    """A free port for launchers, below those that the system hands out (from 32768), so that it stays free."""
    while True:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port := random.SystemRandom().randrange(20_000, 32_768)))
            return port


def start(file: Path, function: Callable, *arguments, **environment: str) -> Child:
    """Start a process that calls a function of train_on_processes.py."""
    with _path_of_tests():
        forkserver.ensure_running()
    process = SERVER.Process(target=_call, args=(file, environment, function, arguments))
    process.start()
    return Child(process, file)


def start_group(
    folder: Path, function: Callable, arguments_of_each: Iterable[tuple], **environment: str
) -> list[Child]:
    """Start processes of one run as a launcher does on one machine; their standard error goes to files in `folder`."""
    several = list(arguments_of_each)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # The processes use this store, as they use that of a launcher. If one made its own, the port might be taken.
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    place |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    folder.mkdir(exist_ok=True)
    place |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(len(several)))
    children = []
    for rank, arguments in enumerate(several):
        own = place | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if len(several) > 1 else {}
        file = folder / f"stderr-{store.port}-{rank}"
        children.append(start(file, function, *arguments, ACCELERATE_USE_CPU="true", **own, **environment))
        children[-1].store = store
    return children


def run_group(folder: Path, processes: int, function: Callable, *arguments, **environment: str) -> str:
    """Call a function on several processes and return their output. Fails if one of them fails."""
    children = start_group(folder, function, [arguments] * processes, **environment)
    codes = [child.end() for child in children]
    output = "".join(child.output for child in children)
    assert not any(codes), output
    return output


def launcher_environment(*options: str) -> dict[str, str]:
    """The environment variables that `accelerate launch` sets for its workers."""
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args([*options, "train.py"]))
    variables = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in variables.items() if os.environ.get(name) != value}


def as_one_of_nodes(rank: int, nodes: int, port: int) -> list[str]:
    """Options that make a launcher one of several nodes on 127.0.0.1, with one process each."""
    options = ["--rdzv_backend", "c10d", "--num_machines", str(nodes), "--num_processes", str(nodes)]
    options += ["--machine_rank", str(rank), "--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    # Real nodes compare addresses. The second waits for the first, which may start later.
    return [*options, "--rdzv_conf", f"is_host={int(rank == 0)},read_timeout={LONGEST:.0f}"]


@contextmanager
def _path_of_tests():
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _call(file: Path, environment: dict[str, str], function: Callable, arguments: tuple) -> None:
    os.environ.update(environment)
    multiprocessing.set_start_method(None, force=True)  # for the process's own children, as in an interpreter
    os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    torch.set_num_threads(1)
    function(*arguments)

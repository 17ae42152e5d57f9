"""
Processes of a run that are forked from a server which has imported everything, in place of fresh interpreters: the
start of one takes longer than a small run. The server starts with the first of them, and ends with the tests.
"""

import multiprocessing
import os
import random
import socket
import sys
import time
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

import modeling_scratch.training.train  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["forked", "train_on_processes"])


@dataclass
class Child:
    """A process, the file of what it says on stderr, and where it meets the others of its group."""

    process: ForkServerProcess
    file: Path
    store: TCPStore | None = None

    @property
    def said(self) -> str:
        return self.file.read_text() if self.file.exists() else ""

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def wait_for(self, words: str, seconds: float = 60) -> None:
        """Wait until it has said these words."""
        deadline = time.monotonic() + seconds
        while words not in self.said:
            assert self.process.is_alive(), self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def end(self, seconds: float = 120) -> int:
        """Its exit code, as subprocess gives it. One that does not end in time is killed, and the test fails."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f"it did not end within {seconds} seconds: {self.said}")
        return self.process.exitcode


def port_of_launchers() -> int:
    """
    A port for launchers, which will not be given one that is open. The system gives ports from 32768 on to whoever asks
    for any, so nobody takes this one before they open it.
    """
    while True:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port := random.SystemRandom().randrange(20_000, 32_768)))
            return port


def start(file: Path, function: Callable, *arguments, **environment: str) -> Child:
    """A process that calls a function, which must be one of train_on_processes.py."""
    with _path_of_tests():
        forkserver.ensure_running()
    process = SERVER.Process(target=_call, args=(file, environment, function, arguments))
    process.start()
    return Child(process, file)


def start_group(
    folder: Path, function: Callable, arguments_of_each: Iterable[tuple], **environment: str
) -> list[Child]:
    """Processes of one run, as a launcher starts them on one machine; what they say goes to files in `folder`."""
    several = list(arguments_of_each)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # As a launcher says that the store is its own. A process that made one at a free port might find the port taken.
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
    """Call a function on several processes; what they said. Fails if one does."""
    children = start_group(folder, function, [arguments] * processes, **environment)
    codes = [child.end(300) for child in children]
    said = "".join(child.said for child in children)
    assert not any(codes), said
    return said


def launcher_environment(*options: str) -> dict[str, str]:
    """What `accelerate launch` tells its workers by the environment."""
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args([*options, "train.py"]))
    told = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in told.items() if os.environ.get(name) != value}


def as_one_of_nodes(rank: int, nodes: int, port: int) -> list[str]:
    """Options by which a launcher is one of several nodes, all on 127.0.0.1, with a process each."""
    options = ["--rdzv_backend", "c10d", "--num_machines", str(nodes), "--num_processes", str(nodes)]
    options += ["--machine_rank", str(rank), "--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    return [*options, "--rdzv_conf", f"is_host={int(rank == 0)}"]  # nodes of their own find out by their address


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
    multiprocessing.set_start_method(None, force=True)  # its own children start as those of an interpreter do
    os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    torch.set_num_threads(1)
    function(*arguments)

"""Processes that translate in parallel, since one batch of a small model does not keep all cores busy."""

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.util import Finalize
from typing import Any, Protocol

import torch

from ...errors import UserError

_MOST_BY_DEFAULT = 8


class Translator(Protocol):
    """What workers call. `can_fork`: whether forked processes can translate with it."""

    can_fork: bool

    def translate(self, *arguments) -> Any:
        """The translations of some sentences."""


@contextmanager
def before_forking() -> Iterator[int]:
    """
    A context in which to load models and start workers. Within it, PyTorch uses one thread, since OpenMP's threads
    would not survive in forked processes. Its value is the number of threads used outside it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def start_workers(
    translators: Sequence[Translator], count: int | None, cores: int, listener: socket.socket | None = None
) -> list["Worker"]:
    """
    Start workers that share the cores.

    Args:
        count: how many; None: one per core, up to a limit, where they can be forked, and none elsewhere.
        listener: a listening socket of this process alone.

    Raises:
        UserError: they cannot be forked here.
    """
    # Threads and accelerators do not survive in a forked process, and macOS's libraries may not either.
    can_fork = sys.platform == "linux" and all(translator.can_fork for translator in translators)
    if count is None:
        count = min(cores, _MOST_BY_DEFAULT) if can_fork and cores > 1 else 0
    elif count and not can_fork:
        raise UserError(f"--workers {count}: only with PyTorch on the CPU, under Linux; leave it out")
    return [Worker(translators, max(1, cores // count), listener) for _ in range(count)]


class WorkerLost(Exception):
    """A worker has ended without an answer."""


class Worker:
    """
    A process that translates one batch per call. It is forked, so it shares the models' memory, and must be created
    before this process has threads. It ends with the process that created it.

    Args:
        translators: all that it may be asked to translate with.
        threads: how many it computes with.
        listener: a listening socket, which it closes, so that nobody can connect once this process has closed it.
    """

    def __init__(self, translators: Sequence[Translator], threads: int = 1, listener: socket.socket | None = None):
        self._translators = list(translators)
        self._connection, others = multiprocessing.Pipe()
        arguments = (others, self._translators, threads, listener)
        self.process = multiprocessing.get_context("fork").Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        others.close()
        # At this process's end, before `multiprocessing` sends SIGTERM, which a worker ignores, and waits.
        Finalize(self, self.process.kill, exitpriority=10)

    def __call__(self, translator: Translator, *arguments) -> Any:
        """
        What `translator.translate(*arguments)` returns.

        Raises:
            ValueError, RuntimeError: `translate` raised a ValueError, or another error.
            WorkerLost: the process has ended.
        """
        try:
            self._connection.send_bytes(pickle.dumps((self._translators.index(translator), arguments)))
            found = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerLost(f"a worker (process {self.process.pid}) has ended") from error
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """End the process, whether or not it is translating."""
        self.process.kill()
        self.process.join()
        self._connection.close()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(connection, translators: list[Translator], threads: int, listener: socket.socket | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A terminal sends Ctrl-C to all of its processes, and systemd SIGTERM; this process's maker decides what ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if listener is not None:
        listener.close()
    torch.set_num_threads(threads)
    while True:
        number, arguments = pickle.loads(connection.recv_bytes())
        try:
            found = translators[number].translate(*arguments)
        except Exception as error:
            # Not the error itself, since some cannot be pickled.
            found = ValueError(str(error)) if isinstance(error, ValueError) else RuntimeError(repr(error))
            found.add_note(f"In the worker: {traceback.format_exc()}")
        connection.send_bytes(pickle.dumps(found))

"""Worker processes that translate batches in parallel, since a small model's batch does not keep all cores busy."""

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import Any

from ...errors import UserError
from ...inference.engine import Engine
from ...model.translations import Batch, Translations

_MAX_BY_DEFAULT = 8
_BATCHES_PER_WORKER = 4  # at least, so that all workers finish at about the same time


@contextmanager
def before_forking() -> Iterator[int]:
    """
    A context in which to load models and fork workers. PyTorch uses one thread in it, since OpenMP's threads do not
    survive a fork. Yields the number of threads that PyTorch uses outside.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def worker_count(asked: int | None, can_fork: bool, cores: int) -> int:
    """
    How many workers to fork.

    Args:
        asked: None: one per core, at most 8, where workers are possible, and none elsewhere.
        can_fork: whether all translators work in a forked process, as those of PyTorch on the CPU do.

    Raises:
        UserError: workers are asked for where they are impossible.
    """
    can_fork = can_fork and sys.platform == "linux"  # some libraries of macOS do not survive a fork
    if asked and not can_fork:
        raise UserError(f"--workers {asked}: only with PyTorch on the CPU, under Linux; leave it out")
    if asked is not None:
        return asked
    return min(cores, _MAX_BY_DEFAULT) if can_fork and cores > 1 else 0


class Pool:
    """
    Gives batches to free workers, in the order of submission. Without workers, a thread of this process translates.
    Create a pool inside `before_forking`, before this process has threads.

    Args:
        translators: all translators that batches may be submitted for.
        count: of workers.
        cores: how many cores the workers share.
        listener: a listening socket that workers must not keep open.
    """

    def __init__(self, translators: Sequence[Engine], count: int, cores: int, listener: socket.socket | None = None):
        self.workers = [Worker(translators, max(1, cores // count), listener) for _ in range(count)]
        self._alive = set(self.workers)
        self._free: SimpleQueue[Worker | None] = SimpleQueue()  # None: all workers are lost
        for worker in self.workers:
            self._free.put(worker)
        self.size = max(1, count)  # batches translated at a time
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="translator")

    @property
    def is_whole(self) -> bool:
        """Whether all workers are running."""
        return len(self._alive) == len(self.workers) and all(worker.process.is_alive() for worker in self.workers)

    def submit(self, translator: Engine, batch: Batch, settings: dict[str, Any]) -> Future[Translations]:
        """
        Have a batch translated by `translator.translate_batch`. The future raises its ValueError, a RuntimeError that
        describes any other error in a worker, or WorkerLost.
        """
        return self._threads.submit(self._translate, translator, batch, settings)

    def _translate(self, translator: Engine, batch: Batch, settings: dict[str, Any]) -> Translations:
        if not self.workers:
            return translator.translate_batch(*batch, **settings)
        worker = self._free.get()
        if worker is None:
            self._free.put(None)
            raise WorkerLost("all workers have ended")
        try:
            found = worker(translator, batch, settings)
        except WorkerLost:
            self._alive.discard(worker)
            if not self._alive:
                self._free.put(None)
            raise
        self._free.put(worker)
        if isinstance(found, Exception):
            raise found
        return found

    def sharing(self, translator: Engine) -> dict[str, Any]:
        """Arguments with which `Translator.translate` gives its batches to the workers; none without workers."""
        if not self.workers:
            return {}
        return {"map_batches": partial(self._map, translator), "min_batches": _BATCHES_PER_WORKER * self.size}

    def _map(self, translator: Engine, batches: list[Batch], settings: dict[str, Any]) -> Iterator[Translations]:
        found = [self.submit(translator, batch, settings) for batch in batches]
        try:
            yield from (future.result() for future in found)
        except BaseException as error:
            self.close()  # do not wait for the other batches
            if isinstance(error, WorkerLost):
                raise UserError(f"{error}; if memory ran out, --workers 0 needs less") from error
            raise

    def close(self) -> None:
        """End the workers, whether or not they are translating."""
        for worker in self.workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)


class WorkerLost(Exception):
    """A worker ended without an answer."""


class Worker:
    """
    A process that translates one batch per call. It is forked, so that the models are in memory once. It ends when the
    process that created it ends.

    Args:
        threads: how many threads it computes with.
        listener: a listening socket. The worker closes it, so that nobody can connect once this process has closed it.
    """

    def __init__(self, translators: Sequence[Engine], threads: int, listener: socket.socket | None):
        self._translators = list(translators)
        self._connection, others = multiprocessing.Pipe()
        arguments = (others, self._translators, threads, listener)
        self.process = multiprocessing.get_context("fork").Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        others.close()
        # At exit, before `multiprocessing` sends SIGTERM, which workers ignore, and waits for them.
        Finalize(self, self.process.kill, exitpriority=10)

    def __call__(
        self, translator: Engine, batch: Batch, settings: dict[str, Any]
    ) -> Translations | ValueError | RuntimeError:
        """What `translator.translate_batch` returned or raised. Raises WorkerLost if the process has ended."""
        try:
            self._connection.send_bytes(pickle.dumps((self._translators.index(translator), batch, settings)))
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerLost(f"a worker (process {self.process.pid}) has ended") from error

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(connection, translators: list[Engine], threads: int, listener: socket.socket | None) -> None:
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Terminals send SIGINT to all of their processes, and systemd sends SIGTERM; the parent decides when workers end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if listener is not None:
        listener.close()
    torch.set_num_threads(threads)
    while True:
        number, batch, settings = pickle.loads(connection.recv_bytes())
        try:
            found = translators[number].translate_batch(*batch, **settings)
        except Exception as error:
            # Some errors cannot be pickled.
            found = ValueError(str(error)) if isinstance(error, ValueError) else RuntimeError(repr(error))
            found.add_note(f"In the worker: {traceback.format_exc()}")
        connection.send_bytes(pickle.dumps(found))

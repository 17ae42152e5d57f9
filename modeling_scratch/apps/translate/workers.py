"""Worker processes that share batches, since one batch of a small model does not keep all cores busy."""

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
from typing import Any, Protocol

import torch

from ...errors import UserError
from ...inference.translate import Batch, Translations

_MOST_BY_DEFAULT = 8
_BATCHES_PER_WORKER = 4  # of a list of texts, so that all workers finish at about the same time


class BatchTranslator(Protocol):
    """What a pool calls. Only one thread at a time calls it."""

    def translate_batch(self, texts: Sequence[str], tokens: list[list[int]], **settings) -> Translations:
        """The translations of each text, best first."""


@contextmanager
def before_forking() -> Iterator[int]:
    """
    A context in which to load models and fork workers. In it, PyTorch uses one thread, since OpenMP's threads would not
    survive in forked processes. Its value is the number of threads used outside.
    """
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
        asked: None: one per core, up to a limit, where workers are possible, and none elsewhere.
        can_fork: all translators run on the CPU, in threads that forked processes can replace.

    Raises:
        UserError: workers are asked for, and impossible here.
    """
    can_fork = can_fork and sys.platform == "linux"  # macOS's libraries may not survive in a forked process
    if asked and not can_fork:
        raise UserError(f"--workers {asked}: only with PyTorch on the CPU, under Linux; leave it out")
    if asked is not None:
        return asked
    return min(cores, _MOST_BY_DEFAULT) if can_fork and cores > 1 else 0


class Pool:
    """
    Gives each batch to a free worker, in the order of submission. Without workers, a thread of this process translates.
    Create it inside `before_forking`, before this process has threads.

    Args:
        translators: all that it may be asked to translate with.
        count: of workers.
        cores: which the workers share.
        listener: a listening socket of this process alone.
    """

    def __init__(
        self, translators: Sequence[BatchTranslator], count: int, cores: int, listener: socket.socket | None = None
    ):
        self.workers = [Worker(translators, max(1, cores // count), listener) for _ in range(count)]
        self._alive = set(self.workers)
        self._free: SimpleQueue[Worker | None] = SimpleQueue()  # None: all workers are lost
        for worker in self.workers:
            self._free.put(worker)
        self.size = max(1, count)  # how many batches are translated at a time
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="translator")

    @property
    def is_whole(self) -> bool:
        """Whether all workers are running."""
        return len(self._alive) == len(self.workers) and all(worker.process.is_alive() for worker in self.workers)

    def submit(self, translator: BatchTranslator, batch: Batch, settings: dict[str, Any]) -> Future[Translations]:
        """
        Have a batch translated. The result is that of `translator.translate_batch`, or raises its ValueError, a
        RuntimeError that describes any other error in a worker, or WorkerLost.
        """
        return self._threads.submit(self._translate, translator, batch, settings)

    def _translate(self, translator: BatchTranslator, batch: Batch, settings: dict[str, Any]) -> Translations:
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

    def sharing(self, translator: BatchTranslator) -> dict[str, Any]:
        """The arguments of `Translator.translate` by which the workers share its batches; none without workers."""
        if not self.workers:
            return {}
        return {"map_batches": partial(self._map, translator), "min_batches": _BATCHES_PER_WORKER * self.size}

    def _map(
        self, translator: BatchTranslator, batches: list[Batch], settings: dict[str, Any]
    ) -> Iterator[Translations]:
        found = [self.submit(translator, batch, settings) for batch in batches]
        try:
            yield from (each.result() for each in found)
        except BaseException as error:
            self.close()  # otherwise this process would wait for the other batches
            if isinstance(error, WorkerLost):
                raise UserError(f"{error}; if it ran out of memory, --workers 0 needs less") from error
            raise

    def close(self) -> None:
        """End the workers, whether or not they are translating."""
        for worker in self.workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)


class WorkerLost(Exception):
    """A worker has ended without an answer."""


class Worker:
    """
    A process that translates one batch per call. It is forked, so it shares the models' memory. It ends with the
    process that created it.

    Args:
        threads: how many it computes with.
        listener: a listening socket, which it closes, so that nobody can connect once this process has closed it.
    """

    def __init__(self, translators: Sequence[BatchTranslator], threads: int, listener: socket.socket | None):
        self._translators = list(translators)
        self._connection, others = multiprocessing.Pipe()
        arguments = (others, self._translators, threads, listener)
        self.process = multiprocessing.get_context("fork").Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        others.close()
        # When this process exits, before `multiprocessing` sends SIGTERM, which a worker ignores, and waits.
        Finalize(self, self.process.kill, exitpriority=10)

    def __call__(
        self, translator: BatchTranslator, batch: Batch, settings: dict[str, Any]
    ) -> Translations | ValueError | RuntimeError:
        """What `translator.translate_batch` returns, or the error that it raised. WorkerLost: the process has ended."""
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


def _work(connection, translators: list[BatchTranslator], threads: int, listener: socket.socket | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A terminal sends Ctrl-C to all of its processes, and systemd SIGTERM; the parent decides what ends.
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
            # Not the error itself, since some cannot be pickled.
            found = ValueError(str(error)) if isinstance(error, ValueError) else RuntimeError(repr(error))
            found.add_note(f"In the worker: {traceback.format_exc()}")
        connection.send_bytes(pickle.dumps(found))

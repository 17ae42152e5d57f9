"""Batches the sentences of concurrent requests, and translates them in one thread."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from .engines import Engine, Hypothesis, Search

logger = logging.getLogger(__name__)

LARGEST_BATCH = 64  # sentences
_LONGEST_WAIT = 0.05  # seconds


class Busy(Exception):
    """The queue is full, or the request's time is up."""


class TooMuch(Exception):
    """The request has more sentences than the queue can hold."""


class Gone(Exception):
    """The request was cancelled."""


@dataclass(eq=False)
class _Request:
    """A request's waiting sentences, each with the future of its translations."""

    engine: Engine
    search: Search
    waiting: deque[tuple[str, Future[list[Hypothesis]]]]


class Batcher:
    """
    The queue of requests, and the thread that translates their sentences. A batch takes one sentence of each request
    in turn, so that a long text does not keep short ones waiting.

    Args:
        longest_queue: the most sentences that may wait.
        observe: called with the size of each batch.
    """

    def __init__(self, longest_queue: int, observe: Callable[[int], None] = lambda size: None):
        self.longest_queue, self._observe = longest_queue, observe
        self._requests: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="translator", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many sentences are waiting."""
        with self._changed:
            return sum(len(request.waiting) for request in self._requests)

    @property
    def is_alive(self) -> bool:
        """Whether the translating thread is running."""
        return self._thread.is_alive()

    def submit(self, engine: Engine, sentences: Sequence[str], search: Search) -> list[Future[list[Hypothesis]]]:
        """Queue sentences. Raises Busy if there is no room for them now, and TooMuch if there never is."""
        if len(sentences) > self.longest_queue:
            raise TooMuch(f"{len(sentences):,} sentences in a request; at most {self.longest_queue:,} may wait")
        futures: list[Future] = [Future() for _ in sentences]
        with self._changed:
            if self._closed or self.waiting + len(sentences) > self.longest_queue:
                raise Busy(f"{self.waiting:,} sentences are waiting; try again later")
            if sentences:
                self._requests.append(_Request(engine, search, deque(zip(sentences, futures, strict=True))))
                self._changed.notify()
        return futures

    def withdraw(self, futures: Sequence[Future]) -> None:
        """Cancel these, except for those already being translated."""
        for future in futures:
            future.cancel()
        with self._changed:
            for request in self._requests:
                request.waiting = deque(each for each in request.waiting if not each[1].cancelled())
            self._requests = deque(request for request in self._requests if request.waiting)

    def close(self) -> None:
        """Stop after the current batch; waiting sentences are cancelled."""
        with self._changed:
            self._closed = True
            for request in self._requests:
                for _, future in request.waiting:
                    future.cancel()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        patience, answered = 0.0, 0
        while (batch := self._next_batch(patience, answered)) is not None:
            first, items, answered = batch
            started = time.monotonic()
            self._translate(first, items)
            # Clients answered together ask again together. Without a short wait for all of them, they would split into
            # two halves that take turns.
            answered += len(self._requests)
            patience = min((time.monotonic() - started) / 4, _LONGEST_WAIT)

    def _next_batch(self, patience: float, wanted: int) -> tuple[_Request, list[tuple[str, Future]], int] | None:
        """
        The next batch: a request with its engine and search, its sentences with their futures, and how many waiting
        requests have this engine and search; None if the batcher is closed.

        Args:
            patience: seconds to wait for further requests once there is one.
            wanted: how many requests end the wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._closed)
            self._changed.wait_for(lambda: len(self._requests) >= wanted or self._closed, timeout=patience)
            if self._closed:
                return None
            if not self._requests:  # withdrawn meanwhile
                return self._next_batch(0.0, 0)
            first = self._requests[0]
            alike = (each for each in self._requests if each.engine is first.engine and each.search == first.search)
            taking = deque(alike)
            count, items = len(taking), []
            while taking and len(items) < LARGEST_BATCH:
                request = taking.popleft()
                sentence, future = request.waiting.popleft()
                if future.set_running_or_notify_cancel():
                    items.append((sentence, future))
                if request.waiting:
                    taking.append(request)
            # Requests that have been served go behind those that have not.
            others = [request for request in self._requests if request.waiting and request not in taking]
            self._requests = deque([*others, *taking])
        return first, items, count

    def _translate(self, request: _Request, items: list[tuple[str, Future]]) -> None:
        if not items:  # all withdrawn
            return
        try:
            self._observe(len(items))
            found = request.engine.translate([sentence for sentence, _ in items], request.search)
            results = list(zip(items, found, strict=True))
        except Exception as error:
            if len(items) > 1:
                for item in items:  # retried alone: one sentence must not fail the others
                    self._translate(request, [item])
            else:
                logger.error(f"a sentence could not be translated: {error!r}")
                items[0][1].set_exception(error)
            return
        for (_, future), hypotheses in results:
            future.set_result(hypotheses)


class Ticket:
    """
    One request's use of the batcher, until its time is up or its client has gone.

    Args:
        seconds: time limit of the whole request.
    """

    def __init__(self, batcher: Batcher, seconds: float):
        self._batcher, self.seconds = batcher, seconds
        self._deadline = time.monotonic() + seconds
        self._futures: list[Future] = []
        self._cancelled = False

    def check(self) -> None:
        """Raise Gone if the ticket was cancelled, and Busy if its time is up."""
        if self._cancelled:
            raise Gone
        if self.remaining() <= 0:
            raise self.late()

    def remaining(self) -> float:
        """Seconds until its time is up."""
        return max(0.0, self._deadline - time.monotonic())

    def late(self) -> Busy:
        """What to raise when its time is up."""
        return Busy(f"not translated within {self.seconds:g} seconds; try again later, or send less")

    def translate(self, engine: Engine, sentences: Sequence[str], search: Search) -> list[list[Hypothesis]]:
        """
        Translate sentences, and wait for the results.

        Raises:
            Busy: the queue has no room, or the time is up.
            TooMuch: the queue can never hold so many.
            Gone: the ticket was cancelled.
        """
        self.check()
        self._futures = self._batcher.submit(engine, sentences, search)
        if self._cancelled:  # before the futures could be withdrawn
            self._batcher.withdraw(self._futures)
        try:
            return [future.result(self.remaining()) for future in self._futures]
        except TimeoutError:
            raise self.late() from None
        except CancelledError:
            raise Gone from None
        finally:
            self._batcher.withdraw(self._futures)

    def cancel(self) -> None:
        """End the wait; nothing more is translated for this request."""
        self._cancelled = True
        self._batcher.withdraw(self._futures)

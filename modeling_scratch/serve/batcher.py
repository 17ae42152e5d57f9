"""Batches the sentences of concurrent requests, and has each batch translated by a free translator."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from .engines import Engine, Hypothesis, Search
from .workers import WorkerLost

logger = logging.getLogger(__name__)

Translator = Callable[[Engine, Sequence[str], Search], list[list[Hypothesis]]]

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
    The queue of requests, and a thread per translator that has their sentences translated. A batch takes one sentence
    of each request in turn, so that a long text does not keep short ones waiting.

    Args:
        longest_queue: the most sentences that may wait.
        observe: called with the size of each batch.
        translators: each translates one batch at a time, in parallel with the others; none: this process translates.
    """

    def __init__(
        self,
        longest_queue: int,
        observe: Callable[[int], None] = lambda size: None,
        translators: Sequence[Translator] = (),
    ):
        self.longest_queue, self._observe = longest_queue, observe
        self._requests: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._translating = 0  # sentences
        self._expected = 0  # sentences that waited or were translated when a batch was last done
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name="translator", daemon=True)
            for each in translators or [_translate_here]
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many sentences are waiting."""
        with self._changed:
            return self._waiting()

    @property
    def is_alive(self) -> bool:
        """Whether all translators still translate."""
        return all(thread.is_alive() for thread in self._threads)

    def submit(self, engine: Engine, sentences: Sequence[str], search: Search) -> list[Future[list[Hypothesis]]]:
        """Queue sentences. Raises Busy if there is no room for them now, and TooMuch if there never is."""
        if len(sentences) > self.longest_queue:
            raise TooMuch(f"{len(sentences):,} sentences in a request; at most {self.longest_queue:,} may wait")
        futures: list[Future] = [Future() for _ in sentences]
        with self._changed:
            if self._closed or self._waiting() + len(sentences) > self.longest_queue:
                raise Busy(f"{self._waiting():,} sentences are waiting; try again later")
            if sentences:
                self._requests.append(_Request(engine, search, deque(zip(sentences, futures, strict=True))))
                self._changed.notify_all()
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
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, translator: Translator) -> None:
        patience = 0.0
        while (batch := self._next_batch(patience)) is not None:
            started = time.monotonic()
            try:
                self._translate(translator, *batch)
            except WorkerLost as error:
                logger.error(f"{error}; restart the service")
                for _, future in batch[1]:
                    if not future.done():
                        future.set_exception(Busy("the process that translated this has ended; try again"))
                return
            finally:
                with self._changed:
                    self._expected = self._waiting() + self._translating
                    self._translating -= len(batch[1])
            # Clients answered together ask again together. Without a short wait for all of them, they would split into
            # small batches that take turns.
            patience = min((time.monotonic() - started) / 4, _LONGEST_WAIT)

    def _next_batch(self, patience: float) -> tuple[_Request, list[tuple[str, Future]]] | None:
        """
        The next batch: a request with its engine and search, and sentences with their futures; None if the batcher is
        closed.

        Args:
            patience: seconds to wait for a fair share of the sentences once there is one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._closed)
            self._changed.wait_for(lambda: self._waiting() >= self._fair_share() or self._closed, timeout=patience)
            # Meanwhile another translator may have taken them, or a client may have withdrawn them.
            self._changed.wait_for(lambda: self._requests or self._closed)
            if self._closed:
                return None
            first, items = self._take(self._fair_share())
            self._translating += len(items)
            return first, items

    def _waiting(self) -> int:
        return sum(len(request.waiting) for request in self._requests)

    def _fair_share(self) -> int:
        """A translator's share of the sentences in the service, now or when a batch was last finished."""
        all_of_them = max(self._expected, self._waiting() + self._translating)
        return min(math.ceil(all_of_them / len(self._threads)), LARGEST_BATCH)

    def _take(self, most: int) -> tuple[_Request, list[tuple[str, Future]]]:
        """The first request, and up to `most` sentences that can share a batch with its own."""
        first = self._requests[0]
        alike = (each for each in self._requests if each.engine is first.engine and each.search == first.search)
        taking, items = deque(alike), []
        while taking and len(items) < most:
            request = taking.popleft()
            sentence, future = request.waiting.popleft()
            if future.set_running_or_notify_cancel():
                items.append((sentence, future))
            if request.waiting:
                taking.append(request)
        # Requests that have been served go behind those that have not.
        others = [request for request in self._requests if request.waiting and request not in taking]
        self._requests = deque([*others, *taking])
        return first, items

    def _translate(self, translator: Translator, request: _Request, items: list[tuple[str, Future]]) -> None:
        if not items:  # all withdrawn
            return
        try:
            self._observe(len(items))
            found = translator(request.engine, [sentence for sentence, _ in items], request.search)
            results = list(zip(items, found, strict=True))
        except WorkerLost:
            raise
        except Exception as error:
            if len(items) > 1:
                for item in items:  # retried alone: one sentence must not fail the others
                    self._translate(translator, request, [item])
            else:
                logger.error(f"a sentence could not be translated: {error!r}")
                items[0][1].set_exception(error)
            return
        for (_, future), hypotheses in results:
            future.set_result(hypotheses)


def _translate_here(engine: Engine, sentences: Sequence[str], search: Search) -> list[list[Hypothesis]]:
    return engine.translate(sentences, search)


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

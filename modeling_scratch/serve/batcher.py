"""Requests that come together are translated together: one thread translates the sentences that wait."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

from .engines import Engine, Hypothesis, Search

LARGEST_BATCH = 64  # sentences
_LONGEST_WAIT = 0.05  # seconds


class Busy(Exception):
    """Too much waits already, or the request's time is up."""


class Gone(Exception):
    """The request was cancelled."""


@dataclass(frozen=True)
class _Item:
    engine: Engine
    sentence: str
    search: Search
    future: "Future[list[Hypothesis]]" = field(default_factory=Future)


class Batcher:
    """
    A queue of sentences, and the thread that translates them, oldest first.

    Args:
        longest_queue: the most sentences that wait; a request that would wait behind as many is refused.
        observe: called with the size of each batch.
    """

    def __init__(self, longest_queue: int, observe: Callable[[int], None] = lambda size: None):
        self.longest_queue, self._observe = longest_queue, observe
        self._items: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="translator", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Sentences in the queue."""
        return len(self._items)

    def submit(self, engine: Engine, sentences: Sequence[str], search: Search) -> "list[Future[list[Hypothesis]]]":
        """Put sentences into the queue. Raises Busy if it is full."""
        items = [_Item(engine, sentence, search) for sentence in sentences]
        with self._changed:
            if self._closed or len(self._items) >= self.longest_queue:
                raise Busy(f"{len(self._items):,} sentences are waiting; try again later")
            self._items.extend(items)
            self._changed.notify()
        return [item.future for item in items]

    def close(self) -> None:
        """Translate nothing more; what waits is cancelled."""
        with self._changed:
            self._closed = True
            for item in self._items:
                item.future.cancel()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        patience = 0.0
        while (batch := self._next_batch(patience)) is not None:
            started = time.monotonic()
            self._translate(batch)
            # Clients that were answered together ask again together: their sentences are worth a short wait.
            patience = min((time.monotonic() - started) / 10, _LONGEST_WAIT) if len(batch) > 1 else 0.0

    def _next_batch(self, patience: float) -> list[_Item] | None:
        """
        The oldest sentence and those that can be translated with it; None if the batcher is closed.

        Args:
            patience: seconds to wait for more than the first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed)
            if patience:
                self._changed.wait_for(lambda: len(self._items) >= LARGEST_BATCH or self._closed, timeout=patience)
            if self._closed:
                return None
            first, batch, others = self._items[0], [], deque()
            while self._items and len(batch) < LARGEST_BATCH:
                item = self._items.popleft()
                alike = item.engine is first.engine and item.search == first.search
                (batch if alike else others).append(item)
            self._items.extendleft(reversed(others))
        return [item for item in batch if item.future.set_running_or_notify_cancel()]

    def _translate(self, batch: list[_Item]) -> None:
        if not batch:
            return
        self._observe(len(batch))
        try:
            found = batch[0].engine.translate([item.sentence for item in batch], batch[0].search)
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for item in batch:  # one sentence must not fail the others
                self._translate([item])
            return
        for item, hypotheses in zip(batch, found, strict=True):
            item.future.set_result(hypotheses)


class Ticket:
    """
    One request's use of the batcher, until its time is up or its client has gone.

    Args:
        seconds: that the request may take in all.
    """

    def __init__(self, batcher: Batcher, seconds: float):
        self._batcher, self._seconds = batcher, seconds
        self._deadline = time.monotonic() + seconds
        self._futures: list[Future] = []
        self._cancelled = False

    def translate(self, engine: Engine, sentences: Sequence[str], search: Search) -> list[list[Hypothesis]]:
        """
        Wait for the translations of sentences.

        Raises:
            Busy: the queue is full, or they have not been translated in time.
            Gone: the ticket was cancelled.
        """
        if self._cancelled:
            raise Gone
        self._futures = self._batcher.submit(engine, sentences, search)
        if self._cancelled:  # meanwhile
            self._take_back()
        try:
            return [future.result(max(0.0, self._deadline - time.monotonic())) for future in self._futures]
        except TimeoutError:
            raise Busy(f"not translated within {self._seconds:g} seconds; try again later, or send less") from None
        except CancelledError:
            raise Gone from None
        finally:
            self._take_back()

    def cancel(self) -> None:
        """End the wait; nothing more is translated for this request."""
        self._cancelled = True
        self._take_back()

    def _take_back(self) -> None:
        for future in self._futures:
            future.cancel()

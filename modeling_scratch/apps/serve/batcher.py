"""Queues the sentences of concurrent requests and batches them for a pool of workers."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...model.text import left_as_it_is
from ...model.translations import Translation, Translations
from ..translate.workers import Pool, WorkerLost
from .engines import Engine

logger = logging.getLogger(__name__)

_LARGEST_BATCH = 64  # sentences
_LONGEST_WAIT = 0.05  # seconds
_MOST_COUNTED = 256  # sentences of one request: more delay others no further, since requests take turns


class Busy(Exception):
    """The queue is full or closed, a worker died, or time ran out: the client should retry."""


@dataclass(frozen=True, eq=False)
class _Item:
    """A sentence that waits to be translated."""

    text: str
    tokens: list[int]
    future: asyncio.Future[list[Translation]]


@dataclass(eq=False)
class _Request:
    """The sentences of a request that still wait."""

    engine: Engine
    settings: dict[str, Any]
    waiting: deque[_Item]


class Batcher:
    """
    Queues requests in an event loop, where one task per worker takes batches from the queue. A batch takes one sentence
    from each request in turn, so that a long text does not hold up short ones. Use it in an `async with` block: leaving
    the block waits for the batches in progress and cancels everything else.

    Args:
        longest_queue: while this many sentences are waiting, further requests are refused. Of the sentences of one
            request, at most 256 count.
        observe: called with the number of sentences of each batch.
    """

    def __init__(self, pool: Pool, longest_queue: int, observe: Callable[[int], None] = lambda size: None):
        self.longest_queue, self._observe, self._pool = longest_queue, observe, pool
        self._tasks: list[asyncio.Task] = []
        self._requests: dict[_Request, None] = {}  # with waiting sentences; the first is the next in turn
        self._changed = asyncio.Event()
        self._closed = False
        self._translating = 0  # sentences
        self._expected = 0  # sentences that were waiting or being translated when the last batch finished

    async def __aenter__(self) -> "Batcher":
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._pool.size)]
        return self

    async def __aexit__(self, *_) -> None:
        self._closed = True
        for request in self._requests:
            for item in request.waiting:
                item.future.cancel()
        self._changed.set()
        await asyncio.gather(*self._tasks)

    @property
    def waiting(self) -> int:
        """The number of waiting sentences."""
        return sum(len(request.waiting) for request in self._requests)

    def _alive(self) -> int:
        return sum(not task.done() for task in self._tasks)

    async def translate(
        self, engine: Engine, texts: Sequence[str], tokens: list[list[int]], settings: dict[str, Any]
    ) -> Translations:
        """
        Translate sentences. Returns the translations of each, best first; a sentence without tokens is returned as it
        is. If this call is cancelled or a sentence fails, the other sentences leave the queue.

        Args:
            settings: passed to `Translator.translate_batch`.

        Raises:
            Busy: the queue is full or closed, or the worker died.
        """
        loop, count = asyncio.get_running_loop(), settings.get("num_return_sequences", 1)
        items = {
            place: _Item(text, row, loop.create_future())
            for place, (text, row) in enumerate(zip(texts, tokens, strict=True))
            if row
        }
        found = [[Translation(left_as_it_is(text))] * count for text in texts]
        if not items:
            return found
        if self._closed:
            raise Busy("the service is shutting down; try again later")
        if sum(min(len(request.waiting), _MOST_COUNTED) for request in self._requests) >= self.longest_queue:
            raise Busy(f"the queue is full: {self.waiting:,} sentences are waiting; try again later")
        if not self._alive():
            raise Busy("all worker processes have died; try again later")
        request = _Request(engine, settings, deque(items.values()))
        self._requests[request] = None
        self._changed.set()
        try:
            results = await asyncio.gather(*(item.future for item in items.values()))
        finally:
            request.waiting.clear()
            self._requests.pop(request, None)
        for place, translations in zip(items, results, strict=True):
            found[place] = translations
        return found

    async def _run(self) -> None:
        patience = 0.0
        while (batch := await self._next_batch(patience)) is not None:
            started = time.monotonic()
            try:
                await self._translate(*batch)
            except WorkerLost as error:
                logger.error(f"{error}; restart the service")
                lost = list(batch[1])
                if self._alive() == 1:  # this is the last one
                    lost += [item for request in self._requests for item in request.waiting]
                for item in lost:
                    if not item.future.done():
                        item.future.set_exception(Busy("the worker process died; try again"))
                return
            finally:
                self._expected = self.waiting + self._translating
                self._translating -= len(batch[1])
            # Clients that are answered together send their next requests together. Without a short wait for all of
            # them, they would be split into small batches that take turns.
            patience = min((time.monotonic() - started) / 4, _LONGEST_WAIT)

    async def _next_batch(self, patience: float) -> tuple[_Request, list[_Item]] | None:
        """
        The next batch: a request, for its engine and settings, and the sentences. None once the batcher is closed.

        Args:
            patience: how many seconds to wait for a fair share of the sentences once there are any.
        """
        await self._until(lambda: bool(self._requests))
        try:
            async with asyncio.timeout(patience):
                await self._until(lambda: self.waiting >= self._fair_share())
        except TimeoutError:
            # By now another worker may have taken the sentences, or their client may have disconnected.
            await self._until(lambda: bool(self._requests))
        if self._closed:
            return None
        first, items = self._take(self._fair_share())
        self._translating += len(items)
        return first, items

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not (condition() or self._closed):
            self._changed.clear()
            await self._changed.wait()

    def _fair_share(self) -> int:
        """A worker's share of all sentences in the service: those there are, or were when the last batch finished."""
        total = max(self._expected, self.waiting + self._translating)
        return min(math.ceil(total / max(1, self._alive())), _LARGEST_BATCH)

    def _take(self, most: int) -> tuple[_Request, list[_Item]]:
        """Take up to `most` sentences that can share a batch, in turn from the first request and those like it."""
        first = next(iter(self._requests))
        kind = first.engine, first.settings
        taking, items = deque(request for request in self._requests if (request.engine, request.settings) == kind), []
        while taking and len(items) < most:
            request = taking.popleft()
            items.append(request.waiting.popleft())
            if request.waiting:
                taking.append(request)
        # Requests that have had a turn go to the end of the queue.
        served = dict.fromkeys(taking)
        waiting = [request for request in self._requests if request.waiting and request not in served]
        self._requests = dict.fromkeys(waiting) | served
        return first, items

    async def _translate(self, request: _Request, items: list[_Item]) -> None:
        try:
            self._observe(len(items))
            batch = [item.text for item in items], [item.tokens for item in items]
            found = await asyncio.wrap_future(self._pool.submit(request.engine, batch, request.settings))
        except WorkerLost:
            raise
        except Exception as error:
            if len(items) == 1:
                logger.error(f"a sentence could not be translated: {error!r}")
                if not items[0].future.done():
                    items[0].future.set_exception(error)
                return
            for item in items:  # retried one by one: one sentence must not fail the others
                if self._closed:
                    item.future.cancel()
                elif not item.future.done():
                    await self._translate(request, [item])
            return
        for item, translations in zip(items, found, strict=True):
            if not item.future.done():  # otherwise its request was cancelled
                item.future.set_result(translations)

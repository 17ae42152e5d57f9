"""Batches the sentences of concurrent requests, and has each batch translated by a free translator."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ..translate.workers import WorkerLost
from .engines import Engine, Hypothesis, Search

logger = logging.getLogger(__name__)

Translator = Callable[[Engine, Sequence[str], Search], list[list[Hypothesis]]]
_Translate = Callable[[Engine, Sequence[str], Search], Awaitable[list[list[Hypothesis]]]]
_Item = tuple[str, asyncio.Future[list[Hypothesis]]]  # a sentence and its translations

_LARGEST_BATCH = 64  # sentences
_LONGEST_WAIT = 0.05  # seconds


class Busy(Exception):
    """The queue is full or closed, a translator is lost, or the request's time is up: the client should try again."""


@dataclass(eq=False)
class _Request:
    """A request's waiting sentences."""

    engine: Engine
    search: Search
    waiting: deque[_Item]


class Batcher:
    """
    The queue of requests, in an event loop, and a task per translator that has their sentences translated. A batch
    takes one sentence from each request in turn, so that a long text does not keep short ones waiting. Runs within an
    `async with` block, whose end waits for the current batches and cancels everything else.

    Args:
        longest_queue: while that many sentences are waiting, no further requests are accepted.
        observe: called with the size of each batch.
        translators: each translates one batch at a time, in a thread and in parallel with the others; none: this
            process translates.
    """

    def __init__(
        self,
        longest_queue: int,
        observe: Callable[[int], None] = lambda size: None,
        translators: Sequence[Translator] = (),
    ):
        self.longest_queue, self._observe = longest_queue, observe
        self._translators = translators or [_translate_here]
        self._tasks: list[asyncio.Task] = []
        self._requests: dict[_Request, None] = {}  # those with waiting sentences, in the order of their turns
        self._changed = asyncio.Event()
        self._closed = False
        self._translating = 0  # sentences
        self._expected = 0  # sentences that were waiting or being translated when a batch was last done

    async def __aenter__(self) -> "Batcher":
        self._threads = ThreadPoolExecutor(len(self._translators), thread_name_prefix="translator")
        self._tasks = [asyncio.create_task(self._run(each)) for each in self._translators]
        return self

    async def __aexit__(self, *_) -> None:
        self._closed = True
        for request in self._requests:
            for _, future in request.waiting:
                future.cancel()
        self._changed.set()
        await asyncio.gather(*self._tasks)
        self._threads.shutdown()

    @property
    def waiting(self) -> int:
        """How many sentences are waiting."""
        return sum(len(request.waiting) for request in self._requests)

    @property
    def is_alive(self) -> bool:
        """Whether all translators are still running."""
        return self._alive() == len(self._tasks)

    def _alive(self) -> int:
        return sum(not task.done() for task in self._tasks)

    async def translate(self, engine: Engine, sentences: Sequence[str], search: Search) -> list[list[Hypothesis]]:
        """
        The translations of each sentence, best first. If this is cancelled, or one sentence fails, the others leave the
        queue.

        Raises:
            Busy: the queue is full or closed, or the translator is lost.
        """
        if not sentences:
            return []
        if self._closed or self.waiting >= self.longest_queue:
            raise Busy(f"{self.waiting:,} sentences are waiting; try again later")
        if not self._alive():
            raise Busy("all processes that translate have ended; try again later")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in sentences]
        request = _Request(engine, search, deque(zip(sentences, futures, strict=True)))
        self._requests[request] = None
        self._changed.set()
        try:
            return await asyncio.gather(*futures)
        finally:
            request.waiting.clear()
            self._requests.pop(request, None)

    async def _run(self, translator: Translator) -> None:
        translate = partial(asyncio.get_running_loop().run_in_executor, self._threads, translator)
        patience = 0.0
        while (batch := await self._next_batch(patience)) is not None:
            started = time.monotonic()
            try:
                await self._translate(translate, *batch)
            except WorkerLost as error:
                logger.error(f"{error}; restart the service")
                lost = list(batch[1])
                if self._alive() == 1:  # this is the last one
                    lost += [item for request in self._requests for item in request.waiting]
                for _, future in lost:
                    if not future.done():
                        future.set_exception(Busy("the process that translated this has ended; try again"))
                return
            finally:
                self._expected = self.waiting + self._translating
                self._translating -= len(batch[1])
            # Clients that are answered together ask again together. Without a short wait for all of them, they would be
            # split into small batches that take turns.
            patience = min((time.monotonic() - started) / 4, _LONGEST_WAIT)

    async def _next_batch(self, patience: float) -> tuple[_Request, list[_Item]] | None:
        """
        The next batch: a request with its engine and search, and sentences with their futures; None if the batcher is
        closed.

        Args:
            patience: seconds to wait for a fair share of the sentences once any are waiting.
        """
        await self._until(lambda: bool(self._requests))
        try:
            async with asyncio.timeout(patience):
                await self._until(lambda: self.waiting >= self._fair_share())
        except TimeoutError:
            # Meanwhile another translator may have taken them, or a client may have gone.
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
        """A translator's share of the sentences in the service, now or when a batch was last finished."""
        all_of_them = max(self._expected, self.waiting + self._translating)
        return min(math.ceil(all_of_them / max(1, self._alive())), _LARGEST_BATCH)

    def _take(self, most: int) -> tuple[_Request, list[_Item]]:
        """The first request, and up to `most` sentences that can share a batch with its own."""
        first = next(iter(self._requests))
        alike = (each for each in self._requests if each.engine is first.engine and each.search == first.search)
        taking, items = deque(alike), []
        while taking and len(items) < most:
            request = taking.popleft()
            items.append(request.waiting.popleft())
            if request.waiting:
                taking.append(request)
        # Requests that have been served go behind those that have not.
        served = dict.fromkeys(taking)
        self._requests = {each: None for each in self._requests if each.waiting and each not in served} | served
        return first, items

    async def _translate(self, translate: _Translate, request: _Request, items: list[_Item]) -> None:
        try:
            self._observe(len(items))
            found = await translate(request.engine, [sentence for sentence, _ in items], request.search)
            results = list(zip(items, found, strict=True))
        except WorkerLost:
            raise
        except Exception as error:
            if len(items) > 1:
                for item in items:  # retried alone: one sentence must not fail the others
                    if self._closed:
                        item[1].cancel()
                    elif not item[1].done():
                        await self._translate(translate, request, [item])
                return
            logger.error(f"a sentence could not be translated: {error!r}")
            if not items[0][1].done():
                items[0][1].set_exception(error)
            return
        for (_, future), hypotheses in results:
            if not future.done():  # its client has not gone
                future.set_result(hypotheses)


def _translate_here(engine: Engine, sentences: Sequence[str], search: Search) -> list[list[Hypothesis]]:
    return engine.translate(sentences, search)

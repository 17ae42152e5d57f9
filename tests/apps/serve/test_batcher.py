"""
The queue of the service: who shares a batch, who waits, and what becomes of failures and of clients that leave. The
processes that read texts: they fail alone, and end.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from services import Slow

from modeling_scratch.apps.serve import batcher
from modeling_scratch.apps.serve.batcher import Batcher, Busy
from modeling_scratch.apps.serve.readers import ReaderLost, Readers
from modeling_scratch.apps.translate.workers import WorkerLost
from modeling_scratch.errors import UserError
from modeling_scratch.inference.translate import best_texts


class Threads:
    """A pool whose workers are threads, of which one is lost at one word."""

    def __init__(self, size):
        self.size, self.threads = size, ThreadPoolExecutor(size)

    def submit(self, engine, batch, settings):
        return self.threads.submit(self._translate, engine, *batch)

    @staticmethod
    def _translate(engine, texts, tokens):
        found = engine.translate_batch(texts, tokens)
        if "lost" in texts:
            raise WorkerLost("its process has ended")
        return found


class Queue:
    """A batcher with an engine that waits; `ask` has it translate some sentences, upper-cased."""

    def __init__(self, longest_queue=1_000, workers=1):
        self.engine = Slow()
        self.batcher = Batcher(Threads(workers), longest_queue)

    async def __aenter__(self):
        await self.batcher.__aenter__()
        return self

    async def __aexit__(self, *error):
        ending = asyncio.create_task(self.batcher.__aexit__(*error))
        await asyncio.sleep(0.01)
        self.engine.go.set()
        await ending

    async def ask(self, *sentences):
        return best_texts(await self.batcher.translate(self.engine, sentences, [[1]] * len(sentences), {}))

    async def begin(self, *sentences):
        """Ask, and return a task once a worker has the first of the sentences."""
        before, task = len(self.engine.batches), asyncio.create_task(self.ask(*sentences))
        await until(lambda: len(self.engine.batches) > before)
        return task

    async def enqueue(self, *sentences):
        """Ask, and return a task once the sentences wait."""
        before, task = self.batcher.waiting, asyncio.create_task(self.ask(*sentences))
        await until(lambda: self.batcher.waiting == before + len(sentences))
        return task


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def running(test):
    """Make a test of a coroutine."""

    def run():
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@running
async def test_a_sentence_that_fails_does_not_fail_those_beside_it():
    async with Queue() as queue:
        first = await queue.begin("one")
        bad, good = [await queue.enqueue(sentence) for sentence in ("bad", "good")]
        queue.engine.go.set()
        assert await good == ["GOOD"]
        with pytest.raises(RuntimeError, match="bad"):
            await bad
        await first
    assert queue.engine.batches == [["one"], ["bad", "good"], ["bad"], ["good"]]


@running
async def test_a_full_queue_refuses():
    async with Queue(longest_queue=4) as queue:
        first = await queue.begin("one")
        others = await queue.enqueue("two", "three")
        more = await queue.enqueue("four", "five", "six", "seven")  # the queue was not full
        with pytest.raises(Busy, match="6 sentences are waiting"):
            await queue.ask("eight")
        queue.engine.go.set()
        assert await first == ["ONE"]
        assert await others == ["TWO", "THREE"]
        assert await more == ["FOUR", "FIVE", "SIX", "SEVEN"]
        assert await queue.ask("eight") == ["EIGHT"]


@running
async def test_a_long_request_does_not_keep_a_short_one_waiting():
    async with Queue() as queue:
        await queue.begin("one")
        await queue.enqueue(*(f"long {number}" for number in range(200)))
        short = await queue.enqueue("short")
        queue.engine.go.set()
        await short
        assert "short" in queue.engine.batches[1]


@running
async def test_requests_take_turns():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batcher, "_LARGEST_BATCH", 1)
        async with Queue() as queue:
            await queue.begin("one")
            requests = [await queue.enqueue(*each) for each in (["a1", "a2", "a3"], ["b1"], ["c1", "c2"])]
            queue.engine.go.set()
            await asyncio.gather(*requests)
    assert queue.engine.batches == [["one"], ["a1"], ["b1"], ["c1"], ["a2"], ["c2"], ["a3"]]


@running
async def test_what_nobody_waits_for_is_not_translated():
    async with Queue() as queue:
        await queue.begin("one")
        waiting = await queue.enqueue("two")
        waiting.cancel()
        await until(lambda: queue.batcher.waiting == 0)
        queue.engine.go.set()
        assert await queue.ask("three") == ["THREE"]
    assert queue.engine.batches == [["one"], ["three"]]


@running
async def test_a_failed_batch_is_not_retried_for_clients_that_have_gone():
    async with Queue() as queue:
        bad = await queue.begin("bad", "beside it")
        bad.cancel()
        await asyncio.wait({bad})
        queue.engine.go.set()
        assert await queue.ask("next") == ["NEXT"]
    assert queue.engine.batches == [["bad", "beside it"], ["next"]]


@running
async def test_without_workers_requests_fail_at_once():
    async with Queue() as queue:
        first = await queue.begin("lost")
        waiting = await queue.enqueue("waiting")
        queue.engine.go.set()
        for task in (first, waiting):
            with pytest.raises(Busy, match="has ended"):
                await task
        with pytest.raises(Busy, match="all processes that translate have ended"):
            await queue.ask("more")


@running
async def test_a_batch_that_fails_while_the_service_ends_is_cancelled():
    async with Queue() as queue:
        bad = await queue.begin("bad", "beside it")
    with pytest.raises(asyncio.CancelledError):
        await bad
    assert queue.engine.batches == [["bad", "beside it"]]


@running
async def test_what_waits_when_the_service_ends_is_cancelled():
    async with Queue() as queue:
        first = await queue.begin("one")
        waiting = await queue.enqueue("two")
    assert await first == ["ONE"]
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert queue.engine.batches == [["one"]]


@running
async def test_workers_share_what_waits():
    async with Queue(workers=2) as queue:
        for _ in range(2):
            await queue.begin("a")  # each worker has one sentence, and waits
        others = [await queue.enqueue("b") for _ in range(8)]
        queue.engine.go.set()
        assert await asyncio.gather(*others) == [["B"]] * 8
    # Two clients have been answered and may ask again: half of ten are five.
    sizes = [len(batch) for batch in queue.engine.batches]
    assert sizes[:3] == [1, 1, 5]
    assert sum(sizes) == 10


LONG = " " * 10_000  # a text that begins so is not read among the short ones


@running
async def test_processes_that_read_fail_alone_and_are_replaced():
    async with Readers(60.0) as readers:
        first = await readers(os.getpid)
        assert first != os.getpid()
        assert not await readers(eval, "{'torch', 'transformers'} & set(__import__('sys').modules)")
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            await readers(divmod, 1, 0)
        assert await readers(os.getpid) == first
        with pytest.raises(ReaderLost, match="has ended"):
            await readers(os._exit, 3)
        assert await readers(os.getpid) != first
        assert await readers(print, "not an answer") is None


@running
async def test_what_takes_too_long_to_read_does_not_hold_others():
    async with Readers(0.5) as readers:
        holding = LONG + "__import__('re').fullmatch('(a|a)*b', 'a' * 100)"  # the interpreter
        evil = [asyncio.create_task(readers(eval, holding)) for _ in range(3)]
        assert await readers(len, "abc") == 3
        assert not any(each.done() for each in evil)
        for each in evil:
            with pytest.raises(UserError, match=r"takes more than 0\.5 seconds to read; send less"):
                await each


@running
async def test_what_is_read_ends_with_the_service():
    async with Readers(60.0) as readers:
        sleep = "__import__('time').sleep(60)"
        reading = [asyncio.create_task(readers(eval, text)) for text in (sleep, LONG + sleep)]
        waiting = asyncio.create_task(readers(eval, sleep))
        await until(lambda: all(reader._process for reader in readers._all.values()))
    for task in reading:
        with pytest.raises(ReaderLost, match="has ended"):
            await task
    with pytest.raises(asyncio.CancelledError):
        await waiting

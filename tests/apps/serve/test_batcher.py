"""The queue of the service: which sentences share a batch, and what happens to failures and cancelled requests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from services import Slow, in_event_loop, until

from modeling_scratch.apps.serve import batcher
from modeling_scratch.apps.serve.batcher import Batcher, Busy
from modeling_scratch.apps.translate.workers import WorkerLost
from modeling_scratch.model.translations import best_texts


class Threads:
    """A pool whose workers are threads. A worker dies when it translates "lost"."""

    def __init__(self, size):
        self.size, self.threads = size, ThreadPoolExecutor(size)

    def submit(self, engine, batch, settings):
        return self.threads.submit(self._translate, engine, *batch)

    @staticmethod
    def _translate(engine, texts, tokens):
        found = engine.translate_batch(texts, tokens)
        if "lost" in texts:
            raise WorkerLost("its process died")
        return found


class Queue:
    """A batcher with an engine that waits for `engine.go`, then puts sentences in upper case."""

    def __init__(self, longest_queue=1_000, workers=1):
        self.engine = Slow()
        self.batcher = Batcher(Threads(workers), longest_queue)

    async def __aenter__(self):
        await self.batcher.__aenter__()
        return self

    async def __aexit__(self, *error):
        ending = asyncio.create_task(self.batcher.__aexit__(*error))
        await asyncio.sleep(0)  # it begins to end
        self.engine.go.set()
        await ending

    async def ask(self, *sentences):
        return best_texts(await self.batcher.translate(self.engine, sentences, [[1]] * len(sentences), {}))

    async def begin(self, *sentences):
        """Start a request, and return its task once a worker has its first batch."""
        before, task = len(self.engine.batches), asyncio.create_task(self.ask(*sentences))
        await until(lambda: len(self.engine.batches) > before)
        return task

    async def enqueue(self, *sentences):
        """Start a request, and return its task once its sentences are waiting."""
        before, task = self.batcher.waiting, asyncio.create_task(self.ask(*sentences))
        await until(lambda: self.batcher.waiting == before + len(sentences))
        return task


@in_event_loop
async def test_a_failing_sentence_does_not_fail_the_others_in_its_batch():
    async with Queue() as queue:
        await queue.begin("one")
        bad, good = [await queue.enqueue(sentence) for sentence in ("bad", "good")]
        queue.engine.go.set()
        assert await good == ["GOOD"]
        with pytest.raises(RuntimeError, match="bad"):
            await bad
    assert queue.engine.batches == [["one"], ["bad", "good"], ["bad"], ["good"]]


@in_event_loop
async def test_a_full_queue_refuses_requests():
    async with Queue(longest_queue=4) as queue:
        await queue.begin("one")
        tasks = [await queue.enqueue("two", "three"), await queue.enqueue("four", "five", "six", "seven")]
        with pytest.raises(Busy, match="6 sentences"):
            await queue.ask("eight")
        queue.engine.go.set()
        assert await asyncio.gather(*tasks) == [["TWO", "THREE"], ["FOUR", "FIVE", "SIX", "SEVEN"]]
        assert await queue.ask("eight") == ["EIGHT"]


@in_event_loop
async def test_requests_take_turns_sentence_by_sentence():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batcher, "_LARGEST_BATCH", 1)
        async with Queue() as queue:
            await queue.begin("one")
            requests = [await queue.enqueue(*sentences) for sentences in (["a1", "a2", "a3"], ["b1"], ["c1", "c2"])]
            queue.engine.go.set()
            await asyncio.gather(*requests)
    assert queue.engine.batches == [["one"], ["a1"], ["b1"], ["c1"], ["a2"], ["c2"], ["a3"]]


@in_event_loop
async def test_workers_share_the_waiting_sentences_evenly():
    async with Queue(workers=2) as queue:
        for _ in range(2):
            await queue.begin("a")
        others = [await queue.enqueue("b") for _ in range(8)]
        queue.engine.go.set()
        assert await asyncio.gather(*others) == [["B"]] * 8
    # The clients of the two answered sentences may send more: half of ten is five.
    sizes = [len(batch) for batch in queue.engine.batches]
    assert sizes[:3] == [1, 1, 5]
    assert sum(sizes) == 10


@in_event_loop
async def test_sentences_of_cancelled_requests_are_neither_translated_nor_retried():
    async with Queue() as queue:
        failing, waiting = await queue.begin("bad", "same batch"), await queue.enqueue("two")
        for task in (failing, waiting):
            task.cancel()
        await asyncio.wait({failing, waiting})
        queue.engine.go.set()
        assert await queue.ask("next") == ["NEXT"]
    assert queue.engine.batches == [["bad", "same batch"], ["next"]]


@in_event_loop
async def test_requests_fail_at_once_after_the_last_worker_died():
    async with Queue() as queue:
        tasks = [await queue.begin("lost"), await queue.enqueue("waiting")]
        queue.engine.go.set()
        for task in (*tasks, queue.ask("more")):
            with pytest.raises(Busy, match="died"):
                await task


@in_event_loop
async def test_at_the_end_current_batches_finish_and_everything_else_is_cancelled():
    async with Queue(workers=2) as queue:
        good, bad = await queue.begin("one"), await queue.begin("bad", "same batch")
        waiting = await queue.enqueue("two")
    assert await good == ["ONE"]
    for task in (bad, waiting):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert queue.engine.batches == [["one"], ["bad", "same batch"]]

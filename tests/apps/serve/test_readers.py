"""The processes that read texts: they fail alone, are replaced, and end with the service."""

import asyncio
import os

import psutil
import pytest
from services import in_event_loop, until

from modeling_scratch.apps.serve.readers import ReaderLost, Readers
from modeling_scratch.errors import UserError

LONG = " " * 10_000  # makes an expression go to the process for long texts


@in_event_loop
async def test_a_reader_survives_errors_and_is_replaced_when_it_dies():
    async with Readers(60.0) as readers:
        first = await readers(os.getpid)
        assert first != os.getpid()
        assert not await readers(eval, "{'torch', 'transformers'} & set(__import__('sys').modules)")
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            await readers(divmod, 1, 0)
        assert await readers(print, "not a result") is None
        assert await readers(os.getpid) == first
        with pytest.raises(ReaderLost):
            await readers(os._exit, 3)
        assert await readers(os.getpid) != first


@in_event_loop
async def test_a_text_that_takes_too_long_is_refused():
    """The expression holds the interpreter lock, and does not end while anybody waits."""
    async with Readers(0.2) as readers:
        for _ in range(2):
            with pytest.raises(UserError, match=r"0\.2 seconds"):
                await readers(eval, "__import__('re').fullmatch('(a|a)*b', 'a' * 100)")


@in_event_loop
async def test_long_texts_do_not_delay_short_ones(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = f"{LONG}open({str(tmp_path / 'pipe')!r}, 'rb', buffering=0).read(1)"
    with open(tmp_path / "pipe", "r+b", buffering=0) as pipe:
        async with Readers(60.0) as readers:
            slow = [asyncio.create_task(readers(eval, read)) for _ in range(2)]
            assert await readers(len, "abc") == 3
            assert not any(task.done() for task in slow)
            pipe.write(b"12")
            assert sorted(await asyncio.gather(*slow)) == [b"1", b"2"]


@in_event_loop
async def test_reader_processes_end_with_the_service_even_while_they_read():
    before = set(psutil.Process().children())
    async with Readers(60.0) as readers:
        sleep = "__import__('signal').pause()"
        reading = [asyncio.create_task(readers(eval, text)) for text in (sleep, LONG + sleep)]
        waiting = asyncio.create_task(readers(eval, sleep))
        await until(lambda: len(set(psutil.Process().children()) - before) == 2)
        processes = set(psutil.Process().children()) - before
    for task in reading:
        with pytest.raises(ReaderLost):
            await task
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not any(process.is_running() for process in processes)

"""Worker processes: they translate as their engine does, share the cores, and fail alone."""

import asyncio
import multiprocessing
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
import torch
from services import get, post, running
from translators import CORPUS, load, make_folder

from modeling_scratch.apps.serve.batcher import Batcher, Busy
from modeling_scratch.apps.serve.engines import Directions, Hypothesis, Search, TorchEngine, load_direction
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.apps.translate.workers import Worker, WorkerLost, start_workers
from modeling_scratch.commands.serve import listening
from modeling_scratch.errors import UserError

SENTENCES = [pair["en"] for pair in CORPUS if len(pair["en"]) < 50][:40]
LIMITS = Limits(characters=2_000, waiting=500, seconds=30.0)


class Upper:
    """An engine that needs no model, and fails at one word."""

    can_fork = True

    def translate(self, sentences, search):
        if "fail" in sentences:
            raise ValueError("it was told to")
        return [[Hypothesis(sentence.upper(), 0.0, False)] for sentence in sentences]


class Threads(Upper):
    """Tells how many threads a worker computes with."""

    def translate(self, sentences, search):
        return [[Hypothesis(str(torch.get_num_threads()), 0.0, False)] for _ in sentences]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models") / "one")


@pytest.fixture
def upper():
    engine = Upper()
    workers = [Worker([engine]) for _ in range(2)]
    yield engine, workers
    for worker in workers:
        worker.close()


def texts(found):
    return [hypotheses[0].text for hypotheses in found]


def test_a_worker_translates_as_its_engine_does(folder):
    engine = TorchEngine(str(folder))
    worker = Worker([Upper(), engine])
    try:
        assert texts(worker(engine, SENTENCES, Search())) == [
            each["translation_text"] for each in load(folder)(SENTENCES)
        ]
        search = Search(num_beams=3, several=2, align=True)
        for here, there in zip(
            engine.translate(SENTENCES[:5], search), worker(engine, SENTENCES[:5], search), strict=True
        ):
            assert [each.text for each in here] == [each.text for each in there]
            torch.testing.assert_close(torch.as_tensor(here[0].weights), torch.as_tensor(there[0].weights))
    finally:
        worker.close()
    assert not worker.process.is_alive()


def test_an_error_in_a_worker_is_the_caller_s_and_the_worker_goes_on(upper):
    engine, (worker, _) = upper
    with pytest.raises(ValueError, match="it was told to"):
        worker(engine, ["a", "fail"], Search())
    assert texts(worker(engine, ["a"], Search())) == ["A"]


def test_a_batcher_with_workers_fails_only_the_sentence_that_fails(upper):
    engine, workers = upper

    async def translations():
        async with Batcher(100, translators=workers) as batcher:
            requests = [batcher.translate(engine, [sentence], Search()) for sentence in ("a", "fail", "b")]
            return await asyncio.gather(*requests, return_exceptions=True)

    first, failed, last = asyncio.run(translations())
    assert texts(first + last) == ["A", "B"]
    assert isinstance(failed, ValueError)
    assert "it was told to" in str(failed)


def test_a_lost_worker_is_noticed_and_the_other_goes_on(upper):
    engine, workers = upper

    async def lose_one():
        async with Batcher(100, translators=workers) as batcher:
            assert batcher.is_alive
            workers[0].process.kill()
            workers[0].process.join()
            with pytest.raises(WorkerLost, match="has ended"):
                workers[0](engine, ["a"], Search())
            errors, asked = [], 0
            while batcher.is_alive and asked < 1_000:  # until a sentence comes to the lost one, whose task then ends
                found = await asyncio.gather(batcher.translate(engine, ["a"], Search()), return_exceptions=True)
                errors += [each for each in found if isinstance(each, Exception)]
                asked += 1
            assert not batcher.is_alive
            assert [type(error) for error in errors] == [Busy]
            assert texts(await batcher.translate(engine, ["b"], Search())) == ["B"]

    asyncio.run(lose_one())


def test_a_service_with_workers(folder):
    expected = dict(zip(SENTENCES, (each["translation_text"] for each in load(folder)(SENTENCES)), strict=True))
    directions = Directions([load_direction(f"en:de={folder}", TorchEngine)])
    workers = start_workers([each.engine for each in directions.all], 2, cores=2)

    def ask(url, sentence):
        return post(f"{url}/translate", {"q": sentence, "source": "en", "target": "de"})

    with running(Service(directions, LIMITS, workers=workers)) as url:
        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(lambda sentence: ask(url, sentence), SENTENCES))
        assert answers == [(200, {"translatedText": expected[sentence]}) for sentence in SENTENCES]
        get(f"{url}/health")
        for worker in workers:
            worker.process.kill()
            worker.process.join()
        assert [ask(url, SENTENCES[0])[0] for _ in workers] == [429, 429]
        with pytest.raises(HTTPError, match="503"):
            get(f"{url}/health")
    assert not any(worker.process.is_alive() for worker in workers)


@pytest.mark.parametrize(("count", "cores", "threads"), [(None, 3, [1, 1, 1]), (2, 4, [2, 2]), (3, 2, [1, 1, 1])])
def test_workers_share_the_cores(count, cores, threads):
    engine = Threads()
    workers = start_workers([engine], count, cores)
    try:
        assert [int(worker(engine, ["a"], Search())[0][0].text) for worker in workers] == threads
    finally:
        for worker in workers:
            worker.close()


def test_where_there_are_no_workers():
    here, elsewhere = Upper(), Upper()
    elsewhere.can_fork = False
    assert start_workers([here], None, cores=1) == []
    assert start_workers([here], 0, cores=8) == []
    assert start_workers([here, elsewhere], None, cores=8) == []
    with pytest.raises(UserError, match="--workers 2"):
        start_workers([here, elsewhere], 2, cores=8)


def test_an_error_in_a_worker_says_where_it_was(upper):
    engine, (worker, _) = upper
    with pytest.raises(ValueError, match="it was told to") as error:
        worker(engine, ["fail"], Search())
    assert 'raise ValueError("it was told to")' in "".join(error.value.__notes__)


class Sleeping(Upper):
    """Says which process it is in, and takes long."""

    def translate(self, sentences, search):
        Path(sentences[0]).write_text(str(os.getpid()))
        time.sleep(60)


def test_a_worker_ends_with_its_parent_while_it_translates(tmp_path):
    said = tmp_path / "worker"

    def parent():
        engine = Sleeping()
        Worker([engine])(engine, [str(said)], Search())

    child = multiprocessing.get_context("fork").Process(target=parent)
    child.start()
    end = time.monotonic() + 30
    while not (said.exists() and said.read_text()) and time.monotonic() < end:
        time.sleep(0.01)
    child.kill()
    child.join()
    pid = int(said.read_text())
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
            time.sleep(0.01)
    assert time.monotonic() < end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_leaves_signals_to_its_parent(number, upper):
    """A terminal and systemd send them to all processes of a service, whose requests must still be answered."""
    engine, (worker, _) = upper
    worker(engine, ["a"], Search())  # it has started
    os.kill(worker.process.pid, number)
    assert texts(worker(engine, ["a"], Search())) == ["A"]
    worker.close()
    assert not worker.process.is_alive()


def test_workers_that_nobody_closes_end_with_their_parent(tmp_path):
    """The parent kills them at its end, before multiprocessing would wait for them; a forked process ends so too."""
    said, kept = tmp_path / "worker", []

    def parent():
        engine = Upper()
        worker = Worker([engine])
        kept.append(worker)
        said.write_text(f"{texts(worker(engine, ['a'], Search()))[0]} {worker.process.pid}")

    child = multiprocessing.get_context("fork").Process(target=parent)
    child.start()
    child.join(30)
    code = child.exitcode
    child.kill()
    assert code == 0
    text, pid = said.read_text().split()
    assert text == "A"
    assert not psutil.pid_exists(int(pid))


def test_health_says_that_a_worker_has_ended_before_a_request_fails(folder):
    direction = load_direction(f"en:de={folder}", TorchEngine)
    workers = start_workers([direction.engine], 2, 2)
    with running(Service(Directions([direction]), LIMITS, workers=workers)) as url:
        assert get(f"{url}/health") == '{"status":"ok"}'
        workers[1].process.kill()
        workers[1].process.join()
        with pytest.raises(HTTPError, match="503"):
            get(f"{url}/health")


def test_once_a_service_has_closed_its_socket_nobody_connects(upper):
    with listening("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        engine = Upper()
        (worker,) = start_workers([engine], 1, 1, listener)
        worker(engine, ["a"], Search())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    worker.close()

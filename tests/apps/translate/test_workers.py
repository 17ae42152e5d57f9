"""Worker processes translate as one process does, share the cores, fail alone, and end with their parent."""

import multiprocessing
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
import torch
from services import get, post, running
from translators import CORPUS, one_vocabulary, two_vocabularies
from waiting import LONGEST, wait_until

from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.apps.translate.workers import Pool, WorkerLost, worker_count
from modeling_scratch.commands.serve import listening
from modeling_scratch.errors import UserError
from modeling_scratch.inference.translate import Translator
from modeling_scratch.model.translations import Translation, best_texts

MANY = ["", *([pair["en"] for pair in CORPUS if len(pair["en"]) < 50] * 2)[:150], "  "]


class Upper:
    """A translator without a model, which fails on one word."""

    def translate_batch(self, texts, tokens, **settings):
        if "fail" in texts:
            raise ValueError("a bad word")
        return [[Translation(text.upper())] for text in texts]


class Threads:
    """Its translations are the number of threads that a worker computes with."""

    def translate_batch(self, texts, tokens):
        return [[Translation(str(torch.get_num_threads()))]]


@contextmanager
def pool_of(translator, count=2, cores=2, listener=None):
    pool = Pool([translator], count, cores, listener)
    try:
        yield pool
    finally:
        pool.close()


def ask(pool, translator, *texts):
    return best_texts(pool.submit(translator, (list(texts), [[1]] * len(texts)), {}).result())


@pytest.fixture(scope="module")
def translator():
    return Translator.load([str(two_vocabularies())])


def test_workers_translate_as_one_process_does(translator, monkeypatch):
    settings = {"num_beams": 3, "num_return_sequences": 2, "scores": True, "align": 1, "max_new_tokens": 12}
    alone, done = translator.translate(MANY, **settings), []
    with pool_of(translator) as pool:
        monkeypatch.setattr(translator.model, "generate", None)  # of this process; the workers have theirs
        found = translator.translate(MANY, progress=done.append, **pool.sharing(translator), **settings)
    assert sum(done) == len(MANY)
    for row, expected in zip(found, alone, strict=True):
        for one, other in zip(row, expected, strict=True):
            assert (one.text, one.is_cut) == (other.text, other.is_cut)
            assert one.score == pytest.approx(other.score, abs=1e-4)
        if row[0].text:
            torch.testing.assert_close(row[0].weights, expected[0].weights)


def test_an_error_or_a_killed_worker_ends_a_translation_and_all_workers(translator):
    with pool_of(translator) as pool:
        with pytest.raises(ValueError, match="num_return_sequences"):
            translator.translate(MANY, **pool.sharing(translator), num_beams=2, num_return_sequences=3)
        assert not any(worker.process.is_alive() for worker in pool.workers)
    with pool_of(translator) as pool:
        pool.workers[1].process.kill()
        with pytest.raises(UserError, match="--workers 0"):
            translator.translate(MANY, **pool.sharing(translator))


def test_an_error_reaches_the_caller_with_its_traceback_and_the_worker_continues():
    upper = Upper()
    with pool_of(upper, count=1) as pool:
        with pytest.raises(ValueError, match="a bad word") as error:
            ask(pool, upper, "a", "fail")
        assert 'raise ValueError("a bad word")' in "".join(error.value.__notes__)
        assert ask(pool, upper, "a") == ["A"]


def test_other_workers_continue_after_one_is_lost():
    upper = Upper()
    with pool_of(upper) as pool:
        pool.workers[0].process.kill()
        pool.workers[0].process.join()
        assert not pool.is_whole
        with pytest.raises(WorkerLost):
            ask(pool, upper, "a")
        assert [ask(pool, upper, "a") for _ in range(4)] == [["A"]] * 4
        pool.workers[1].process.kill()
        for _ in range(2):
            with pytest.raises(WorkerLost):
                ask(pool, upper, "a")


@pytest.mark.parametrize(("count", "cores", "threads"), [(2, 4, "2"), (3, 2, "1")])
def test_workers_share_the_cores(count, cores, threads):
    counting = Threads()
    with pool_of(counting, count, cores) as pool:
        assert ask(pool, counting, "a") == [threads]


def test_the_default_number_of_workers_is_that_of_cores_up_to_eight():
    assert [worker_count(None, True, cores) for cores in (1, 3, 20)] == [0, 3, 8]
    assert [worker_count(asked, True, 8) for asked in (0, 2)] == [0, 2]
    assert worker_count(None, False, 8) == worker_count(0, False, 8) == 0
    with pytest.raises(UserError, match="--workers 2"):
        worker_count(2, False, 8)


class Sleeping:
    """Writes the id of its process to a file, and does not end."""

    def translate_batch(self, texts, tokens):
        Path(texts[0]).write_text(str(os.getpid()))
        signal.pause()


def test_a_busy_worker_ends_when_its_parent_is_killed(tmp_path):
    file = tmp_path / "worker"

    def parent():
        sleeping = Sleeping()
        ask(Pool([sleeping], 1, 1), sleeping, str(file))

    child = multiprocessing.get_context("fork").Process(target=parent)
    child.start()
    wait_until(lambda: file.exists() and file.read_text())
    child.kill()
    child.join()
    with suppress(psutil.NoSuchProcess):
        wait_until(lambda: psutil.Process(int(file.read_text())).status() == psutil.STATUS_ZOMBIE)


def test_an_idle_worker_ends_when_its_parent_exits(tmp_path):
    file, kept = tmp_path / "worker", []

    def parent():
        upper = Upper()
        kept.append(Pool([upper], 1, 1))
        file.write_text(f"{ask(kept[0], upper, 'a')[0]} {kept[0].workers[0].process.pid}")

    child = multiprocessing.get_context("fork").Process(target=parent)
    child.start()
    child.join(LONGEST)
    child.kill()
    assert child.exitcode == 0
    text, pid = file.read_text().split()
    assert text == "A"
    assert not psutil.pid_exists(int(pid))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_leaves_signals_to_its_parent(number):
    """Terminals and systemd send them to all processes of a service, which still has to answer its requests."""
    upper = Upper()
    with pool_of(upper, count=1) as pool:
        ask(pool, upper, "a")  # it has started
        os.kill(pool.workers[0].process.pid, number)
        assert ask(pool, upper, "a") == ["A"]
    assert not pool.workers[0].process.is_alive()


def test_workers_do_not_keep_a_service_s_socket_open():
    upper = Upper()
    with listening("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        pool = Pool([upper], 1, 1, listener)
        ask(pool, upper, "a")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    pool.close()


def test_a_service_answers_with_its_workers_and_reports_lost_ones():
    direction = load_direction(f"en:de={one_vocabulary()}", load_torch_engine)
    expected = best_texts(direction.engine.translate(MANY[1:41]))
    pool = Pool([direction.engine], 2, 2)
    limits = Limits(characters=2_000, waiting=500, seconds=LONGEST)

    def translated(url, sentence):
        return post(f"{url}/translate", {"q": sentence, "source": "en", "target": "de"})

    with running(Service(Directions([direction]), limits, pool=pool)) as url:
        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(lambda sentence: translated(url, sentence), MANY[1:41]))
        assert answers == [(200, {"translatedText": text}) for text in expected]
        assert get(f"{url}/health") == '{"status":"ok"}'
        pool.workers[0].process.kill()
        pool.workers[0].process.join()
        with pytest.raises(HTTPError, match="503"):  # before any request has failed
            get(f"{url}/health")
        statuses = [translated(url, MANY[1])[0] for _ in range(3)]
        assert sorted(statuses) == [200, 200, 429]
        pool.workers[1].process.kill()
        pool.workers[1].process.join()
        assert [translated(url, MANY[1])[0] for _ in range(2)] == [429, 429]
    assert not any(worker.process.is_alive() for worker in pool.workers)

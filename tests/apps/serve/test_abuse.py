"""A service under 10,000 requests, many of them wrong: valid ones get correct answers, and memory does not grow."""

import json
import random
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psutil
import pytest
from services import PARTS, connected, get, multipart, post, raw_request
from translators import CORPUS, load, make_folder
from waiting import LONGEST, wait_until

pytestmark = pytest.mark.slow
REQUESTS, WARM_UP, CLIENTS = 10_000, 2_000, 32
SENTENCES = [pair["en"] for pair in CORPUS if len(pair["en"]) < 50][:40]
LIMITS = ["--max-characters", "2000", "--timeout", str(LONGEST)]
EN_DE = {"source": "en", "target": "de"}
WRONG = [b"", b"{", b"\xff", b"[]", b'{"q": {}}', b"[" * 9_000, b'{"q": "\\ud800"}']


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models") / "one")


@pytest.fixture
def service(folder):
    command = [sys.executable, "-m", "modeling_scratch", "serve", f"en:de={folder}", "--port", "0", *LIMITS]
    log = folder.parent / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    wait_until(lambda: "http://" in log.read_text() or process.poll() is not None)
    yield re.search(r"http://[^;]+", log.read_text())[0], psutil.Process(process.pid)
    children = psutil.Process(process.pid).children()
    process.terminate()
    assert process.wait(LONGEST) == -signal.SIGTERM
    assert not any(child.is_running() for child in children)
    assert "Traceback" not in log.read_text()


def memory(service: psutil.Process) -> int:
    """Bytes of memory of a service and its processes; shared memory counts for each."""
    return sum(process.memory_info().rss for process in (service, *service.children()))


class Clients:
    """Requests of several kinds. Each method returns whether the answer was right."""

    def __init__(self, url: str, expected: dict[str, str]):
        self.url, self.expected, self.random = f"{url}/translate", expected, random.Random(0)
        self.held, self.waiting = ExitStack(), list[socket.socket]()

    def good(self):
        some = self.random.sample(SENTENCES, self.random.randint(1, 3))
        text, right = (" ".join(map(made, some)) for made in (str, self.expected.get))
        return post(self.url, {"q": text} | EN_DE) == (200, {"translatedText": right})

    def document(self):
        some = self.random.sample(SENTENCES, 30)
        page, right = ("".join(f"<p>{made(text).strip()}</p>" for text in some) for made in (str, self.expected.get))
        return post(self.url, {"q": page, "format": "html"} | EN_DE) == (200, {"translatedText": right})

    def file(self):
        some = self.random.sample(SENTENCES, 3)
        text, right = ("\n".join(map(made, some)) for made in (str, self.expected.get))
        url = self.url.replace("/translate", "/translate_file")
        status, answer = post(url, multipart(EN_DE, text.encode()), kind=PARTS)
        return status == 200 and get(answer["translatedFileUrl"]) == right

    def malformed(self):
        return post(self.url, self.random.choice(WRONG))[0] == 400

    def too_long(self):
        text, status = self.random.choice([("a " * 2_000_000, 413), ("ab" * 400, 400)])
        return post(self.url, {"q": text} | EN_DE)[0] == status

    def aborted(self):
        whole = raw_request({"q": " ".join(SENTENCES)} | EN_DE)
        with connected(self.url.removesuffix("/translate")) as client:
            client.sendall(whole[: self.random.randint(1, len(whole))])
        return True

    def slow(self):
        """A client that sends nothing more until the others have finished: see `ended`."""
        client = self.held.enter_context(connected(self.url.removesuffix("/translate")))
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        self.waiting.append(client)
        return True

    def ended(self) -> set[bytes]:
        """How the service answers slow clients that end in the middle of a request; nothing: it hangs up."""
        answers = set()
        for client in self.waiting:
            client.shutdown(socket.SHUT_WR)
            answers.add(client.recv(12))
        return answers


def test_a_service_withstands_ten_thousand_requests(folder, service):
    url, process = service
    expected = dict(zip(SENTENCES, (output["translation_text"] for output in load(folder)(SENTENCES)), strict=True))
    clients = Clients(url, expected)
    kinds = {"good": 73, "document": 1, "file": 1, "malformed": 10, "too_long": 10, "aborted": 5}
    drawn = clients.random.choices(list(kinds), kinds.values(), k=REQUESTS)
    drawn[::200] = ["slow"] * len(drawn[::200])
    answers = []
    with clients.held, ThreadPoolExecutor(CLIENTS) as threads:
        for some in (drawn[:WARM_UP], drawn[WARM_UP:]):
            answers += zip(some, threads.map(lambda kind: getattr(clients, kind)(), some), strict=True)
            if len(answers) == WARM_UP:
                warm = memory(process)
        assert clients.ended() <= {b"", b"HTTP/1.1 400"}
    assert {kind for kind, is_right in answers if not is_right} == set()
    assert memory(process) / warm < 1.05
    assert json.loads(get(f"{url}/health")) == {"status": "ok"}

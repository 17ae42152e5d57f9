"""What the tests of the service share: an engine that waits, a service in this process, and requests to it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from modeling_scratch.apps.serve.service import Service
from modeling_scratch.commands.serve import listening, make_server
from modeling_scratch.inference.translate import Translation


class Slow:
    """An engine that translates when it is told to, and fails on one sentence."""

    def __init__(self):
        self.go, self.batches, self.num_beams, self.limit = threading.Event(), [], 1, 1

    def tokenize(self, texts):
        return [[1] for _ in texts]

    def translate_batch(self, texts, tokens, **settings):
        self.batches.append(texts)
        self.go.wait(10)
        if "bad" in texts:
            raise RuntimeError("bad")
        return [[Translation(text.upper())] for text in texts]


@contextmanager
def running(service: Service) -> Iterator[str]:
    """Where a service listens, until the end of the block."""
    listener = listening("127.0.0.1", 0)
    server = make_server(service.app, log_level="critical", timeout_graceful_shutdown=2)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def post(url: str, parameters: dict | bytes, form: bool = False) -> tuple[int, dict]:
    """The status and the JSON that a service answers."""
    body, kind = parameters, "application/json"
    if isinstance(parameters, dict):
        body = urlencode(parameters).encode() if form else json.dumps(parameters).encode()
    if form:
        kind = "application/x-www-form-urlencoded"
    return sent(Request(url, data=body, headers={"Content-Type": kind}))


def sent(request: Request) -> tuple[int, dict]:
    """The same for any request."""
    try:
        with urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def connected(url: str) -> socket.socket:
    """A connection to a service, for requests that no client would send."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def get(url: str) -> str:
    with urlopen(url, timeout=60) as response:
        return response.read().decode()


def metric(url: str, name: str) -> float:
    """A number of /metrics."""
    lines = get(f"{url}/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

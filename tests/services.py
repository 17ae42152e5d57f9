"""What tests of the service share: an engine that waits, a service in this process, requests, and an event loop."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from waiting import LONGEST, wait_until

from modeling_scratch.apps.serve.clients import Clients
from modeling_scratch.apps.serve.engines import Direction, Directions
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.commands.serve import listening, make_server
from modeling_scratch.model.text import TextRules
from modeling_scratch.model.translations import Translation

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"


class Slow:
    """An engine that waits for `go` before it translates, and fails on the sentence "bad"."""

    def __init__(self):
        self.go, self.batches, self.num_beams, self.limit = threading.Event(), [], 1, 1
        self.confidence, self.rules = None, TextRules()

    def tokenize(self, texts, features=None):
        return [[1] for _ in texts]

    def translate_batch(self, texts, tokens, **settings):
        self.batches.append(texts)
        if not self.go.wait(LONGEST):
            raise TimeoutError("nobody let the engine go")
        if "bad" in texts:
            raise RuntimeError("bad")
        return [[Translation(text.upper())] for text in texts]


def in_event_loop(test: Callable) -> Callable[..., None]:
    """Make a test of a coroutine function."""

    @wraps(test)
    def run(**fixtures) -> None:
        asyncio.run(test(**fixtures))

    return run


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONGEST):
        while not condition():
            await asyncio.sleep(0.001)


def capitalizing(
    limits: Limits | None = None, clients: Clients | None = None, engine: Slow | None = None, **options
) -> Service:
    """A service that "translates" from English into German, and back, by writing capital letters."""
    if engine is None:
        engine = Slow()
        engine.go.set()
    pairs = [("en", "de"), ("de", "en")]
    directions = [Direction(*pair, engine, {"languages": list(pair), "codes": list(pair)}) for pair in pairs]
    return Service(Directions(directions), limits or Limits(), clients, **options)


def multipart(fields: dict[str, str], content: bytes | None = None, name: str = "a.txt") -> bytes:
    """The body of a form of type `PARTS` with fields and, if there is content, a file, as browsers make it."""
    parts = [f'name="{field}"\r\n\r\n{value}'.encode() for field, value in fields.items()]
    if content is not None:
        head = f'name="file"; filename="{name}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        parts.append(head.encode() + content)
    return b"".join(b"--x\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts) + b"--x--\r\n"


@contextmanager
def running(service: Service, **options) -> Iterator[str]:
    """Run a service, with further options of uvicorn, until the end of the block. Its value is its address."""
    listener = listening("127.0.0.1", 0)
    server = make_server(service.app, log_level="critical", timeout_graceful_shutdown=2, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def post(url: str, parameters: dict | bytes, kind: str = JSON) -> tuple[int, dict]:
    """Send parameters as JSON, or a body of some content type. Returns the response's status and JSON."""
    body = json.dumps(parameters).encode() if isinstance(parameters, dict) else parameters
    try:
        with urlopen(Request(url, data=body, headers={"Content-Type": kind}), timeout=LONGEST) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def connected(url: str) -> socket.socket:
    """A connection to a service, for requests that no HTTP client would send."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=LONGEST)


def raw_request(parameters: dict) -> bytes:
    """A request to /translate with JSON, to be sent in pieces."""
    body = json.dumps(parameters).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def get(url: str) -> str:
    with urlopen(url, timeout=LONGEST) as response:
        return response.read().decode()


def metric(url: str, name: str) -> float:
    """A number of /metrics, summed over its labels."""
    lines = get(f"{url}/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

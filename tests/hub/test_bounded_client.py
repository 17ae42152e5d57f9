"""The client that waits so long and no longer, against a Hub that is slow, silent or gone."""

import io
import socket
import threading
import time
from functools import partial

import pytest
from huggingface_hub.utils import httpx
from loopback_client import ADA, MODEL, running_hub

from modeling_scratch.hub.bounded_client import ATTEMPTS, BoundedClient, NoAnswer

LIMIT = 0.4
SLACK = 0.6


def limited_client() -> BoundedClient:
    client = BoundedClient({})
    client.limit = LIMIT
    return client


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        hub.create(MODEL)
        yield hub


@pytest.fixture
def client(hub):
    hub.clear()
    with limited_client() as client:
        client.headers["Authorization"] = f"Bearer {ADA}"
        client.base_url = hub.url
        yield client


def seconds_until(error: type[Exception], function, match: str | None = None) -> float:
    start = time.monotonic()
    with pytest.raises(error, match=match):
        function()
    return time.monotonic() - start


def test_what_is_silent_ends_at_the_limit_though_no_timeout_is_asked_for(hub, client):
    hub.fail("silence", times=None)
    for path, ask in ((f"/api/models/{MODEL}/refs", client.get), (f"/api/models/{MODEL}/branch/b", client.post)):
        seconds = seconds_until(NoAnswer, partial(ask, path, timeout=None), "within 0.4 seconds")
        assert LIMIT <= seconds < LIMIT + SLACK
    hub.clear()
    assert client.get(f"/api/models/{MODEL}/refs").json()["branches"]  # the next one has the whole limit again


@pytest.mark.parametrize("fault", ["drop", "cut", "silence", 500, 429])
def test_what_fails_once_is_asked_again(fault, hub, client):
    client.limit = 5 * LIMIT  # enough for a machine that is busy
    expected = client.get(f"/api/models/{MODEL}/refs").json()
    hub.fail(fault)
    assert client.get(f"/api/models/{MODEL}/refs").json() == expected


@pytest.mark.parametrize(("fault", "status"), [("silence", None), ("lose", None), (500, 500)])
def test_a_commit_is_asked_for_once(fault, status, hub, client):
    hub.fail(fault)
    ask = partial(client.post, f"/api/models/{MODEL}/commit/main", content=b"")
    if status is None:
        assert seconds_until(httpx.TransportError, ask) < LIMIT  # time is left to look whether it arrived
    else:
        assert ask().status_code == status
    assert len(hub.requests) == 1


def test_a_hub_that_asks_to_wait_is_asked_a_few_times(hub, client):
    hub.fail(429, retry_after=3600, times=None)
    assert seconds_until(NoAnswer, partial(client.get, "/api/whoami-v2"), "the Hub answered 429") < LIMIT
    assert len(hub.requests) == ATTEMPTS
    hub.clear()
    assert client.get("/api/whoami-v2").json()["name"] == "ada"


def test_refused_connections(tmp_path):
    with running_hub(tmp_path) as gone:
        pass
    assert seconds_until(NoAnswer, partial(limited_client().get, gone.url), "no connection to the Hub") < LIMIT + SLACK


BLOCK = 65_536  # bytes


class SlowReader:
    """A server that takes a body block by block, and stops after some of them; or else answers."""

    def __init__(self, blocks: int | None, pause: float):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BLOCK)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/storage"
        self.blocks, self.pause, self.ended = blocks, pause, threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        connection, _ = self.socket.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        size = int(head.lower().split(b"content-length:")[1].split()[0])
        taken = 0
        while size and taken != self.blocks:
            size -= len(connection.recv(min(BLOCK, size), socket.MSG_WAITALL))
            taken += 1
            time.sleep(self.pause)
        if size:
            self.ended.wait()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


SIZE = 320 * BLOCK  # more than what sockets keep


def test_an_upload_that_makes_progress_is_not_cut():
    server, client = SlowReader(None, 0.004), limited_client()
    start = time.monotonic()
    assert client.put(server.url, content=io.BytesIO(bytes(SIZE))).status_code == 200
    assert time.monotonic() - start > 2 * LIMIT


def test_an_upload_that_stops_ends():
    server, client = SlowReader(20, 0), limited_client()
    upload = partial(client.put, server.url, content=io.BytesIO(bytes(SIZE)))
    assert seconds_until(NoAnswer, upload, "within 0.4 seconds") < LIMIT + SLACK
    server.ended.set()


def test_an_upload_that_keeps_failing_ends(hub, client):
    hub.fail(500, times=None)
    upload = partial(client.put, "/storage", content=io.BytesIO(b"weights"))
    with pytest.raises(httpx.ReadError, match="the Hub answered 500"):  # after which huggingface_hub tries again
        upload()
    time.sleep(LIMIT)
    with pytest.raises(NoAnswer, match="the Hub answered 500"):
        upload()
    hub.clear()
    upload()
    hub.fail(500)
    with pytest.raises(httpx.ReadError):  # what failed before it arrived does not count
        upload()

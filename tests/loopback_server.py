"""The loopback Hub's HTTP: two listeners on 127.0.0.1, the faults, the record of requests, the control routes."""

import base64
import contextlib
import json
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import loopback_reading  # noqa: F401  (registers its routes)
import loopback_writing  # noqa: F401
from loopback_protocol import INVALID_CREDENTIALS, Answer, Request, answer
from loopback_store import HubError

FAULTS = ("drop", "lose", "cut", "halve", "stall", "silence", "lag")


@dataclass
class Fault:
    """What happens to the `at`-th request from now, and to `times` - 1 (None: all) after it, of those that match.

    answer: "drop" closes the connection before the request is acted upon; "lose" acts on it, then closes the connection
    without an answer; "cut" acts on it and closes the connection after half of the answer's body; "halve" acts and
    sends half of the body as if it were all; "stall" waits `seconds`, then goes on as usual (with `acted`, it acts
    before it waits); "silence" is a stall without end; "lag" leaves the newest out of a list; a number is the HTTP
    status to answer, without acting unless `acted`; a function is called, then the request goes on as usual. `method`
    is exact, `path` a regular expression searched in the path and query.
    """

    answer: str | int | Callable[[], object]
    at: int = 1
    times: int | None = 1
    method: str | None = None
    path: str | None = None
    seconds: float = 0
    retry_after: int | None = None
    acted: bool = False
    html: bool = False  # the error's body is a page, as a gateway answers, instead of the Hub's JSON
    words: str | None = None  # the error's message; {token} stands for the token that was sent
    seen: int = 0
    hits: int = 0

    def __post_init__(self):
        if isinstance(self.answer, str) and self.answer not in FAULTS:
            raise ValueError(f"answer is {self.answer!r}; it must be one of {FAULTS}, a status or a function")

    def count(self, method: str, path: str) -> bool:
        if (self.method or method) != method or not re.search(self.path or "", path):
            return False
        self.seen += 1
        return self.seen >= self.at and (self.times is None or self.seen < self.at + self.times)

    def error(self, authorization: str | None) -> Answer:
        """The answer of a fault that is a status."""
        message = {
            429: "We had to rate limit you. Please retry later.",
            500: "Internal Error - We're working hard to fix this as soon as possible!",
        }.get(self.answer, HTTPStatus(self.answer).phrase)
        if self.words is not None:
            message = self.words.format(token=(authorization or "").removeprefix("Bearer ").strip())
        result = Answer.error(HubError(self.answer, message))
        if self.html:
            page = f"<html><body><h1>{self.answer} {HTTPStatus(self.answer).phrase}</h1></body></html>"
            result = Answer(page.encode(), self.answer, {"Content-Type": "text/html"})
        if self.retry_after is not None:
            result.headers["Retry-After"] = str(self.retry_after)
        return result


def appears(token: str, content: bytes) -> bool:
    """Whether a token is in the content, as it is or in base64 at any alignment."""
    forms = [token.encode()]
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + token.encode())
        forms.append(whole[(0, 2, 3)[shift] : len(whole) - 4])
    return any(len(form) > 3 and form in content for form in forms)


class Listener(ThreadingHTTPServer):
    """One of the server's two addresses: "hub" or "storage"."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, hub, role: str):
        self.hub, self.role = hub, role
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), Handler)

    def close_connections(self) -> None:
        for connection in list(self.connections):
            with contextlib.suppress(OSError):  # the client was faster
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address) -> None:
        """Clients of these tests die and hang up; that is no event here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 600

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, *arguments) -> None:
        """The record is kept in LoopbackHub.requests instead."""

    def do_GET(self) -> None:
        hub = self.server.hub
        body = self.read_body()
        if self.server.role == "hub" and self.path.startswith("/_loopback/"):
            return self.send(self.control(hub, body))
        entry = self.record(hub, body)
        fault = hub.next_fault(entry)
        kind = fault.answer if fault else None
        if fault:
            entry["fault"] = "call" if callable(kind) else kind
        if kind == "drop":
            return self.hang_up()
        if callable(kind):
            kind()
        early = fault is not None and not fault.acted
        seconds = {"stall": fault.seconds, "silence": None}.get(kind, 0) if fault else 0
        if early and seconds != 0 and hub.stopped.wait(seconds):
            return self.hang_up()
        error = fault.error(self.headers.get("Authorization")) if isinstance(kind, int) else None
        result = error if error and early else self.act(hub, body, entry)
        if not early and seconds != 0 and hub.stopped.wait(seconds):
            return self.hang_up()
        if kind == "lose":
            return self.hang_up()
        result = error or result
        entry["status"] = result.status
        if kind == "lag":
            result.body = json.dumps(json.loads(result.body)[1:]).encode()
        if kind == "halve":
            result.body = result.body[: len(result.body) // 2]
        return self.send(result, whole=kind != "cut")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(parts)

    def record(self, hub, body: bytes) -> dict:
        """Adds the request to the record, with every token replaced, and names the places where one should not be."""
        authorization = self.headers.get("Authorization")
        others = {key: value for key, value in self.headers.items() if key.lower() != "authorization"}
        path, leaks = self.path, []
        for token in hub.secrets_of(authorization):
            places = {"path": path.encode(), "body": body}
            places |= {f"header {key}": value.encode() for key, value in others.items()}
            leaks += [place for place, content in places.items() if appears(token, content)]
            path = path.replace(token, "<token>")
        if self.server.role == "storage" and authorization:
            leaks.append("header Authorization")
        entry = {
            "server": self.server.role,
            "method": self.command,
            "path": re.sub(r"signature=\w+", "signature=...", path),
            "user": None,
            "status": None,  # none was sent
            "fault": None,
            "time": time.time(),
            "leaks": leaks,
        }
        with hub.lock:
            entry["number"] = len(hub.requests) + 1
            hub.requests.append(entry)
        return entry

    def act(self, hub, body: bytes, entry: dict) -> Answer:
        url = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=url.path,
            query=parse_qs(url.query),
            headers={key.lower(): value for key, value in self.headers.items()},
            body=body,
            account=None,
            store=hub.store,
            url=hub.url,
            storage=hub.storage,
        )
        try:
            if self.server.role == "storage":
                return hub.storage.answer(request)
            if authorization := self.headers.get("Authorization"):
                request.account = hub.tokens.get(authorization.removeprefix("Bearer ").strip())
                if request.account is None:
                    raise HubError(401, INVALID_CREDENTIALS)
                entry["user"] = request.account.user
            return answer(request)
        except HubError as error:
            return Answer.error(error)
        except Exception as error:  # a defect of this server, not of the client
            return Answer.error(HubError(501, f"The loopback Hub failed: {error!r}"))

    def control(self, hub, body: bytes) -> Answer:
        asked = json.loads(body or b"{}")
        match (self.command, self.path.removeprefix("/_loopback/")):
            case ("POST", "fault"):
                hub.fail(**asked)
            case ("DELETE", "fault" | "requests"):
                hub.clear()
            case ("GET", "requests"):
                return Answer.json(list(hub.requests))
            case _:
                return Answer.error(HubError(404, "No such control route"))
        return Answer.json({})

    def send(self, result: Answer, whole: bool = True) -> None:
        self.send_response(result.status)
        headers = {"X-Request-Id": f"loopback-{len(self.server.hub.requests)}"} | result.headers
        for key, value in (headers | {"Content-Length": str(len(result.body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(result.body if whole else result.body[: len(result.body) // 2])
        if not whole:
            self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

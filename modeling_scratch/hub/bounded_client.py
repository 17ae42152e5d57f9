"""An HTTP client for huggingface_hub that limits how long the Hub may keep it waiting."""

import contextvars
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from huggingface_hub import get_session, set_client_factory
from huggingface_hub.utils import httpx  # httpx2 from its release 2.0 on

from ..defaults import SECONDS_TO_ANSWER

ATTEMPTS = 4
FIRST_WAIT = 0.5
BLOCK = 65_536  # bytes; sending or receiving this many counts as progress
LARGE = 10 * 1024 * 1024  # bytes; larger responses may be streamed instead of read at once
LONGEST_WAIT_OF_CLIENT = 8.0  # seconds between two of huggingface_hub's own attempts

T = TypeVar("T")


class NoAnswer(ConnectionError):
    """The Hub could not be reached, or did not answer in time. Not to be retried."""


class Patience:
    """How long the Hub may keep us waiting in total, since its last usable answer."""

    def __init__(self, limit: float = SECONDS_TO_ANSWER):
        self.limit = limit
        self._until: float | None = None

    def left(self) -> float:
        """Seconds left. The first call after an answer starts the clock."""
        if self._until is None:
            self._until = time.monotonic() + self.limit
        return self._until - time.monotonic()

    def renew(self, limit: float | None = None) -> None:
        self.limit, self._until = limit or self.limit, None

    def extend(self, until: float) -> None:
        """Grant more time, because bytes were sent or received meanwhile."""
        self._until = max(self._until or until, until)

    def wait(self, seconds: float, asked: float, fault: str) -> None:
        """Wait before another attempt: as long as the Hub asks, or else `seconds`, at most half of the time left."""
        left = self.left()
        if left <= 0:
            raise self.no_answer(fault)
        if asked >= left:
            raise self.no_answer(f"{fault} and asks to wait {asked:g} seconds")
        time.sleep(asked or min(seconds, left / 2))

    def no_answer(self, fault: str) -> NoAnswer:
        """The error to raise. Gives the next request the whole limit again."""
        if self.left() <= 0:
            fault = f"the Hub has not answered within {self.limit:g} seconds"
        self.renew()
        return NoAnswer(fault)


class _Progress:
    """When an attempt last made progress, and whether anybody still waits for it."""

    def __init__(self):
        self.last = time.monotonic()
        self.abandoned = False
        self._bytes = 0

    def note(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= BLOCK:
            self.last, self._bytes = time.monotonic(), self._bytes % BLOCK


class _Watched(httpx.SyncByteStream):
    """The body of a request or response: it records progress, and fails once nobody waits for it any more."""

    def __init__(self, body: httpx.SyncByteStream, progress: _Progress):
        self.body, self.progress = body, progress

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.body:
            for start in range(0, len(chunk), BLOCK):
                if self.progress.abandoned:
                    raise httpx.ReadError("given up")
                part = chunk[start : start + BLOCK]
                yield part
                self.progress.note(len(part))

    def close(self) -> None:
        self.body.close()


def _attempt(work: Callable[[_Progress], T], seconds: float, patience: Patience) -> T:
    """
    Run work in a thread, and raise a timeout after `seconds` without progress.

    The thread can be abandoned: a socket's timeout limits neither a name look-up nor a response whose headers arrive
    byte by byte.
    """
    progress, outcome, context = _Progress(), Future(), contextvars.copy_context()
    start, left = progress.last, patience.left()

    def run() -> None:
        try:
            outcome.set_result(context.run(work, progress))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        while not outcome.done():
            if (remaining := progress.last + seconds - time.monotonic()) <= 0:
                raise httpx.ReadTimeout(f"no answer for {seconds:.3g} seconds")
            wait([outcome], remaining)
        return outcome.result()
    finally:
        progress.abandoned = True
        if progress.last > start:
            patience.extend(progress.last + left)


def _is_commit(request: httpx.Request) -> bool:
    """Whether this is the one request that must not be retried blindly: that could make two commits."""
    return request.method == "POST" and "/commit/" in request.url.path


def _fault(request: httpx.Request, response: httpx.Response) -> str | None:
    """Why a response is not usable; None if it is."""
    if response.status_code in (408, 429) or response.status_code >= 500:
        return f"the Hub answered {response.status_code}"
    # A gateway's page, or a truncated response, where huggingface_hub expects JSON.
    kind, path = response.headers.get("Content-Type", ""), request.url.path
    read = response.is_stream_consumed and request.method != "HEAD" and ("/api/" in path or "/info/lfs/" in path)
    if read and ("json" in kind or "html" in kind):
        try:
            json.loads(response.content)
        except ValueError:
            return "the Hub's answer could not be read"
    return None


def asked_to_wait(response: httpx.Response | None) -> float:
    """The seconds that a response's Retry-After asks for, or 0."""
    asked = "" if response is None else response.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() else 0.0


class BoundedClient(httpx.Client):
    """
    Limits the wait for the Hub, whatever timeout the caller sets, and retries requests that fail in transport or with a
    server error. It retries neither a commit that may have arrived nor the upload of a file: the file can be read only
    once, and huggingface_hub rewinds it and retries that request itself.
    """

    def __init__(self, patience: Patience, event_hooks: dict):
        super().__init__(event_hooks=event_hooks, follow_redirects=True, timeout=None)
        self.patience = patience

    def send(self, request: httpx.Request, *, stream: bool = False, **options) -> httpx.Response:
        body, response = request.stream, None
        for number in range(1, ATTEMPTS + 1):
            try:
                response = self._send_once(request, body, stream, number, options)
                fault = _fault(request, response)
                if fault is None:
                    self.patience.renew()
                if fault is None or (_is_commit(request) and response.status_code != 429):
                    return response
            except httpx.TransportError as error:
                if _is_commit(request):
                    raise
                fault, response = f"no connection to the Hub, or it was lost: {error}", None
            except Exception:  # nothing was sent, as offline
                self.patience.renew()
                raise
            if not isinstance(body, httpx.ByteStream) and self.patience.left() > LONGEST_WAIT_OF_CLIENT:
                raise httpx.ReadError(fault)
            if not isinstance(body, httpx.ByteStream) or number == ATTEMPTS:
                break
            self.patience.wait(FIRST_WAIT * 2 ** (number - 1), asked_to_wait(response), fault)
        raise self.patience.no_answer(fault)

    def _send_once(self, request, body, stream: bool, number: int, options: dict) -> httpx.Response:
        """One attempt. The last one and uploads may take all the time left, others half of it."""
        left = self.patience.left()
        if left <= 0:
            raise self.patience.no_answer("")
        # The end of an uploaded file may stay in buffers for longer than a response takes.
        seconds = left if number == ATTEMPTS or not isinstance(body, httpx.ByteStream) else left / 2
        # Longer than the attempt, so that the attempt ends first and reports how long it waited.
        request.extensions["timeout"] = httpx.Timeout(seconds + 1).as_dict()

        def work(progress: _Progress) -> httpx.Response:
            request.stream = _Watched(body, progress)
            response = super(BoundedClient, self).send(request, stream=True, **options)
            if not stream or int(response.headers.get("Content-Length") or 0) <= LARGE:
                response.stream = _Watched(response.stream, progress)
                response.read()
            return response

        return _attempt(work, seconds, self.patience)


_patience = Patience()


@contextmanager
def bounded_requests(limit: float) -> Iterator[Patience]:
    """
    Make huggingface_hub use a client that waits no longer than `limit` seconds. The client stays in place afterwards,
    with the default limit, since other threads may be reading from it.
    """
    session = get_session()
    if not isinstance(session, BoundedClient):
        hooks = session.event_hooks
        set_client_factory(lambda: BoundedClient(_patience, hooks))
    _patience.renew(limit)
    try:
        yield _patience
    finally:
        _patience.renew(SECONDS_TO_ANSWER)

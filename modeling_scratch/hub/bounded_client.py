"""The HTTP client of huggingface_hub, with a limit to how long the Hub may leave it waiting."""

import contextvars
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

import httpx2
from huggingface_hub import get_session, set_client_factory

SECONDS_TO_ANSWER = 60.0
ATTEMPTS = 4
FIRST_WAIT = 0.5
BLOCK = 65_536  # bytes that count as progress once they are sent or received
LARGE = 10 * 1024 * 1024  # an answer that its reader streams
LONGEST_WAIT_OF_CLIENT = 8.0  # between two attempts of huggingface_hub's own

T = TypeVar("T")


class NoAnswer(ConnectionError):
    """The Hub could not be reached, or did not answer in time. Nobody retries this."""


class Patience:
    """How long the Hub may leave us waiting in all, counted from its last usable answer."""

    def __init__(self, limit: float = SECONDS_TO_ANSWER):
        self.limit = limit
        self._until: float | None = None

    def left(self) -> float:
        """In seconds. What begins with this call after an answer has the whole limit."""
        if self._until is None:
            self._until = time.monotonic() + self.limit
        return self._until - time.monotonic()

    def renew(self, limit: float | None = None) -> None:
        self.limit, self._until = limit or self.limit, None

    def extend(self, until: float) -> None:
        """Time in which bytes were sent or received is not waiting."""
        self._until = max(self._until or until, until)

    def wait(self, seconds: float, asked: float, fault: str) -> None:
        """Before another attempt: as long as the Hub asks, if that leaves time for one, else up to half of the rest."""
        left = self.left()
        if left <= 0:
            raise self.no_answer(fault)
        if asked >= left:
            raise self.no_answer(f"{fault} and asks to wait {asked:g} seconds")
        time.sleep(asked or min(seconds, left / 2))

    def no_answer(self, fault: str) -> NoAnswer:
        """The end of it. Whoever asks next has the whole limit again."""
        if self.left() <= 0:
            fault = f"the Hub has not answered within {self.limit:g} seconds"
        self.renew()
        return NoAnswer(fault)


class _Progress:
    """When an attempt last got on, and whether anybody still waits for it."""

    def __init__(self):
        self.last = time.monotonic()
        self.abandoned = False
        self._bytes = 0

    def note(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= BLOCK:
            self.last, self._bytes = time.monotonic(), self._bytes % BLOCK


class _Watched(httpx2.SyncByteStream):
    """The body of a request or an answer, which notes its progress and ends where nobody waits for it any more."""

    def __init__(self, body: httpx2.SyncByteStream, progress: _Progress):
        self.body, self.progress = body, progress

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.body:
            for start in range(0, len(chunk), BLOCK):
                if self.progress.abandoned:
                    raise httpx2.ReadError("given up")
                part = chunk[start : start + BLOCK]
                yield part
                self.progress.note(len(part))

    def close(self) -> None:
        self.body.close()


def _attempt(work: Callable[[_Progress], T], seconds: float, patience: Patience) -> T:
    """
    What the work returns, or a timeout after so many seconds without progress.

    It is done by a thread that can be left behind, because a socket's timeout ends neither the look-up of a name nor an
    answer whose headers come byte by byte.
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
                raise httpx2.ReadTimeout(f"no answer for {seconds:.3g} seconds")
            wait([outcome], remaining)
        return outcome.result()
    finally:
        progress.abandoned = True
        if progress.last > start:
            patience.extend(progress.last + left)


def _is_commit(request: httpx2.Request) -> bool:
    """The one request that must not be repeated blindly: twice is two commits."""
    return request.method == "POST" and "/commit/" in request.url.path


def _fault(request: httpx2.Request, response: httpx2.Response) -> str | None:
    """Why an answer is none."""
    if response.status_code in (408, 429) or response.status_code >= 500:
        return f"the Hub answered {response.status_code}"
    # A gateway's page, or half of an answer, of those that huggingface_hub reads as JSON.
    kind, path = response.headers.get("Content-Type", ""), request.url.path
    read = response.is_stream_consumed and request.method != "HEAD" and ("/api/" in path or "/info/lfs/" in path)
    if read and ("json" in kind or "html" in kind):
        try:
            json.loads(response.content)
        except ValueError:
            return "the Hub's answer could not be read"
    return None


def asked_to_wait(response: httpx2.Response | None) -> float:
    """In seconds."""
    asked = "" if response is None else response.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() else 0.0


class BoundedClient(httpx2.Client):
    """
    Sends what is asked of it within a limit of waiting, whatever timeout was asked for, and repeats what failed below
    HTTP or with an error of the server. Not repeated are a commit and the body of a file, which can be read once:
    huggingface_hub rewinds it and repeats the request.
    """

    def __init__(self, patience: Patience, event_hooks: dict):
        super().__init__(event_hooks=event_hooks, follow_redirects=True, timeout=None)
        self.patience = patience

    def send(self, request: httpx2.Request, *, stream: bool = False, **options) -> httpx2.Response:
        body, response = request.stream, None
        for number in range(1, ATTEMPTS + 1):
            try:
                response = self._send_once(request, body, stream, number, options)
                fault = _fault(request, response)
                if fault is None:
                    self.patience.renew()
                if fault is None or (_is_commit(request) and response.status_code != 429):
                    return response
            except httpx2.TransportError as error:
                if _is_commit(request):
                    raise
                fault, response = f"no connection to the Hub, or it was lost: {error}", None
            if not isinstance(body, httpx2.ByteStream) and self.patience.left() > LONGEST_WAIT_OF_CLIENT:
                raise httpx2.ReadError(fault)
            if not isinstance(body, httpx2.ByteStream) or number == ATTEMPTS:
                break
            self.patience.wait(FIRST_WAIT * 2 ** (number - 1), asked_to_wait(response), fault)
        raise self.patience.no_answer(fault)

    def _send_once(self, request, body, stream: bool, number: int, options: dict) -> httpx2.Response:
        """The answer, read unless it is large. The last attempt may take the time that is left, others half of it."""
        left = self.patience.left()
        if left <= 0:
            raise self.patience.no_answer("")
        # The end of a file may still be in buffers on its way, for longer than an answer takes.
        seconds = left if number == ATTEMPTS or not isinstance(body, httpx2.ByteStream) else left / 2
        # Longer than the attempt, which then ends first and says for how long it waited.
        request.extensions["timeout"] = httpx2.Timeout(seconds + 1).as_dict()

        def work(progress: _Progress) -> httpx2.Response:
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
    Have huggingface_hub ask through a client that waits no longer than the limit, in seconds. The client stays, with
    the default limit, since others of this process may be reading from it.
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

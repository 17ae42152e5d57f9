"""An HTTP client for huggingface_hub that limits how long the Hub may keep it waiting."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import get_session, set_client_factory
from huggingface_hub.utils import httpx  # httpx2 from its release 2.0 on

from ..defaults import SECONDS_TO_ANSWER

WAITS = (0.0, 0.5, 1.0, 2.0)  # seconds before each attempt
ATTEMPTS = len(WAITS)


class NoAnswer(ConnectionError):
    """The Hub could not be reached, or did not answer in time. Not to be retried."""


def _is_commit(request: httpx.Request) -> bool:
    """Whether this is the one request that must not be retried blindly: that could make two commits."""
    return request.method == "POST" and "/commit/" in request.url.path


class BoundedClient(httpx.Client):
    """
    Limits the wait for the Hub, whatever timeout the caller sets, and retries requests that fail in transport or with a
    server error. It retries neither a commit that may have arrived nor the upload of a file: the file can be read only
    once, and huggingface_hub rewinds it and retries that request itself.
    """

    limit = SECONDS_TO_ANSWER  # of the class, since huggingface_hub may replace the client at any time

    def __init__(self, event_hooks: dict):
        super().__init__(event_hooks=event_hooks, follow_redirects=True, timeout=None)
        self._failing: dict[str, float] = {}  # when the upload to an address first failed

    def send(self, request: httpx.Request, **options) -> httpx.Response:
        is_upload, until, fault = not isinstance(request.stream, httpx.ByteStream), time.monotonic() + self.limit, ""
        for number, wait in enumerate(WAITS, start=1):
            time.sleep(min(wait, max(until - time.monotonic(), 0) / 2))
            if (left := until - time.monotonic()) <= 0:
                break
            # The last attempt and uploads may take all the time left, others half of it. An upload may take longer as
            # long as it makes progress: this limits each wait for the socket.
            seconds = left if is_upload or number == ATTEMPTS else left / 2
            request.extensions["timeout"] = httpx.Timeout(seconds).as_dict()
            try:
                response = super().send(request, **options)
            except httpx.TransportError as error:
                if _is_commit(request):
                    raise
                fault = f"no connection to the Hub, or it was lost: {error}"
                if isinstance(error, httpx.TimeoutException):
                    fault = f"the Hub has not answered within {self.limit:g} seconds"
                    if is_upload:
                        break
            else:
                status = response.status_code
                if (status not in (408, 429) and status < 500) or (_is_commit(request) and status != 429):
                    self._failing.pop(str(request.url), None)
                    return response
                response.close()
                fault = f"the Hub answered {status}"
            if is_upload:
                if time.monotonic() - self._failing.setdefault(str(request.url), time.monotonic()) < self.limit:
                    raise httpx.ReadError(fault)  # which huggingface_hub tries again
                del self._failing[str(request.url)]
                break
        raise NoAnswer(fault)


@contextmanager
def bounded_requests(limit: float) -> Iterator[None]:
    """
    Make huggingface_hub use a client that waits no longer than `limit` seconds. The client stays in place afterwards,
    with the default limit, since other threads may be reading from it.
    """
    session = get_session()
    if not isinstance(session, BoundedClient):
        hooks = session.event_hooks
        set_client_factory(lambda: BoundedClient(hooks))
    BoundedClient.limit = limit
    try:
        yield
    finally:
        BoundedClient.limit = SECONDS_TO_ANSWER

"""Metrics for Prometheus, served at /metrics: requests, latency, batches, waiting sentences, memory."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one service."""

    def __init__(self):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        shared = {"namespace": "scratch", "registry": self.registry}
        self.requests = Counter("requests", "Requests that were answered.", ["path", "status"], **shared)
        self.seconds = Histogram("request_seconds", "Time until a request was answered.", ["path"], **shared)
        self.batches = Histogram("batch_sentences", "Sentences in a batch.", buckets=_BATCHES, **shared)
        self.waiting = Gauge("waiting_sentences", "Sentences that wait to be translated.", **shared)


class Counted:
    """ASGI middleware that counts and times requests; paths not in `paths` are counted together."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: set[str]):
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        started, status = time.perf_counter(), "none"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)

"""The HTTP service: LibreTranslate's API, health and metrics, and the page."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from operator import itemgetter
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import UserError
from ...inference.translate import Translator
from ..documents import FORMATS, WITH_INLINE_MARKUP
from ..translate.workers import Pool
from .batcher import Batcher, Busy
from .engines import Direction, Directions
from .parameters import as_text, check_key, number_of, read_parameters, text_of
from .readers import CLEARLY, LEAST_LIKELY, ReaderLost, Readers, cut_into_sentences, language_probabilities
from .texts import DIGITS, TranslatedText, aside_if_long, translate_sentences, translate_texts

logger = logging.getLogger(__name__)

AUTO = "auto"
_MOST_ALTERNATIVES = 8
_MOST_BEAMS = 16
_LONGEST_FEATURES = 1_000  # characters, which every sentence gets
_MOST_KEPT, _LONGEST_KEPT = 100, 200  # strings to keep, each of which is searched in every sentence; characters of one
_MOST_DETECTED = 3  # languages that /detect returns
_LEAST_SECONDS = 5.0  # of processor time that reading a text may always take
_CHARACTERS_PER_SECOND = 10_000  # even a slow processor reads several times as many
_SECONDS_BETWEEN_WARNINGS = 60.0
_ACCEPTING = "socket.accept() out of system resource"  # asyncio's message
_SHOWN = 40  # characters of a wrong value in a message
_CLIENT_CLOSED_REQUEST = 499  # nginx's status; seen only in the metrics
_BATCHES = (1, 2, 4, 8, 16, 32, 64)  # buckets of the histogram
# The files of the page and their content types, for which a system's own table may be wrong.
_PAGE = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "service.js": "text/javascript",
}
_NO_CACHE = {"Cache-Control": "no-cache"}


class Metrics:
    """The metrics of a service, for Prometheus: requests, latency, batches, waiting sentences, memory."""

    def __init__(self):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        shared = {"namespace": "scratch", "registry": self.registry}
        self.requests = Counter("requests", "Requests that were answered.", ["path", "status"], **shared)
        self.seconds = Histogram("request_seconds", "Time until a request was answered.", ["path"], **shared)
        self.batches = Histogram("batch_sentences", "Sentences in a batch.", buckets=_BATCHES, **shared)
        self.waiting = Gauge("waiting_sentences", "Sentences waiting for the model.", **shared)


class RequestCounter:
    """ASGI middleware that counts and times requests. Paths that are not in `paths` are counted as "other"."""

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


@dataclass(frozen=True)
class Limits:
    """
    Limits on requests.

    Args:
        characters: the most characters of text in a request.
        waiting: while this many sentences are waiting, across all requests, further requests are refused; also the most
            texts in a request.
        seconds: the time limit for a request to arrive, and also for its translation.
    """

    characters: int = 20_000
    waiting: int = 2_048
    seconds: float = 60.0


class Service:
    """
    The service, as an ASGI application in `app`.

    Args:
        key: the key that requests must send as `api_key`; None: no key is needed.
        origins: origins whose pages may call the service from a browser, such as https://example.org; "*": all.
        pool: the workers that translate, closed when the service ends; None: this process translates.
    """

    def __init__(
        self,
        directions: Directions,
        limits: Limits,
        key: str | None = None,
        origins: tuple[str, ...] = (),
        pool: Pool | None = None,
    ):
        self.directions, self.limits, self.key = directions, limits, key
        self.page = {name: (files("modeling_scratch.apps.web") / "page" / name).read_bytes() for name in _PAGE}
        self.metrics = Metrics()
        self.pool = pool or Pool([], 0, 1)
        self._next_warning = 0.0
        self.batcher = Batcher(self.pool, limits.waiting, self.metrics.batches.observe)
        seconds = min(_LEAST_SECONDS + limits.characters / _CHARACTERS_PER_SECOND, limits.seconds)
        self.readers = Readers(seconds)
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        routes = [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/detect", self.detect, methods=["POST"]),
            Route("/languages", self.languages),
            Route("/frontend/settings", self.settings),
            Route("/health", self.health),
            Route("/metrics", self.show_metrics),
            Route("/page/sentences", self.cut_for_page, methods=["POST"]),
            Route("/page/translate", self.translate_for_page, methods=["POST"]),
            Route("/model.json", self.describe_models),
            *(Route(f"/{name}".removesuffix("index.html"), self.show_page) for name in _PAGE),
        ]
        cors = {"allow_origins": origins, "allow_methods": ["GET", "POST"]}
        app = Starlette(
            routes=routes,
            middleware=[Middleware(CORSMiddleware, **cors)] if origins else [],
            exception_handlers={HTTPException: _error_as_json, 500: _internal_error},
            lifespan=self._lifespan,
        )
        # The outermost layer, so that Starlette's own error responses are counted too.
        self.app = RequestCounter(app, self.metrics, {route.path for route in routes})

    @asynccontextmanager
    async def _lifespan(self, app: Starlette):
        asyncio.get_running_loop().set_exception_handler(self._log_loop_error)
        async with self.batcher, self.readers:
            yield
        self.pool.close()

    def _log_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """
        Log an error of the event loop. Out of file descriptors, the loop tries every second to accept connections, and
        by default logs each failure with a traceback. Here it is one warning a minute.
        """
        if context["message"] != _ACCEPTING:
            loop.default_exception_handler(context)
        elif (now := loop.time()) > self._next_warning:
            self._next_warning = now + _SECONDS_BETWEEN_WARNINGS
            reason = context["exception"].strerror
            logger.warning(f"cannot accept more connections: {reason}; retrying (ulimit -n sets the limit)")

    # -- LibreTranslate's API (https://docs.libretranslate.com/api/operations/translate/) ------------------------------

    async def translate(self, request: Request) -> Response:
        """
        Translate `q`, a text or a list of texts in one `format`, from `source` (or "auto") to `target`, with the same
        `features` for all, if the model was trained with features. `keep` are strings that stay as they are.
        """
        parameters = await self._parameters(request)
        given = parameters.get("q")
        is_list = isinstance(given, list)
        texts = [as_text(text, "q") for text in given] if is_list else [text_of(parameters, "q")]
        self._check_length(texts)
        source, target = text_of(parameters, "source"), text_of(parameters, "target")
        format = as_text(parameters.get("format") or "text", "format")
        if format not in FORMATS:
            raise HTTPException(400, f"format must be one of {', '.join(FORMATS)}")
        count = number_of(parameters, "alternatives", 0, _MOST_ALTERNATIVES) + 1
        features = as_text(parameters.get("features") or "", "features")
        if len(features) > _LONGEST_FEATURES:
            raise HTTPException(400, f"features has {len(features):,} characters; the limit is {_LONGEST_FEATURES:,}")
        if features and format in WITH_INLINE_MARKUP:
            raise HTTPException(400, f"features are not for the format {format}, whose tags are placed by alignments")
        keep = self._kept_strings(parameters)
        work = self._translated(texts, format, source, target, count, features, keep)
        answer, found = await self._in_time(request, work)
        answer["translatedText"] = [each.versions[0] for each in found]
        if any(each.confidence is not None for each in found):
            answer["confidence"] = [each.confidence and round(each.confidence, DIGITS) for each in found]
        if any(each.doubt for each in found):
            answer["doubt"] = [each.doubt for each in found]
        if count > 1:
            answer["alternatives"] = [list(dict.fromkeys(each.versions))[1:] for each in found]
        return JSONResponse(answer if is_list else {name: value[0] for name, value in answer.items()})

    async def detect(self, request: Request) -> Response:
        """The most likely languages of `q` among those of the service, with their probabilities in percent."""
        text = text_of(await self._parameters(request), "q")
        self._check_length([text])
        names = self.directions.languages or [each.source for each in self.directions.all]
        (row,) = await self._in_time(request, self._probabilities([text], names))
        found = sorted(((each, row.get(each, 0.0)) for each in names), key=itemgetter(1), reverse=True)
        return JSONResponse([_detection(*each) for each in found[:_MOST_DETECTED]])

    async def languages(self, request: Request) -> Response:
        """The codes of the service, with the codes that each can be the source for."""
        found = []
        for code, name in self.directions.names.items():
            targets = [each.target for each in self.directions.all if each.source == code]
            found.append({"code": code, "name": name, "targets": targets})
        return JSONResponse(found)

    async def settings(self, request: Request) -> Response:
        """The settings that LibreTranslate's own front end requests."""
        first = self.directions.all[0]
        sides = {
            side: {"code": code, "name": self.directions.names[code]}
            for side, code in (("source", first.source), ("target", first.target))
        }
        has_key = self.key is not None
        return JSONResponse(
            {
                "apiKeys": has_key,
                "charLimit": self.limits.characters,
                "filesTranslation": False,
                "frontendTimeout": 500,  # milliseconds from the last key press to a request
                "keyRequired": has_key,
                "language": sides,
                "suggestions": False,
                "supportedFilesFormat": [],
            }
        )

    # -- for operators -------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether all workers are running; status 503 if not."""
        if not self.pool.is_whole:
            raise HTTPException(503, "a worker process died; see the service's log")
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        """The metrics, for Prometheus."""
        return Response(generate_latest(self.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    # -- the page ------------------------------------------------------------------------------------------------------

    async def show_page(self, request: Request) -> Response:
        """A file of the page, which is that of `scratch export web`, but translates through the service."""
        name = request.url.path[1:] or "index.html"
        return Response(self.page[name], media_type=_PAGE[name], headers=_NO_CACHE)

    async def describe_models(self, request: Request) -> Response:
        """The service and its models, for the page."""
        directions = [
            each.described
            | {"search": {"numBeams": each.engine.num_beams}, "isAligned": isinstance(each.engine, Translator)}
            for each in self.directions.all
        ]
        service = {"isKeyNeeded": self.key is not None, "mostCharacters": self.limits.characters}
        return JSONResponse({"service": service, "directions": directions}, headers=_NO_CACHE)

    async def cut_for_page(self, request: Request) -> Response:
        """Split `text`, of a direction's source, into parts, each with whether it is a sentence."""
        parameters = await self._parameters(request)
        text = text_of(parameters, "text")
        direction = self._direction(text_of(parameters, "source"), text_of(parameters, "target"))
        self._check_length([text])
        work = aside_if_long([text], 1, self.readers, cut_into_sentences, text, direction.languages[0], direction.kept)
        return JSONResponse({"parts": await self._in_time(request, work)})

    async def translate_for_page(self, request: Request) -> Response:
        """Translate `sentences` without splitting them. Each gets all hypotheses of a beam of `numBeams`."""
        parameters = await self._parameters(request)
        sentences = parameters.get("sentences")
        if not isinstance(sentences, list):
            raise HTTPException(400, "sentences must be a list")
        sentences = [as_text(sentence, "sentences") for sentence in sentences]
        self._check_length(sentences)
        direction = self._direction(text_of(parameters, "source"), text_of(parameters, "target"))
        most = max(_MOST_BEAMS, direction.engine.num_beams)
        beams = max(1, number_of(parameters, "numBeams", 1, most))
        found = await self._in_time(
            request, translate_sentences(sentences, direction, beams, self.batcher, self.readers)
        )
        return JSONResponse({"translations": found})

    # -- shared helpers ------------------------------------------------------------------------------------------------

    async def _parameters(self, request: Request) -> dict[str, Any]:
        parameters = await read_parameters(request, self.limits.characters, self.limits.seconds)
        check_key(parameters, self.key)
        return parameters

    def _check_length(self, texts: list[str]) -> None:
        for count, limit, what in (
            (len(texts), self.limits.waiting, "texts"),
            (sum(map(len, texts)), self.limits.characters, "characters of text"),
        ):
            if count > limit:
                raise HTTPException(413, f"the request has {count:,} {what}; the limit is {limit:,}")

    def _kept_strings(self, parameters: dict[str, Any]) -> tuple[str, ...]:
        """The parameter `keep`, a string or a list of strings."""
        given = parameters.get("keep") or []
        found = tuple(as_text(each, "each string of keep") for each in (given if isinstance(given, list) else [given]))
        if len(found) > _MOST_KEPT or not all(0 < len(each) <= _LONGEST_KEPT for each in found):
            raise HTTPException(400, f"keep takes up to {_MOST_KEPT} strings of 1 to {_LONGEST_KEPT} characters")
        return found

    async def _translated(
        self,
        texts: list[str],
        format: str,
        source: str,
        target: str,
        count: int,
        features: str,
        keep: tuple[str, ...],
    ) -> tuple[dict[str, Any], list[TranslatedText]]:
        """An answer with the detected languages, if any, and the translations of each text."""
        answer: dict[str, Any] = {}
        groups = {source: list(range(len(texts)))}  # {language: indices of its texts}
        if source == AUTO:
            detected, groups = await self._detected(texts, target), defaultdict(list)
            answer["detectedLanguage"] = [_detection(*each) for each in detected]
            for place, (language, _) in enumerate(detected):
                groups[language].append(place)
        found = [TranslatedText([text] * count) for text in texts]
        for source, places in groups.items():
            if self.directions.is_one_language(source, target):  # the texts stay as they are, as in LibreTranslate
                continue
            direction = self._direction(source, target)
            if keep and direction.kept is None:
                raise HTTPException(400, f"keep is for translators; {source} to {target} is not one")
            some, align = [texts[place] for place in places], format in WITH_INLINE_MARKUP
            work = self.batcher, self.readers
            made = await translate_texts(some, format, direction, count, align, *work, features, keep)
            for place, each in zip(places, made, strict=True):
                found[place] = each
        return answer, found

    async def _detected(self, texts: list[str], target: str) -> list[tuple[str, float]]:
        """
        The language of each text and its probability: the most likely language that is translated into `target`, or
        `target` itself if the text is clearly in that language and the detector knows all these languages.
        """
        find, is_one_language = self.directions.find, self.directions.is_one_language
        sources = [each for each in self.directions.names if find(each, target)]
        if not sources:
            self._direction(AUTO, target)  # raises the error that lists the directions
        names = sources + [each for each in self.directions.names if is_one_language(each, target)]
        found = []
        for row in await self._probabilities(texts, names):
            likely = max(sources, key=lambda each: row.get(each, 0.0))
            if len(row) == len(names) and row[names[-1]] > CLEARLY * max(row[likely], LEAST_LIKELY):
                likely = names[-1]
            found.append((likely, row.get(likely, 0.0)))
        return found

    async def _probabilities(self, texts: list[str], codes: list[str]) -> list[dict[str, float]]:
        """`language_probabilities` for those codes that are languages."""
        languages = [code for code in codes if code in self.directions.languages]
        return await self.readers(language_probabilities, texts, languages) if languages else [{}] * len(texts)

    def _direction(self, source: str, target: str) -> Direction:
        """The direction between two codes. Raises HTTPException 400 if it is not served."""
        direction = self.directions.find(source, target)
        if direction is None:
            served = ", ".join(f"{each.source} to {each.target}" for each in self.directions.all)
            raise HTTPException(400, f"{source[:_SHOWN]} to {target[:_SHOWN]} is not served, only {served}")
        return direction

    async def _in_time(self, request: Request, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work`. Raises HTTPException if it fails or takes too long, or if the client disconnects."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({task, gone}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise HTTPException(_CLIENT_CLOSED_REQUEST, "the client disconnected")
            raise Busy(f"not finished within {self.limits.seconds:g} seconds; try again later, or send less")
        except (Busy, ReaderLost) as error:
            raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
        except UserError as error:
            raise HTTPException(400, str(error)) from None
        finally:
            task.cancel()
            gone.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _detection(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability, 1), "language": language}


async def _error_as_json(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "internal error; the service's log has details"}, status_code=500)

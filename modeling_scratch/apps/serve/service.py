"""The HTTP service: LibreTranslate's API, health and metrics, and the page."""

import asyncio
import ipaddress
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import quote

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
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ... import __version__
from ...errors import UserError
from ...languages import base_language, language_name
from ...model.text import Sentences
from ..documents import FORMATS, WITH_INLINE_MARKUP, format_of
from ..translate.workers import Pool
from ..web.site import page_file
from .batcher import Batcher, Busy
from .clients import Client, Clients
from .engines import Direction, Directions
from .openapi import documentation, specification
from .parameters import BYTES_PER_CHARACTER, Bodies, Upload, as_text, number_of, read_parameters, text_of
from .readers import CLEARLY, LEAST_LIKELY, ReaderLost, Readers, Texts, cut_into_sentences, language_probabilities
from .storage import Downloads, Suggestions, translated_name
from .texts import DIGITS, TranslatedText, aside_if_long, translate_sentences, translate_texts

logger = logging.getLogger(__name__)

AUTO = "auto"
_MOST_ALTERNATIVES = 8
_MOST_BEAMS = 16
_LONGEST_FEATURES = 1_000  # characters, which every sentence gets
_MOST_KEPT, _LONGEST_KEPT = 100, 200  # strings to keep, each of which is searched in every sentence; characters of one
_MOST_DETECTED = 3  # languages that /detect returns
_NO_LANGUAGE = "zxx"  # the detector's code for text that is in none
# The text of a list or a file may be this many times as long as one text, and a file may take this many times as long.
_TIMES = 10
_MOST_FILES = 8  # that are translated at the same time
_SECONDS_KEPT = 1_800.0  # that a translated file can be downloaded, as in LibreTranslate
_LEAST_SECONDS = 5.0  # of processor time that reading a text may always take
_CHARACTERS_PER_SECOND = 10_000  # even a slow processor reads several times as many
_SECONDS_BETWEEN_WARNINGS = 60.0
_ACCEPTING = "socket.accept() out of system resource"  # asyncio's message
_SHOWN = 40  # characters of a wrong value in a message
_LEAST_COMPRESSED, _COMPRESSION = 1_000, 5  # bytes; zlib's level
_CLIENT_CLOSED_REQUEST = 499  # nginx's status; seen only in the metrics
_BATCHES = (1, 2, 4, 8, 16, 32, 64)  # buckets of the histogram
# The files of the page and their content types, for which a system's own table may be wrong.
_PAGE = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
}
_NO_CACHE = {"Cache-Control": "no-cache"}
# A translated file is never shown as a page of the service, whose scripts could read the keys of users.
_FILE = "application/octet-stream"
_DOWNLOAD = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_TEXT_FORMATS = [name for name, described in FORMATS.items() if not described.is_binary]
_ENDINGS = [".txt", *(ending for described in FORMATS.values() for ending in described.endings)]


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
    """
    ASGI middleware that counts and times requests. Paths that are not in `paths` are counted as "other". Slashes that
    are doubled or at the end of a path do not count: clients append paths to addresses that end in a slash.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: set[str]):
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["path"] = "/" + "/".join(filter(None, scope["path"].split("/")))
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
        characters: the most characters of a text; a list of texts, or a file, may have ten times as many.
        waiting: while this many sentences are waiting, across all requests, further requests are refused; also the most
            texts in a request.
        seconds: the time limit for a request to arrive, and also for its translation; of files, ten times as much.
        file_bytes: the largest file that is translated; 0: none is.
    """

    characters: int = 20_000
    waiting: int = 2_048
    seconds: float = 60.0
    file_bytes: int = 10_000_000


class Service:
    """
    The service, as an ASGI application in `app`.

    Args:
        clients: who may use it; None: everyone.
        origins: origins whose pages may call the service from a browser, such as https://example.org; "*": all.
        pool: the workers that translate, closed when the service ends; None: this process translates.
        suggestions: what keeps the translations that users suggest; None: they are refused.
        metrics_key: the bearer token for /metrics; without it, only this machine gets them.
    """

    def __init__(
        self,
        directions: Directions,
        limits: Limits,
        clients: Clients | None = None,
        origins: tuple[str, ...] = (),
        pool: Pool | None = None,
        suggestions: Suggestions | None = None,
        metrics_key: str | None = None,
    ):
        self.directions, self.limits, self.clients = directions, limits, clients or Clients(limits.characters)
        self.suggestions, self.metrics_key = suggestions, metrics_key
        self.bodies, self.downloads, self._files_now = Bodies(), Downloads(_SECONDS_KEPT), 0
        self.page = {name: page_file(name) for name in _PAGE}
        self.metrics = Metrics()
        self.pool = pool or Pool([], 0, 1)
        self._next_warning = 0.0
        self.batcher = Batcher(self.pool, limits.waiting, self.metrics.batches.observe)
        seconds = min(_LEAST_SECONDS + _TIMES * limits.characters / _CHARACTERS_PER_SECOND, limits.seconds)
        self.readers = Readers(seconds)
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        routes = [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/translate_file", self.translate_file, methods=["POST"]),
            Route("/download_file/{address}", self.download_file),
            Route("/detect", self.detect, methods=["POST"]),
            Route("/suggest", self.suggest, methods=["POST"]),
            Route("/languages", self.languages),
            Route("/frontend/settings", self.settings),
            Route("/spec", self.show_specification),
            Route("/docs", self.show_documentation),
            Route("/health", self.health),
            Route("/metrics", self.show_metrics),
            Route("/page/sentences", self.cut_for_page, methods=["POST"]),
            Route("/page/translate", self.translate_for_page, methods=["POST"]),
            Route("/model.json", self.describe_models),
            *(Route(f"/{name}".removesuffix("index.html"), self.show_page) for name in _PAGE),
        ]
        compression = {"minimum_size": _LEAST_COMPRESSED, "compresslevel": _COMPRESSION}
        compression["exclude_content_types"] = (*DEFAULT_EXCLUDED_CONTENT_TYPES, _FILE)
        middleware = [Middleware(GZipMiddleware, **compression)]
        if origins:
            cors = {"allow_origins": origins, "allow_methods": ["GET", "POST"]}
            middleware.append(Middleware(CORSMiddleware, **cors))
        app = Starlette(
            routes=routes,
            middleware=middleware,
            exception_handlers={HTTPException: _error_as_json, 500: _internal_error},
            lifespan=self._lifespan,
        )
        # The outermost layer, so that Starlette's own error responses are counted too.
        self.app = RequestCounter(app, self.metrics, {route.path for route in routes})

    @asynccontextmanager
    async def _lifespan(self, app: Starlette):
        asyncio.get_running_loop().set_exception_handler(self._log_loop_error)
        with self.downloads:
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
        `sentences`: "split" text into sentences, or translate each paragraph as one "line".
        """
        parameters, client = await self._parameters(request)
        given = parameters.get("q")
        is_list = isinstance(given, list)
        texts = [as_text(text, "q") for text in given] if is_list else [text_of(parameters, "q")]
        self._check_length(texts, client)
        source, target = text_of(parameters, "source"), text_of(parameters, "target")
        format = as_text(parameters.get("format") or "text", "format")
        if format not in _TEXT_FORMATS:
            raise HTTPException(400, f"{format[:_SHOWN]} format is not supported, only {', '.join(_TEXT_FORMATS)}")
        count = number_of(parameters, "alternatives", 0, _MOST_ALTERNATIVES) + 1
        features = as_text(parameters.get("features") or "", "features")
        if len(features) > _LONGEST_FEATURES:
            many = f"Invalid request: features has {len(features):,} characters; the limit is {_LONGEST_FEATURES:,}"
            raise HTTPException(400, many)
        if features and format in WITH_INLINE_MARKUP:
            raise HTTPException(400, f"features are not for the format {format}, whose tags are placed by alignments")
        keep = self._kept_strings(parameters)
        sentences = as_text(parameters.get("sentences") or "split", "sentences")
        if sentences not in get_args(Sentences):
            raise HTTPException(400, f"Invalid request: sentences is split or line, not {sentences[:_SHOWN]}")
        self.clients.admit(client, len(texts))
        most = _TIMES * client.characters
        work = self._translated(texts, format, source, target, count, features, keep, sentences, most=most)
        answer, found = await self._in_time(request, work)
        answer["translatedText"] = [text.versions[0] for text in found]
        if any(text.confidence is not None for text in found):
            answer["confidence"] = [text.confidence and round(text.confidence, DIGITS) for text in found]
        if any(text.doubt for text in found):
            answer["doubt"] = [text.doubt for text in found]
        if count > 1:
            answer["alternatives"] = [list(dict.fromkeys(text.versions))[1:] for text in found]
        return JSONResponse(answer if is_list else {name: value[0] for name, value in answer.items()})

    async def translate_file(self, request: Request) -> Response:
        """Translate `file` from `source` (or "auto") to `target`, and answer with an address to download it from."""
        if not self.limits.file_bytes:
            raise HTTPException(403, "Files translation are disabled on this server.")
        parameters, client = await self._parameters(request, is_file=True)
        file, seconds = parameters.get("file"), _TIMES * self.limits.seconds
        if not isinstance(file, Upload):
            raise HTTPException(400, "Invalid request: missing file parameter")
        source, target = text_of(parameters, "source"), text_of(parameters, "target")
        if not file.content:
            raise HTTPException(400, "Invalid request: empty file")
        if len(file.content) > self.limits.file_bytes:
            raise HTTPException(413, f"Invalid request: the file is larger than {self.limits.file_bytes:,} bytes")
        try:
            format = format_of(file.name, begins=file.content[:8]) or "text"
        except UserError as error:
            advice = "if it is plain text, let its name end in .txt"
            raise HTTPException(400, f"Invalid request: file format not supported: {error}; {advice}") from None
        self.clients.admit(client)
        if self._files_now >= _MOST_FILES:
            raise HTTPException(
                429, f"{_MOST_FILES} files are being translated; try again later", {"Retry-After": "10"}
            )
        self._files_now += 1
        try:
            most = _TIMES * client.characters
            work = self._translated([file.content], format, source, target, most=most)
            answer, (found,) = await self._in_time(request, work, seconds)
        finally:
            self._files_now -= 1
        address = quote(await self.downloads.add(translated_name(file.name, target), found.versions[0]))
        detected = {name: value for name, (value,) in answer.items()}
        return JSONResponse({"translatedFileUrl": f"{request.base_url}download_file/{address}"} | detected)

    async def download_file(self, request: Request) -> Response:
        """A translated file."""
        found = self.downloads.find(request.path_params["address"])
        if found is None:
            raise HTTPException(404, "there is no such file, or no longer; translate it again")
        path, name = found
        return FileResponse(path, filename=name, media_type=_FILE, headers=_DOWNLOAD)

    async def detect(self, request: Request) -> Response:
        """The most likely languages of `q` among all that the detector knows, with their probabilities in percent."""
        parameters, client = await self._parameters(request)
        text = _not_empty(text_of(parameters, "q"), "q")
        self._check_length([text], client)
        self.clients.admit(client)
        if not self.directions.languages:  # these are the names of sides, of which nothing is known
            return JSONResponse([_detection(served.source, 0.0) for served in self.directions.all[:_MOST_DETECTED]])
        if not any(map(str.isalpha, text)):
            return JSONResponse([_detection(self.directions.all[0].source, 0.0)])
        (row,) = await self._in_time(request, self._probabilities([text], "text"))
        return JSONResponse([_detection(*pair) for pair in list(row.items())[:_MOST_DETECTED]])

    async def suggest(self, request: Request) -> Response:
        """Keep `s`, a better translation of `q` from `source` to `target`."""
        if self.suggestions is None:
            raise HTTPException(403, "Suggestions are disabled on this server.")
        parameters, client = await self._parameters(request)
        text, suggestion = (_not_empty(text_of(parameters, name), name) for name in ("q", "s"))
        self._check_length([text, suggestion], client)
        direction = self._direction(text_of(parameters, "source"), text_of(parameters, "target"))
        self.clients.admit(client)
        if not await self.suggestions.add(direction.source, direction.target, text, suggestion):
            raise HTTPException(503, "no more suggestions can be kept; tell the operator of this service")
        return JSONResponse({"success": True})

    async def languages(self, request: Request) -> Response:
        """The codes of the service, each with the codes that it can be translated into."""
        found = []
        for code, name in self.directions.names.items():
            targets = [direction.target for direction in self.directions.all if direction.source == code]
            found.append({"code": code, "name": name, "targets": targets})
        return JSONResponse(found)

    async def settings(self, request: Request) -> Response:
        """The settings that LibreTranslate's own front end requests."""
        first = self.directions.all[0]
        sides = {
            side: {"code": code, "name": self.directions.names[code]}
            for side, code in (("source", first.source), ("target", first.target))
        }
        return JSONResponse(
            {
                "apiKeys": self.clients.has_keys,
                "charLimit": self.limits.characters,
                "filesTranslation": bool(self.limits.file_bytes),
                "frontendTimeout": 500,  # milliseconds from the last key press to a request
                "keyRequired": self.clients.is_key_needed,
                "language": sides,
                "suggestions": self.suggestions is not None,
                "supportedFilesFormat": _ENDINGS if self.limits.file_bytes else [],
            }
        )

    async def show_specification(self, request: Request) -> Response:
        """The API for programs, in OpenAPI's format."""
        return JSONResponse(self._specification())

    async def show_documentation(self, request: Request) -> Response:
        """The API for people."""
        first = self.directions.all[0]
        example = {"q": "Hello!", "source": first.source, "target": first.target}
        return HTMLResponse(documentation(self._specification(), str(request.base_url).rstrip("/"), example))

    def _specification(self) -> dict[str, Any]:
        off = {"/suggest": self.suggestions is None, "/translate_file": not self.limits.file_bytes}
        without = {path for path, is_off in off.items() if is_off}
        return specification(__version__, _TEXT_FORMATS, _ENDINGS, without)

    # -- for operators -------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether all workers are running; status 503 if not."""
        if not self.pool.is_whole:
            raise HTTPException(503, "a worker process died; see the service's log")
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        """The metrics, for Prometheus: with the key, or on this machine."""
        given, key = request.headers.get("authorization", ""), self.metrics_key
        is_known = key is not None and secrets.compare_digest(given.encode(), f"Bearer {key}".encode())
        if not (is_known if key is not None else _is_local(request)):
            raise HTTPException(401, "metrics need their key", {"WWW-Authenticate": "Bearer"})
        return Response(generate_latest(self.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    # -- the page ------------------------------------------------------------------------------------------------------

    async def show_page(self, request: Request) -> Response:
        """A file of the page, which is that of `scratch export web`, but translates through the service."""
        name = request.url.path[1:] or "index.html"
        return Response(self.page[name], media_type=_PAGE[name], headers=_NO_CACHE)

    async def describe_models(self, request: Request) -> Response:
        """The service and its models, for the page."""
        directions = [
            served.described | {"search": {"numBeams": served.engine.num_beams}, "isAligned": served.engine.is_aligned}
            for served in self.directions.all
        ]
        service = {
            "isKeyNeeded": self.clients.is_key_needed,
            "mostCharacters": self.limits.characters,
            "mostFileBytes": self.limits.file_bytes,
        }
        return JSONResponse({"service": service, "directions": directions}, headers=_NO_CACHE)

    async def cut_for_page(self, request: Request) -> Response:
        """Split `text`, of a direction's source, into parts, each with whether it is a sentence."""
        parameters, client = await self._parameters(request)
        text = text_of(parameters, "text")
        direction = self._direction(text_of(parameters, "source"), text_of(parameters, "target"))
        self._check_length([text], client)
        self.clients.admit(client)
        work = aside_if_long([text], 1, self.readers, cut_into_sentences, text, direction.languages[0], direction.kept)
        return JSONResponse({"parts": await self._in_time(request, work)})

    async def translate_for_page(self, request: Request) -> Response:
        """Translate `sentences` without splitting them. Each gets all hypotheses of a beam of `numBeams`."""
        parameters, client = await self._parameters(request)
        sentences = parameters.get("sentences")
        if not isinstance(sentences, list):
            raise HTTPException(400, "Invalid request: sentences parameter must be a list")
        sentences = [as_text(sentence, "sentences") for sentence in sentences]
        self._check_length(sentences, client)
        direction = self._direction(text_of(parameters, "source"), text_of(parameters, "target"))
        most = max(_MOST_BEAMS, direction.engine.num_beams)
        beams = max(1, number_of(parameters, "numBeams", 1, most))
        self.clients.admit(client)
        found = await self._in_time(
            request, translate_sentences(sentences, direction, beams, self.batcher, self.readers)
        )
        return JSONResponse({"translations": found})

    # -- shared helpers ------------------------------------------------------------------------------------------------

    async def _parameters(self, request: Request, is_file: bool = False) -> tuple[dict[str, Any], Client]:
        """The parameters of a request, one of which may be a file, and its sender."""
        most, seconds = BYTES_PER_CHARACTER * _TIMES * self.clients.most_characters, self.limits.seconds
        if is_file:
            most, seconds = self.limits.file_bytes, _TIMES * seconds
        parameters = await read_parameters(request, self.bodies, most, seconds, files=int(is_file))
        return parameters, self.clients.sender(request, parameters)

    def _check_length(self, texts: list[str], client: Client) -> None:
        for count, limit in (
            (len(texts), self.limits.waiting),
            (max(map(len, texts), default=0), client.characters),
            (sum(map(len, texts)), _TIMES * client.characters),
        ):
            if count > limit:
                raise HTTPException(400, f"Invalid request: request ({count}) exceeds text limit ({limit})")

    def _kept_strings(self, parameters: dict[str, Any]) -> tuple[str, ...]:
        """The parameter `keep`, a string or a list of strings."""
        given = parameters.get("keep") or []
        found = tuple(as_text(string, "keep") for string in (given if isinstance(given, list) else [given]))
        if len(found) > _MOST_KEPT or not all(0 < len(string) <= _LONGEST_KEPT for string in found):
            raise HTTPException(
                400, f"Invalid request: keep takes up to {_MOST_KEPT} strings of 1 to {_LONGEST_KEPT} characters"
            )
        return found

    async def _translated(
        self,
        texts: Texts,
        format: str,
        source: str,
        target: str,
        count: int = 1,
        features: str = "",
        keep: tuple[str, ...] = (),
        sentences: Sentences = "split",
        *,
        most: int,
    ) -> tuple[dict[str, Any], list[TranslatedText]]:
        """An answer with the detected languages, if any, and the translations of each text or file."""
        answer: dict[str, Any] = {}
        groups = {source: list(range(len(texts)))}  # {language: indices of its texts}
        if source == AUTO:
            detected, groups = await self._detected(texts, format, target), defaultdict(list)
            answer["detectedLanguage"] = [_detection(*pair) for pair in detected]
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
            made = await translate_texts(some, format, direction, count, align, most, *work, features, keep, sentences)
            for place, translated in zip(places, made, strict=True):
                found[place] = translated
        return answer, found

    async def _detected(self, texts: Texts, format: str, target: str) -> list[tuple[str, float]]:
        """
        The language of each text and its probability: the most likely language that is translated into `target`, or
        `target` itself if the text is clearly in that language and the detector knows all these languages.

        Raises:
            HTTPException: 400: all texts are clearly in other languages.
        """
        find, is_one_language = self.directions.find, self.directions.is_one_language
        sources = [code for code in self.directions.names if find(code, target)]
        if not sources:
            self._direction(AUTO, target)  # raises the error that lists the directions
        if not self.directions.languages:
            return [(sources[0], 0.0)] * len(texts)
        own = [code for code in self.directions.names if is_one_language(code, target)]
        found, foreign = [], []
        for row in await self._probabilities(texts, format):
            likely = max(sources, key=lambda code: row.get(code, 0.0))
            clear = CLEARLY * max(row.get(likely, 0.0), LEAST_LIKELY)
            language, probability = next(iter(row.items()))
            if all(code in row for code in sources + own):
                if own and row[own[0]] > clear:
                    likely = own[0]
                elif language != _NO_LANGUAGE and probability > max(clear, 0.5):  # a single word rarely reaches half
                    foreign.append(language)
            found.append((likely, row.get(likely, 0.0)))
        if foreign and len(foreign) == len(texts):
            self._direction(foreign[0], target, f"; the text is in {language_name(foreign[0])}")
        return found

    async def _probabilities(self, texts: Texts, format: str) -> list[dict[str, float]]:
        """
        `language_probabilities`, with the service's codes in place of the detector's. If the service has several codes
        for a language, each gets its probability.
        """
        codes = defaultdict(list)
        for code in self.directions.languages:
            codes[base_language(code)].append(code)
        rows = await self.readers(language_probabilities, texts, format)
        return [{code: row[base] for base in row for code in codes.get(base, [base])} for row in rows]

    def _direction(self, source: str, target: str, reason: str = "") -> Direction:
        """The direction between two codes. Raises HTTPException 400, with the reason, if it is not served."""
        direction = self.directions.find(source, target)
        if direction is None:
            what = f"{target[:_SHOWN]} is not available as a target language from {source[:_SHOWN]}"
            for code in (source, target):
                if code != AUTO and not self.directions.knows(code):
                    what = f"{code[:_SHOWN]} is not supported"
            served = ", ".join(f"{direction.source} to {direction.target}" for direction in self.directions.all)
            raise HTTPException(400, f"{what}{reason}; served: {served}")
        return direction

    async def _in_time(self, request: Request, work: Coroutine[Any, Any, Any], seconds: float | None = None) -> Any:
        """
        The result of `work`. Raises HTTPException if it fails or takes too long, or if the client disconnects.

        Args:
            seconds: the time limit; None: that of the service.
        """
        seconds = seconds or self.limits.seconds
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise HTTPException(_CLIENT_CLOSED_REQUEST, "the client disconnected")
            raise Busy(f"not finished within {seconds:g} seconds; try again later, or send less")
        except (Busy, ReaderLost) as error:
            raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
        except UserError as error:
            raise HTTPException(400, str(error)) from None
        finally:
            task.cancel()
            gone.cancel()


def _is_local(request: Request) -> bool:
    """Whether the client is on this machine, as far as trusted proxies say."""
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _not_empty(text: str, name: str) -> str:
    if not text.strip():
        raise HTTPException(400, f"Invalid request: missing {name} parameter")
    return text


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _detection(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability, 1), "language": language}


async def _error_as_json(request: Request, error: HTTPException) -> Response:
    detail = f"Slowdown: {error.detail}" if error.status_code == 429 else error.detail
    return JSONResponse({"error": detail}, status_code=error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "internal error; the service's log has details"}, status_code=500)

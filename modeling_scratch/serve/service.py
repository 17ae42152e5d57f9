"""The HTTP service: LibreTranslate's API, health and metrics, and the page."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..documents import FORMATS, WITH_INLINE_MARKUP
from ..errors import UserError
from ..workers import Worker
from .batcher import Batcher, Busy
from .directions import Direction, Directions
from .engines import Search
from .monitoring import Counted, Metrics
from .parameters import as_text, check_key, number_of, read_parameters, text_of
from .texts import aside_if_long, cut_into_sentences, translate_sentences, translate_texts

AUTO = "auto"
_MOST_ALTERNATIVES = 8
_MOST_BEAMS = 16
_LIKELIHOODS = 3  # languages that /detect returns
_CLIENT_CLOSED_REQUEST = 499  # nginx's status; seen only in the metrics
# Files of the page, with their types: a system's own table of types may be wrong.
_PAGE = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "service.js": "text/javascript",
}
_NO_CACHE = {"Cache-Control": "no-cache"}


@dataclass(frozen=True)
class Limits:
    """
    Limits on requests.

    Args:
        characters: of text in a request.
        waiting: sentences waiting to be translated, over all requests, before further requests are refused; also the
            most texts in a request.
        seconds: for a request to arrive, and again for it to be translated.
    """

    characters: int = 20_000
    waiting: int = 2_048
    seconds: float = 60.0


class Service:
    """
    The service, as an ASGI application in `app`.

    Args:
        key: that requests must send as `api_key`; None: none is needed.
        origins: of pages that may call the service from a browser, such as https://example.org; or "*".
        workers: processes that translate in parallel; none: this process translates.
    """

    def __init__(
        self,
        directions: Directions,
        limits: Limits,
        key: str | None = None,
        origins: tuple[str, ...] = (),
        workers: Sequence[Worker] = (),
    ):
        self.directions, self.limits, self.key = directions, limits, key
        self.page = {name: (files("modeling_scratch.web") / "page" / name).read_bytes() for name in _PAGE}
        self.metrics = Metrics()
        self.workers = workers
        self.batcher = Batcher(limits.waiting, self.metrics.batches.observe, workers)
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
            exception_handlers={HTTPException: _explain, 500: _apologize},
            lifespan=self._lifespan,
        )
        # Outermost, so that Starlette's own error responses are counted too.
        self.app = Counted(app, self.metrics, {route.path for route in routes})

    @asynccontextmanager
    async def _lifespan(self, app: Starlette):
        async with self.batcher:
            yield
        for worker in self.workers:
            worker.close()

    # -- LibreTranslate's interface (https://docs.libretranslate.com/api/operations/translate/) -----------------------

    async def translate(self, request: Request) -> Response:
        """Translate `q`, a text or a list of texts of one `format`, from `source` (or "auto") to `target`."""
        parameters = await self._parameters(request)
        given = parameters.get("q")
        is_list = isinstance(given, list)
        texts = [as_text(text, "q") for text in given] if is_list else [text_of(parameters, "q")]
        self._check_length(texts)
        source, target = text_of(parameters, "source"), text_of(parameters, "target")
        format = as_text(parameters.get("format") or "text", "format")
        if format not in FORMATS:
            raise HTTPException(400, f"format must be one of {', '.join(FORMATS)}")
        several = number_of(parameters, "alternatives", 0, _MOST_ALTERNATIVES) + 1
        answer: dict[str, Any] = {}
        if source == AUTO:
            source, probability = await aside_if_long(texts, 1, self._detect, "\n".join(texts), target)
            answer["detectedLanguage"] = [_likelihood(source, probability)] * len(texts)
        if self.directions.is_one_language(source, target):  # the text stays, as for LibreTranslate
            found = [[text] * several for text in texts]
        else:
            direction = self._direction(source, target)
            search = Search(several=several, align=format in WITH_INLINE_MARKUP)
            work = translate_texts(texts, format, direction, search, self.batcher)
            found = await self._in_time(request, work)
        answer["translatedText"] = [each[0] for each in found]
        if several > 1:
            answer["alternatives"] = [each[1:] for each in found]
        return JSONResponse(answer if is_list else {name: value[0] for name, value in answer.items()})

    async def detect(self, request: Request) -> Response:
        """The source languages that `q` may be in."""
        text = text_of(await self._parameters(request), "q")
        self._check_length([text])
        found = await aside_if_long([text], 1, self.directions.detect, text, self.directions.sources)
        return JSONResponse([_likelihood(*each) for each in found[:_LIKELIHOODS]])

    async def languages(self, request: Request) -> Response:
        """The languages, each with those it is translated into."""
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
        """Whether all that translate are running. HTTPException 503 if not."""
        if not self.batcher.is_alive or not all(worker.process.is_alive() for worker in self.workers):
            raise HTTPException(503, "a process that translates has ended; the service's log says which")
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        """The metrics, for Prometheus."""
        return Response(generate_latest(self.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    # -- the page ------------------------------------------------------------------------------------------------------

    async def show_page(self, request: Request) -> Response:
        """A file of the page: that of `scratch export web`, which translates through the service here."""
        name = request.url.path[1:] or "index.html"
        return Response(self.page[name], media_type=_PAGE[name], headers=_NO_CACHE)

    async def describe_models(self, request: Request) -> Response:
        """What the page knows about the service and its models."""
        directions = [
            each.described | {"search": {"numBeams": each.engine.num_beams}, "isAligned": each.engine.can_align}
            for each in self.directions.all
        ]
        service = {"isKeyNeeded": self.key is not None, "mostCharacters": self.limits.characters}
        return JSONResponse({"service": service, "directions": directions}, headers=_NO_CACHE)

    async def cut_for_page(self, request: Request) -> Response:
        """Split `text`, in the language `source`, into parts, each with whether it is a sentence."""
        parameters = await self._parameters(request)
        text, source = text_of(parameters, "text"), text_of(parameters, "source")
        self._check_length([text])
        return JSONResponse({"parts": await aside_if_long([text], 1, cut_into_sentences, text, source)})

    async def translate_for_page(self, request: Request) -> Response:
        """Translate `sentences` without cutting them further; each has all hypotheses of a beam of `numBeams`."""
        parameters = await self._parameters(request)
        sentences = parameters.get("sentences")
        if not isinstance(sentences, list):
            raise HTTPException(400, "sentences must be a list")
        sentences = [as_text(sentence, "sentences") for sentence in sentences]
        self._check_length(sentences)
        direction = self._direction(text_of(parameters, "source"), text_of(parameters, "target"))
        most = max(_MOST_BEAMS, direction.engine.num_beams)
        beams = max(1, number_of(parameters, "numBeams", 1, most))
        search = Search(num_beams=beams, several=beams, align=True)
        found = await self._in_time(request, translate_sentences(sentences, direction, search, self.batcher))
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
                raise HTTPException(413, f"{count:,} {what}; a request may have {limit:,}")

    def _detect(self, text: str, target: str) -> tuple[str, float]:
        """
        The most likely language of a text that is to be translated into `target`, and its probability; AUTO if no
        language is translated into it. If the detector cannot tell, it is another language than `target`.
        """
        find, is_one_language = self.directions.find, self.directions.is_one_language
        sources = [each for each in self.directions.sources if find(each, target) or is_one_language(each, target)]
        if not any(find(each, target) for each in sources):
            return AUTO, 0.0
        found = self.directions.detect(text, sources)
        return max(found, key=lambda each: (each[1], find(each[0], target) is not None))

    def _direction(self, source: str, target: str) -> Direction:
        """The direction between two languages. HTTPException 400 if it is not served."""
        direction = self.directions.find(source, target)
        if direction is None:
            served = ", ".join(f"{each.source} to {each.target}" for each in self.directions.all)
            raise HTTPException(400, f"{source} to {target} is not served; there is {served}")
        return direction

    async def _in_time(self, request: Request, work: Coroutine[Any, Any, Any]) -> Any:
        """What `work` returns. HTTPException if it fails, takes too long, or the client disconnects."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({task, gone}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise HTTPException(_CLIENT_CLOSED_REQUEST, "the client has gone")
            raise Busy(f"not translated within {self.limits.seconds:g} seconds; try again later, or send less")
        except Busy as error:
            raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
        except UserError as error:
            raise HTTPException(400, str(error)) from None
        finally:
            task.cancel()
            gone.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _likelihood(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability, 1), "language": language}


async def _explain(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


async def _apologize(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "this is a bug of the service; its log says more"}, status_code=500)

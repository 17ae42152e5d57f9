"""Reads the parameters of a request from JSON or a form, within limits on size and time."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

_MOST_FIELDS = 20
BYTES_PER_CHARACTER = 12  # a character outside the Basic Multilingual Plane, escaped in JSON
_BYTES_BESIDES = 16_384  # for parameter names and the separators of a form
_MOST_DISCARDED = 2**26  # bytes that are read and dropped of a request that is too large
_CHUNK = 2**16  # bytes that are parsed at once, in a few milliseconds
_MOST_ARRIVING = 2**28  # bytes of memory, across all requests


@dataclass(frozen=True)
class Upload:
    """A file in a form."""

    name: str
    content: bytes


class Bodies:
    """Reads the bodies of requests, with a limit on the memory that all bodies that are arriving take together."""

    def __init__(self):
        self._arriving = 0  # bytes

    async def read(self, request: Request, most: int, seconds: float) -> bytes:
        """
        The body of a request, of up to `most` bytes.

        Raises:
            HTTPException: 400 (client disconnected), 408 (too slow), 413 (too large), 429 (no memory left).
        """
        body, length = bytearray(), 0
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    length += len(chunk)
                    if length <= most:
                        body += chunk
                        self._arriving += len(chunk)
                    elif length > _MOST_DISCARDED:
                        break
                    if self._arriving > _MOST_ARRIVING:
                        many = "too much data is arriving at once; try again later"
                        raise HTTPException(429, many, {"Retry-After": "10", "Connection": "close"})
        except TimeoutError:
            late = f"the request did not arrive within {seconds:g} seconds"
            raise HTTPException(408, late, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise HTTPException(400, "the client disconnected") from None
        finally:
            self._arriving -= len(body)
        if length > most:  # only now: a client that is still sending would not read the response
            large = f"Invalid request: the request is too large: at most {most - _BYTES_BESIDES:,} bytes"
            raise HTTPException(413, large, {"Connection": "close"})
        return bytes(body)


async def read_parameters(
    request: Request, bodies: Bodies, most_bytes: int, seconds: float, files: int = 0
) -> dict[str, Any]:
    """
    The parameters of a request, from its query string and from a body with JSON or a form.

    Args:
        most_bytes: the limit on their values.
        seconds: the time limit for the body to arrive.
        files: how many files a form may have. Each is an `Upload`.

    Raises:
        HTTPException: as in `Bodies.read`, and 400 (invalid JSON or form), 415 (another content type).
    """
    body = await bodies.read(request, most_bytes + _BYTES_BESIDES, seconds)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        parameters = _from_form(request.scope["query_string"])
        if body and kind == "application/json":
            return parameters | _from_json(body)
        if body and kind == "application/x-www-form-urlencoded":
            return parameters | _from_form(body)
        if body and kind == "multipart/form-data":
            return parameters | await _from_parts(request.headers["content-type"], body, files)
    except (MultiPartException, ValueError) as error:
        raise HTTPException(400, f"Invalid request: the form cannot be read: {error}") from error
    if body:
        raise HTTPException(415, f"content type {kind[:40] or 'missing'}: send application/json or a form")
    return parameters


def _from_form(encoded: bytes) -> dict[str, str]:
    # Not by Starlette, which decodes unescaped bytes, such as those that curl -d sends, as Latin-1.
    options = {"keep_blank_values": True, "max_num_fields": _MOST_FIELDS, "errors": "strict"}
    return _first_of_each(parse_qsl(encoded.decode(), **options))


async def _from_parts(kind: str, body: bytes, files: int) -> dict[str, str | Upload]:
    # Parts are in UTF-8 (RFC 7578). Starlette would decode with any codec that the header names, and some take very
    # long; if decoding failed, it would fall back to Latin-1. So it gets Latin-1, which keeps the bytes.
    headers = Headers({"content-type": f"{kind}; charset=latin-1"})
    parser = MultiPartParser(headers, _stream(body), max_files=files, max_fields=_MOST_FIELDS, max_part_size=len(body))
    parser.spool_max_size = len(body)  # files stay in memory
    fields = []
    for name, value in (await parser.parse()).multi_items():
        if isinstance(value, str):
            value = _as_utf8(value)
        else:
            value = Upload(_as_utf8(value.filename), await value.read())
        fields.append((_as_utf8(name), value))
    return _first_of_each(fields)


def _as_utf8(text: str) -> str:
    return text.encode("latin-1").decode()


def _first_of_each(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields as a dict; of several with the same name, the first, as in LibreTranslate."""
    return dict(reversed(fields))


def _from_json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"Invalid JSON format: {error}") from error
    if not isinstance(found, dict):
        raise HTTPException(400, 'Invalid JSON format: it must be an object, such as {"q": "text"}')
    return found


async def _stream(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), _CHUNK):
        yield body[start : start + _CHUNK]
        await asyncio.sleep(0)  # so that other requests do not wait until a large file has been parsed


def text_of(parameters: dict[str, Any], name: str) -> str:
    """A string parameter. Raises HTTPException 400 if it is missing, not a string, or not valid Unicode."""
    if parameters.get(name) is None:
        raise HTTPException(400, f"Invalid request: missing {name} parameter")
    return as_text(parameters[name], name)


def as_text(value: Any, name: str) -> str:
    """A value as a string. Raises HTTPException 400 if it is not a string, or not valid Unicode."""
    if not isinstance(value, str):
        raise HTTPException(400, f"Invalid request: {name} parameter must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise HTTPException(
            400, f"Invalid request: {name} parameter is not valid Unicode: {error.reason} at {error.start}"
        ) from error
    return value


def number_of(parameters: dict[str, Any], name: str, default: int, largest: int) -> int:
    """An integer parameter from 0 to `largest`. Raises HTTPException 400 if it is anything else."""
    value = parameters.get(name)
    value = default if value in (None, "") else value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise HTTPException(400, f"Invalid request: {name} parameter must be a whole number from 0 to {largest}")
    return value

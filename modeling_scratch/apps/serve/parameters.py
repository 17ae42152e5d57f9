"""Reads the parameters of a request from JSON or a form, within limits on size and time."""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

_MOST_FIELDS = 20
_BYTES_PER_CHARACTER = 12  # a character outside the Basic Multilingual Plane, escaped in JSON
_BYTES_BESIDES = 16_384  # for parameter names and the separators of a form
_MOST_DISCARDED = 2**26  # bytes that are read and dropped of a request that is too large


async def read_parameters(request: Request, most_characters: int, seconds: float) -> dict[str, Any]:
    """
    The parameters of a request, from its query string and from a body with JSON or a form.

    Args:
        most_characters: the limit on the text of a request.
        seconds: the time limit for the body to arrive.

    Raises:
        HTTPException: 400 (invalid JSON or form, client disconnected), 408 (too slow), 413 (too large), 415 (another
            content type).
    """
    body = await _read_body(request, _BYTES_PER_CHARACTER * most_characters + _BYTES_BESIDES, seconds)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        parameters = _from_form(request.scope["query_string"])
        if body and kind == "application/json":
            return parameters | _from_json(body)
        if body and kind == "application/x-www-form-urlencoded":
            return parameters | _from_form(body)
        if body and kind == "multipart/form-data":
            return parameters | await _from_parts(request.headers["content-type"], body)
    except (MultiPartException, ValueError) as error:
        raise HTTPException(400, f"the form cannot be read: {error}") from error
    if body:
        raise HTTPException(415, f"content type {kind[:40] or 'missing'}: send application/json or a form")
    return parameters


def _from_form(encoded: bytes) -> dict[str, str]:
    # Not by Starlette, which decodes unescaped bytes, such as those that curl -d sends, as Latin-1.
    options = {"keep_blank_values": True, "max_num_fields": _MOST_FIELDS, "errors": "strict"}
    return _first_of_each(parse_qsl(encoded.decode(), **options))


async def _from_parts(kind: str, body: bytes) -> dict[str, str]:
    # Parts are in UTF-8 (RFC 7578). Starlette would decode with any codec that the header names, and some take very
    # long; if decoding failed, it would fall back to Latin-1. So it gets Latin-1, which keeps the bytes.
    headers = Headers({"content-type": f"{kind}; charset=latin-1"})
    limits = {"max_files": 0, "max_fields": _MOST_FIELDS, "max_part_size": len(body)}
    fields = (await MultiPartParser(headers, _stream(body), **limits).parse()).multi_items()
    return _first_of_each([tuple(each.encode("latin-1").decode() for each in field) for field in fields])


def _first_of_each(fields: list[tuple[str, str]]) -> dict[str, str]:
    """The fields as a dict; of several with the same name, the first, as in LibreTranslate."""
    return dict(reversed(fields))


async def _read_body(request: Request, most: int, seconds: float) -> bytes:
    body, length = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                length += len(chunk)
                if length <= most:
                    body += chunk
                elif length > _MOST_DISCARDED:
                    break
    except TimeoutError:
        late = f"the request did not arrive within {seconds:g} seconds"
        raise HTTPException(408, late, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(400, "the client disconnected") from None
    if length > most:  # only now: a client that is still sending would not read the response
        raise HTTPException(413, f"the request is too large: at most {most:,} bytes", {"Connection": "close"})
    return bytes(body)


def _from_json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise HTTPException(400, 'the JSON must be an object, such as {"q": "text"}')
    return found


async def _stream(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def check_key(parameters: dict[str, Any], key: str | None) -> None:
    """Raise HTTPException 403 if the service has a key and the request lacks it."""
    if key is None:
        return
    given = parameters.get("api_key")
    if not isinstance(given, str) or not secrets.compare_digest(given.encode("utf-8", "replace"), key.encode()):
        raise HTTPException(403, "wrong or missing api_key")


def text_of(parameters: dict[str, Any], name: str) -> str:
    """A string parameter. Raises HTTPException 400 if it is missing, not a string, or not valid Unicode."""
    if name not in parameters:
        raise HTTPException(400, f"the parameter {name} is missing")
    return as_text(parameters[name], name)


def as_text(value: Any, name: str) -> str:
    """A value as a string. Raises HTTPException 400 if it is not a string, or not valid Unicode."""
    if not isinstance(value, str):
        raise HTTPException(400, f"{name} must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise HTTPException(400, f"{name} is not valid Unicode: {error.reason} at {error.start}") from error
    return value


def number_of(parameters: dict[str, Any], name: str, default: int, largest: int) -> int:
    """An integer parameter from 0 to `largest`. Raises HTTPException 400 if it is anything else."""
    value = parameters.get(name)
    value = default if value in (None, "") else value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise HTTPException(400, f"{name} must be a whole number from 0 to {largest}")
    return value

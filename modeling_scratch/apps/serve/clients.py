"""Who may use the service, and how much of it: API keys, and limits for each client."""

import hashlib
import ipaddress
import logging
import math
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ...errors import UserError
from ...files import reading

logger = logging.getLogger(__name__)

_MINUTE = 60.0  # seconds
_ROUNDING = 1e-6  # seconds
_FEW = 1_000  # clients that are remembered in any case


@dataclass(frozen=True)
class Client:
    """
    The sender of a request.

    Args:
        name: its key's name, or its address.
        characters: the most characters of a text.
        requests_per_minute: None: any number.
    """

    name: str
    characters: int
    requests_per_minute: int | None = None


@dataclass(frozen=True)
class _Key:
    """What a key allows; None: as without a key."""

    name: str
    max_characters: int | None = None
    requests_per_minute: int | None = None


class Clients:
    """
    Finds out who sends a request, and refuses those that send too many.

    Args:
        characters, requests_per_minute: of a client without limits of its own, as in `Client`.
        key: a key without limits of its own; None: there is none.
        path: a TOML file of keys, which is read again when it has changed; None: there is none.
        are_keys_optional: requests without a key are served too.

    Raises:
        UserError: the file is not as `_read_keys` expects it.
    """

    def __init__(
        self,
        characters: int,
        requests_per_minute: int | None = None,
        key: str | None = None,
        path: Path | None = None,
        are_keys_optional: bool = False,
    ):
        self._characters, self._requests_per_minute = characters, requests_per_minute
        self._key = {} if key is None else {_digest(key): _Key("key")}
        self._path, self._changed, self._from_file = path, 0, {}
        self.has_keys = bool(key is not None or path)
        self.is_key_needed = self.has_keys and not are_keys_optional
        if path is not None:
            self._from_file, self._changed = _read_keys(path), path.stat().st_mtime_ns
        self._busy_until: dict[str, float] = {}  # {client: when its requests so far are within its rate}
        self._most_remembered = _FEW

    @property
    def most_characters(self) -> int:
        """The most characters of a text that any client may send."""
        return max([self._characters, *(key.max_characters or 0 for key in self._from_file.values())])

    def sender(self, request: Request, parameters: dict[str, Any]) -> Client:
        """
        The sender of a request with these parameters.

        Raises:
            HTTPException: 400: there is no key, and one is needed. 403: the key is wrong. 429: too many were wrong.
        """
        given = parameters.get("api_key")
        if given in (None, "") or not self.has_keys:
            if self.is_key_needed:
                raise HTTPException(400, "Please contact the server operator to get an API key")
            return Client(_address(request), self._characters, self._requests_per_minute)
        self._read_again()
        # Looked up by its hash, so that the time this takes says nothing about the keys.
        digest = _digest(str(given))
        key = self._key.get(digest) or self._from_file.get(digest)
        if key is None:
            self.admit(Client(_address(request), self._characters, self._requests_per_minute))  # keys that are tried
            raise HTTPException(403, "Invalid API key")
        # Many people may share the key of the command line.
        name = _address(request) if digest in self._key else f"key {key.name}"
        rate = key.requests_per_minute or self._requests_per_minute
        return Client(name, key.max_characters or self._characters, rate)

    def admit(self, client: Client, requests: int = 1) -> None:
        """
        Count requests of a client. It may send as many as in a minute at once; further ones must come at its rate.

        Raises:
            HTTPException: 429: it has to wait.
        """
        if client.requests_per_minute is None:
            return
        now, interval = time.monotonic(), _MINUTE / client.requests_per_minute
        # At most a minute's worth of requests counts: more would never be admitted.
        cost = min(requests, client.requests_per_minute) * interval
        until = max(self._busy_until.get(client.name, 0.0), now) + cost
        if (wait := until - now - _MINUTE) > _ROUNDING:
            rate = f"{client.requests_per_minute:,} per minute; try again in {math.ceil(wait)} s"
            raise HTTPException(429, rate, {"Retry-After": str(math.ceil(wait))})
        self._busy_until[client.name] = until
        if len(self._busy_until) > self._most_remembered:
            self._busy_until = {name: until for name, until in self._busy_until.items() if until > now}
            self._most_remembered = max(_FEW, 2 * len(self._busy_until))

    def _read_again(self) -> None:
        """Read the file again if it has changed. If it cannot be read, the keys stay as they were."""
        if self._path is None:
            return
        changed = self._path.stat().st_mtime_ns if self._path.exists() else 0
        if changed == self._changed:
            return
        self._changed = changed
        try:
            self._from_file = _read_keys(self._path)
        except UserError as error:
            logger.error(f"{error}; the API keys stay as they were")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _address(request: Request) -> str:
    """The client's address; for IPv6 its network, since a client has all addresses of a network."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _read_keys(path: Path) -> dict[bytes, _Key]:
    """
    The keys in a TOML file, by their hashes. Each is a table with `key` and, if it has limits of its own,
    `requests_per_minute` and `max_characters`.

    Raises:
        UserError: the file is not TOML, or a table is different.
    """
    with reading(path, "cannot be read as TOML: "):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    found = {}
    for name, table in content.items():
        where = f"{path}: [{name}]"
        if not isinstance(table, dict) or not isinstance(table.get("key"), str) or not table["key"]:
            raise UserError(f'{where} must have a key, as in key = "..."')
        limits = {limit: value for limit, value in table.items() if limit != "key"}
        for limit, value in limits.items():
            if limit not in ("requests_per_minute", "max_characters"):
                raise UserError(f"{where}: unknown {limit}; it has key, requests_per_minute and max_characters")
            if type(value) is not int or value < 1:
                raise UserError(f"{where}: {limit} must be a whole number of at least 1")
        if (digest := _digest(table["key"])) in found:
            raise UserError(f"{where}: it has the same key as [{found[digest].name}]")
        found[digest] = _Key(name, **limits)
    return found

"""Requests, answers, accounts and their permissions, and the storage behind the loopback Hub's large files."""

import hashlib
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlencode

from loopback_store import HubError, Repository, Store

INVALID_CREDENTIALS = "Invalid credentials in Authorization header"


@dataclass(frozen=True)
class Account:
    """Who a token stands for."""

    user: str
    role: str = "write"  # or read

    def owns(self, repository: str) -> bool:
        return repository.split("/")[0] == self.user

    def may_write(self, repository: str) -> bool:
        return self.role == "write" and self.owns(repository)


@dataclass
class Answer:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, data: object, status: int = 200, content_type: str = "application/json") -> "Answer":
        return cls(json.dumps(data).encode(), status, {"Content-Type": content_type})

    @classmethod
    def error(cls, error: HubError) -> "Answer":
        answer = cls.json({"error": error.message} | (error.body or {}), error.status)
        message = error.message.replace("\n", " ").encode("ascii", "replace").decode()
        answer.headers |= {"X-Error-Message": message} | error.headers
        if error.code:
            answer.headers["X-Error-Code"] = error.code
        return answer


@dataclass
class Request:
    """One request, its account (None: no token) and what the routes need of the server."""

    method: str
    path: str  # still percent-encoded, without the query
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    account: Account | None
    store: Store
    url: str
    storage: "Storage"

    def json(self) -> dict:
        try:
            return json.loads(self.body or b"{}")
        except ValueError:
            raise HubError(400, "Invalid JSON in the request's body") from None

    def flag(self, name: str) -> bool:
        return self.query.get(name, [""])[0].lower() in ("1", "true")

    # -- permissions -----------------------------------------------------------------------------------------------

    def signed_in(self) -> Account:
        if self.account is None:
            raise HubError(401, "Invalid username or password.")
        return self.account

    def readable(self, name: str) -> Repository:
        """The repository; unknown and private ones look alike to those who may not read them."""
        repository = self.store.find(name)
        if repository and (not repository.settings["private"] or (self.account and self.account.owns(name))):
            return repository
        if self.account is None:
            raise HubError(401, "Invalid username or password.", "RepoNotFound")
        raise HubError(404, "Repository not found", "RepoNotFound")

    def writable(self, name: str, pull_request: bool = False) -> Repository:
        """The repository, for a token that may write it, or with pull_request any token that may write at all."""
        repository = self.readable(name)
        account = self.signed_in()
        if account.may_write(name) or (pull_request and account.role == "write"):
            return repository
        if account.role == "write":
            message = "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request"
        else:
            message = "Authorization error."
        raise HubError(403, message)


class Storage:
    """The second address that large files come from and go to: no tokens there, signed links instead, as on the Hub."""

    def __init__(self, url: str, secret: bytes):
        self.url, self.secret = url, secret

    def signature(self, method: str, path: str, size: str) -> str:
        return hmac.new(self.secret, f"{method} {path} {size}".encode(), hashlib.sha256).hexdigest()

    def link(self, method: str, repository: Repository, sha256: str, size: int) -> str:
        path = f"/{repository.name}/{sha256}"
        query = urlencode({"size": size, "signature": self.signature(method, path, str(size))})
        return f"{self.url}{path}?{query}"

    def answer(self, request: Request) -> Answer:
        size, signature = (request.query.get(name, [""])[0] for name in ("size", "signature"))
        method = "GET" if request.method == "HEAD" else request.method
        expected = self.signature(method, request.path, size)
        if method not in ("GET", "PUT") or not hmac.compare_digest(signature, expected):
            raise HubError(403, "Request has no valid signature")
        name, _, sha256 = request.path.strip("/").rpartition("/")
        repository = request.store.find(name)
        if repository is None:
            raise HubError(404, "Not found")
        if method == "GET":
            return Answer(repository.blob(sha256), headers={"ETag": f'"{sha256}"'})
        if len(request.body) != int(size) or hashlib.sha256(request.body).hexdigest() != sha256:
            raise HubError(400, "BadDigest: the content does not have the size and the SHA-256 that were announced")
        repository.add_blob(request.body)
        return Answer(headers={"ETag": f'"{sha256}"'})


ROUTES: list[tuple[str, re.Pattern, Callable[..., Answer]]] = []
REPO = "(?P<name>[^/]+/[^/]+)"
MODEL = f"/api/models/{REPO}"


SPACE = "space--"  # before the names of Spaces in the store; no name on the Hub has two dashes


def address(name: str) -> str:
    """Where a repository of the store is, below the Hub's address."""
    user, _, short = name.partition("/")
    return f"spaces/{user}/{short.removeprefix(SPACE)}" if short.startswith(SPACE) else name


def _space_as_repository(found: re.Match) -> str:
    return f"{'/api/models' if found[1] else ''}/{found[2]}/{SPACE}"


def route(methods: str, pattern: str):
    def register(function):
        ROUTES.extend((method, re.compile(pattern), function) for method in methods.split())
        return function

    return register


def answer(request: Request) -> Answer:
    # A Space is kept as a repository of its owner's with a name that no model has.
    request.path = re.sub(r"^(/api)?/spaces/([^/]+)/", _space_as_repository, request.path)
    for method, pattern, function in ROUTES:
        if method == request.method and (found := pattern.fullmatch(request.path)):
            groups = {key: unquote(value) for key, value in found.groupdict().items() if value is not None}
            return function(request, **groups)
    raise HubError(404, "Sorry, we can't find the page you are looking for.")

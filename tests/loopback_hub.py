"""
A small Hugging Face Hub on 127.0.0.1, in memory: the real huggingface_hub client talks to it through HF_ENDPOINT.

    with LoopbackHub() as hub:
        subprocess.run([...], env=os.environ | hub.environment(ADA, home))
        assert hub.files("ada/model")["config.json"] == b"{}"

It answers what pushes and downloads with huggingface_hub 2.4 request, large files by LFS and by Xet (hf_xet 1.8). It
lists requests, and fails where a test asks for it (`fail`). Large files have another host name, which must never
receive a token.
"""

import base64
import contextlib
import copy
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

ADA = "hf_AdaWrites0123456789abcdefghijk"
READER = "hf_AdaReads0123456789abcdefghijkl"  # Ada's, without write permission
GRACE = "hf_GraceWrites0123456789abcdefghi"
USERS = {ADA: "ada", READER: "ada", GRACE: "grace"}
LARGE = re.compile(r"\.(safetensors|png|spm|onnx|wasm|bin)$")  # the files that the Hub stores as large ones
LICENSES = ("apache-2.0", "mit", "gpl-3.0", "cc-by-4.0", "cc-by-nc-4.0")  # some of the Hub's list


class HubError(Exception):
    """A refused request: HTTP status, message, and the Hub's code for it."""

    def __init__(self, status: int, message: str, code: str = "", **more: str):
        super().__init__(message)
        self.status, self.code, self.body = status, code, {"error": message, **more}


@dataclass
class Fault:
    """
    A failure of the `at`-th request from now whose path matches, and of the `times` - 1 matching ones after it (None:
    all).

    kind: "reset" closes the connection and does nothing; "lose" does what was requested, then closes the connection
    without a response; "silence" never responds; "delay" waits `seconds` first; a number is returned as the HTTP
    status; a function is called first.
    """

    kind: str | int | Callable[[], object]
    at: int = 1
    times: int | None = 1
    path: str = ""
    seconds: float = 0.2
    words: str = "Refused"  # {token} is replaced by the token of the request
    seen: int = 0

    def is_due(self, path: str) -> bool:
        self.seen += re.search(self.path, path) is not None
        after = self.seen - self.at
        return re.search(self.path, path) is not None and after >= 0 and (self.times is None or after < self.times)


@dataclass
class Repository:
    """Commits, {id: {id, parent, title, tree: {path: {oid, size, sha256 if large}}}}, and references to them."""

    private: bool = False
    commits: dict[str, dict] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)  # {refs/heads/main: id}

    def resolve(self, revision: str) -> str:
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in self.references:
                return self.references[name]
        if revision in self.commits:
            return revision
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def tree(self, revision: str = "main") -> dict[str, dict]:
        return self.commits[self.resolve(revision)]["tree"]

    def history(self, revision: str = "main") -> list[dict]:
        """Newest first."""
        found, commit = [], self.resolve(revision)
        while commit:
            found.append(self.commits[commit])
            commit = found[-1]["parent"]
        return found

    def add(self, parent: str | None, title: str, tree: dict[str, dict]) -> str:
        content = {"parent": parent, "title": title, "tree": tree}
        commit = hashlib.sha1(json.dumps([content, len(self.commits)]).encode()).hexdigest()
        self.commits[commit] = content | {"id": commit}
        return commit


class LoopbackHub:
    """The server, its repositories, its faults, and the requests it got."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}  # ada/model, spaces/ada/model
        self.blobs: dict[str, bytes] = {}  # by git object id, and by SHA-256
        self.shards: list[bytes] = []  # in which Xet registers files
        self.faults: list[Fault] = []
        self.requests: list[str] = []  # "POST /api/..."
        self.faulty: list[str] = []  # requests that failed on purpose
        self.leaks: list[str] = []  # requests with a token where none should be
        self.lock, self.stopped = threading.RLock(), threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.server.daemon_threads, self.server.block_on_close = True, False
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.storage = f"http://localhost:{self.server.server_port}/storage"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    def environment(self, token: str | None, home) -> dict[str, str]:
        """Environment variables of a client process that talks only to this server."""
        variables = {f"{kind}_PROXY": "" for kind in ("HTTP", "HTTPS", "ALL")} | {
            "NO_PROXY": "*",
            "HF_OIDC_RESOURCE": "",
        }
        variables |= {name.lower(): value for name, value in variables.items() if "PROXY" in name}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
            variables[name] = "0"
        for name in ("XET", "TELEMETRY", "UPDATE_CHECK", "PROGRESS_BARS"):
            variables[f"HF_HUB_DISABLE_{name}"] = "1"
        # Xet's retries wait for minutes.
        variables |= {"HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1", "HF_XET_CLIENT_RETRY_BASE_DELAY": "10ms"}
        variables |= {"DISABLE_SAFETENSORS_CONVERSION": "1"}  # otherwise Transformers calls a public Space
        places = {"HF_HUB_CACHE": "hub", "HF_XET_CACHE": "xet", "HF_MODULES_CACHE": "modules", "HF_TOKEN_PATH": "token"}
        places |= {"HF_ASSETS_CACHE": "assets", "HF_DATASETS_CACHE": "data", "HF_STORED_TOKENS_PATH": "tokens"}
        variables |= {name: str(home / place) for name, place in places.items()} | {"HF_HOME": str(home)}
        tokens = {"HF_TOKEN": token or "", "HUGGING_FACE_HUB_TOKEN": "", "HF_OIDC_RESOURCE": ""}
        return variables | tokens | {"HF_ENDPOINT": self.url}

    # -- repositories, without HTTP ------------------------------------------------------------------------------------

    def create(self, name: str, private: bool = False) -> Repository:
        repository = self.repositories[name] = Repository(private)
        files = {".gitattributes": b"*.safetensors filter=lfs\n"}
        if name.startswith("spaces/"):
            files |= {"README.md": b"---\nsdk: static\n---\n", "index.html": b"<p>Welcome\n"}
        tree = {path: self.entry(path, content) for path, content in files.items()}
        repository.references["refs/heads/main"] = repository.add(None, "initial commit", tree)
        return repository

    def commit(self, name: str, files: dict[str, bytes], title: str = "Somebody's commit") -> str:
        """Commit as somebody else."""
        repository = self.repositories[name]
        tree = repository.tree() | {path: self.entry(path, content) for path, content in files.items()}
        commit = repository.add(repository.resolve("main"), title, tree)
        repository.references["refs/heads/main"] = commit
        return commit

    def entry(self, path: str, content: bytes) -> dict:
        """Store a file, and return its entry in a tree."""
        sha256 = hashlib.sha256(content).hexdigest()
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        self.blobs |= {sha256: content, oid: content}
        return {"oid": oid, "size": len(content), "sha256": sha256 if LARGE.search(path) and content else None}

    def tree(self, name: str, revision: str = "main") -> dict[str, str]:
        """The identifier of each file: the SHA-256 of a large one, otherwise git's object id."""
        return {path: entry["sha256"] or entry["oid"] for path, entry in self.repositories[name].tree(revision).items()}

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        return {path: self.blobs[identifier] for path, identifier in self.tree(name, revision).items()}

    def titles(self, name: str, revision: str = "main") -> list[str]:
        """The titles of the commits, newest first."""
        return [commit["title"] for commit in self.repositories[name].history(revision)]

    def snapshot(self) -> dict[str, Repository]:
        return copy.deepcopy(self.repositories)

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail(self, kind: str | int | Callable[[], object], **options) -> None:
        """Make a later request fail; see `Fault`."""
        self.faults.append(Fault(kind, **options))

    def clear(self) -> None:
        """Forget the remaining faults and the requests so far."""
        for kept in (self.faults, self.requests, self.faulty, self.leaks):
            kept.clear()


class Handler(BaseHTTPRequestHandler):
    """One connection. The methods in ROUTES return the JSON to send, or None if they have sent the response."""

    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *arguments) -> None:
        pass

    def do_GET(self) -> None:
        hub, url = self.hub, urlsplit(self.path)
        self.body, self.query = self.read_body(), parse_qs(url.query)
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        with hub.lock:
            entry = f"{self.command} {self.path}"
            is_leak = any(token in self.path or token.encode() in self.body for token in USERS)
            if is_leak or (url.path.startswith("/storage/") and self.token in USERS):
                hub.leaks.append(entry)
            hub.requests.append(entry)
            fault = next((planned for planned in [*hub.faults] if planned.is_due(self.path)), None)
            if fault:
                hub.faulty.append(entry)
        kind = fault.kind if fault else None
        if kind == "silence":
            hub.stopped.wait()
        if kind == "delay":
            time.sleep(fault.seconds)
        if kind in ("reset", "silence"):
            return self.hang_up()
        if callable(kind):
            kind()
        if isinstance(kind, int):
            return self.refuse(HubError(kind, fault.words.format(token=self.token)))
        self.is_lost = kind == "lose"
        try:
            with hub.lock:
                answer = self.handle_request(unquote(url.path))
        except HubError as error:
            return self.refuse(error)
        if answer is not None:
            self.send(json.dumps(answer).encode(), {"Content-Type": "application/json"})

    do_HEAD = do_POST = do_PUT = do_GET

    def read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def handle_request(self, path: str):
        for route, method in ROUTES.items():
            verbs, _, pattern = route.partition(" ")
            if self.command in verbs.split("|") and (found := re.fullmatch(pattern, path)):
                return getattr(self, method)(**found.groupdict())
        raise HubError(404, f"no such page: {path}")

    def send(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        if getattr(self, "is_lost", False):
            return self.hang_up()
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, error: HubError) -> None:
        headers = {"Content-Type": "application/json", "X-Error-Message": str(error), "X-Error-Code": error.code}
        self.send(json.dumps(error.body).encode(), headers, error.status)

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    # -- permissions ---------------------------------------------------------------------------------------------------

    @property
    def user(self) -> str | None:
        if self.token and self.token not in USERS:
            raise HubError(401, "Invalid credentials in Authorization header")
        return USERS.get(self.token)

    def readable(self, name: str) -> Repository:
        repository, owner = self.hub.repositories.get(name), name.split("/")[-2]
        if repository is None or (repository.private and self.user != owner):
            raise HubError(404 if self.user else 401, "Repository not found", "RepoNotFound")
        return repository

    def writable(self, name: str, pull_request: bool = False) -> Repository:
        repository = self.readable(name)
        if self.token == READER or (self.user != name.split("/")[-2] and not pull_request):
            raise HubError(403, "Forbidden")
        return repository

    # -- reading -------------------------------------------------------------------------------------------------------

    def who_am_i(self):
        if self.user is None:
            raise HubError(401, "Invalid username or password.")
        role = "read" if self.token == READER else "write"
        return {"type": "user", "name": self.user, "orgs": [], "auth": {"accessToken": {"role": role}}}

    def describe(self, name: str, revision: str | None = None):
        repository = self.readable(name)
        sha = repository.resolve(revision or "main")
        siblings = [{"rfilename": path} for path in repository.commits[sha]["tree"]]
        about = {"id": name.removeprefix("spaces/"), "sha": sha, "private": repository.private, "gated": False}
        return about | {"tags": [], "siblings": siblings, "disabled": False, "downloads": 0, "likes": 0}

    def list_tree(self, name: str, revision: str, below: str | None = None):
        found = []
        for path, entry in self.readable(name).tree(revision).items():
            if path.startswith(below or ""):
                large = {"oid": entry["sha256"], "size": entry["size"], "pointerSize": 130}
                lfs = {"lfs": large} if entry["sha256"] else {}
                found.append({"type": "file", "path": path, "oid": entry["oid"], "size": entry["size"]} | lfs)
        if below and not found:
            raise HubError(404, "Entry not found", "EntryNotFound")
        return found

    def list_references(self, name: str):
        found = {"branches": [], "tags": [], "converts": []}
        for ref, commit in self.readable(name).references.items():
            _, kind, short = ref.split("/", 2)
            if kind in ("heads", "tags"):
                found["branches" if kind == "heads" else "tags"].append(
                    {"name": short, "ref": ref, "targetCommit": commit}
                )
        return found

    def list_commits(self, name: str, revision: str):
        rest = {"message": "", "authors": [], "date": "2026-01-01T00:00:00.000Z"}
        return [
            {"id": commit["id"], "title": commit["title"]} | rest for commit in self.readable(name).history(revision)
        ]

    def download(self, name: str, revision: str, path: str) -> None:
        repository = self.readable(name)
        sha = repository.resolve(revision)
        entry = repository.commits[sha]["tree"].get(path)
        if entry is None:
            raise HubError(404, "Entry not found", "EntryNotFound")
        headers = {"X-Repo-Commit": sha, "ETag": f'"{entry["sha256"] or entry["oid"]}"'}
        if entry["sha256"]:
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(entry["size"])}
            headers |= {"Location": f"{self.hub.storage}/{entry['sha256']}"}
            return self.send(b"", headers, 302)
        return self.send(self.hub.blobs[entry["oid"]], headers)

    # -- writing -------------------------------------------------------------------------------------------------------

    def create_repository(self):
        asked, user = json.loads(self.body), self.user
        name = f"{asked.get('organization') or user}/{asked['name']}"
        place = f"spaces/{name}" if asked.get("type") == "space" else name
        if self.token == READER or name.split("/")[0] != user:
            raise HubError(403, "You cannot create a repository there")
        if place in self.hub.repositories:
            raise HubError(409, "You already created this repository", url=f"{self.hub.url}/{place}")
        self.hub.create(place, asked.get("visibility") == "private")
        return {"url": f"{self.hub.url}/{place}", "name": name}

    def validate_card(self) -> None:
        errors = _wrong_in_card(json.loads(self.body)["content"])
        body = json.dumps({"errors": [{"message": error} for error in errors], "warnings": []}).encode()
        self.send(body, {"Content-Type": "application/json"}, 400 if errors else 200)

    def preupload(self, name: str, revision: str):
        repository = self.writable(name, "create_pr" in self.query)
        tree, answers = repository.tree(revision), []
        for file in json.loads(self.body)["files"]:
            there = tree.get(file["path"])
            mode = "lfs" if LARGE.search(file["path"]) or file["size"] > 10_000_000 else "regular"
            oid = {"oid": there["sha256"] or there["oid"]} if there else {}
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False} | oid)
        return {"files": answers}

    def batch(self, name: str):
        self.writable(name, pull_request=True)
        objects = []
        for asked in json.loads(self.body)["objects"]:
            links = {"upload": {"href": f"{self.hub.storage}/{asked['oid']}"}}
            links |= {"verify": {"href": f"{self.hub.url}/{name}.git/info/lfs/objects/verify"}}
            new = {} if asked["oid"] in self.hub.blobs else {"actions": links, "authenticated": True}
            objects.append({"oid": asked["oid"], "size": asked["size"]} | new)
        return {"transfer": "basic", "objects": objects}

    def verify(self, name: str):
        if json.loads(self.body)["oid"] not in self.hub.blobs:
            raise HubError(404, "The object was not uploaded")
        return {}

    def store(self, sha256: str) -> None:
        if self.command == "PUT":
            if hashlib.sha256(self.body).hexdigest() != sha256:
                raise HubError(400, "BadDigest")
            self.hub.blobs[sha256] = self.body
            return self.send(b"", {"ETag": f'"{sha256}"'})
        return self.send(self.hub.blobs[sha256], {"ETag": f'"{sha256}"'})

    def make_commit(self, name: str, revision: str):
        create_pr = "create_pr" in self.query
        repository = self.writable(name, create_pr)
        header, *operations = map(json.loads, self.body.splitlines())
        head, parent = repository.resolve(revision), header["value"].get("parentCommit")
        if parent not in (None, head) and not create_pr:
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(repository.commits[head]["tree"])
        for operation in operations:
            value = operation["value"]
            path = value["path"]
            if operation["key"] == "file":
                content = base64.b64decode(value["content"])
                if path == "README.md" and (errors := _wrong_in_card(content.decode())):
                    raise HubError(400, f"Invalid metadata in README.md: {errors[0]}")
                tree[path] = self.hub.entry(path, content)
            elif operation["key"] == "lfsFile":
                if value["oid"] not in self.hub.blobs and not self.is_in_a_shard(value["oid"]):
                    raise HubError(400, f"an LFS pointer pointed to a file that does not exist: {path}")
                tree[path] = {"oid": "0" * 40, "size": value["size"], "sha256": value["oid"]}
            else:
                tree.pop(path)
        commit = repository.add(head, header["value"]["summary"], tree)
        number = 1 + sum(reference.startswith("refs/pr/") for reference in repository.references)
        repository.references[f"refs/pr/{number}" if create_pr else f"refs/heads/{revision}"] = commit
        page = {"pullRequestUrl": f"{self.hub.url}/{name}/discussions/{number}"} if create_pr else {}
        return {"commitOid": commit, "commitUrl": f"{self.hub.url}/{name}/commit/{commit}"} | page

    def create_branch(self, name: str, branch: str) -> None:
        self.create_reference(name, f"refs/heads/{branch}", json.loads(self.body or b"{}").get("startingPoint", "main"))

    def create_tag(self, name: str, revision: str) -> None:
        self.create_reference(name, f"refs/tags/{json.loads(self.body)['tag']}", revision)

    def create_reference(self, name: str, ref: str, start: str) -> None:
        repository = self.writable(name)
        if ref in repository.references:
            raise HubError(409, f"Reference already exists: {ref}")
        repository.references[ref] = repository.resolve(start)
        self.send(b"OK", {})

    # -- Xet -----------------------------------------------------------------------------------------------------------

    def xet_token(self, name: str) -> None:
        self.writable(name, pull_request=True)
        access = {"casUrl": f"{self.hub.storage}/xet", "accessToken": "xet", "exp": int(time.time()) + 3600}
        headers = {"X-Xet-Cas-Url": access["casUrl"], "X-Xet-Access-Token": "xet"}
        self.send(json.dumps(access).encode(), headers | {"X-Xet-Token-Expiration": str(access["exp"])})

    def xet_storage(self, what: str):
        if what == "shards":
            self.hub.shards.append(self.body)
            return {"type": "result", "result": 1}
        if what == "xorbs":
            return {"was_inserted": True}
        raise HubError(404, "no known chunks, and no other way to upload them")

    def is_in_a_shard(self, sha256: str) -> bool:
        """Whether a shard registers the file, by its hash with the bytes of each 64-bit word reversed."""
        digest = bytes.fromhex(sha256)
        word = b"".join(digest[start : start + 8][::-1] for start in range(0, 32, 8))
        return any(word in shard for shard in self.hub.shards)


def _wrong_in_card(text: str) -> list[str]:
    """Some of the mistakes in a card's metadata that the Hub refuses."""
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    metadata, wrong = yaml.safe_load(found[1]) if found else {}, []
    if metadata.get("license", "mit") not in LICENSES:
        wrong.append(f'"license" must be one of {LICENSES}')
    if not all(isinstance(code, str) and code.islower() for code in metadata.get("language", [])):
        wrong.append('"language" must be lowercase strings')
    return wrong


_API = r"/api/(?:models/)?(?P<name>(?:spaces/)?[^/]+/[^/]+)"
_NAME = r"/(?P<name>(?:spaces/)?[^/]+/[^/]+)"
ROUTES = {
    "GET /api/whoami-v2": "who_am_i",
    "POST /api/repos/create": "create_repository",
    "POST /api/validate-yaml": "validate_card",
    f"GET {_API}/refs": "list_references",
    f"GET {_API}/commits/(?P<revision>.+)": "list_commits",
    f"GET {_API}/tree/(?P<revision>[^/]+)(?:/(?P<below>.+))?": "list_tree",
    f"GET {_API}(?:/revision/(?P<revision>.+))?": "describe",
    f"POST {_API}/preupload/(?P<revision>.+)": "preupload",
    f"POST {_API}/commit/(?P<revision>.+)": "make_commit",
    f"POST {_API}/branch/(?P<branch>.+)": "create_branch",
    f"POST {_API}/tag/(?P<revision>.+)": "create_tag",
    f"GET {_API}/xet-write-token/.+": "xet_token",
    f"GET|HEAD {_NAME}/resolve/(?P<revision>(?:refs/pr/)?[^/]+)/(?P<path>.+)": "download",
    rf"POST {_NAME}\.git/info/lfs/objects/batch": "batch",
    rf"POST {_NAME}\.git/info/lfs/objects/verify": "verify",
    "GET|HEAD|PUT /storage/(?P<sha256>[0-9a-f]{64})": "store",
    "GET|POST|HEAD /storage/xet/v[0-9]+/(?P<what>[^/]+).*": "xet_storage",
}

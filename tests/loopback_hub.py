"""A small Hugging Face Hub on 127.0.0.1 for tests: the real huggingface_hub client talks to it through HF_ENDPOINT.

    with LoopbackHub(tmp_path / "hub") as hub:
        hub.add_token("hf_ada", "ada")
        subprocess.run([...], env=os.environ | hub.environment("hf_ada", tmp_path / "home"))
        assert hub.files("ada/model")["config.json"] == b"{}"

It keeps models on disk and speaks what pushes and downloads with huggingface_hub 2.4 need, without Xet; it can be told
to fail (`fail`) and keeps a record of the requests (`requests`). Another process does the same through POST and DELETE
/_loopback/fault, whose JSON holds the arguments of `fail`, and GET and DELETE /_loopback/requests. As on the Hub, large
files come from and go to another address, which takes signed links and should never see a token.

The server itself is in loopback_server.py, its answers in loopback_reading.py and loopback_writing.py on top of
loopback_protocol.py, the check of model cards in loopback_card.py, the repositories in loopback_store.py.
"""

import secrets
import threading
from collections.abc import Callable
from pathlib import Path

from loopback_protocol import Account, Storage
from loopback_server import Fault, Listener
from loopback_store import Store


class LoopbackHub:
    """The server, its tokens, its faults and its record. It runs from `start` (or `with`) to `stop`."""

    def __init__(self, root: str | Path):
        self.store = Store(Path(root))
        self.tokens: dict[str, Account] = {}
        self.faults: list[Fault] = []
        self.requests: list[dict] = []
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.listeners = [Listener(self, role) for role in ("hub", "storage")]
        # Another host by its name: clients of huggingface_hub 1 take a redirect within one host for the Hub's own.
        self.url, storage_url = (
            f"http://{host}:{listener.server_port}"
            for host, listener in zip(("127.0.0.1", "localhost"), self.listeners, strict=True)
        )
        self.storage = Storage(storage_url, secrets.token_bytes(16))

    def start(self) -> "LoopbackHub":
        for listener in self.listeners:
            threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Closes the ports and every open connection; what is on disk stays."""
        self.stopped.set()
        for listener in self.listeners:
            listener.shutdown()
            listener.server_close()
            listener.close_connections()

    def __enter__(self) -> "LoopbackHub":
        return self.start()

    def __exit__(self, *error) -> None:
        self.stop()

    # -- clients -------------------------------------------------------------------------------------------------------

    def add_token(self, token: str, user: str, role: str = "write") -> None:
        """A token of role read or write."""
        self.tokens[token] = Account(user, role)

    def environment(self, token: str | None, home: str | Path) -> dict[str, str]:
        """What a client process needs, over its other variables, to talk to this server and to no other."""
        home = Path(home)
        proxies = {name: "" for kind in ("HTTP", "HTTPS", "ALL") for name in (f"{kind}_PROXY", f"{kind}_PROXY".lower())}
        return proxies | {
            "NO_PROXY": "*",
            "no_proxy": "*",
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": token or "",
            "HUGGING_FACE_HUB_TOKEN": "",
            "HF_OIDC_RESOURCE": "",
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_ASSETS_CACHE": str(home / "assets"),
            "HF_XET_CACHE": str(home / "xet"),
            "HF_MODULES_CACHE": str(home / "modules"),
            "HF_DATASETS_CACHE": str(home / "datasets"),
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
            "HUGGINGFACE_CO_STAGING": "0",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "DISABLE_SAFETENSORS_CONVERSION": "1",  # Transformers asks a public Space for it otherwise
        }

    # -- what the repositories hold, without HTTP ----------------------------------------------------------------------

    def repository(self, name: str):
        repository = self.store.find(name)
        if repository is None:
            raise KeyError(f"no repository {name!r}")
        return repository

    def commits(self, name: str, revision: str = "main") -> list[dict]:
        """Newest first: {id, parent, title, description, author, date, tree: {path: {sha256, oid, size, lfs}}}."""
        return self.repository(name).history(revision)

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        return self.repository(name).files(revision)

    def references(self, name: str) -> dict[str, str]:
        """{refs/heads/main: commit, refs/tags/...: ..., refs/pr/1: ...}"""
        return self.repository(name).references()

    def create(self, name: str, private: bool = False) -> None:
        self.store.create(name, private, name.split("/")[0])

    def commit(self, name: str, files: dict[str, bytes | None], title: str = "A commit", revision: str = "main") -> str:
        """Somebody's commit, None deletes a file; its id."""
        operations = [
            {"key": "deletedFile" if content is None else "file", "value": {"path": path, "content": content}}
            for path, content in files.items()
        ]
        return self.repository(name).commit(operations, title, author="somebody", revision=revision)[0]

    # -- faults and the record -----------------------------------------------------------------------------------------

    def fail(self, answer: str | int | Callable[[], object], **options) -> Fault:
        """Makes a coming request fail; `Fault` says how, when and which."""
        fault = Fault(answer, **options)
        with self.lock:
            self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Forgets the faults that are still to come and the record."""
        with self.lock:
            self.faults.clear()
            self.requests.clear()

    def next_fault(self, entry: dict) -> Fault | None:
        """Counts the request in every fault; the first fault that is due."""
        with self.lock:
            due = [fault for fault in self.faults if fault.count(entry["method"], entry["path"])]
            if due:
                due[0].hits += 1
            return due[0] if due else None

    def secrets_of(self, authorization: str | None) -> list[str]:
        """Every known token, and the one that this request brought."""
        brought = (authorization or "").removeprefix("Bearer ").strip()
        return list(dict.fromkeys([*self.tokens, *([brought] if brought else [])]))

    def leaks(self) -> list[dict]:
        """The requests that carried a token anywhere but in the Authorization header to the Hub."""
        return [entry for entry in list(self.requests) if entry["leaks"]]

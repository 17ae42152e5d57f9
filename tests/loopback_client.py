"""Runs functions of a test file in another process, as a client of a loopback Hub.

huggingface_hub reads HF_ENDPOINT and its siblings once, at import: a client of a test's own server needs a new process.
By convention the functions that run there are named client_*; their arguments and results are JSON.
"""

import hashlib
import inspect
import json
import os
import runpy
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, set_client_factory
from huggingface_hub.utils import httpx
from huggingface_hub.utils._http import default_client_factory
from loopback_hub import LoopbackHub

IMPORTS = os.pathsep.join(map(str, (Path(__file__).parent.parent, Path(__file__).parent)))
ADA, READER, GRACE = (
    "hf_AdaWrites0123456789abcdefghijk",
    "hf_AdaReads0123456789abcdefghijkl",
    "hf_GraceWrites0123456789abcdefghi",
)
MODEL = "ada/model"
ANSWER = "=> "


@contextmanager
def running_hub(folder: Path) -> Iterator[LoopbackHub]:
    """A Hub below the folder that knows ada, with a token that writes and one that reads, and grace."""
    with LoopbackHub(folder / "hub") as hub:
        hub.add_token(ADA, "ada")
        hub.add_token(READER, "ada", role="read")
        hub.add_token(GRACE, "grace")
        yield hub
        assert hub.leaks() == []
        assert [entry for entry in hub.requests if entry["status"] == 501] == []  # a defect of the Hub itself


@contextmanager
def lasting_client(hub: LoopbackHub) -> Iterator[Callable]:
    """A process that runs one function after another. What is yielded takes a function and arguments: its result."""
    home = hub.store.root.parent / "home"
    process = subprocess.Popen(
        [sys.executable, __file__],
        env=os.environ | hub.environment(ADA, home) | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONPATH": IMPORTS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def call(function: Callable, token: str | None = ADA, **arguments):
        asked = [inspect.getfile(function), function.__name__, token, arguments]
        print(json.dumps(asked), file=process.stdin, flush=True)
        for line in process.stdout:
            if line.startswith(ANSWER):
                answer = json.loads(line.removeprefix(ANSWER))
                assert "value" in answer, answer["traceback"]
                return answer["value"]
        raise AssertionError(f"the client ended with {process.wait()}")

    yield call
    process.stdin.close()
    process.stdout.close()
    process.wait(timeout=60)


# -- for use in such a process -----------------------------------------------------------------------------------------


def outcome(function: Callable, *arguments, **options) -> dict:
    """{"value": ...} or {"error", "status", "message"} of a call."""
    try:
        return {"value": function(*arguments, **options)}
    except Exception as error:
        response = getattr(error, "response", None)
        status = response.status_code if response is not None else None
        return {"error": type(error).__name__, "status": status, "message": str(error)}


def ask(method: str, path: str, **options) -> httpx.Response:
    """A request of a test's own. It needs no certificates, and to load them would take as long as a push."""
    return httpx.request(method, f"{os.environ['HF_ENDPOINT']}/{path}", verify=False, timeout=60, **options)


def additions(files: dict[str, bytes | str]) -> list[CommitOperationAdd]:
    return [
        CommitOperationAdd(path, content.encode() if isinstance(content, str) else content)
        for path, content in files.items()
    ]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def answer_calls() -> None:
    """Run what `lasting_client` is called with. Token, time.sleep and HTTP client are set back after each call."""
    loaded: dict[str, dict] = {}
    sleep = time.sleep
    for line in sys.stdin:
        file, name, token, arguments = json.loads(line)
        os.environ["HF_TOKEN"] = token or ""
        try:
            if file not in loaded:
                loaded[file] = runpy.run_path(file)
            answer = {"value": loaded[file][name](**arguments)}
        except Exception:
            answer = {"traceback": traceback.format_exc()}
        time.sleep = sleep
        set_client_factory(default_client_factory)
        print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    answer_calls()

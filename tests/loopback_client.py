"""
A client of the loopback Hub: a process that runs functions of test files one after another, and its fixtures.

huggingface_hub reads HF_ENDPOINT once, at import, so the client needs its own process. The functions that run there are
named client_*; their arguments and results are JSON.
"""

import contextlib
import inspect
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback_hub import ADA, LoopbackHub
from safetensors.torch import load_file, save_file
from waiting import LONGEST

IMPORTS = os.pathsep.join(map(str, (Path(__file__).parent.parent, Path(__file__).parent)))
MODEL = "ada/model"
ANSWER = "=> "
# A recipe with every default spelled out takes longer to read than the rest of a push.
SHORT_RECIPE = "output_dir: runs/trained\noptimization: {max_steps: 20}\n"


@contextlib.contextmanager
def lasting_client(hub: LoopbackHub, home: Path) -> Iterator[Callable]:
    """Start a client process. Yields `call(function, token, **arguments)`, which returns the function's result."""
    environment = os.environ | hub.environment(ADA, home) | {"PYTHONPATH": IMPORTS}
    process = subprocess.Popen(
        [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def call(function: Callable, token: str = ADA, **arguments):
        asked = [inspect.getfile(function), function.__name__, token, arguments]
        print(json.dumps(asked), file=process.stdin, flush=True)
        hanging = threading.Timer(LONGEST, process.kill)
        hanging.start()
        try:
            for line in process.stdout:
                if line.startswith(ANSWER):
                    answer = json.loads(line.removeprefix(ANSWER))
                    assert "value" in answer, answer["traceback"]
                    return answer["value"]
        finally:
            hanging.cancel()
        raise AssertionError(f"the client ended with {process.wait()}")

    yield call
    process.stdin.close()
    process.stdout.close()
    process.wait(timeout=LONGEST)


# -- fixtures: all tests share one server and one client, since a process takes seconds to start -----------------------


@pytest.fixture(scope="session")
def hub_and_client(tmp_path_factory):
    with LoopbackHub() as hub, lasting_client(hub, tmp_path_factory.mktemp("home")) as client:
        yield hub, client


@pytest.fixture
def hub(hub_and_client) -> Iterator[LoopbackHub]:
    """An empty Hub without faults."""
    hub, _ = hub_and_client
    hub.clear()
    hub.repositories.clear()
    yield hub
    assert hub.leaks == []


@pytest.fixture
def client(hub_and_client) -> Callable:
    """Calls a function in the client process; see `lasting_client`."""
    return hub_and_client[1]


@pytest.fixture(name="run")
def copied_run(trained, tmp_path) -> Path:
    """A copy of a run's folder, to change and to push."""
    run = Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    (run / "recipe.yaml").write_text(SHORT_RECIPE)
    return run


@pytest.fixture
def push(hub, client, run) -> Callable:
    """Pushes the folder `run` without loading it first, checks the exit code, and returns the output."""

    def pushed(repo_id: str = MODEL, code: int = 0, token: str = ADA, **options) -> str:
        found, output = client(client_upload, token=token, folder=str(run), repo_id=repo_id, **options)
        assert found == code, output
        return output

    return pushed


def change_weights(run: Path, value: float) -> bytes:
    """Fill a bias of the model in a folder with a number, and return the new weights file."""
    weights = load_file(run / "model.safetensors")
    weights["lm_head.bias" if "lm_head.bias" in weights else "model.encoder.layer_norm.bias"].fill_(value)
    save_file(weights, run / "model.safetensors", {"format": "pt"})
    return (run / "model.safetensors").read_bytes()


# -- for use in the client process -------------------------------------------------------------------------------------


def call_command(main: Callable, *arguments, **options) -> list:
    """Run a command: [exit code, output]."""
    output, code = io.StringIO(), 0
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            main(*arguments, **options)
        except SystemExit as end:
            code = end.code
    return [code, output.getvalue()]


def without_check_and_waits() -> None:
    """Let pushes skip the check of the folder, and retries not wait."""
    from modeling_scratch.apps.convert import marian_repository
    from modeling_scratch.hub import push
    from modeling_scratch.hub.allowed_files import copy_files

    marian_repository.check_conversion = lambda *_: []
    push.check_model = lambda folder, copy, run, endpoint_handler=False: list(
        copy_files(folder, copy, endpoint_handler)
    )
    time.sleep = lambda seconds: None


def client_upload(
    folder: str, repo_id: str, check: bool = False, xet: bool = False, real_page: bool = False, **options
) -> list:
    """
    Run `scratch upload`: [exit code, output].

    Args:
        check: check the folder before the push, which loads the model in a fresh process.
        xet: upload large files by Xet instead of LFS.
        real_page: export the real page of a Space instead of a stand-in.
    """
    from huggingface_hub import constants

    from modeling_scratch.apps.web import export, space
    from modeling_scratch.commands import upload

    if not check:
        without_check_and_waits()
    space.export_page = export.export_page if real_page else write_page
    constants.HF_HUB_DISABLE_XET = not xet
    if xet:  # Xet would skip what it has uploaded before
        from huggingface_hub.utils._xet import abort_xet_session

        abort_xet_session()
        shutil.rmtree(constants.HF_XET_CACHE, ignore_errors=True)
    return call_command(upload.main, Path(folder), repo_id, **options)


def write_page(names: list[str], page: Path, license: str | None) -> None:
    """A stand-in for a model's page; it depends on the weights and the license."""
    from modeling_scratch.hub.card import license_of
    from modeling_scratch.run.records import run_of

    (name,) = names
    page.mkdir()
    (page / "license").write_text(str(license_of(Path(name), run_of(Path(name)), license)))
    (page / "index.html").write_text("<p>A page")
    (page / "model-1.json").write_text('{"directions": [{"title": "English to German"}]}')
    shutil.copy(Path(name) / "model.safetensors", page / "encoder.onnx")


def client_train(output_dir: str, arguments: list[str], overwrite: bool = False) -> list:
    """Run train.py with a small model: [exit code, output]."""
    from conftest import quick_run

    without_check_and_waits()
    return call_command(quick_run, output_dir, *arguments, overwrite=overwrite)


def client_try_push(folder: str, timeout: float) -> list:
    """Push as training does when it finds a better model: [0, log]."""
    from modeling_scratch.commands.cli import log_to_terminal
    from modeling_scratch.hub.push import try_push
    from modeling_scratch.recipe.reading import load_recipe

    def push() -> None:
        log_to_terminal()
        try_push(load_recipe(Path(folder) / "recipe.yaml", [f"hub.timeout={timeout}"]), "Upload model")

    without_check_and_waits()
    return call_command(push)


def client_download_space(repo_id: str, folder: str) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(repo_id, repo_type="space", local_dir=folder)


def answer_calls() -> None:
    """Run the functions that `lasting_client` sends, and undo their patches after each."""
    loaded: dict[str, dict] = {}
    sleep = time.sleep
    for line in sys.stdin:
        file, name, token, arguments = json.loads(line)
        os.environ["HF_TOKEN"] = token
        try:
            if file not in loaded:
                loaded[file] = runpy.run_path(file)
            answer = {"value": loaded[file][name](**arguments)}
        except Exception:
            answer = {"traceback": traceback.format_exc()}
        time.sleep = sleep
        if "modeling_scratch.hub.push" in sys.modules:
            from modeling_scratch.apps.convert import marian_repository
            from modeling_scratch.hub import check, push

            push.check_model = check.check_model
            marian_repository.check_conversion = check.check_conversion
        print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    answer_calls()

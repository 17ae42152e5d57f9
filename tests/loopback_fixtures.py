"""Fixtures of the loopback Hub, one server and one client process for all tests: a process takes seconds to start."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback_client import lasting_client, running_hub
from loopback_hub import LoopbackHub


@pytest.fixture(scope="session")
def hub_and_client(tmp_path_factory):
    with running_hub(tmp_path_factory.mktemp("hub")) as hub, lasting_client(hub) as client:
        yield hub, client


@pytest.fixture
def hub(hub_and_client) -> Iterator[LoopbackHub]:
    """A Hub without repositories and faults."""
    hub, _ = hub_and_client
    hub.clear()
    yield hub
    requests, leaks = list(hub.requests), hub.leaks()
    hub.clear()
    for user in list(hub.store.root.iterdir()):
        shutil.rmtree(user)
    assert leaks == []
    assert [entry for entry in requests if entry["status"] == 501] == []  # a defect of the Hub itself


@pytest.fixture
def client(hub_and_client) -> Callable:
    """Runs a function of a test file in the client process; see `lasting_client`."""
    return hub_and_client[1]


# Reading the recipe takes a good part of a push's time if every default is spelled out.
SHORT_RECIPE = "output_dir: runs/trained\noptimization: {max_steps: 20}\n"


@pytest.fixture(name="run")
def copied_run(trained, tmp_path) -> Path:
    """The folder of a run, to change and to push."""
    run = Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    (run / "recipe.yaml").write_text(SHORT_RECIPE)
    return run


@pytest.fixture
def pushes(hub, client, run):
    """Pushes the folder `run`."""
    from loopback_push import Pushes  # which imports conftest, and that this file

    return Pushes(client, hub, run)

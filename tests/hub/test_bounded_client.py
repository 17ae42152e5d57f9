"""The client that waits so long and no longer, against a Hub that is silent, failing or gone."""

from functools import partial

import pytest
from huggingface_hub.utils import httpx
from loopback_client import ADA, MODEL, running_hub

from modeling_scratch.hub import repository as bounded_client
from modeling_scratch.hub.repository import ATTEMPTS, BoundedClient, NoAnswer


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        hub.create(MODEL)
        yield hub


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setattr(bounded_client, "WAITS", (0.0,) * ATTEMPTS)
    hub.clear()
    with BoundedClient({}) as client:
        client.headers["Authorization"] = f"Bearer {ADA}"
        client.base_url = hub.url
        yield client


def test_what_is_silent_ends_at_the_limit_though_no_timeout_is_asked_for(hub, client, monkeypatch):
    hub.fail("silence", times=None)
    with monkeypatch.context() as patch:
        patch.setattr(client, "limit", 0.2, raising=False)
        for path, ask in ((f"/api/models/{MODEL}/refs", client.get), (f"/api/models/{MODEL}/branch/b", client.post)):
            with pytest.raises(NoAnswer, match=r"within 0\.2 seconds"):
                ask(path, timeout=None)
    hub.clear()
    assert client.get(f"/api/models/{MODEL}/refs").json()["branches"]  # the next one has the whole limit again


@pytest.mark.parametrize("fault", ["drop", "cut", 500, 429])
def test_what_fails_once_is_asked_again(fault, hub, client):
    expected = client.get(f"/api/models/{MODEL}/refs").json()
    hub.fail(fault)
    assert client.get(f"/api/models/{MODEL}/refs").json() == expected


@pytest.mark.parametrize("fault", ["lose", 500])
def test_a_commit_is_asked_for_once(fault, hub, client):
    hub.fail(fault)
    ask = partial(client.post, f"/api/models/{MODEL}/commit/main", content=b"")
    if fault == 500:
        assert ask().status_code == 500
    else:
        with pytest.raises(httpx.TransportError):
            ask()
    assert len(hub.requests) == 1


def test_a_hub_that_asks_to_wait_is_asked_a_few_times(hub, client):
    hub.fail(429, retry_after=3600, times=None)
    with pytest.raises(NoAnswer, match="the Hub answered 429"):
        client.get("/api/whoami-v2")
    assert len(hub.requests) == ATTEMPTS


def test_refused_connections(client, tmp_path):
    with running_hub(tmp_path) as gone:
        pass
    with pytest.raises(NoAnswer, match="no connection to the Hub"):
        client.get(gone.url)

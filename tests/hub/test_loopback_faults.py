"""What a faulty loopback Hub does to the real huggingface_hub client; readers during commits; the record."""

import base64
import json
import os
import time
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from loopback_client import (
    ADA,
    MODEL,
    additions,
    digest,
    finish_client,
    outcome,
    run_client,
    start_client,
)
from loopback_hub import LoopbackHub
from loopback_server import appears

CARD = "---\nlicense: apache-2.0\n---\n# Model\n"


def client_faults(faults: list[dict]) -> list[dict]:
    """One push for each fault, which this process asks for itself. Waits between retries are recorded, not waited."""
    import httpx2

    api, results = HfApi(), []
    waits: list[float] = []
    time.sleep = waits.append
    for number, fault in enumerate(faults):
        waits.clear()
        httpx2.delete(f"{api.endpoint}/_loopback/requests").raise_for_status()
        httpx2.post(f"{api.endpoint}/_loopback/fault", json=fault).raise_for_status()
        files = {"README.md": f"{CARD}{number}", "a.bin": f"{number}", "a.txt": f"{number}"}
        start = time.monotonic()
        result = outcome(lambda files=files: api.create_commit(MODEL, additions(files), commit_message="Push").oid)
        requests = httpx2.get(f"{api.endpoint}/_loopback/requests").json()
        results.append(
            result
            | {
                "waits": list(waits),
                "seconds": time.monotonic() - start,
                "requests": [[entry["path"].split("/")[-1].split("?")[0], entry["status"]] for entry in requests],
                "faults": [entry["fault"] for entry in requests if entry["fault"]],
            }
        )
    return results


RETRIED = ("preupload", "batch", "storage", "verify")  # the client repeats these, not the card's check and the commit
STEPS = {
    "card": {"path": "validate-yaml"},
    "preupload": {"path": "/preupload/"},
    "batch": {"path": "/batch"},
    "storage": {"method": "PUT"},
    "verify": {"path": "/verify"},
    "commit": {"path": "/commit/"},
}


def test_every_fault_at_every_request_of_a_push(hub, client):
    """Which the client repeats by itself, what it raises otherwise, and that the server commits all or nothing."""
    hub.create(MODEL)
    answers = {
        "drop": {"answer": "drop"},
        "lose": {"answer": "lose"},
        "cut": {"answer": "cut"},
        "500": {"answer": 500},
        "503": {"answer": 503, "html": True},
        "429": {"answer": 429, "retry_after": 3},
        "504 acted": {"answer": 504, "acted": True},
        "stall": {"answer": "stall", "seconds": 0.2},
    }
    cases = [(step, name) for step in STEPS for name in answers]
    results = client(client_faults, faults=[STEPS[step] | answers[name] for step, name in cases])
    made = [commit["id"] for commit in hub.commits(MODEL)]
    arrived = {
        int(hub.files(MODEL, commit)["a.txt"]) for commit in made if "a.txt" in hub.commits(MODEL, commit)[0]["tree"]
    }
    for number, ((step, name), result) in enumerate(zip(cases, results, strict=True)):
        place = f"{name} at {step}: {result}"
        assert len(result["faults"]) == 1, place
        committed = number in arrived
        if name == "stall":
            assert committed, place
            assert result["value"] in made, place
            assert result["seconds"] >= 0.2, place
        elif step in RETRIED:
            harmless = step == "storage" and name == "cut"  # the answer to a PUT has no body to lose
            assert committed, place
            assert result["waits"] == ([] if harmless else [4.0] if name == "429" else [1.0 if harmless else 1]), place
        elif name in ("drop", "lose", "cut"):
            assert result["error"] == "RemoteProtocolError", place
            assert committed == (step == "commit" and name != "drop"), place
        elif step == "card" and name == "503":
            assert result["error"] == "JSONDecodeError", place  # a gateway's page where the client expects JSON
        else:
            assert (result["error"], result["status"]) == ("HfHubHTTPError", int(name.split()[0])), place
            assert committed == (step == "commit" and name == "504 acted"), place
        if committed:
            assert result["requests"][-1][0] == "main", place
    for commit in made[:-1]:  # never a mixture
        files = hub.files(MODEL, commit)
        assert files["a.bin"] == files["a.txt"]
        assert files["README.md"] == CARD.encode() + files["a.txt"]
    assert len(made) == len(arrived) + 1  # no commit twice


def client_downloads(path: str) -> dict:
    waits: list[float] = []
    time.sleep = waits.append
    result = outcome(lambda: digest(Path(hf_hub_download(MODEL, path)).read_bytes()))
    return result | {"waits": waits}


def test_a_download_goes_on_where_it_was_cut(hub, client):
    """In steps of the client's chunks of 10 MiB: what it has of an unfinished one is lost."""
    hub.create(MODEL)
    chunk = 10 * 1024 * 1024
    content = bytes(range(256)) * (3 * chunk // 256)
    hub.repository(MODEL).add_blob(content)
    oid = digest(content)
    for path, key, server, value in (
        ("model.safetensors", "lfsFile", "storage", {"oid": oid}),
        ("vocabulary.txt", "file", "hub", {"content": content}),
    ):
        hub.repository(MODEL).commit([{"key": key, "value": {"path": path, **value}}], path, "ada")
        hub.clear()
        hub.fail("cut", method="GET")
        hub.fail(503, method="HEAD")
        found = client(client_downloads, path=path)
        assert found["value"] == oid
        head, gets = [[entry for entry in hub.requests if entry["method"] == method] for method in ("HEAD", "GET")]
        assert [entry["status"] for entry in head] == [503, 302 if server == "storage" else 200]
        assert [(entry["status"], entry["range"]) for entry in gets] == [(200, None), (206, f"bytes={chunk}-")]
        assert {entry["server"] for entry in gets} == {server}


def test_a_fault_is_counted_from_now_and_matched(hub, client):
    hub.create(MODEL)
    second = hub.fail(500, at=2, times=2, path="/refs")
    other = hub.fail("drop", method="DELETE")
    assert client(client_statuses, count=5) == [200, 500, 500, 200, 200]
    assert (second.hits, other.hits) == (2, 0)
    hub.clear()
    hub.fail(429, times=None)
    assert client(client_statuses, count=2) == [429, 429]
    with pytest.raises(ValueError, match="must be one of"):
        hub.fail("explode")


def client_statuses(count: int) -> list[int]:
    import httpx2

    return [httpx2.get(f"{os.environ['HF_ENDPOINT']}/api/models/{MODEL}/refs").status_code for _ in range(count)]


# -- readers during commits --------------------------------------------------------------------------------------------

VERSIONS = 12


def client_commit_versions() -> None:
    api = HfApi()
    for version in range(1, VERSIONS + 1):
        files = {"a.txt": f"{version}", "deep/b.json": f"{version}", "model.safetensors": f"{version}" * 1000}
        api.create_commit(MODEL, additions(files), commit_message=f"Version {version}")


def client_watch(home: str) -> list[list[str]]:
    """The contents of every snapshot seen until the last version."""
    seen: list[list[str]] = []
    while not seen or seen[-1][0] != f"{VERSIONS}":
        folder = Path(snapshot_download(MODEL, cache_dir=home))
        contents = [(folder / name).read_text() for name in ("a.txt", "deep/b.json", "model.safetensors")]
        if not seen or seen[-1] != contents:
            seen.append(contents)
    return seen


def test_readers_see_the_old_commit_or_the_new_one(hub, client, tmp_path):
    hub.create(MODEL)
    hub.commit(MODEL, {"a.txt": b"0", "deep/b.json": b"0", "model.safetensors": b"0" * 1000})
    readers = [start_client(hub, client_watch, token=None, home=str(tmp_path / f"cache{i}")) for i in range(2)]
    while sum("/revision/main" in entry["path"] for entry in list(hub.requests)) < 4:  # each has seen one
        time.sleep(0.01)
    client(client_commit_versions)
    for reader in readers:
        seen = finish_client(reader)
        versions = [int(contents[0]) for contents in seen]
        assert versions == sorted(versions)
        assert len(versions) > 1
        assert all(contents == [v, v, v * 1000] for contents in seen for v in [contents[0]])


# -- the record --------------------------------------------------------------------------------------------------------


def client_leak() -> None:
    import httpx2

    url, token = os.environ["HF_ENDPOINT"], os.environ["HF_TOKEN"]
    HfApi().create_commit(MODEL, additions({"log.txt": f"token: {token}"}), commit_message="A log")
    httpx2.get(f"{url}/api/models/{MODEL}?token={token}", headers={"X-Token": token})


def test_a_token_out_of_place_is_noticed_and_never_recorded(tmp_path):
    with LoopbackHub(tmp_path / "hub") as hub:
        hub.add_token(ADA, "ada")
        hub.create(MODEL)
        run_client(hub, client_leak)
        places = [(entry["path"].split("?")[0].split("/")[-2], entry["leaks"]) for entry in hub.leaks()]
        assert places == [
            ("preupload", ["body"]),  # its first bytes, in base64
            ("commit", ["body"]),
            ("ada", ["path", "header X-Token"]),
        ]
        assert ADA not in json.dumps(hub.requests)
        assert hub.requests[0]["user"] == "ada"
    for prefix in (b"", b"x", b"xx", b"xxx"):
        assert appears(ADA, base64.b64encode(prefix + ADA.encode() + b"and more"))
        assert not appears(ADA, base64.b64encode(prefix + ADA[:-6].encode() + b"and more"))

"""The loopback Hub against the real huggingface_hub client: what it keeps, refuses and records, and how it fails."""

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationDelete, HfApi, hf_hub_download, snapshot_download
from loopback_client import ADA, GRACE, MODEL, READER, additions, ask, digest, outcome
from loopback_server import appears

CARD = """---
language:
- en
- de
license: apache-2.0
library_name: transformers
pipeline_tag: translation
tags: [scratch]
datasets: [bentrevett/multi30k]
metrics: [bleu]
model-index:
- name: model
  results:
  - task: {type: translation}
    dataset: {type: bentrevett/multi30k, name: Multi30k}
    metrics: [{type: bleu, value: 31.5}]
---
# Model
"""
FILES = {
    "README.md": CARD.encode(),
    "config.json": b'{"model_type": "marian"}',
    "model.safetensors": bytes(range(256)) * 800,
    "curves.png": b"\x89PNG\r\n\x1a\n\0\0\0" + bytes(range(128, 256)),
    "deep/er/notes.txt": "Grüße, 世界".encode(),
    "empty.txt": b"",
}
LFS = {"model.safetensors", "curves.png"}


def routes(hub) -> list[str]:
    """The record as METHOD and the part of the path that names the route."""
    short = {"preupload": "preupload", "/commit/": "commit", "batch": "batch", "verify": "verify", "validate": "card"}
    names = []
    for entry in hub.requests:
        name = next((value for key, value in short.items() if key in entry["path"]), entry["path"].split("?")[0])
        names.append(f"{entry['method']} {'storage' if entry['server'] == 'storage' else name}")
    return names


# -- pushing and reading back ------------------------------------------------------------------------------------------


def client_push() -> dict:
    api = HfApi()
    created = api.create_repo(MODEL)
    commit = api.create_commit(MODEL, additions(FILES), commit_message="First", commit_description="All of it")
    return {"url": created.url, "commit": commit.oid, "commit_url": commit.commit_url}


def client_push_again() -> dict:
    same = HfApi().create_commit(MODEL, additions(FILES), commit_message="Nothing new")
    return {"same": same.oid, "create": outcome(HfApi().create_repo, MODEL)}


def client_read() -> dict:
    api, snapshot = HfApi(), Path(snapshot_download(MODEL))
    return {
        "info": api.model_info(MODEL).sha,
        "top": [item.path for item in api.list_repo_tree(MODEL)],
        "below": [item.path for item in api.list_repo_tree(MODEL, "deep", recursive=True)],
        "lfs": sorted(item.path for item in api.list_repo_tree(MODEL, recursive=True) if getattr(item, "lfs", None)),
        "snapshot": {path: digest((snapshot / path).read_bytes()) for path in FILES},
        "missing": outcome(hf_hub_download, MODEL, "no.json"),
        "no revision": outcome(hf_hub_download, MODEL, "config.json", revision="v1"),
        "commits": [[c.commit_id, c.title, c.message, c.authors] for c in api.list_repo_commits(MODEL)],
    }


def test_a_model_is_pushed_and_read_back(hub, client):
    pushed = client(client_push)
    assert pushed["url"] == f"{hub.url}/{MODEL}"
    assert pushed["commit_url"] == f"{hub.url}/{MODEL}/commit/{pushed['commit']}"
    files = hub.files(MODEL)
    assert b"*.safetensors filter=lfs" in files.pop(".gitattributes")
    assert files == FILES
    newest, first = hub.commits(MODEL)
    assert (newest["id"], newest["parent"]) == (pushed["commit"], first["id"])
    expected = subprocess.run(["git", "hash-object", "--stdin"], input=FILES["config.json"], capture_output=True)
    assert newest["tree"]["config.json"]["oid"] == expected.stdout.decode().strip()
    # The order of a push's requests; the two LFS files go in parallel.
    sequence = routes(hub)
    assert sequence[:4] == ["POST /api/repos/create", "POST card", "POST preupload", "POST batch"]
    assert sorted(sequence[4:-1]) == ["POST verify"] * 2 + ["PUT storage"] * 2
    assert sequence[-1] == "POST commit"

    hub.clear()
    again = client(client_push_again)
    assert again["same"] == pushed["commit"]
    assert again["create"]["status"] == 409
    assert not {"PUT storage", "POST commit"} & set(routes(hub))

    read = client(client_read)
    assert read["info"] == pushed["commit"]
    assert set(read["top"]) == {".gitattributes", "deep", *FILES} - {"deep/er/notes.txt"}
    assert read["below"] == ["deep/er/notes.txt"]
    assert set(read["lfs"]) == LFS
    assert read["snapshot"] == {path: digest(content) for path, content in FILES.items()}
    assert (read["missing"]["error"], read["missing"]["status"]) == ("RemoteEntryNotFoundError", 404)
    assert (read["no revision"]["error"], read["no revision"]["status"]) == ("RevisionNotFoundError", 404)
    assert read["commits"][0] == [pushed["commit"], "First", "All of it", ["ada"]]


def client_revisions() -> dict:
    api, grace = HfApi(), HfApi(token=GRACE)

    def commit(operations, message, api=api, **options):
        return api.create_commit(MODEL, operations, commit_message=message, **options)

    api.create_repo(MODEL)
    first = commit(additions(FILES), "First")
    api.create_tag(MODEL, tag="v1")
    api.create_branch(MODEL, branch="try/this", revision=first.oid)
    results = {
        "tag again": outcome(api.create_tag, MODEL, tag="v1"),
        "branch again": outcome(api.create_branch, MODEL, branch="try/this"),
        "branch of nothing": outcome(api.create_branch, MODEL, branch="other", revision="nothing"),
        "delete nothing": outcome(commit, [CommitOperationDelete("no.txt")], "None"),
        "unknown branch": outcome(commit, additions({"a": "a"}), "A", revision="nothing"),
        "onto a tag": outcome(commit, additions({"a": "a"}), "A", revision="v1"),
        "stale": outcome(commit, additions({"a": "a"}), "A", parent_commit=api.list_repo_commits(MODEL)[-1].commit_id),
    }
    commit([CommitOperationDelete("empty.txt")], "Changes", revision="try/this")
    proposed = commit(additions({"b.bin": "2", "b.txt": "2"}), "Add b", api=grace, create_pr=True)
    refs = api.list_repo_refs(MODEL)
    return results | {
        "pull request": [proposed.pr_revision, proposed.pr_num],
        "read": Path(hf_hub_download(MODEL, "b.txt", revision="refs/pr/1")).read_text(),
        "refs": {ref.ref: ref.target_commit for ref in refs.branches + refs.tags},
        "first": first.oid,
    }


def test_branches_tags_and_pull_requests(hub, client):
    found = client(client_revisions)
    assert {key: (found[key]["error"], found[key]["status"]) for key in found if "error" in found[key]} == {
        "tag again": ("HfHubHTTPError", 409),
        "branch again": ("HfHubHTTPError", 409),
        "branch of nothing": ("RevisionNotFoundError", 404),
        "delete nothing": ("RemoteEntryNotFoundError", 404),
        "unknown branch": ("RevisionNotFoundError", 404),
        "onto a tag": ("RevisionNotFoundError", 404),
        "stale": ("HfHubHTTPError", 412),
    }
    assert "A commit has happened since. Please refresh and try again." in found["stale"]["message"]
    assert (found["pull request"], found["read"]) == (["refs/pr/1", 1], "2")
    assert found["refs"]["refs/heads/main"] == found["refs"]["refs/tags/v1"] == found["first"]
    assert set(hub.references(MODEL)) == {*found["refs"], "refs/pr/1"}
    assert set(hub.files(MODEL)) == {".gitattributes", *FILES}
    assert set(hub.files(MODEL, "refs/pr/1")) == {".gitattributes", *FILES, "b.bin", "b.txt"}
    assert set(hub.files(MODEL, "try/this")) == {".gitattributes", *FILES} - {"empty.txt"}


# -- what it refuses ---------------------------------------------------------------------------------------------------


def client_permissions() -> dict:
    def push(api, repo, **options):
        operations = additions({"a.txt": "a", "a.bin": "a"})
        return api.create_commit(repo, operations, commit_message="A", **options).oid

    results = {}
    for who, token in {"anonymous": False, "wrong": "hf_nobody_0123456789", "grace": GRACE, "reader": READER}.items():
        api = HfApi(token=token)
        asked = {
            "private": outcome(lambda api=api: api.model_info("ada/private").id),
            "unknown": outcome(lambda api=api: api.model_info("ada/none").id),
            "public": outcome(lambda api=api: api.model_info("ada/public").id),
            "create": outcome(lambda api=api: api.create_repo("ada/new").repo_id),
            "push": outcome(push, api, "ada/public"),
            "pull request": outcome(push, api, "ada/public", create_pr=True),
            "tag": outcome(api.create_tag, "ada/public", tag="v1"),
        }
        results[who] = {what: answer.get("status") for what, answer in asked.items()}
    return results


def test_tokens_and_private_repositories(hub, client):
    for name, private in (("ada/private", True), ("ada/public", False)):
        hub.create(name, private=private)
    asked = ("private", "unknown", "public", "create", "push", "pull request", "tag")
    assert client(client_permissions, token=None) == {
        "anonymous": dict.fromkeys(asked, 401) | {"public": None},
        "wrong": dict.fromkeys(asked, 401),
        "grace": dict.fromkeys(asked, 403) | {"private": 404, "unknown": 404, "public": None, "pull request": None},
        "reader": dict.fromkeys(asked, 403) | {"private": None, "unknown": 404, "public": None},
    }


def client_cards(cards: dict[str, str]) -> dict[str, str | None]:
    """What the refusal of each card says."""
    push, said = HfApi().create_commit, {}
    for name, text in cards.items():
        said[name] = outcome(push, MODEL, additions({"README.md": text}), commit_message="Card").get("message")
    return said


CARDS = {
    "valid": (CARD, None),
    "no yaml": (CARD.replace("license: apache-2.0", "license: [apache-2.0"), "YAML parsing error"),
    "a list": ("---\n- en\n---\n# A model\n", "must be of type object"),
    "license": (CARD.replace("apache-2.0", "apache2"), '"license" must be one of [apache-2.0, mit'),
    "language": (CARD.replace("- en", "- English"), '"language[0]" must only contain lowercase characters'),
    "boolean language": (CARD.replace("- en", "- no"), '"language[0]" must be a string'),
    "base model": (CARD.replace("tags:", "base_model: /tmp/run/model\ntags:"), "base_model"),
    "no task": (CARD.replace("task: {type: translation}", "source: {name: x}"), '.results[0].task" is required'),
    "no value": (CARD.replace(", value: 31.5", ""), '.metrics[0].value" is required'),
}


def test_model_cards_are_validated(hub, client):
    hub.create(MODEL)
    found = client(client_cards, cards={name: card for name, (card, _) in CARDS.items()})
    assert found.pop("valid") is None
    for name, message in found.items():
        assert message.startswith("Invalid metadata in README.md.\n- "), name
        assert CARDS[name][1] in message, name
    hub.fail(200, path="validate-yaml")  # the commit looks at the card too
    assert "Invalid metadata in README.md" in client(client_cards, cards={"license": CARDS["license"][0]})["license"]
    assert len(hub.commits(MODEL)) == 2


# -- faults and the record ---------------------------------------------------------------------------------------------


def client_statuses(count: int) -> list[int]:
    return [ask("GET", f"api/models/{MODEL}/refs").status_code for _ in range(count)]


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


def client_leak() -> None:
    token = os.environ["HF_TOKEN"]
    HfApi().create_commit(MODEL, additions({"log.txt": f"token: {token}"}), commit_message="A log")
    ask("GET", f"api/models/{MODEL}?token={token}", headers={"X-Token": token})


def test_a_token_out_of_place_is_noticed_and_never_recorded(hub, client):
    hub.create(MODEL)
    client(client_leak)
    places = [(entry["path"].split("?")[0].split("/")[-2], entry["leaks"]) for entry in hub.leaks()]
    assert places == [
        ("preupload", ["body"]),  # its first bytes, in base64
        ("commit", ["body"]),
        ("ada", ["path", "header X-Token"]),
    ]
    assert ADA not in json.dumps(hub.requests)
    assert hub.requests[0]["user"] == "ada"
    hub.clear()  # leaks fail a test
    for prefix in (b"", b"x", b"xx", b"xxx"):
        assert appears(ADA, base64.b64encode(prefix + ADA.encode() + b"and more"))
        assert not appears(ADA, base64.b64encode(prefix + ADA[:-6].encode() + b"and more"))

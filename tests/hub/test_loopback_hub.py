"""The loopback Hub against the real huggingface_hub client, in processes of its own (loopback_client.py)."""

import socket
import subprocess
import sys
from pathlib import Path

from huggingface_hub import (
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    hf_hub_download,
    snapshot_download,
)
from loopback_client import (
    ADA,
    CARD,
    GRACE,
    MODEL,
    additions,
    digest,
    outcome,
    run_client,
)
from loopback_hub import LoopbackHub

WEIGHTS = bytes(range(256)) * 800
FILES = {
    "README.md": CARD.encode(),
    "config.json": b'{"model_type": "marian"}',
    "model.safetensors": WEIGHTS,
    "curves.png": b"\x89PNG\r\n\x1a\n\0\0\0" + bytes(range(128, 256)),
    "deep/er/notes.txt": "Grüße, 世界".encode(),
    "empty.txt": b"",
}
LFS = {"model.safetensors", "curves.png"}


def routes(hub: LoopbackHub) -> list[str]:
    """The record as METHOD and the part of the path that names the route."""
    short = {"preupload": "preupload", "/commit/": "commit", "batch": "batch", "verify": "verify", "validate": "card"}
    names = []
    for entry in hub.requests:
        name = next((value for key, value in short.items() if key in entry["path"]), entry["path"].split("?")[0])
        names.append(f"{entry['method']} {'storage' if entry['server'] == 'storage' else name}")
    return names


# -- pushing and reading back ------------------------------------------------------------------------------------------


def client_push(repo: str = MODEL, private: bool = False) -> dict:
    api = HfApi()
    created = api.create_repo(repo, private=private)
    commit = api.create_commit(repo, additions(FILES), commit_message="First", commit_description="All of it")
    return {"url": created.url, "name": created.repo_id, "commit": commit.oid, "commit_url": commit.commit_url}


def client_push_again() -> dict:
    api = HfApi()
    again = api.create_repo(MODEL, exist_ok=True)
    same = api.create_commit(MODEL, additions(FILES), commit_message="Nothing new")
    return {
        "name": again.repo_id,
        "same": same.oid,
        "create": outcome(api.create_repo, MODEL),
        "whoami": api.whoami(),
    }


def client_read() -> dict:
    api = HfApi()
    info = api.model_info(MODEL, files_metadata=True)
    snapshot = Path(snapshot_download(MODEL))
    tree = list(api.list_repo_tree(MODEL, recursive=True, expand=True))
    return {
        "files": api.list_repo_files(MODEL),
        "top": [item.path for item in api.list_repo_tree(MODEL)],
        "below": [item.path for item in api.list_repo_tree(MODEL, "deep", recursive=True)],
        "lfs": sorted(item.path for item in tree if getattr(item, "lfs", None)),
        "last_commits": {item.path: item.last_commit.title for item in tree},
        "paths_info": [[i.path, i.size] for i in api.get_paths_info(MODEL, ["deep/er/notes.txt", "no.txt"])],
        "sizes": {sibling.rfilename: sibling.size for sibling in info.siblings},
        "info": [info.id, info.sha, info.private, info.pipeline_tag, info.library_name, info.tags],
        "card": [info.card_data.license, info.card_data.eval_results[0].metric_value],
        "year": info.last_modified.year,
        "snapshot": snapshot.name,
        "downloads": {path: digest(Path(hf_hub_download(MODEL, path)).read_bytes()) for path in FILES},
        "snapshots": {p.relative_to(snapshot).as_posix(): digest(p.read_bytes()) for p in files_below(snapshot)},
        "exists": [api.file_exists(MODEL, "config.json"), api.file_exists(MODEL, "no.json")],
        "repos": [api.repo_exists(MODEL), api.repo_exists("ada/none"), api.repo_exists("alone")],
        "revisions": [api.revision_exists(MODEL, info.sha[:8]), api.revision_exists(MODEL, "v1")],
        "missing": outcome(hf_hub_download, MODEL, "no.json"),
        "no_revision": outcome(hf_hub_download, MODEL, "config.json", revision="v1"),
        "commits": [[c.commit_id, c.title, c.message, c.authors] for c in api.list_repo_commits(MODEL)],
    }


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_model_is_pushed_and_read_back(hub, client):
    pushed = client(client_push)
    assert pushed["url"] == f"{hub.url}/{MODEL}"
    assert pushed["commit_url"] == f"{hub.url}/{MODEL}/commit/{pushed['commit']}"
    files = hub.files(MODEL)
    assert b"*.safetensors filter=lfs" in files.pop(".gitattributes")
    assert files == FILES
    newest, first = hub.commits(MODEL)
    assert (newest["id"], newest["parent"]) == (pushed["commit"], first["id"])
    assert (newest["title"], newest["description"], newest["author"]) == ("First", "All of it", "ada")
    assert {path for path, entry in newest["tree"].items() if entry["lfs"]} == LFS
    expected = subprocess.run(["git", "hash-object", "--stdin"], input=FILES["config.json"], capture_output=True)
    assert newest["tree"]["config.json"]["oid"] == expected.stdout.decode().strip()
    # The order of a push's requests; the two LFS files go in parallel.
    sequence = routes(hub)
    assert sequence[:4] == ["POST /api/repos/create", "POST card", "POST preupload", "POST batch"]
    assert sorted(sequence[4:-1]) == ["POST verify"] * 2 + ["PUT storage"] * 2
    assert sequence[-1] == "POST commit"

    # The same again: no upload, no commit.
    hub.clear()
    again = client(client_push_again)
    assert (again["name"], again["same"]) == (MODEL, pushed["commit"])
    assert (again["create"]["error"], again["create"]["status"]) == ("HfHubHTTPError", 409)
    assert len(hub.commits(MODEL)) == 2
    assert routes(hub)[:5] == [
        "POST /api/repos/create",
        "POST card",
        "POST preupload",
        "POST batch",
        f"GET /api/models/{MODEL}/revision/main",
    ]
    assert again["whoami"]["name"] == "ada"
    assert again["whoami"]["auth"]["accessToken"]["role"] == "write"

    read = client(client_read, token=None)
    paths = sorted([".gitattributes", *FILES])
    assert sorted(read["files"]) == sorted(read["snapshots"]) == paths
    assert sorted(read["top"]) == sorted(["deep", *(path for path in paths if "/" not in path)])
    assert read["below"] == ["deep/er", "deep/er/notes.txt"]
    assert read["lfs"] == sorted(LFS)
    assert read["last_commits"] == dict.fromkeys([*FILES, "deep", "deep/er"], "First") | {
        ".gitattributes": "initial commit"
    }
    assert read["paths_info"] == [["deep/er/notes.txt", len(FILES["deep/er/notes.txt"])]]
    assert {path: read["sizes"][path] for path in FILES} == {path: len(content) for path, content in FILES.items()}
    tags = ["transformers", "translation", "scratch", "en", "de", "dataset:bentrevett/multi30k", "license:apache-2.0"]
    assert read["info"] == [MODEL, pushed["commit"], False, "translation", "transformers", tags]
    assert read["card"] == ["apache-2.0", 31.5]
    assert read["year"] >= 2025
    assert read["snapshot"] == pushed["commit"]
    assert read["downloads"] == {path: digest(content) for path, content in FILES.items()}
    assert read["snapshots"].items() >= read["downloads"].items()
    assert read["exists"] == [True, False]
    assert read["repos"] == [True, False, False]
    assert read["revisions"] == [True, False]
    assert (read["missing"]["error"], read["missing"]["status"]) == ("RemoteEntryNotFoundError", 404)
    assert (read["no_revision"]["error"], read["no_revision"]["status"]) == ("RevisionNotFoundError", 404)
    assert read["commits"][0] == [pushed["commit"], "First", "All of it", ["ada"]]


# -- branches, tags, pull requests -------------------------------------------------------------------------------------


def client_revisions() -> dict:
    api, grace = HfApi(), HfApi(token=GRACE)

    def commit(operations, message, api=api, **options):
        return api.create_commit(MODEL, operations, commit_message=message, **options)

    api.create_repo(MODEL)
    first = commit(additions(FILES), "First")
    api.create_tag(MODEL, tag="v1", tag_message="The first")
    api.create_branch(MODEL, branch="try/this", revision=first.oid[:10])
    results = {
        "tag again": outcome(api.create_tag, MODEL, tag="v1"),
        "branch again": outcome(api.create_branch, MODEL, branch="try/this"),
        "branch of nothing": outcome(api.create_branch, MODEL, branch="other", revision="nothing"),
    }
    api.create_tag(MODEL, tag="v1", exist_ok=True)
    commit(
        [
            CommitOperationDelete("deep/"),
            CommitOperationDelete("empty.txt"),
            CommitOperationCopy("model.safetensors", "copy.safetensors"),
            CommitOperationCopy("config.json", "copy.json"),
        ],
        "Changes",
        revision="try/this",
    )
    results["delete nothing"] = outcome(commit, [CommitOperationDelete("no.txt")], "None")
    by_owner = commit(additions({"a.bin": "1"}), "Add a", create_pr=True)
    by_grace = commit(additions({"b.bin": "2", "b.txt": "2"}), "Add b", api=grace, create_pr=True)
    commit(additions({"c.bin": "3"}), "And c", api=grace, revision=by_grace.pr_revision)
    draft = grace.create_pull_request(MODEL, title="To come")
    refs = api.list_repo_refs(MODEL, include_pull_requests=True)
    api.delete_tag(MODEL, tag="v1")
    return results | {
        "pull requests": [by_owner.pr_revision, by_owner.pr_num, by_grace.pr_url, draft.git_reference, draft.status],
        "read": Path(hf_hub_download(MODEL, "b.txt", revision="refs/pr/2")).read_text(),
        "discussions": [[d.num, d.title, d.author, d.is_pull_request] for d in api.get_repo_discussions(MODEL)],
        "refs": {ref.ref: ref.target_commit for ref in refs.branches + refs.tags + refs.pull_requests},
        "first": first.oid,
        "delete main": outcome(api.delete_branch, MODEL, branch="main"),
        "delete tag": outcome(api.delete_tag, MODEL, tag="v1"),
        "delete branch": outcome(api.delete_branch, MODEL, branch="nothing"),
        "delete": outcome(api.delete_branch, MODEL, branch="try/this"),
        "settings": outcome(grace.update_repo_settings, MODEL, private=True),
    }


def test_branches_tags_and_pull_requests(hub, client):
    found = client(client_revisions)
    assert {key: (found[key]["error"], found[key]["status"]) for key in found if "error" in found[key]} == {
        "tag again": ("HfHubHTTPError", 409),
        "branch again": ("HfHubHTTPError", 409),
        "branch of nothing": ("RevisionNotFoundError", 404),
        "delete nothing": ("RemoteEntryNotFoundError", 404),
        "delete main": ("HfHubHTTPError", 403),
        "delete tag": ("RevisionNotFoundError", 404),
        "delete branch": ("RevisionNotFoundError", 404),
        "settings": ("HfHubHTTPError", 403),
    }
    assert "differentiate file and folder paths" in found["delete nothing"]["message"]
    assert found["pull requests"] == ["refs/pr/1", 1, f"{hub.url}/{MODEL}/discussions/2", "refs/pr/3", "draft"]
    assert found["read"] == "2"
    assert found["discussions"] == [
        [3, "To come", "grace", True],
        [2, "Add b", "grace", True],
        [1, "Add a", "ada", True],
    ]
    first = found["refs"].pop("refs/heads/main")
    assert first == found["refs"]["refs/tags/v1"] == found["refs"]["refs/pr/3"] == found["first"]
    assert set(found["refs"]) == {"refs/heads/try/this", "refs/tags/v1", "refs/pr/1", "refs/pr/2", "refs/pr/3"}
    assert set(hub.references(MODEL)) == {"refs/heads/main", "refs/pr/1", "refs/pr/2", "refs/pr/3"}
    assert set(hub.files(MODEL)) == {".gitattributes", *FILES}
    assert set(hub.files(MODEL, "refs/pr/2")) == {".gitattributes", *FILES, "b.bin", "b.txt", "c.bin"}
    changed = hub.files(MODEL, found["refs"]["refs/heads/try/this"])
    assert set(changed) == {".gitattributes", *FILES, "copy.safetensors", "copy.json"} - {
        "deep/er/notes.txt",
        "empty.txt",
    }
    assert changed["copy.safetensors"] == WEIGHTS
    assert changed["copy.json"] == FILES["config.json"]


# -- ranges, Transformers, the command line ----------------------------------------------------------------------------


def test_ranges(hub, client):
    """As RFC 9110 has them, over a plain socket."""
    hub.create(MODEL)
    hub.commit(MODEL, {"ten.txt": b"0123456789"})

    def get(path, host=hub.url, **headers):
        with socket.create_connection(("127.0.0.1", int(host.rsplit(":")[-1])), timeout=10) as connection:
            lines = [f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *(f"{k}: {v}" for k, v in headers.items())]
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
        return int(head.split()[1]), body, head.decode()

    path = f"/{MODEL}/resolve/main/ten.txt"
    assert get(path)[:2] == (200, b"0123456789")
    assert get(path, Range="bytes=2-4")[:2] == (206, b"234")
    assert "Content-Range: bytes 2-4/10" in get(path, Range="bytes=2-4")[2]
    assert get(path, Range="bytes=7-")[:2] == (206, b"789")
    assert get(path, Range="bytes=-3")[:2] == (206, b"789")
    assert get(path, Range="bytes=8-100")[:2] == (206, b"89")
    assert get(path, Range="bytes=10-")[0] == 416
    assert get(f"/{MODEL}/{digest(b'0123456789')}", host=hub.storage.url)[0] == 403  # a link without its signature
    assert get(f"/api/models/{MODEL}/tree/main")[0] == 200


def client_auto_config() -> dict:
    from transformers import AutoConfig, MarianConfig

    MarianConfig(d_model=16, encoder_layers=1).push_to_hub(MODEL)
    config = AutoConfig.from_pretrained(MODEL)
    return {"type": config.model_type, "d_model": config.d_model}


def test_transformers_pushes_and_loads_a_config(hub, client):
    found = client(client_auto_config)
    assert (found["type"], found["d_model"]) == ("marian", 16)
    assert [commit["title"] for commit in hub.commits(MODEL)] == ["Upload config", "initial commit"]
    assert {entry["status"] for entry in hub.requests if entry["status"] >= 400} <= {404}


def test_the_command_line_serves_what_is_on_disk(tmp_path):
    def serve():
        script = Path(__file__).parents[1] / "loopback_hub.py"
        command = [sys.executable, str(script), "--root", str(tmp_path / "hub"), "--token", f"{ADA}=ada"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    commits = []
    for function in (client_push, client_push_again):
        process = serve()
        try:
            url = process.stdout.readline().strip()
            hub = LoopbackHub(tmp_path / "hub")
            hub.url = url
            commits.append(run_client(hub, function))
        finally:
            process.terminate()
            process.wait(timeout=10)
    assert commits[0]["commit"] == commits[1]["same"]

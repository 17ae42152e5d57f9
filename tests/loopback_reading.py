"""What the loopback Hub answers to those who read: models, trees, files, references, commits, discussions."""

import json
import mimetypes
from urllib.parse import parse_qs, quote

from loopback_card import metadata
from loopback_protocol import MODEL, REPO, Answer, Request, content, route
from loopback_store import HubError, Repository, git_oid, lfs_pointer


@route("GET", f"{MODEL}/auth-check")
def check_access(request: Request, name: str) -> Answer:
    request.readable(name)
    return Answer(b"OK")


@route("GET", f"{MODEL}(?:/revision/(?P<revision>[^/]+))?")
def model_info(request: Request, name: str, revision: str = "main") -> Answer:
    repository = request.readable(name)
    sha = repository.resolve(revision)
    commit = repository.read_commit(sha)
    tree = commit["tree"]
    card = metadata(repository.blob(tree["README.md"]["sha256"]).decode()) if "README.md" in tree else {}

    def listed(key: str) -> list:
        return card[key] if isinstance(card.get(key), list) else [card[key]] if card.get(key) else []

    tags = [*listed("library_name"), *listed("pipeline_tag"), *listed("tags"), *listed("language")]
    tags += [f"dataset:{dataset}" for dataset in listed("datasets")] + [f"license:{x}" for x in listed("license")]
    siblings = []
    for path, entry in sorted(tree.items()):
        siblings.append({"rfilename": path})
        if request.flag("blobs"):
            siblings[-1] |= {"size": entry["size"], "blobId": entry["oid"]}
            if entry["lfs"]:
                siblings[-1]["lfs"] = {"sha256": entry["sha256"], **_sizes(entry)}
    info = {
        "id": name,
        "modelId": name,
        "author": name.split("/")[0],
        "sha": sha,
        "lastModified": commit["date"],
        "createdAt": repository.settings["created"],
        "private": repository.settings["private"],
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": list(dict.fromkeys(tag for tag in tags if isinstance(tag, str))),
        "siblings": siblings,
        "cardData": json.loads(json.dumps(card, default=str)) or None,
    }
    info |= {key: card[key] for key in ("library_name", "pipeline_tag") if key in card}
    if "model-index" in card:
        info["model-index"] = info["cardData"]["model-index"]
    if expand := request.query.get("expand"):
        info = {key: value for key, value in info.items() if key in ("id", *expand)}
    return Answer.json(info)


def _sizes(entry: dict) -> dict:
    return {"size": entry["size"], "pointerSize": len(lfs_pointer(entry["sha256"], entry["size"]))}


def _listing(repository: Repository, sha: str, expand: bool) -> dict[str, dict]:
    """What the tree and paths-info routes say of every file and folder of a commit, by path."""
    tree = repository.tree(sha)
    found = {}
    for path, entry in tree.items():
        found[path] = {"type": "file", "oid": entry["oid"], "size": entry["size"], "path": path}
        if entry["lfs"]:
            found[path]["lfs"] = {"oid": entry["sha256"], **_sizes(entry)}
        for depth in range(1, len(path.split("/"))):
            folder = "/".join(path.split("/")[:depth])
            below = json.dumps([[p, e["oid"]] for p, e in sorted(tree.items()) if p.startswith(f"{folder}/")])
            found[folder] = {"type": "directory", "oid": git_oid(below.encode(), "tree"), "size": 0, "path": folder}
    if expand:
        history = repository.history(sha)
        for path, item in found.items():
            item["lastCommit"] = _last_commit(history, path)
            if item["type"] == "file":
                item["securityFileStatus"] = {"status": "unscanned", "avScan": None, "pickleImportScan": None}
    return dict(sorted(found.items()))


def _last_commit(history: list[dict], path: str) -> dict:
    """The commit that gave a file or a folder the content it has in the newest."""

    def at(commit: dict) -> dict:
        return {p: e["oid"] for p, e in commit["tree"].items() if p == path or p.startswith(f"{path}/")}

    same = history[0]
    for commit in history:
        if at(commit) != at(history[0]):
            break
        same = commit
    return {key: same[key] for key in ("id", "title", "date")}


@route("GET", f"{MODEL}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?")
def list_tree(request: Request, name: str, revision: str, folder: str = "") -> Answer:
    repository = request.readable(name)
    found = _listing(repository, repository.resolve(revision), request.flag("expand"))
    prefix = f"{folder.strip('/')}/" if folder else ""
    below = {path[len(prefix) :]: item for path, item in found.items() if path.startswith(prefix)}
    if folder and not below:
        raise HubError(404, f"{folder} does not exist on {revision!r}", "EntryNotFound")
    return Answer.json([item for path, item in below.items() if request.flag("recursive") or "/" not in path])


@route("POST", f"{MODEL}/paths-info/(?P<revision>[^/]+)")
def paths_info(request: Request, name: str, revision: str) -> Answer:
    repository = request.readable(name)
    asked = parse_qs(request.body.decode())
    expand = asked.get("expand", [""])[0].lower() == "true"
    found = _listing(repository, repository.resolve(revision), expand)
    return Answer.json([found[path.strip("/")] for path in asked.get("paths", []) if path.strip("/") in found])


@route("GET", f"{MODEL}/refs")
def list_references(request: Request, name: str) -> Answer:
    answers = {"branches": [], "converts": [], "tags": [], "pullRequests": []}
    kinds = {"heads": "branches", "tags": "tags", "pr": "pullRequests"}
    for ref, commit in request.readable(name).references().items():
        _, kind, short = ref.split("/", 2)
        item = {"name": ref if kind == "pr" else short, "ref": ref, "targetCommit": commit}
        answers[kinds[kind]].append(item)
    if not request.flag("include_prs"):
        del answers["pullRequests"]
    return Answer.json(answers)


@route("GET", f"{MODEL}/commits/(?P<revision>[^/]+)")
def list_commits(request: Request, name: str, revision: str) -> Answer:
    return Answer.json(
        [
            {
                "id": commit["id"],
                "title": commit["title"],
                "message": commit["description"],
                "authors": [{"user": commit["author"]}],
                "date": commit["date"],
            }
            for commit in request.readable(name).history(revision)
        ]
    )


@route("GET HEAD", f"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
def resolve_file(request: Request, name: str, revision: str, path: str) -> Answer:
    repository = request.readable(name)
    sha = repository.resolve(revision)
    entry = repository.tree(sha).get(path)
    if entry is None:
        error = HubError(404, "Entry not found", "EntryNotFound")
        error.headers["X-Repo-Commit"] = sha
        raise error
    file_name = path.split("/")[-1]
    headers = {
        "X-Repo-Commit": sha,
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(file_name)}; filename=\"{quote(file_name)}\";",
    }
    if entry["lfs"]:
        linked = {"X-Linked-Etag": f'"{entry["sha256"]}"', "X-Linked-Size": str(entry["size"])}
        location = request.storage.link("GET", repository, entry["sha256"], entry["size"])
        return Answer(b"Found", 302, headers | linked | {"Location": location})
    headers["Content-Type"] = mimetypes.guess_type(path)[0] or "text/plain; charset=utf-8"
    return content(request, repository.blob(entry["sha256"]), headers | {"ETag": f'"{entry["oid"]}"'})


def _discussion(name: str, number: int, fields: dict) -> dict:
    return {
        "num": number,
        "title": fields["title"],
        "author": {"name": fields["author"]},
        "createdAt": fields["created"],
        "status": fields["status"],
        "repo": {"name": name, "type": "model"},
        "isPullRequest": fields["pull_request"],
    }


@route("GET", f"{MODEL}/discussions")
def list_discussions(request: Request, name: str) -> Answer:
    found = request.readable(name).discussions()
    items = [_discussion(name, number, found[number]) for number in sorted(found, reverse=True)]
    return Answer.json({"count": len(items), "start": 0, "discussions": items})


@route("GET", MODEL + r"/discussions/(?P<number>\d+)")
def discussion_details(request: Request, name: str, number: str) -> Answer:
    found = request.readable(name).discussions().get(int(number))
    if found is None:
        raise HubError(404, "Discussion not found")
    details = _discussion(name, int(number), found) | {"events": [], "filesWithConflicts": [], "diff": ""}
    return Answer.json(details | {"changes": {"base": found["base"], "mergeCommitId": None}})

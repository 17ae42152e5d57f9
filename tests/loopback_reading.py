"""What the loopback Hub answers to those who read: models, trees, files, references, commits."""

import mimetypes
from urllib.parse import quote

from loopback_protocol import MODEL, REPO, Answer, Request, route
from loopback_store import HubError, git_oid, lfs_pointer


@route("GET", f"{MODEL}(?:/revision/(?P<revision>[^/]+))?")
def model_info(request: Request, name: str, revision: str = "main") -> Answer:
    repository = request.readable(name)
    sha = repository.resolve(revision)
    commit = repository.read_commit(sha)
    return Answer.json(
        {
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
            "tags": [],
            "siblings": [{"rfilename": path} for path in sorted(commit["tree"])],
        }
    )


@route("GET", f"{MODEL}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?")
def list_tree(request: Request, name: str, revision: str, folder: str = "") -> Answer:
    repository = request.readable(name)
    prefix, found = f"{folder.strip('/')}/" if folder else "", {}
    for path, entry in sorted(repository.tree(revision).items()):
        below = path.removeprefix(prefix)
        if not path.startswith(prefix):
            continue
        if "/" in below and not request.flag("recursive"):
            path = prefix + below.split("/")[0]
            found[path] = {"type": "directory", "oid": git_oid(path.encode(), "tree"), "size": 0, "path": path}
            continue
        found[path] = {"type": "file", "oid": entry["oid"], "size": entry["size"], "path": path}
        if entry["lfs"]:
            pointer = len(lfs_pointer(entry["sha256"], entry["size"]))
            found[path]["lfs"] = {"oid": entry["sha256"], "size": entry["size"], "pointerSize": pointer}
    if folder and not found:
        raise HubError(404, f"{folder} does not exist on {revision!r}", "EntryNotFound")
    return Answer.json(list(found.values()))


@route("GET", f"{MODEL}/refs")
def list_references(request: Request, name: str) -> Answer:
    answers = {"branches": [], "converts": [], "tags": []}
    kinds = {"heads": "branches", "tags": "tags"}
    for ref, commit in request.readable(name).references().items():
        _, kind, short = ref.split("/", 2)
        if kind in kinds:
            answers[kinds[kind]].append({"name": short, "ref": ref, "targetCommit": commit})
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
    file_name = quote(path.split("/")[-1])
    headers = {
        "X-Repo-Commit": sha,
        "Content-Disposition": f"inline; filename*=UTF-8''{file_name}; filename=\"{file_name}\";",
    }
    if entry["lfs"]:
        linked = {"X-Linked-Etag": f'"{entry["sha256"]}"', "X-Linked-Size": str(entry["size"])}
        location = request.storage.link("GET", repository, entry["sha256"], entry["size"])
        return Answer(b"Found", 302, headers | linked | {"Location": location})
    headers |= {"Content-Type": mimetypes.guess_type(path)[0] or "text/plain; charset=utf-8"}
    return Answer(repository.blob(entry["sha256"]), headers=headers | {"ETag": f'"{entry["oid"]}"'})

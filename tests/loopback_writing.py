"""What the loopback Hub answers to those who write: repositories, uploads, commits, references, pull requests."""

import base64
import json

from loopback_card import validate
from loopback_protocol import MODEL, REPO, SPACE, Answer, Request, address, route
from loopback_store import HubError, Repository, git_oid

LFS_JSON = "application/vnd.git-lfs+json"


@route("GET", "/api/whoami-v2")
def who_am_i(request: Request) -> Answer:
    account = request.signed_in()
    token = {"displayName": "loopback", "role": account.role, "createdAt": "2026-01-01T00:00:00.000Z"}
    return Answer.json(
        {
            "type": "user",
            "id": git_oid(account.user.encode())[:24],
            "name": account.user,
            "fullname": account.user,
            "isPro": False,
            "orgs": [],
            "auth": {"type": "access_token", "accessToken": token},
        }
    )


@route("POST", "/api/repos/create")
def create_repository(request: Request) -> Answer:
    asked, account = request.json(), request.signed_in()
    namespace = asked.get("organization") or account.user
    kind = asked.get("type", "model")
    if kind not in ("model", "space") or (kind == "space" and asked.get("sdk") != "static"):
        raise HubError(400, "This server keeps models and static Spaces only")
    name = f"{namespace}/{SPACE if kind == 'space' else ''}{asked.get('name')}"
    if not account.may_write(name):
        raise HubError(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
    try:
        files = {"README.md": b"---\nsdk: static\n---\n", "index.html": b"<p>Welcome\n"} if kind == "space" else {}
        request.store.create(name, asked.get("visibility") == "private", account.user, files)
    except HubError as error:
        if error.status == 409:
            error.body = {"url": f"{request.url}/{address(name)}"}
        raise
    return Answer.json({"url": f"{request.url}/{address(name)}", "name": name})


@route("POST", "/api/validate-yaml")
def validate_card(request: Request) -> Answer:
    found = validate(request.json().get("content", ""))
    return Answer.json(found, 400 if found["errors"] else 200)


@route("POST", f"{MODEL}/preupload/(?P<revision>[^/]+)")
def preupload(request: Request, name: str, revision: str) -> Answer:
    repository = request.writable(name, pull_request=request.flag("create_pr"))
    asked = request.json()
    files = [file | {"sample": base64.b64decode(file.get("sample", ""))} for file in asked["files"]]
    return Answer.json({"files": repository.upload_modes(files, revision, asked.get("gitIgnore"))})


@route("POST", rf"/{REPO}\.git/info/lfs/objects/batch")
def lfs_batch(request: Request, name: str) -> Answer:
    asked = request.json()
    # The client names the revision unless it is about to open a pull request.
    repository = request.writable(name, pull_request="ref" not in asked)
    objects = []
    for wanted in asked["objects"]:
        objects.append({"oid": wanted["oid"], "size": wanted["size"]})
        if not repository.has_blob(wanted["oid"]):
            link = request.storage.link("PUT", repository, wanted["oid"], wanted["size"])
            verify = f"{request.url}/{name}.git/info/lfs/objects/verify"
            objects[-1] |= {"authenticated": True, "actions": {"upload": {"href": link}, "verify": {"href": verify}}}
    return Answer.json({"transfer": "basic", "objects": objects}, content_type=LFS_JSON)


@route("POST", rf"/{REPO}\.git/info/lfs/objects/verify")
def lfs_verify(request: Request, name: str) -> Answer:
    repository, asked = request.writable(name, pull_request=True), request.json()
    if not repository.has_blob(asked["oid"]) or len(repository.blob(asked["oid"])) != asked["size"]:
        raise HubError(404, "The object was not uploaded")
    return Answer.json({})


@route("POST", f"{MODEL}/commit/(?P<revision>[^/]+)")
def commit(request: Request, name: str, revision: str) -> Answer:
    create_pr = request.flag("create_pr")
    repository = request.writable(name, pull_request=create_pr)
    lines = [json.loads(line) for line in request.body.splitlines()]
    (header,) = (line["value"] for line in lines if line["key"] == "header")
    operations = [line for line in lines if line["key"] != "header"]
    for operation in operations:
        if operation["key"] == "file":
            operation["value"]["content"] = base64.b64decode(operation["value"]["content"], validate=True)
            if operation["value"]["path"] == "README.md":
                found = validate(operation["value"]["content"].decode(errors="replace"))
                if found["errors"]:
                    raise HubError(400, "Invalid metadata in README.md: " + found["errors"][0]["message"])
    oid, number = repository.commit(
        operations,
        title=header.get("summary") or "",
        description=header.get("description") or "",
        author=request.signed_in().user,
        revision=revision,
        parent=header.get("parentCommit"),
        create_pr=create_pr,
    )
    answers = {
        "success": True,
        "commitOid": oid,
        "commitUrl": f"{request.url}/{address(name)}/commit/{oid}",
        "hookOutput": "",
    }
    if number is not None:
        answers["pullRequestUrl"] = f"{request.url}/{address(name)}/discussions/{number}"
    return Answer.json(answers)


@route("POST", f"{MODEL}/branch/(?P<branch>[^/]+)")
def create_branch(request: Request, name: str, branch: str) -> Answer:
    return _create_reference(
        request.writable(name), f"refs/heads/{branch}", request.json().get("startingPoint", "main")
    )


@route("POST", f"{MODEL}/tag/(?P<revision>[^/]+)")
def create_tag(request: Request, name: str, revision: str) -> Answer:
    return _create_reference(request.writable(name), f"refs/tags/{request.json()['tag']}", revision)


def _create_reference(repository: Repository, ref: str, start: str) -> Answer:
    with repository.lock:
        commit = repository.resolve(start)
        if repository.reference(ref).exists():
            raise HubError(409, f"Reference already exists: {ref}")
        repository.set_reference(ref, commit)
    return Answer(b"OK")

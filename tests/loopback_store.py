"""Model repositories on disk for the loopback Hub: content-addressed blobs, commits as JSON, references.

    ROOT/user/name/repository.json          {private, created}
                   blobs/SHA256             contents, whether git or LFS holds them
                   commits/OID.json         {parent, title, description, author, date, tree: {path: entry}}
                   refs/KIND/NAME           a commit's id; KIND is heads, tags or pr

Every file is written under a temporary name and renamed, and a commit's reference is renamed last: at any moment, and
after the death of the process, a reader sees a commit whole or not at all.
"""

import fnmatch
import hashlib
import json
import os
import re
import threading
import uuid
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

LFS_SIZE = 10 * 1024 * 1024  # a larger file is LFS whatever its name

# What every repository's .gitattributes names at first, as the Hub makes it.
_LFS_PATTERNS = """
    *.7z *.arrow *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.mlmodel *.model *.msgpack *.npy *.npz *.onnx
    *.ot *.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar *.safetensors saved_model/**/* *.tar.* *.tar *.tflite *.tgz
    *.wasm *.xz *.zip *.zst *tfevents*
"""
GIT_ATTRIBUTES = "".join(
    f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in _LFS_PATTERNS.split()
).encode()


class HubError(Exception):
    """A request that the Hub refuses: HTTP status, its message, and its X-Error-Code."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.headers: dict[str, str] = {}
        self.body: dict | None = None


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def git_oid(content: bytes, kind: str = "blob") -> str:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def looks_binary(sample: bytes) -> bool:
    if b"\0" in sample:
        return True
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        return error.start < len(sample) - 3  # otherwise only a character that the sample's end cuts
    return False


class Repository:
    """One model's repository. Reading needs no lock; what writes a reference holds `self.lock`."""

    def __init__(self, folder: Path, name: str, lock: threading.RLock):
        self.folder, self.name, self.lock = folder, name, lock

    @property
    def settings(self) -> dict:
        return json.loads((self.folder / "repository.json").read_text())

    # -- blobs ---------------------------------------------------------------------------------------------------------

    def has_blob(self, sha256: str) -> bool:
        return (self.folder / "blobs" / sha256).exists()

    def blob(self, sha256: str) -> bytes:
        return (self.folder / "blobs" / sha256).read_bytes()

    def add_blob(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        if not self.has_blob(sha256):
            write_whole(self.folder / "blobs" / sha256, content)
        return sha256

    def entry(self, sha256: str, lfs: bool) -> dict:
        """What a commit's tree holds for a file whose content is stored."""
        content = self.blob(sha256)
        oid = git_oid(lfs_pointer(sha256, len(content)) if lfs else content)
        return {"sha256": sha256, "oid": oid, "size": len(content), "lfs": lfs}

    # -- references ----------------------------------------------------------------------------------------------------

    def reference(self, ref: str) -> Path:
        _, kind, name = ref.split("/", 2)  # refs/heads/main
        return self.folder / "refs" / kind / quote(name, safe="")

    def references(self) -> dict[str, str]:
        """Every branch, tag and pull request, `refs/KIND/NAME`, and the commit it points to."""
        paths = sorted((self.folder / "refs").glob("*/[!.]*"))
        return {f"refs/{path.parent.name}/{unquote(path.name)}": path.read_text() for path in paths}

    def set_reference(self, ref: str, commit: str) -> None:
        write_whole(self.reference(ref), commit.encode())

    def full_reference(self, revision: str) -> str | None:
        """`refs/KIND/NAME` of a branch, tag or pull request, None for anything else."""
        for ref in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if re.fullmatch(r"refs/(heads|tags|pr)/.+", ref) and self.reference(ref).exists():
                return ref
        return None

    def resolve(self, revision: str) -> str:
        """The id of the commit that a branch, a tag, refs/... or an id means."""
        if ref := self.full_reference(revision):
            return self.reference(ref).read_text()
        if re.fullmatch(r"[0-9a-f]{40}", revision) and (self.folder / "commits" / f"{revision}.json").exists():
            return revision
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    # -- commits -------------------------------------------------------------------------------------------------------

    def read_commit(self, commit: str) -> dict:
        return json.loads((self.folder / "commits" / f"{commit}.json").read_text())

    def write_commit(self, **fields) -> str:
        content = json.dumps(fields, sort_keys=True).encode()
        commit = git_oid(content, "commit")
        write_whole(self.folder / "commits" / f"{commit}.json", content)
        return commit

    def history(self, revision: str) -> list[dict]:
        """The revision's commits, newest first, each with its id."""
        commits, commit = [], self.resolve(revision)
        while commit:
            commits.append({"id": commit} | self.read_commit(commit))
            commit = commits[-1]["parent"]
        return commits

    def tree(self, revision: str) -> dict[str, dict]:
        return self.read_commit(self.resolve(revision))["tree"]

    def files(self, revision: str) -> dict[str, bytes]:
        return {path: self.blob(entry["sha256"]) for path, entry in sorted(self.tree(revision).items())}

    def commit(
        self,
        operations: list[dict],
        title: str,
        author: str,
        description: str = "",
        revision: str = "main",
        parent: str | None = None,
        create_pr: bool = False,
    ) -> tuple[str, int | None]:
        """One commit from the client's operations; its id, and the pull request's number with create_pr."""
        with self.lock:
            ref = self.full_reference(revision)
            if ref is None or ref.startswith("refs/tags/"):
                raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            head = self.resolve(ref)
            if create_pr:
                head = self.resolve(parent) if parent else head
            elif parent and head != parent:
                raise HubError(412, "A commit has happened since. Please refresh and try again.")
            tree = self.read_commit(head)["tree"]
            for operation in operations:
                self.apply(operation["key"], operation["value"], tree)
            commit = self.write_commit(
                parent=head, title=title, description=description, author=author, date=now(), tree=tree
            )
            number = None
            if create_pr:
                number = 1 + sum(ref.startswith("refs/pr/") for ref in self.references())
                ref = f"refs/pr/{number}"
            self.set_reference(ref, commit)
        return commit, number

    def apply(self, key: str, value: dict, tree: dict[str, dict]) -> None:
        path = value["path"]
        if key == "file":
            tree[path] = self.entry(self.add_blob(value["content"]), lfs=False)
        elif key == "lfsFile":
            if not self.has_blob(value["oid"]):
                raise HubError(
                    400,
                    "Your push was rejected because an LFS pointer pointed to a file that does not exist. "
                    f"Offending file: - {path}",
                )
            tree[path] = self.entry(value["oid"], lfs=True)
        elif key == "deletedFile":
            if path not in tree:
                raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
            del tree[path]
        else:
            raise ValueError(key)

    # -- what the client asks before it uploads ------------------------------------------------------------------------

    def upload_modes(self, files: list[dict], revision: str, gitignore: str | None = None) -> list[dict]:
        """
        For each {path, size, sample}: LFS or not, the id of the file that is there now, whether .gitignore names it.

        The Hub reads .gitattributes, and adds a line to it for a file that is LFS by its content or size; this one does
        neither.
        """
        tree, answers = self.tree(revision), []
        if gitignore is None:
            gitignore = self.blob(tree[".gitignore"]["sha256"]).decode() if ".gitignore" in tree else ""
        for file in files:
            path, present = file["path"], tree.get(file["path"])
            named = any(fnmatch.fnmatchcase(path, pattern) for pattern in _LFS_PATTERNS.split())
            lfs = file["size"] and (named or file["size"] > LFS_SIZE or looks_binary(file["sample"]))
            oid = {"oid": present["sha256" if present["lfs"] else "oid"]} if present else {}
            mode = "lfs" if lfs else "regular"
            ignored = any(fnmatch.fnmatchcase(path, pattern) for pattern in gitignore.split())
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": ignored, **oid})
        return answers


class Store:
    """The repositories below a folder."""

    def __init__(self, root: Path):
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)
        self.lock = threading.RLock()

    def find(self, name: str) -> Repository | None:
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) or not (self.root / name / "repository.json").exists():
            return None
        return Repository(self.root / name, name, self.lock)

    def create(self, name: str, private: bool, author: str, files: dict[str, bytes] | None = None) -> Repository:
        """A repository with one commit, which holds .gitattributes and these files; it appears whole."""
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
            raise HubError(400, f"Invalid name for a model: {name!r}")
        with self.lock:
            if self.find(name):
                raise HubError(409, "You already created this model repo")
            unfinished = Repository(self.root / f".{uuid.uuid4().hex}.tmp", name, self.lock)
            first = {".gitattributes": GIT_ATTRIBUTES} | (files or {})
            tree = {path: unfinished.entry(unfinished.add_blob(each), lfs=False) for path, each in first.items()}
            commit = unfinished.write_commit(
                parent=None, title="initial commit", description="", author=author, date=now(), tree=tree
            )
            unfinished.set_reference("refs/heads/main", commit)
            settings = {"private": private, "created": now()}
            write_whole(unfinished.folder / "repository.json", json.dumps(settings).encode())
            (self.root / name).parent.mkdir(exist_ok=True)
            os.rename(unfinished.folder, self.root / name)
            return Repository(self.root / name, name, self.lock)

"""What a push finds on the Hub, and whether it may go on from there."""

from dataclasses import dataclass, field
from fnmatch import fnmatch

from .check import ALLOWED, CARD
from .client import HubRepository, PushError
from .options import PushOptions
from .record import Push, PushRecord

EDITABLE = {CARD, ".gitattributes"}  # what may change on the Hub between two pushes
# What makes a model, as this project and others write it.
MODEL_FILES = (
    *ALLOWED,
    "*.py",
    "*.safetensors",
    "*.index.json",
    "*.bin",
    "*.pt",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.spm",
)
REPLACE = "hub_upload.py --overwrite (in a recipe: hub.overwrite=true) replaces it"


@dataclass
class Situation:
    """What a push finds on the Hub."""

    exists: bool
    branch: bool
    head: str | None  # the newest commit of the branch, or of main for a branch that is to be made
    last: Push | None = None  # of this folder, if the branch goes on from it
    tree: dict[str, str] = field(default_factory=dict)  # of the newest commit
    replaces: bool = False  # whether another model is given up for this one
    tag: str | None = None  # the commit that has the tag's name


def look(repository: HubRepository, options: PushOptions, record: PushRecord) -> Situation:
    """PushError for a repository that must not get this model."""
    revision = options.revision or "main"
    private = repository.is_private()
    if private is None:
        if options.create_pr:
            raise PushError(f"{options.repo_id} does not exist, or is private and this token may not see it")
        return Situation(False, False, None)
    if options.private and not private:
        raise PushError(
            f"{options.repo_id} exists and is public; make it private in its settings, or do not ask for a private one"
        )
    branches, tags = repository.references()
    head = branches.get(revision, branches.get("main"))
    tree = repository.tree(head) if head else {}
    branch = revision in branches
    last = _own(repository, options.repo_id, revision, record, head) if branch else None
    theirs = sorted(name for name in tree if is_of_a_model(name)) if last is None else []
    begun = record.begun(options.repo_id, revision)
    allowed = options.overwrite or options.create_pr or not branch
    # Or it was allowed when a push began whose end was not seen, and nothing has happened since.
    if theirs and not allowed and not (begun and begun.parent == head):
        known = record.done(options.repo_id, revision)
        if begun:
            raise PushError(
                f"{options.repo_id} has moved to {head[:7]} since a push from here whose end was not seen; if that is "
                f"not this push, it is somebody else's, and is not overwritten. Look at it; {REPLACE}"
            )
        raise PushError(
            f"{options.repo_id} has moved to {head[:7]} since this folder's push {known.commit[:7]}: somebody else's "
            f"commit is not overwritten. Look at it; {REPLACE}"
            if known
            else f"{options.repo_id} holds a model ({', '.join(theirs[:3])}) that was not pushed from this folder; "
            f"{REPLACE}, or choose another name or revision"
        )
    return Situation(True, branch, head, last, tree, bool(theirs), tags.get(options.tag))


def is_of_a_model(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in MODEL_FILES)


def _own(repository: HubRepository, repo_id: str, revision: str, record: PushRecord, head: str | None) -> Push | None:
    """This folder's last push, if nobody has changed anything but the card since; its end need not have been seen."""
    begun = record.begun(repo_id, revision)
    if begun is not None and (arrived := repository.marked_commit(revision, begun.mark)) is not None:
        begun.commit = arrived
        record.finish(repo_id, revision, begun)
    done = record.done(repo_id, revision)
    if done is None or head is None or done.commit == head:
        return done
    changed = repository.changed_between(done.commit, head)
    return done if changed is not None and changed <= EDITABLE else None

"""Inspect a push's destination on the Hub, and decide whether the push may go there."""

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from .allowed_files import ALLOWED, CARD, matches
from .options import PushOptions
from .record import LastPush, read_last_push
from .repository import HubRepository, has_identifier

EDITABLE = {CARD, ".gitattributes"}  # what may change on the Hub between two pushes
# Files of a model, as this project and others write them. A push deletes those on the Hub that it does not contain.
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


def is_model_file(name: str) -> bool:
    """Whether a file in a repository belongs to a model."""
    return matches(name, MODEL_FILES)


@dataclass
class Destination:
    """A branch of a repository on the Hub."""

    last: LastPush  # this folder's, to that branch
    exists: bool = False  # the repository
    has_branch: bool = False
    head: str | None = None  # the newest commit of the branch, or of main if there is no such branch yet
    own: str | None = None  # this folder's newest commit, if the branch holds its model
    tree: dict[str, str] = field(default_factory=dict)  # the files of `head`; see `HubRepository.tree`
    card: str | None = None  # whose edits are to be kept
    tag: str | None = None  # the commit that already has the tag
    files: set[str] = field(default_factory=set)  # those in `tree` that belong to the model or page

    def holds(self, files: dict[str, Path], card: str) -> bool:
        """Whether the Hub has exactly these contents under these names."""
        return not self.differing(files) and has_identifier(card.encode(), self.tree.get(CARD, ""))

    def differing(self, files: dict[str, Path]) -> set[str]:
        """Names under which the Hub has nothing, or another content."""
        return {name for name, path in files.items() if not has_identifier(path.read_bytes(), self.tree.get(name, ""))}


def look(repository: HubRepository, options: PushOptions, folder: Path) -> Destination:
    """
    Check the account and the destination of a folder's push. What the branch holds decides whether it may go there:

    - no model: it may;
    - this folder's last commit, found by its id or, if its answer was lost, by its mark, with nothing changed since
      then outside `EDITABLE`: it may, and keeps the card's edits;
    - the commit that an earlier push of this folder was based on, if that push never arrived: it may;
    - anything else is somebody else's work: only with `overwrite` or as a pull request.

    Raises:
        UserError: the push may not go there.
    """
    repository.check_account(may_be_others=options.create_pr)
    last = read_last_push(folder, options.place, options.branch)
    info = repository.info()
    if info is None:
        if options.create_pr:
            raise UserError(f"{options.repo_id} does not exist, or is private and this token may not see it")
        return Destination(last)
    if options.private and not info.private:
        otherwise = ", or push without --private" if options.repo_type == "model" else ", as the model is"
        raise UserError(f"{options.place} exists and is public; make it private in its settings{otherwise}")
    branches, tags = repository.references()
    has_branch = options.branch in branches
    head = branches.get(options.branch, branches.get("main"))
    found = Destination(last, True, has_branch, head, tag=tags.get(options.tag))
    if head is None:
        return found
    found.tree = repository.tree(head)
    repository.has_gitignore = ".gitignore" in found.tree
    found.files = {name for name in found.tree if _belongs(name, options)}
    own, changed = _since_own_commit(repository, options.branch, found) if has_branch else (None, None)
    if changed is not None and changed <= EDITABLE:
        found.own = own
    is_theirs = found.own is None and bool(found.files)
    was_tried = bool(last.mark) and head == last.parent  # by a push from here that never arrived
    if is_theirs and not was_tried and has_branch and not (options.overwrite or options.create_pr):
        raise UserError(_somebody_elses(options, found))
    is_here = changed is not None and not any(_belongs(name, options) for name in changed)
    if CARD in found.tree and (is_here or not is_theirs):
        found.card = repository.text(CARD, head, found.tree[CARD])
    return found


def _belongs(name: str, options: PushOptions) -> bool:
    """Whether a file on the Hub is part of what is pushed there, so that a push may delete it."""
    return is_model_file(name) if options.repo_type == "model" else name not in EDITABLE


def _since_own_commit(repository: HubRepository, branch: str, found: Destination) -> tuple[str | None, set[str] | None]:
    """This folder's newest commit, even one whose answer was lost, and what has changed since; None: not known."""
    own = found.last.commit
    if found.last.mark and own != found.head:
        own = repository.find_commit(branch, found.last.mark) or own
    if own is None:
        return None, None
    return own, set() if own == found.head else repository.changed_since(own, found.tree)


def _somebody_elses(options: PushOptions, found: Destination) -> str:
    place, last, what = options.place, found.last, "a model" if options.repo_type == "model" else "something"
    replace = "scratch upload --overwrite (in a recipe: hub.overwrite=true) replaces it"
    if last.commit or last.mark:
        since = "an unconfirmed push from here" if last.mark else f"this folder's push {last.commit[:7]}"
        return (
            f"{place} has moved to {found.head[:7]} since {since}. The new commit may be somebody "
            f"else's, so it is not overwritten. Look at it; {replace}"
        )
    names = ", ".join(sorted(found.files)[:3])
    return (
        f"{place} holds {what} ({names}) that was not pushed from this folder; {replace}, or choose another name or "
        "revision"
    )

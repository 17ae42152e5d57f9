"""
A folder's record of its pushes, so that the next one can tell the folder's commits from somebody else's.

Inspect a push's destination on the Hub, and decide whether the push may go there.

Check a model folder and push it to the Hub, in one commit that arrives whole or not at all.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from ..errors import UserError, as_user_error, redact
from ..files import reading, temporary_folder, write_whole
from ..recipe.schema import Recipe
from ..training.folder import COMPANIONS
from ..training.records import run_of
from .allowed_files import ALLOWED, CARD, matches
from .card import (
    EditableCard,
    build_card,
    check_card,
    check_languages,
    check_license,
    choose_edited,
    given_license,
    parse_card,
    required_metadata,
    update_card,
)
from .check import check_folder
from .repository import HubRepository, PushOptions, has_identifier, opened_repository

logger = logging.getLogger(__name__)

RECORD = ".hub.json"


@dataclass
class LastPush:
    """The last push of a folder to one revision of a repository."""

    commit: str | None = None  # the last commit that is known to have arrived
    mark: str = ""  # in the description of a later commit, whose arrival was not confirmed
    parent: str | None = None  # the intended parent of that commit
    card: str | None = None  # as pushed
    metadata: dict[str, Any] = field(default_factory=dict)  # of that card, before edits were merged into it
    files: list[str] = field(default_factory=list)
    # For the next card.
    license: str | None = None
    languages: list[str] | None = None
    author: str | None = None


def _read_record(folder: Path) -> dict[str, dict[str, LastPush]]:
    """
    The last push to each revision of each repository.

    Raises:
        UserError: the file that holds them is damaged.
    """
    path = folder / RECORD
    if not path.is_file():
        return {}
    with as_user_error(f"{path}: damaged (delete it, look at the repository, then push with --overwrite): "):
        repositories = json.loads(path.read_text(encoding="utf-8"))["repositories"]
        return {
            name: {revision: LastPush(**push) for revision, push in revisions.items()}
            for name, revisions in repositories.items()
        }


def read_last_push(folder: Path, repo_id: str, revision: str) -> LastPush:
    """The record of the last push; an empty `LastPush` if there was none. UserError if the file is damaged."""
    return _read_record(folder).get(repo_id, {}).get(revision, LastPush())


def push_of_card(folder: Path, card: str | None) -> LastPush:
    """The record of the push of a card from this folder to any place; an empty `LastPush` for any other card."""
    pushes = (push for revisions in _read_record(folder).values() for push in revisions.values())
    return next((push for push in pushes if card is not None and push.card == card), LastPush())


def write_last_push(folder: Path, repo_id: str, revision: str, push: LastPush) -> None:
    """Record a push in place of the one before."""
    content = _read_record(folder)
    content.setdefault(repo_id, {})[revision] = push
    write_whole(folder / RECORD, json.dumps({"repositories": content}, default=asdict, indent=2))


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


@dataclass
class Prepared:
    """What a push would send."""

    files: dict[str, Path]  # {path in the repository: local file}, except the card
    card: str
    findings: list[str]  # of the check
    remembered: LastPush  # what the next push must know about this one, except its commit

    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        sizes = {name: path.stat().st_size for name, path in sorted(self.files.items())}
        return sizes | {CARD: len(self.card.encode())}

    def operations(self, stale: set[str]) -> list:
        """Additions, and deletions of what is no longer part of the model."""
        # As open files: huggingface_hub hands paths to another client, which our time limit does not reach.
        additions = [CommitOperationAdd(name, path.open("rb")) for name, path in self.files.items()]
        additions.append(CommitOperationAdd(CARD, self.card.encode()))
        return additions + [CommitOperationDelete(name) for name in sorted(stale)]


@dataclass
class Pushed:
    """Where the model, or its page, is now."""

    url: str
    changed: bool  # False: it was there already
    repo_id: str
    commit: str
    is_model: bool = True

    @property
    def outcome(self) -> str:
        return f"{'pushed' if self.changed else 'nothing has changed since'}: {self.url}"

    def describe(self) -> str:
        """Where it is, and the line of Python that loads exactly this model."""
        said = self.outcome
        if not self.is_model:
            return said
        name = f'"{self.repo_id}", revision="{self.commit}"'
        return f"{said}\n  AutoModelForSeq2SeqLM.from_pretrained({name}, trust_remote_code=True)"


Preparation = Callable[[Path, PushOptions, Path, str | None], Prepared]


# -- preparing ---------------------------------------------------------------------------------------------------------


def prepare(folder: Path, options: PushOptions, copy: Path, card_on_hub: str | None = None) -> Prepared:
    """
    Copy what a push would send to an empty folder, check it there, and generate the card.

    Args:
        copy: the empty folder. What is checked here is what is pushed, whatever happens to `folder` meanwhile.
        card_on_hub: the text of the card there, whose edits are to be kept.

    Raises:
        UserError: what is wrong with the folder or the card.
    """
    run = run_of(folder)
    findings = check_folder(folder, copy, run)
    last = read_last_push(folder, options.place, options.branch)
    card_in_folder = _read(folder / CARD)
    origin = push_of_card(folder, card_in_folder)  # it may be of a push to another place
    said = last if last.card is not None else origin  # so that a first push knows what was said at the last one
    license = given_license(run, options.license)
    given = {
        "license": license or said.license,
        "languages": options.languages or said.languages,
        "author": options.author or said.author,
    }
    space = replace(options, repo_type="space").place
    has_space = options.space or read_last_push(folder, space, "main").commit is not None
    generated = build_card(folder, options.repo_id, run, **given, has_space=has_space)
    new = EditableCard(generated.data.to_dict(), "", generated.text, "")
    texts = {"the card": card_in_folder, "the card on the Hub": card_on_hub, "the last card": last.card}
    in_folder, on_hub, pushed = (None if text is None else parse_card(text, what) for what, text in texts.items())
    edited = choose_edited(new, in_folder, on_hub, pushed) or (in_folder if options.overwrite else None)
    _check_edited(edited, folder)
    first, second = (origin, last) if edited is in_folder else (last, origin)
    replaced = {key for key, value in {"license": license, "language": options.languages}.items() if value}
    merged = update_card(new, edited, replaced, first.metadata or second.metadata)
    card = str(merged)
    check_card(card, required_metadata(run))
    unknown = [key for key in ("language", "license") if not merged.metadata.get(key)]
    findings.append(f"card: complete, but not known: {' and '.join(unknown)}" if unknown else "card: complete")
    files = {path.relative_to(copy).as_posix(): path for path in sorted(copy.rglob("*")) if path.is_file()}
    remembered = LastPush(card=card, metadata=new.edits()[0], files=sorted({*files, CARD}), **given)
    return Prepared(files, card, findings, remembered)


def _check_edited(card: EditableCard | None, folder: Path) -> None:
    """UserError if no card was chosen; a warning if nothing in it is generated."""
    if card is None:
        raise UserError(
            f"the model card was edited both on the Hub and in {folder}: delete {folder / CARD} to keep the Hub's, or "
            "push with --overwrite to keep the folder's"
        )
    if card.generated is None:
        logger.warning(
            f"the card's text is kept as it is, with nothing generated from the model's records; delete {CARD} in the "
            "folder and on the Hub to have it generated"
        )


def _read(path: Path) -> str | None:
    """A text file; None if there is none."""
    if not path.is_file():
        return None
    with reading(path, "correct it, or delete it; it is "):
        return path.read_text(encoding="utf-8")


def deletions(folder: Path, options: PushOptions, prepared: Prepared) -> set[str]:
    """Files of this folder's last push that this one would delete."""
    last = read_last_push(folder, options.place, options.branch)
    return {name for name in set(last.files) - set(prepared.files) if is_model_file(name)}


# -- pushing -----------------------------------------------------------------------------------------------------------


def push(folder: Path, options: PushOptions, prepare: Preparation = prepare) -> Pushed:
    """
    Check a model's folder and push it. Pushing again without changes makes no commit.

    Args:
        prepare: makes what is pushed from the folder.

    Raises:
        UserError: the message says what happened, what is on the Hub, and what to do.
    """
    with opened_repository(options) as repository, temporary_folder() as copy:
        found = look(repository, options, folder)
        prepared = prepare(folder, options, copy, found.card)
        _check_companions(options, found, prepared.files)
        stale = found.files - prepared.files.keys()
        changes = found.tag is not None and (stale or not found.holds(prepared.files, prepared.card))
        if found.tag is not None and (found.tag != found.head or changes):
            raise UserError(f"the tag {options.tag} exists, at {found.tag[:7]}; choose another, or delete it there")
        sizes = prepared.sizes()
        logger.info(f"pushing {len(sizes)} files, {sum(sizes.values()):,} bytes, to {options.place}")
        if options.create_pr:
            commit, url = repository.open_pull_request(prepared.operations(stale), options.message, found.head)
            return Pushed(url or repository.url(commit), commit != found.head, options.repo_id, commit)
        # Recorded before anything is sent, so that the next push recognizes a commit whose answer is lost.
        mark = f"modeling_scratch {uuid.uuid4().hex}"
        begun = replace(found.last, commit=found.own or found.last.commit, mark=mark, parent=found.head)
        write_last_push(folder, options.place, options.branch, begun)
        if not found.exists:
            repository.create(options.private)
        if not found.has_branch and options.branch != "main":
            repository.create_branch(options.branch)
        parent = found.head or repository.references()[0].get(options.branch)
        if parent != found.head:  # the Hub's own first commit to a new Space
            write_last_push(folder, options.place, options.branch, replace(begun, parent=parent))
        # huggingface_hub makes no commit that would change nothing.
        commit = repository.commit(lambda: prepared.operations(stale), options.message, mark, options.branch, parent)
        is_model = options.repo_type == "model"
        with _arrived("model" if is_model else "page", repository.url(commit), commit):
            write_last_push(folder, options.place, options.branch, replace(prepared.remembered, commit=commit))
            if is_model:
                write_whole(folder / CARD, prepared.card)
            if options.tag:
                repository.create_tag(options.tag, commit)
    return Pushed(repository.url(commit), commit != parent, options.repo_id, commit, is_model)


def _check_companions(options: PushOptions, found: Destination, files: dict[str, Path]) -> None:
    """UserError if a first push of these files would replace a license or notice that is there already."""
    if found.own is not None or not found.has_branch or options.overwrite or options.create_pr:
        return
    there = {name: path for name, path in files.items() if name in found.tree.keys() - found.files}
    if names := found.differing(there):
        raise UserError(
            f"{options.place} has its own {' and '.join(sorted(names))}, with another content than the folder's; "
            "take over one of them, or replace the Hub's with scratch upload --overwrite (in a recipe: "
            "hub.overwrite=true)"
        )


@contextmanager
def _arrived(what: str, url: str, commit: str) -> Iterator[None]:
    """If something fails after the commit, begin its message with where the model is."""
    there = f"the {what} is at {url} (revision {commit})"
    again = "the same command again does the rest, and sends nothing twice"
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"{there}; interrupted before all was recorded: {again}") from interrupt
    except Exception as error:
        raise UserError(f"{there}; what was left to do failed ({error or type(error).__name__}): {again}") from error


# -- for runs ----------------------------------------------------------------------------------------------------------


def _options(recipe: Recipe, message: str = "Upload model") -> PushOptions:
    hub = recipe.hub
    assert hub.repository is not None
    return PushOptions(hub.repository, message=message, **hub.model_dump(exclude={"repository", "push"}))


def check_destination(recipe: Recipe) -> None:
    """Before training, raise UserError for what would make the recipe's push fail whatever the run's outcome."""
    options, folder = _options(recipe), Path(recipe.output_dir)
    if options.license is not None:
        check_license(options.license)
    check_languages(recipe.data.source_language, recipe.data.target_language)
    companions = {path.name: path for each in COMPANIONS for path in folder.glob(each) if path.is_file()}
    with opened_repository(options) as repository:
        _check_companions(options, look(repository, options, folder), companions)


def push_run(recipe: Recipe) -> Pushed:
    """Push a finished run as its recipe specifies. UserError says how to push it by hand."""
    options = _options(recipe)
    by_hand = f"The model is whole in {recipe.output_dir}; push it with: {options.command(recipe.output_dir)}"
    try:
        return push(Path(recipe.output_dir), options)
    except (ValueError, OSError) as error:
        raise UserError(f"{error}. {by_hand}") from error
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "interrupted; the Hub has the old revision or the new one"
        raise KeyboardInterrupt(f"{said}. {by_hand}") from None


def try_push(recipe: Recipe, message: str) -> None:
    """Push during training. A failed push is only logged; the next one sends everything."""
    try:
        logger.info(push(Path(recipe.output_dir), _options(recipe, message)).outcome)
    except UserError as error:
        logger.warning(redact(f"while pushing: {error}"))
    except Exception as error:  # training continues whatever it is
        logger.warning(f"while pushing: {type(error).__name__}: {' '.join(redact(str(error)).split())}")

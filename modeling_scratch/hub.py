"""The push: a run's folder, checked, to the Hub in one commit that arrives whole or not at all."""

import hashlib
import logging
import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, ModelCard

from .card_text import check_card, merge_card
from .folder_check import ALLOWED, CARD, check_folder
from .hub_client import HubRepository, PushError, check_name, redact
from .model_card import build_card, check_languages, check_license
from .push_record import Push, PushRecord
from .recipe import Recipe, load_recipe
from .run_folder import RECIPE, write_whole

logger = logging.getLogger(__name__)

CARD_BASE = ".card.md"  # the card as generated last, so that the next one knows what was edited by hand
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
class PushOptions:
    """Where to and how; the names of hub_upload.py's flags."""

    repo_id: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    tag: str | None = None
    message: str = "Upload model"
    license: str | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Raise PushError for what cannot be, whatever the folder and the Hub hold."""
        check_name(self.repo_id)
        if not self.message.strip():
            raise PushError("--message is empty")
        for name, value in (("--tag", self.tag), ("--revision", self.revision)):
            if value is not None and not re.fullmatch(r"(?!.*(\.\.|//|\.lock$))[\w][\w./-]*(?<![./])", value):
                raise PushError(f"{name} {value!r} is no name that git takes; letters, digits, - . _ / are fine")
        if self.create_pr and (self.tag or self.revision):
            raise PushError("--create-pr proposes a change of main: --tag and --revision do not go with it")

    def command(self, folder: str) -> str:
        """What to type for this push."""
        words = ["python", "hub_upload.py", folder, self.repo_id]
        for name, default in (("private", False), ("overwrite", False)):
            words += [f"--{name}"] * (getattr(self, name) != default)
        for name in ("revision", "license", "tag"):
            words += [f"--{name}", value] if (value := getattr(self, name)) is not None else []
        return shlex.join(words)


@dataclass
class Prepared:
    """What would go: {path in the repository: the file that has its contents}, and the card."""

    files: dict[str, Path]
    card: str
    generated_card: str
    findings: list[str]

    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        sizes = {name: path.stat().st_size for name, path in sorted(self.files.items())}
        return sizes | {CARD: len(self.card.encode())}

    def mark(self) -> str:
        """A name for exactly these contents, by which a commit is recognised."""
        total = hashlib.sha256(self.card.encode())
        for name, path in sorted(self.files.items()):
            with path.open("rb") as file:
                total.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return f"modeling_scratch {total.hexdigest()}"

    def operations(self, stale: set[str]) -> list:
        """Additions, and deletions of what is no longer part of the model."""
        additions = [CommitOperationAdd(name, str(path)) for name, path in self.files.items()]
        additions.append(CommitOperationAdd(CARD, self.card.encode()))
        return additions + [CommitOperationDelete(name) for name in sorted(stale)]


@dataclass
class Pushed:
    """Where the model is now."""

    url: str
    changed: bool  # False: it was there already


# -- preparing ---------------------------------------------------------------------------------------------------------


def _read(path: Path) -> str | None:
    """A text file with the line ends that it has; None if there is none."""
    if not path.is_file():
        return None
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8 ({error.reason}); mend it, or delete it") from None


def prepare(folder: Path, options: PushOptions, copy: Path, remote_card: str | None = None, base: str = "") -> Prepared:
    """
    Copy what would go to an empty folder, check it there, and make its card: the generated one with what was edited by
    hand in the folder and on the Hub. Where both edited the same, the folder's edit is kept.

    Args:
        copy: what is pushed is what was checked, whatever happens to the folder meanwhile.
        remote_card: that on the Hub, if its edits are to be kept.
        base: what `remote_card` was before anybody edited it, as far as is known.

    Raises:
        ValueError: what is wrong with the folder or the card.
    """
    record, findings = PushRecord(folder), check_folder(folder, copy)
    license = options.license or load_recipe(folder / RECIPE).hub.license
    if license is None and (last := record.done(options.repo_id, options.revision or "main")):
        license = last.license
    generated = str(build_card(folder, options.repo_id, license))
    edited, card = _read(folder / CARD), generated
    if edited is not None:
        card = merge_card(card, edited, _read(folder / CARD_BASE))
    if remote_card is not None:
        card = merge_card(card, remote_card, base or None)
        if edited is not None and record.written:
            card = merge_card(card, edited, record.written)
    check_card(card, copy)
    said = ModelCard(card).data.license
    if options.license is not None and said != check_license(options.license):
        raise ValueError(
            f"--license is {options.license}, but the card, which was edited by hand, says {said}; change one of them"
        )
    findings.append("card: complete")
    files = {path.relative_to(copy).as_posix(): path for path in sorted(copy.rglob("*")) if path.is_file()}
    return Prepared(files, card, generated, findings)


def deletions(folder: Path, options: PushOptions, prepared: Prepared) -> set[str]:
    """What this folder's last push brought and this one would delete."""
    last = PushRecord(folder).done(options.repo_id, options.revision or "main")
    return set(last.files) - set(prepared.files) - {CARD} if last else set()


# -- pushing -----------------------------------------------------------------------------------------------------------


@dataclass
class _Situation:
    """What a push finds on the Hub."""

    exists: bool
    branch: bool
    head: str | None  # the newest commit of the branch, or of main for a branch that is to be made
    last: Push | None = None  # of this folder, if the branch goes on from it
    files: frozenset[str] = frozenset()
    replaces: bool = False  # whether another model is given up for this one
    tag: str | None = None  # the commit that has the tag's name


def _look(repository: HubRepository, options: PushOptions, record: PushRecord) -> _Situation:
    """PushError for a repository that must not get this model."""
    revision = options.revision or "main"
    private = repository.is_private()
    if private is None:
        if options.create_pr:
            raise PushError(f"{options.repo_id} does not exist, or is private and this token may not see it")
        return _Situation(False, False, None)
    if options.private and not private:
        raise PushError(
            f"{options.repo_id} exists and is public; make it private in its settings, or do not ask for a private one"
        )
    branches, tags = repository.references()
    head = branches.get(revision, branches.get("main"))
    files = repository.files(head) if head else set()
    branch = revision in branches
    last = _own(repository, options.repo_id, revision, record, head) if branch else None
    theirs = sorted(name for name in files if _is_of_a_model(name)) if last is None else []
    begun = record.begun(options.repo_id, revision)
    allowed = options.overwrite or options.create_pr or not branch
    # Or it was allowed when a push began whose end was not seen, and nothing has happened since.
    if theirs and not allowed and not (begun and begun.parent == head):
        known = record.done(options.repo_id, revision)
        raise PushError(
            f"{options.repo_id} has moved to {head[:7]} since this folder's push {known.commit[:7]}: somebody else's "
            f"commit is not overwritten. Look at it; {REPLACE}"
            if known
            else f"{options.repo_id} holds a model ({', '.join(theirs[:3])}) that was not pushed from this folder; "
            f"{REPLACE}, or choose another name or revision"
        )
    return _Situation(True, branch, head, last, frozenset(files), bool(theirs), tags.get(options.tag))


def _is_of_a_model(name: str) -> bool:
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


def push(folder: Path, options: PushOptions) -> Pushed:
    """
    Check a run's folder and push it. Running it again without changes makes no commit.

    Raises:
        PushError, ValueError: nothing, or all, was pushed; the message says what happened and what to do.
    """
    options.check()
    repository = HubRepository(options.repo_id)
    repository.check_account(may_be_others=options.create_pr)
    record, revision = PushRecord(folder), options.revision or "main"
    with TemporaryDirectory() as name:
        found = _look(repository, options, record)
        remote_card = base = None
        if found.head is not None and not found.replaces:
            remote_card, base = repository.card(CARD, found.head), found.last.card if found.last else None
        prepared = prepare(folder, options, Path(name), remote_card, base or "")  # before anything is made on the Hub
        stale = deletions(folder, options, prepared)
        if found.replaces:
            stale |= set(filter(_is_of_a_model, found.files))
        stale = (stale & found.files) - set(prepared.files) - {CARD}
        mark = prepared.mark()
        if found.tag is not None and not (found.last and found.tag == found.last.commit and found.last.mark == mark):
            raise PushError(f"the tag {options.tag} exists, at {found.tag[:7]}; choose another, or delete it there")
        if options.create_pr:
            return _propose(repository, options, prepared, found, stale, mark)
        this = Push(None, found.head, mark, prepared.card, options.license, sorted({*prepared.files, CARD}))
        record.begin(options.repo_id, revision, this)
        if not found.exists:
            repository.create(options.private)
        if not found.branch and revision != "main":
            repository.create_branch(revision)
        if found.head is None:
            this.parent = repository.references()[0].get(revision)
            record.begin(options.repo_id, revision, this)
        this.commit, _ = repository.commit(
            lambda: prepared.operations(stale), options.message, mark, revision, this.parent, create_pr=False
        )
        changed = this.commit != this.parent
        record.finish(options.repo_id, revision, this)
        write_whole(folder / CARD, prepared.card)
        write_whole(folder / CARD_BASE, prepared.generated_card)
        record.write(prepared.card)
        if options.tag:
            repository.create_tag(options.tag, this.commit)
    return Pushed(repository.url(this.commit), changed)


def _propose(
    repository: HubRepository,
    options: PushOptions,
    prepared: Prepared,
    found: _Situation,
    stale: set[str],
    mark: str,
) -> Pushed:
    """Open a pull request, unless one is open that says the same. Nothing of it is recorded in the folder."""
    if (open_already := repository.open_pull_request(mark)) is not None:
        return Pushed(open_already[1], changed=False)
    commit, url = repository.commit(
        lambda: prepared.operations(stale), options.message, mark, "main", found.head, create_pr=True
    )
    return Pushed(url or repository.url(commit), changed=url is not None)


# -- for runs ----------------------------------------------------------------------------------------------------------


def _options(recipe: Recipe, message: str = "Upload model") -> PushOptions:
    section = recipe.hub
    assert section.repository is not None
    return PushOptions(
        section.repository,
        private=section.private,
        revision=section.revision,
        message=message,
        license=section.license,
        overwrite=section.overwrite,
    )


def check_destination(recipe: Recipe) -> None:
    """Raise ValueError for what would make the recipe's push fail whatever the run gives: before training."""
    options = _options(recipe)
    options.check()
    check_license(options.license)
    check_languages(recipe.data.source_language, recipe.data.target_language)
    repository = HubRepository(options.repo_id)
    repository.check_account(may_be_others=False)
    _look(repository, options, PushRecord(Path(recipe.output_dir)))


def push_run(recipe: Recipe) -> Pushed:
    """Push a recipe's run as it says. PushError says how to push again by hand."""
    options = _options(recipe)
    try:
        return push(Path(recipe.output_dir), options)
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise PushError(
            f"{error}. The model is whole in {recipe.output_dir}; push it with: {options.command(recipe.output_dir)}"
        ) from error


def try_push(recipe: Recipe, message: str) -> None:
    """Push while training goes on: a push that fails costs no training, and the next one brings all of it."""
    try:
        logger.info(f"pushed: {push(Path(recipe.output_dir), _options(recipe, message)).url}")
    except Exception as error:  # whatever it is: the training is worth more
        logger.warning(f"not pushed: {type(error).__name__}: {' '.join(redact(str(error)).split())}")

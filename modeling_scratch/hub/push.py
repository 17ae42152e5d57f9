"""Check a model folder and push it to the Hub, in one commit that arrives whole or not at all."""

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, ModelCard

from ..errors import UserError
from ..files import write_whole
from ..recipe.schema import Recipe
from ..redaction import redact
from ..runs.folder import COMPANIONS
from .allowed_files import CARD
from .card import build_card, check_card, check_languages, check_license, given_license, required_metadata
from .card_edits import EditableCard, choose_edited, parse_card, update_card
from .check import check_folder
from .destination import EDITABLE, Destination, is_model_file, look
from .options import PushOptions
from .record import LastPush, push_of_card, read_last_push, write_last_push
from .repository import HubRepository, PushError, opened_repository

logger = logging.getLogger(__name__)


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

    def describe(self) -> str:
        """Where it is, and the line of Python that loads exactly this model."""
        said = f"{'pushed' if self.changed else 'nothing has changed since'}: {self.url}"
        if not self.is_model:
            return said
        name = f'"{self.repo_id}", revision="{self.commit}"'
        return f"{said}\n  AutoModelForSeq2SeqLM.from_pretrained({name}, trust_remote_code=True)"


@dataclass(frozen=True)
class Kind:
    """What is pushed."""

    name: str
    repo_type: str  # as huggingface_hub calls it
    belongs: Callable[[str], bool]  # whether a file on the Hub is part of it, so that a push may delete it

    def key(self, repo_id: str) -> str:
        """The repository's key in a folder's record of its pushes."""
        return repo_id if self.repo_type == "model" else f"{self.repo_type}s/{repo_id}"


MODEL = Kind("model", "model", is_model_file)
SPACE = Kind("page", "space", lambda name: name not in EDITABLE)
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
    findings = check_folder(folder, copy)
    last = read_last_push(folder, options.repo_id, options.branch)
    has_space = options.space or read_last_push(folder, SPACE.key(options.repo_id), "main").commit is not None
    license = given_license(folder, options.license)
    # A first push to this place knows what was said at the last one to another.
    said = last if last.card is not None else push_of_card(folder, _read(folder / CARD))
    given = {
        "license": license or said.license,
        "languages": options.languages or said.languages,
        "author": options.author or said.author,
    }
    replaced = {key for key, value in {"license": license, "language": options.languages}.items() if value}
    generated = build_card(folder, options.repo_id, **given, has_space=has_space)
    new = parse_card(str(EditableCard(generated.data.to_dict(), "", generated.text, "")), "the card")
    card = _edited_card(folder, new, card_on_hub, last, options.overwrite, replaced)
    check_card(card, required_metadata(folder))
    metadata = ModelCard(card).data.to_dict()
    unknown = [key for key in ("language", "license") if key not in metadata]
    findings.append(f"card: complete, but not known: {' and '.join(unknown)}" if unknown else "card: complete")
    files = {path.relative_to(copy).as_posix(): path for path in sorted(copy.rglob("*")) if path.is_file()}
    remembered = LastPush(card=card, metadata=new.edits()[0], files=sorted({*files, CARD}), **given)
    return Prepared(files, card, findings, remembered)


def _edited_card(
    folder: Path, new: EditableCard, on_hub: str | None, last: LastPush, overwrite: bool, replaced: set[str]
) -> str:
    """The generated card, with the edits made in the folder or on the Hub."""
    texts = {"the card": _read(folder / CARD), "the card on the Hub": on_hub, "the last card": last.card}
    in_folder, on_hub, pushed = (None if text is None else parse_card(text, what) for what, text in texts.items())
    edited = choose_edited(new, in_folder, on_hub, pushed) or (in_folder if overwrite else None)
    if edited is None:
        raise UserError(
            f"the model card was edited both on the Hub and in {folder}: delete {folder / CARD} to keep the Hub's, or "
            "push with --overwrite to keep the folder's"
        )
    if edited.generated is None:
        logger.warning(
            f"the card's text is kept as it is, with nothing generated from the model's records; delete {CARD} in the "
            "folder and on the Hub to have it generated"
        )
    origin = push_of_card(folder, texts["the card"])  # the folder's card may be of a push to another place
    first, second = (origin, last) if edited is in_folder else (last, origin)
    before = first.metadata or second.metadata
    return str(update_card(new, edited, replaced, before))


def _read(path: Path) -> str | None:
    """A text file; None if there is none."""
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 ({error.reason}); mend it, or delete it") from None


def deletions(folder: Path, options: PushOptions, prepared: Prepared) -> set[str]:
    """Files of this folder's last push that this one would delete."""
    last = read_last_push(folder, options.repo_id, options.branch)
    return {name for name in set(last.files) - set(prepared.files) if is_model_file(name)}


# -- pushing -----------------------------------------------------------------------------------------------------------


def push(folder: Path, options: PushOptions, kind: Kind = MODEL, prepare: Preparation = prepare) -> Pushed:
    """
    Check a model's folder and push it. Pushing again without changes makes no commit.

    Args:
        kind, prepare: what is pushed instead of the model, and how it is made from the folder.

    Raises:
        PushError, UserError: the message says what happened, what is on the Hub, and what to do.
    """
    options.check()
    opened, key = opened_repository(options.repo_id, options.timeout, kind.repo_type), kind.key(options.repo_id)
    with opened as repository, TemporaryDirectory() as copy:
        repository.check_account(may_be_others=options.create_pr)
        last = read_last_push(folder, key, options.branch)
        found = look(repository, options, last, kind.belongs)
        prepared = prepare(folder, options, Path(copy), found.card)
        _check_companions(repository, options, found, prepared.files)
        stale = found.files - prepared.files.keys()
        changes = found.tag is not None and (stale or not found.holds(prepared.files, prepared.card))
        if found.tag is not None and (found.tag != found.head or changes):
            raise PushError(f"the tag {options.tag} exists, at {found.tag[:7]}; choose another, or delete it there")
        sizes = prepared.sizes()
        logger.info(f"pushing {len(sizes)} files, {sum(sizes.values()):,} bytes, to {repository.place}")
        if options.create_pr:
            commit, url = repository.open_pull_request(prepared.operations(stale), options.message, found.head)
            return Pushed(url or repository.url(commit), commit != found.head, options.repo_id, commit)
        # Recorded before anything is sent, so that the next push recognizes a commit whose answer is lost.
        mark = f"modeling_scratch {uuid.uuid4().hex}"
        begun = replace(last, commit=found.own or last.commit, mark=mark, parent=found.head)
        write_last_push(folder, key, options.branch, begun)
        _make_branch(repository, options, found)
        parent = found.head or repository.references()[0].get(options.branch)
        if parent != found.head:  # the Hub's own first commit to a new Space
            write_last_push(folder, key, options.branch, replace(begun, parent=parent))
        # huggingface_hub makes no commit that would change nothing.
        commit = repository.commit(lambda: prepared.operations(stale), options.message, mark, options.branch, parent)
        with _arrived(kind.name, repository.url(commit), commit):
            write_last_push(folder, key, options.branch, replace(prepared.remembered, commit=commit))
            if kind is MODEL:
                write_whole(folder / CARD, prepared.card)
            if options.tag:
                repository.create_tag(options.tag, commit)
    return Pushed(repository.url(commit), commit != parent, options.repo_id, commit, kind is MODEL)


def _check_companions(
    repository: HubRepository, options: PushOptions, found: Destination, files: dict[str, Path]
) -> None:
    """PushError if a first push of these files would replace a license or notice that is there already."""
    if found.own is not None or not found.has_branch or options.overwrite or options.create_pr:
        return
    there = {name: path for name, path in files.items() if name in found.tree.keys() - found.files}
    if names := found.differing(there):
        raise PushError(
            f"{repository.place} has its own {' and '.join(sorted(names))}, with another content than the folder's; "
            "take over one of them, or replace the Hub's with scratch upload --overwrite (in a recipe: "
            "hub.overwrite=true)"
        )


def _make_branch(repository: HubRepository, options: PushOptions, found: Destination) -> None:
    """Create the repository and the branch if they do not exist."""
    if not found.exists:
        repository.create(options.private)
    if not found.has_branch and options.branch != "main":
        repository.create_branch(options.branch)


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
        raise PushError(f"{there}; what was left to do failed ({error or type(error).__name__}): {again}") from error


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
        timeout=section.timeout,
    )


def check_destination(recipe: Recipe) -> None:
    """Before training, raise UserError for what would make the recipe's push fail whatever the run's outcome."""
    options = _options(recipe)
    options.check()
    if options.license is not None:
        check_license(options.license)
    check_languages(recipe.data.source_language, recipe.data.target_language)
    with opened_repository(options.repo_id, options.timeout) as repository:
        repository.check_account(may_be_others=False)
        folder = Path(recipe.output_dir)
        found = look(repository, options, read_last_push(folder, options.repo_id, options.branch))
        companions = {path.name: path for each in COMPANIONS for path in folder.glob(each) if path.is_file()}
        _check_companions(repository, options, found, companions)


def push_run(recipe: Recipe) -> Pushed:
    """Push a finished run as its recipe specifies. PushError says how to push it by hand."""
    options = _options(recipe)
    by_hand = f"The model is whole in {recipe.output_dir}; push it with: {options.command(recipe.output_dir)}"
    try:
        return push(Path(recipe.output_dir), options)
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise PushError(f"{error}. {by_hand}") from error
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "interrupted; the Hub has the old revision or the new one"
        raise KeyboardInterrupt(f"{said}. {by_hand}") from None


def try_push(recipe: Recipe, message: str) -> None:
    """Push during training. A failed push is only logged; the next one sends everything."""
    try:
        logger.info(f"pushed: {push(Path(recipe.output_dir), _options(recipe, message)).url}")
    except PushError as error:
        logger.warning(redact(f"while pushing: {error}"))
    except Exception as error:  # training continues whatever it is
        logger.warning(f"while pushing: {type(error).__name__}: {' '.join(redact(str(error)).split())}")

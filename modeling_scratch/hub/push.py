"""Check a model folder and push it to the Hub, in one commit that arrives whole or not at all."""

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from ..errors import UserError
from ..files import reading, temporary_folder, write_whole
from ..recipe.schema import Recipe
from ..redaction import redact
from ..runs.folder import COMPANIONS
from .allowed_files import CARD
from .card import build_card, check_card, check_languages, check_license, given_license, required_metadata
from .card_edits import EditableCard, choose_edited, parse_card, update_card
from .check import check_folder
from .destination import Destination, is_model_file, look
from .options import PushOptions
from .record import LastPush, push_of_card, read_last_push, write_last_push
from .repository import opened_repository
from .run_records import run_of

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

"""The push: a model's folder, checked, to the Hub in one commit that arrives whole or not at all."""

import hashlib
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, ModelCard

from ..errors import UserError
from ..files import write_whole
from ..recipe.reading import load_recipe
from ..recipe.schema import Recipe
from ..redaction import redact
from ..runs.folder import RECIPE
from .card import build_card, check_languages, check_license, required_metadata
from .card_text import check_card, merge_card
from .check import CARD, check_folder
from .client import HubRepository, PushError, contents_name, opened_repository
from .options import PushOptions
from .record import Push, PushRecord
from .situation import Situation, is_of_a_model, look

logger = logging.getLogger(__name__)

CARD_BASE = ".card.md"  # the card as generated last, so that the next one knows what was edited by hand


@dataclass
class Prepared:
    """What would go: {path in the repository: the file that has its contents}, and the card."""

    files: dict[str, Path]
    card: str
    generated_card: str
    findings: list[str]
    told: dict[str, Any]  # what the next push remembers: license, languages, author

    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        sizes = {name: path.stat().st_size for name, path in sorted(self.files.items())}
        return sizes | {CARD: len(self.card.encode())}

    @cached_property
    def mark(self) -> str:
        """A name for exactly these contents, by which a commit is recognised; all of the weights are read for it."""
        total = hashlib.sha256(self.card.encode())
        for name, path in sorted(self.files.items()):
            with path.open("rb") as file:
                total.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return f"modeling_scratch {total.hexdigest()}"

    def operations(self, stale: set[str]) -> list:
        """Additions, and deletions of what is no longer part of the model."""
        # As open files: huggingface_hub gives paths to a client of its own, which no limit of ours ends.
        additions = [CommitOperationAdd(name, path.open("rb")) for name, path in self.files.items()]
        additions.append(CommitOperationAdd(CARD, self.card.encode()))
        return additions + [CommitOperationDelete(name) for name in sorted(stale)]


@dataclass
class Pushed:
    """Where the model is now."""

    url: str
    changed: bool  # False: it was there already
    repo_id: str
    commit: str

    def describe(self) -> str:
        """Where it is, and the line of Python that loads exactly this."""
        what = "pushed" if self.changed else "nothing has changed since"
        name = f'"{self.repo_id}", revision="{self.commit}"'
        return f"{what}: {self.url}\n  AutoModelForSeq2SeqLM.from_pretrained({name}, trust_remote_code=True)"


# -- preparing ---------------------------------------------------------------------------------------------------------


def _read(path: Path) -> str | None:
    """A text file with the line ends that it has; None if there is none."""
    if not path.is_file():
        return None
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 ({error.reason}); mend it, or delete it") from None


def prepare(folder: Path, options: PushOptions, copy: Path, remote_card: str | None = None, base: str = "") -> Prepared:
    """
    Copy what would go to an empty folder, check it there, and make its card: the generated one with what was edited by
    hand in the folder and on the Hub. Where both edited the same, the folder's edit is kept.

    Args:
        copy: what is pushed is what was checked, whatever happens to the folder meanwhile.
        remote_card: that on the Hub, if its edits are to be kept.
        base: what `remote_card` was before anybody edited it, as far as is known.

    Raises:
        UserError: what is wrong with the folder or the card.
    """
    record, findings = PushRecord(folder), check_folder(folder, copy)
    last = record.done(options.repo_id, options.revision or "main") or Push()
    license = options.license
    if license is None and (folder / RECIPE).is_file():
        license = load_recipe(folder / RECIPE).hub.license
    told = {
        "license": license or last.license,
        "languages": options.languages or last.languages,
        "author": options.author or last.author,
    }
    generated = str(build_card(folder, options.repo_id, **told))
    edited, card = _read(folder / CARD), generated
    if edited is not None:
        card = merge_card(card, edited, _read(folder / CARD_BASE))
    if remote_card is not None:
        card = merge_card(card, remote_card, base or None)
        if edited is not None and record.written:
            card = merge_card(card, edited, record.written)
    check_card(card, copy, required_metadata(folder))
    data = ModelCard(card).data.to_dict()
    said = data.get("license")
    if options.license is not None and said != check_license(options.license):
        raise UserError(
            f"--license is {options.license}, but the card, which was edited by hand, says {said}; change one of them"
        )
    unknown = [key for key in ("language", "license") if key not in data]
    findings.append(f"card: complete, but for what is not known: {', '.join(unknown)}" if unknown else "card: complete")
    files = {path.relative_to(copy).as_posix(): path for path in sorted(copy.rglob("*")) if path.is_file()}
    return Prepared(files, card, generated, findings, told)


def deletions(folder: Path, options: PushOptions, prepared: Prepared) -> set[str]:
    """What this folder's last push brought and this one would delete."""
    last = PushRecord(folder).done(options.repo_id, options.revision or "main")
    return set(last.files) - set(prepared.files) - {CARD} if last else set()


# -- pushing -----------------------------------------------------------------------------------------------------------


class ArrivedError(PushError):
    """A push whose commit is there, and whose rest failed."""

    prefix = ""


def push(folder: Path, options: PushOptions) -> Pushed:
    """
    Check a model's folder and push it. Running it again without changes makes no commit.

    Raises:
        ArrivedError: the model is there, and what was left to do failed.
        UnseenError: whether it is there could not be seen.
        PushError, UserError: nothing was pushed; the message says what happened and what to do.
    """
    options.check()
    with opened_repository(options.repo_id, options.timeout) as repository, TemporaryDirectory() as copy:
        repository.check_account(may_be_others=options.create_pr)
        record = PushRecord(folder)
        found = look(repository, options, record)
        prepared = _prepare_for(repository, found, folder, options, Path(copy))
        stale = _stale(found, folder, options, prepared)
        _check_tag(found, options, prepared.mark)
        if options.create_pr:
            return _propose(repository, options, prepared, found, stale)
        sizes = prepared.sizes()
        logger.info(f"pushing {len(sizes)} files, {sum(sizes.values()):,} bytes, to {options.repo_id}")
        this = _begin(repository, options, prepared, found, record)
        if not (this.parent == found.head and _holds(found.tree, prepared, stale)):
            this.commit, _ = _commit(repository, options, prepared, stale, this.parent)
        else:
            this.commit = this.parent
        with _arrived(repository.url(this.commit), this.commit):
            _finish(repository, options, prepared, folder, record, this)
    return Pushed(repository.url(this.commit), this.commit != this.parent, options.repo_id, this.commit)


def _prepare_for(
    repository: HubRepository, found: Situation, folder: Path, options: PushOptions, copy: Path
) -> Prepared:
    """Before anything is made on the Hub."""
    if CARD not in found.tree or found.replaces:
        return prepare(folder, options, copy)
    base = found.last.card if found.last else ""
    return prepare(folder, options, copy, repository.text(CARD, found.head, found.tree[CARD]), base)


def _stale(found: Situation, folder: Path, options: PushOptions, prepared: Prepared) -> set[str]:
    """What is on the Hub and no longer part of the model."""
    stale = deletions(folder, options, prepared)
    if found.replaces:
        stale |= set(filter(is_of_a_model, found.tree))
    return (stale & set(found.tree)) - set(prepared.files) - {CARD}


def _check_tag(found: Situation, options: PushOptions, mark: str) -> None:
    ours = found.last is not None and found.tag == found.last.commit and found.last.mark == mark
    if found.tag is not None and not ours:
        raise PushError(f"the tag {options.tag} exists, at {found.tag[:7]}; choose another, or delete it there")


def _begin(
    repository: HubRepository, options: PushOptions, prepared: Prepared, found: Situation, record: PushRecord
) -> Push:
    """Remember what is about to be pushed, and make the repository and the branch that it goes to."""
    revision = options.revision or "main"
    files = sorted({*prepared.files, CARD})
    this = Push(None, found.head, prepared.mark, prepared.card, files=files, **prepared.told)
    record.begin(options.repo_id, revision, this)
    if not found.exists:
        repository.create(options.private)
    if not found.branch and revision != "main":
        repository.create_branch(revision)
    if found.head is None:
        this.parent = repository.references()[0].get(revision)
        record.begin(options.repo_id, revision, this)
    return this


def _finish(
    repository: HubRepository, options: PushOptions, prepared: Prepared, folder: Path, record: PushRecord, this: Push
) -> None:
    record.finish(options.repo_id, options.revision or "main", this)
    write_whole(folder / CARD, prepared.card)
    write_whole(folder / CARD_BASE, prepared.generated_card)
    record.write(prepared.card)
    if options.tag:
        repository.create_tag(options.tag, this.commit)


def _holds(tree: dict[str, str], prepared: Prepared, stale: set[str]) -> bool:
    """Whether a commit would change nothing of a tree."""
    sizes = prepared.sizes()
    if stale & set(tree) or not set(sizes) <= set(tree):
        return False
    card = io.BytesIO(prepared.card.encode())
    if contents_name(card, sizes[CARD], tree[CARD]) != tree[CARD]:
        return False
    for name, path in prepared.files.items():
        with path.open("rb") as file:
            if contents_name(file, sizes[name], tree[name]) != tree[name]:
                return False
    return True


def _commit(
    repository: HubRepository, options: PushOptions, prepared: Prepared, stale: set[str], parent: str | None
) -> tuple[str, str | None]:
    return repository.commit(
        lambda: prepared.operations(stale),
        options.message,
        prepared.mark,
        options.revision or "main",
        parent,
        options.create_pr,
        holds=lambda tree: _holds(tree, prepared, stale),
    )


@contextmanager
def _arrived(url: str, commit: str) -> Iterator[None]:
    """Whatever fails once the model is there, the message begins with where."""
    there = f"the model is at {url} (revision {commit})"
    again = "the same command again does the rest, and sends nothing twice"
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"{there}; interrupted before all was recorded: {again}") from interrupt
    except Exception as error:
        raise ArrivedError(f"{there}; what was left to do failed ({error or type(error).__name__}): {again}") from error


def _propose(
    repository: HubRepository,
    options: PushOptions,
    prepared: Prepared,
    found: Situation,
    stale: set[str],
) -> Pushed:
    """Open a pull request, unless one is open that says the same. Nothing of it is recorded in the folder."""
    if (open_already := repository.open_pull_request(prepared.mark)) is not None:
        return Pushed(open_already[1], False, options.repo_id, open_already[0])
    if _holds(found.tree, prepared, stale):
        return Pushed(repository.url(found.head), False, options.repo_id, found.head)
    commit, url = _commit(repository, options, prepared, stale, found.head)
    return Pushed(url or repository.url(commit), True, options.repo_id, commit)


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
    """Raise UserError for what would make the recipe's push fail whatever the run gives: before training."""
    options = _options(recipe)
    options.check()
    check_license(options.license)
    check_languages(recipe.data.source_language, recipe.data.target_language)
    with opened_repository(options.repo_id, options.timeout) as repository:
        repository.check_account(may_be_others=False)
        look(repository, options, PushRecord(Path(recipe.output_dir)))


def push_run(recipe: Recipe) -> Pushed:
    """Push a recipe's run as it says. PushError says how to push again by hand."""
    options = _options(recipe)
    try:
        return push(Path(recipe.output_dir), options)
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise PushError(
            f"{error}. The model is whole in {recipe.output_dir}; push it with: {options.command(recipe.output_dir)}"
        ) from error
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "interrupted; the Hub has the old revision or the new one"
        raise KeyboardInterrupt(
            f"{said}. The model is whole in {recipe.output_dir}; push it with: {options.command(recipe.output_dir)}"
        ) from None


def try_push(recipe: Recipe, message: str) -> None:
    """Push while training goes on: a push that fails costs no training, and the next one brings all of it."""
    try:
        logger.info(f"pushed: {push(Path(recipe.output_dir), _options(recipe, message)).url}")
    except PushError as error:
        logger.warning(redact(f"{error.prefix}{error}"))
    except Exception as error:  # whatever it is: the training is worth more
        logger.warning(f"not pushed: {type(error).__name__}: {' '.join(redact(str(error)).split())}")

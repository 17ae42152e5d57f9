"""The push: a checked run's folder to the Hub, in one commit that arrives whole or not at all."""

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session, get_token, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from .card_text import check_card, merge_card
from .folder_check import CARD, check_folder
from .model_card import build_card
from .recipe import Recipe
from .run_folder import write_whole

logger = logging.getLogger(__name__)

RECORD = ".hub.json"  # what was pushed where, so that the next push knows its own commit from somebody else's
CARD_BASE = ".card.md"  # the card as generated last, so that the next one knows what was edited by hand
SECONDS_TO_ANSWER = 60.0
COMMIT_ATTEMPTS = 3
LONGEST_WAIT = 30.0
REPLACE = "hub_upload.py --overwrite (in a recipe: hub.overwrite=true) replaces it"

T = TypeVar("T")


class PushError(ValueError):
    """A push that did not happen, or whose end could not be seen; the message says which, and what to do."""


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


@dataclass
class Prepared:
    """What would go: {path in the repository: contents or the file that has them}."""

    files: dict[str, Path | bytes]
    card: str
    generated_card: str
    findings: list[str]

    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {
            name: len(content) if isinstance(content, bytes) else content.stat().st_size
            for name, content in sorted(self.files.items())
        }

    def digest(self) -> str:
        """A name for exactly these contents, by which a commit can be recognised."""
        total = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            data = content if isinstance(content, bytes) else content.read_bytes()
            total.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
        return total.hexdigest()


# -- talking to the Hub ----------------------------------------------------------------------------------------------


def redact(text: str) -> str:
    """Text without anything that is, or looks like, a token."""
    token = get_token()
    if token:
        text = text.replace(token, "<token>")
    return re.sub(r"hf_[A-Za-z0-9]{8,}", "<token>", text)


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _is_transport(error: Exception) -> bool:
    """Whether an error came from below HTTP: no connection, no answer in time."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2") and not isinstance(
        error, HfHubHTTPError
    )


@contextmanager
def explained(doing: str, repo_id: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into a PushError of one line."""
    try:
        try:
            yield
        except RuntimeError as error:  # so the client wraps what ended the upload of a large file
            raise error.__cause__ or error from None
    except PushError:
        raise
    except OfflineModeIsEnabled:
        raise PushError(f"{doing}: HF_HUB_OFFLINE is set; unset it to push") from None
    except HfHubHTTPError as error:
        status, said = _status(error), redact(" ".join(str(error).split()))
        if status == 401:
            reason = "the token is not valid (any more); log in again with `hf auth login`"
            if isinstance(error, RepositoryNotFoundError) and doing != "asking who you are":
                reason = f"{repo_id} does not exist, or is private and this token may not see it"
        elif status == 403:
            reason = f"this token may not write to {repo_id}; make one with write permission at /settings/tokens"
        elif status == 404:
            reason = f"not found: {said}"
        elif status in (409, 412):
            reason = f"{repo_id} has changed meanwhile; nothing was overwritten. Look at it, then push again"
        elif status == 429:
            reason = "the Hub asks to wait (too many requests); push again later"
        elif status is not None and status >= 500:
            reason = f"the Hub answered {status}; push again later"
        else:
            reason = said
        raise PushError(f"{doing}: {reason}") from error
    except json.JSONDecodeError as error:  # a gateway's page, or half of an answer
        raise PushError(f"{doing}: the Hub's answer could not be read; push again later") from error
    except ConnectionError as error:
        raise PushError(f"{doing}: no connection to the Hub ({redact(str(error)) or type(error).__name__})") from error
    except Exception as error:
        if _is_transport(error):
            said = redact(" ".join(str(error).split())) or type(error).__name__
            raise PushError(f"{doing}: no connection to the Hub, or it was lost ({said}); push again") from error
        raise


def connect() -> HfApi:
    """A client with a limit to how long an answer may take."""
    seconds = float(os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") or SECONDS_TO_ANSWER)
    get_session().timeout = seconds
    return HfApi()


def check_name(repo_id: str) -> None:
    """Raise PushError for what is not a `user/name`."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise PushError(f"{repo_id!r} is not a repository's name: {error}") from None
    if repo_id.count("/") != 1:
        raise PushError(f"{repo_id!r} is not a repository's name; it must be user/name")


def check_account(api: HfApi, options: PushOptions) -> None:
    """Raise PushError if there is no token, it is not valid, may not write, or the repository is somebody else's."""
    if get_token() is None:
        raise PushError("there is no token: log in with `hf auth login`, or set HF_TOKEN")
    with explained("asking who you are", options.repo_id):
        account = api.whoami()
    role = ((account.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        raise PushError("this token may only read; make one with write permission at /settings/tokens")
    owner = options.repo_id.partition("/")[0]
    own = {account["name"], *(organisation["name"] for organisation in account.get("orgs") or [])}
    if owner not in own and not options.create_pr:
        raise PushError(
            f"{options.repo_id} belongs to {owner}, and you are {account['name']}; push to {account['name']}/..., or "
            "open a pull request with --create-pr"
        )


# -- preparing ---------------------------------------------------------------------------------------------------------


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def prepare(folder: Path, options: PushOptions, remote_card: str | None = None) -> Prepared:
    """
    Check the folder, and make its card: the generated one with what was edited by hand, in the folder or on the Hub.

    Raises:
        ValueError: what is wrong with the folder or the card.
    """
    files, findings = check_folder(folder)
    generated = str(build_card(folder, options.repo_id, options.license))
    base, card = _read(folder / CARD_BASE), generated
    for edited in (_read(folder / CARD), remote_card):
        if edited is not None:
            card = merge_card(card, edited, base)
    check_card(card, folder)
    findings.append("card: complete")
    return Prepared({**files, CARD: card.encode()}, card, generated, findings)


# -- pushing -----------------------------------------------------------------------------------------------------------


def _load_record(folder: Path) -> dict[str, Any]:
    text = _read(folder / RECORD)
    try:
        return json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}


def _last_push(folder: Path, options: PushOptions) -> dict[str, Any]:
    """{commit, files} of this folder's last push to a repository and revision; empty if there was none."""
    return _load_record(folder).get(options.repo_id, {}).get(options.revision or "main", {})


def _head(api: HfApi, repo_id: str, revision: str) -> str | None:
    """The newest commit; None in a repository without any."""
    try:
        return api.repo_info(repo_id, revision=revision).sha
    except RevisionNotFoundError:
        return None


def _remote_card(repo_id: str, revision: str, head: str | None) -> str | None:
    if head is None:
        return None
    try:
        return Path(hf_hub_download(repo_id, CARD, revision=head)).read_text(encoding="utf-8")
    except (EntryNotFoundError, RevisionNotFoundError):
        return None


def _check_head(api: HfApi, options: PushOptions, head: str | None, record: dict[str, Any], revision: str) -> None:
    """Raise PushError if the repository holds a model that this folder did not push and would overwrite."""
    if head is None or head == record.get("commit") or options.overwrite or options.create_pr:
        return
    names = api.list_repo_files(options.repo_id, revision=head)
    theirs = [name for name in names if name.endswith(".safetensors") or name == "config.json"]
    if not theirs:
        return
    if record.get("commit"):
        changed = _changed_since(api, options.repo_id, revision, record["commit"])
        if changed is not None and changed <= {CARD, ".gitattributes"}:
            return  # the card was edited on the Hub; the edits are merged
        raise PushError(
            f"{options.repo_id} has moved to {head[:7]} since this folder's push {record['commit'][:7]}: somebody "
            f"else's commit is not overwritten. Look at it; {REPLACE}"
        )
    raise PushError(
        f"{options.repo_id} holds a model ({', '.join(theirs[:3])}) that was not pushed from this folder; {REPLACE}, "
        "or choose another name or revision"
    )


def _check_repository(api: HfApi, options: PushOptions, before: dict[str, Any]) -> str | None:
    """Raise PushError for a repository that must not get this model; its newest commit if it may."""
    revision = options.revision or "main"
    if options.private and not api.repo_info(options.repo_id).private:
        raise PushError(
            f"{options.repo_id} exists and is public; make it private in its settings, or do not ask for a private one"
        )
    head = _head(api, options.repo_id, revision)
    _check_head(api, options, head, before, revision)
    return head


def _changed_since(api: HfApi, repo_id: str, revision: str, commit: str) -> set[str] | None:
    """Paths whose contents differ between a commit and the head; None if the commit is not to be found."""
    trees = []
    for at in (commit, revision):
        try:
            entries = api.list_repo_tree(repo_id, recursive=True, revision=at)
            trees.append({entry.path: entry.blob_id for entry in entries if hasattr(entry, "blob_id")})
        except (RevisionNotFoundError, EntryNotFoundError):
            return None
    before, after = trees
    return {path for path in before | after if before.get(path) != after.get(path)}


def _arrived(api: HfApi, repo_id: str, revision: str, mark: str, create_pr: bool) -> tuple[str, str | None] | None:
    """The commit that carries the mark, and its pull request's address; None if there is none."""
    if not create_pr:
        newest = api.list_repo_commits(repo_id, revision=revision)[:1]
        return (newest[0].commit_id, None) if newest and mark in newest[0].message else None
    for discussion in api.get_repo_discussions(repo_id, discussion_type="pull_request"):
        newest = api.list_repo_commits(repo_id, revision=f"refs/pr/{discussion.num}")[:1]
        if newest and mark in newest[0].message:
            return newest[0].commit_id, discussion.url
    return None


def _operations(prepared: Prepared, stale: set[str]) -> list:
    """Additions, and deletions of what this folder pushed before and has no more. Made anew for each attempt."""
    additions = [CommitOperationAdd(name, content) for name, content in prepared.files.items()]
    return additions + [CommitOperationDelete(name) for name in sorted(stale)]


def _commit(
    api: HfApi, options: PushOptions, prepared: Prepared, revision: str, head: str | None, stale: set[str]
) -> tuple[str, str | None]:
    """
    One commit of all files on `head`. If an answer is lost, look whether the commit arrived before trying again.

    Returns:
        The commit, and the address of the pull request if one was opened.
    """
    mark = f"modeling_scratch {prepared.digest()}"
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            done = api.create_commit(
                options.repo_id,
                _operations(prepared, stale),
                commit_message=options.message,
                commit_description=mark,
                revision=revision,
                create_pr=options.create_pr,
                parent_commit=head,
            )
            return done.oid, done.pr_url
        except Exception as error:
            status = _status(error)
            lost = _is_transport(error) or isinstance(error, ConnectionError | json.JSONDecodeError)
            if not lost and status != 429 and not (status is not None and status >= 500):
                raise
            logger.warning(f"the commit failed or its answer was lost ({type(error).__name__}); looking at the Hub")
            found = _look(lambda: _arrived(api, options.repo_id, revision, mark, options.create_pr))
            if found is not None:
                return found
            if attempt == COMMIT_ATTEMPTS:
                raise
            headers = getattr(getattr(error, "response", None), "headers", {})
            asked = str(headers.get("Retry-After", ""))
            time.sleep(min(float(asked) if asked.isdigit() else 2.0**attempt, LONGEST_WAIT))
    raise AssertionError("unreachable")


def _look(look: Callable[[], T]) -> T:
    """Ask until there is an answer, a few times: what it says decides whether a commit is made twice."""
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            return look()
        except Exception as error:
            if attempt == COMMIT_ATTEMPTS:
                raise PushError(
                    "the connection was lost while the commit was on its way, and the Hub cannot be asked whether it "
                    "arrived; push again: what has arrived is not sent twice"
                ) from error
            time.sleep(2.0**attempt)
    raise AssertionError("unreachable")


def push(folder: Path, options: PushOptions) -> str:
    """
    Check a run's folder and push it. Running it again without changes makes no commit.

    Returns:
        The address of the commit, or of the pull request.

    Raises:
        PushError, ValueError: nothing, or all, was pushed; the message says what happened and what to do.
    """
    check_name(options.repo_id)
    api, revision = connect(), options.revision or "main"
    check_account(api, options)
    before = _last_push(folder, options)
    prepared = prepare(folder, options)  # before anything is made on the Hub
    with explained("making the repository", options.repo_id):
        if options.create_pr:
            api.repo_info(options.repo_id)
        else:
            api.create_repo(options.repo_id, private=options.private or None, exist_ok=True)
            if revision != "main":
                api.create_branch(options.repo_id, branch=revision, exist_ok=True)
    with explained("looking at the repository", options.repo_id):
        head = _check_repository(api, options, before)
        remote_card = _remote_card(options.repo_id, revision, head)
    if remote_card is not None:
        prepared = _with_remote_card(folder, prepared, remote_card, _read(folder / CARD_BASE))
    stale = set(before.get("files", [])) - set(prepared.files)
    if stale and head is not None:
        with explained("looking at the repository", options.repo_id):
            stale &= set(api.list_repo_files(options.repo_id, revision=head))
    with explained("committing", options.repo_id):
        commit, pull_request = _commit(api, options, prepared, revision, head, stale)
    if not options.create_pr:
        record = _load_record(folder)
        record.setdefault(options.repo_id, {})[revision] = {"commit": commit, "files": sorted(prepared.files)}
        write_whole(folder / RECORD, json.dumps(record, indent=2))
    write_whole(folder / CARD, prepared.card)
    write_whole(folder / CARD_BASE, prepared.generated_card)
    if options.tag:
        with explained(f"the model is pushed ({commit[:7]}), but tagging it {options.tag!r} failed", options.repo_id):
            api.create_tag(options.repo_id, tag=options.tag, revision=commit, exist_ok=False)
    return pull_request or f"{api.endpoint}/{options.repo_id}/commit/{commit}"


def _with_remote_card(folder: Path, prepared: Prepared, remote_card: str, base: str | None) -> Prepared:
    """The same files, with the card's edits on the Hub kept."""
    card = merge_card(prepared.card, remote_card, base)
    check_card(card, folder)
    files = {**prepared.files, CARD: card.encode()}
    return Prepared(files, card, prepared.generated_card, prepared.findings)


# -- for runs ----------------------------------------------------------------------------------------------------------


def _options(recipe: Recipe, message: str) -> PushOptions:
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
    """Raise PushError for what would make the recipe's push fail whatever the run gives: before training, not after."""
    options, api = _options(recipe, ""), connect()
    check_name(options.repo_id)
    check_account(api, options)
    with explained("looking at the repository", options.repo_id), suppress(RepositoryNotFoundError):
        _check_repository(api, options, _last_push(Path(recipe.output_dir), options))


def push_run(recipe: Recipe, message: str = "Upload model") -> str:
    """Push a recipe's run as it says. Returns the commit's address. PushError says how to push again by hand."""
    try:
        return push(Path(recipe.output_dir), _options(recipe, message))
    except (ValueError, OSError) as error:
        raise PushError(
            f"{error}. The model is whole in {recipe.output_dir}; push it with: python hub_upload.py "
            f"{recipe.output_dir} {recipe.hub.repository}"
        ) from error


def try_push(recipe: Recipe, message: str) -> None:
    """Push while training goes on: a push that fails costs no training, and the next one brings all of it."""
    try:
        logger.info(f"pushed: {push(Path(recipe.output_dir), _options(recipe, message))}")
    except Exception as error:  # whatever it is: the training is worth more
        logger.warning(f"not pushed: {type(error).__name__}: {' '.join(redact(str(error)).split())}")

"""Talking to the Hub: what a push asks and does there, and what went wrong there in one line."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, get_session, get_token, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from .card_text import TOKEN

logger = logging.getLogger(__name__)

SECONDS_TO_ANSWER = 60.0
COMMIT_ATTEMPTS = 3
LONGEST_WAIT = 30.0
COMMITS_BACK = 50  # how far a commit of ours is looked for

T = TypeVar("T")


class PushError(ValueError):
    """A push that did not happen, or whose end could not be seen; the message says which, and what to do."""


def redact(text: str) -> str:
    """Text without anything that is, or looks like, a token."""
    token = get_token()
    return TOKEN.sub("<token>", text.replace(token, "<token>") if token else text)


def _said(error: Exception) -> str:
    return redact(" ".join(str(error).split())) or type(error).__name__


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
        status = _status(error)
        if status == 401:
            reason = "the token is not valid (any more); log in again with `hf auth login`"
            if isinstance(error, RepositoryNotFoundError) and doing != "asking who you are":
                reason = f"{repo_id} does not exist, or is private and this token may not see it"
        elif status == 403:
            reason = f"this token may not write to {repo_id} ({_said(error)})"
        elif status in (409, 412):
            reason = (
                f"{repo_id} has changed meanwhile; nothing was overwritten. Look at it, push again ({_said(error)})"
            )
        elif status == 429:
            reason = "the Hub asks to wait (too many requests); push again later"
        elif status is not None and status >= 500:
            reason = f"the Hub answered {status}; push again later"
        else:
            reason = _said(error)
        raise PushError(f"{doing}: {reason}") from error
    except json.JSONDecodeError as error:  # a gateway's page, or half of an answer
        raise PushError(f"{doing}: the Hub's answer could not be read; push again later") from error
    except Exception as error:
        if isinstance(error, ConnectionError) or _is_transport(error):
            raise PushError(
                f"{doing}: no connection to the Hub, or it was lost ({_said(error)}); push again"
            ) from error
        raise


def check_name(repo_id: str) -> None:
    """Raise PushError for what is not a `user/name`."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise PushError(f"{repo_id!r} is not a repository's name: {error}") from None
    if repo_id.count("/") != 1:
        raise PushError(f"{repo_id!r} is not a repository's name; it must be user/name")


class HubRepository:
    """One repository of models, as the holder of the token sees it."""

    def __init__(self, repo_id: str):
        check_name(repo_id)
        # Else a server that accepts a connection and says nothing would be waited for without end.
        get_session().timeout = float(os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") or SECONDS_TO_ANSWER)
        self.api, self.repo_id = HfApi(), repo_id

    def _explained(self, doing: str):
        return explained(doing, self.repo_id)

    def url(self, commit: str) -> str:
        return f"{self.api.endpoint}/{self.repo_id}/commit/{commit}"

    def check_account(self, may_be_others: bool) -> None:
        """Raise PushError if no token is there, or it is not valid, may not write, or writes somebody else's."""
        if get_token() is None:
            raise PushError("there is no token: log in with `hf auth login`, or set HF_TOKEN")
        with self._explained("asking who you are"):
            account = self.api.whoami()
        role = ((account.get("auth") or {}).get("accessToken") or {}).get("role")
        if role == "read":
            raise PushError("this token may only read; make one with write permission at /settings/tokens")
        owner = self.repo_id.partition("/")[0]
        own = {account["name"], *(organisation["name"] for organisation in account.get("orgs") or [])}
        if owner not in own and not may_be_others:
            raise PushError(
                f"{self.repo_id} belongs to {owner}, and you are {account['name']}; push to {account['name']}/..., or "
                "open a pull request with --create-pr"
            )

    # -- asking ----------------------------------------------------------------------------------------------------

    def is_private(self) -> bool | None:
        """None: there is no such repository."""
        with self._explained("looking at the repository"):
            try:
                return bool(self.api.repo_info(self.repo_id).private)
            except RepositoryNotFoundError as error:
                if _status(error) == 401:
                    raise
                return None

    def references(self) -> tuple[dict[str, str], dict[str, str]]:
        """The newest commit of each branch, and the commit of each tag."""
        with self._explained("looking at the repository"):
            found = self.api.list_repo_refs(self.repo_id)
        return tuple({each.name: each.target_commit for each in kind} for kind in (found.branches, found.tags))

    def files(self, commit: str) -> set[str]:
        with self._explained("looking at the repository"):
            return set(self.api.list_repo_files(self.repo_id, revision=commit))

    def card(self, name: str, commit: str) -> str | None:
        """A text file as it was at a commit; None if it was not there."""
        with self._explained("looking at the card"):
            try:
                path = Path(hf_hub_download(self.repo_id, name, revision=commit))
            except EntryNotFoundError:
                return None
            return path.read_bytes().decode("utf-8", errors="replace")

    def changed_between(self, before: str, after: str) -> set[str] | None:
        """Paths whose contents differ between two commits; None if one is not to be found."""
        trees = []
        with self._explained("looking at the repository"):
            for commit in (before, after):
                try:
                    entries = self.api.list_repo_tree(self.repo_id, recursive=True, revision=commit)
                    trees.append({entry.path: entry.blob_id for entry in entries if hasattr(entry, "blob_id")})
                except (RevisionNotFoundError, EntryNotFoundError):
                    return None
        first, second = trees
        return {path for path in first | second if first.get(path) != second.get(path)}

    def marked_commit(self, revision: str, mark: str) -> str | None:
        """The commit whose message holds a mark, among the newest of a revision."""
        with self._explained("looking at the history"):
            for commit in self.api.list_repo_commits(self.repo_id, revision=revision)[:COMMITS_BACK]:
                if mark in commit.message:
                    return commit.commit_id
        return None

    def open_pull_request(self, mark: str) -> tuple[str, str] | None:
        """The newest commit of an open pull request, if it holds a mark, and the request's address."""
        with self._explained("looking at the pull requests"):
            for discussion in self.api.get_repo_discussions(self.repo_id, discussion_type="pull_request"):
                if discussion.status not in ("open", "draft"):
                    continue
                newest = self.api.list_repo_commits(self.repo_id, revision=f"refs/pr/{discussion.num}")[:1]
                if newest and mark in newest[0].message:
                    return newest[0].commit_id, discussion.url
        return None

    # -- doing -----------------------------------------------------------------------------------------------------

    def create(self, private: bool) -> None:
        with self._explained("making the repository"):
            self.api.create_repo(self.repo_id, private=private or None, exist_ok=True)

    def create_branch(self, name: str) -> None:
        with self._explained("making the branch"):
            self.api.create_branch(self.repo_id, branch=name, exist_ok=True)

    def create_tag(self, name: str, commit: str) -> None:
        """Name a commit. It may have the name already, from a call whose answer was lost."""
        with self._explained(f"the model is pushed ({commit[:7]}), but tagging it {name!r} failed"):
            try:
                self.api.create_tag(self.repo_id, tag=name, revision=commit, exist_ok=False)
            except HfHubHTTPError as error:
                if _status(error) != 409 or self.references()[1].get(name) != commit:
                    raise

    def commit(
        self,
        operations: Callable[[], list],
        message: str,
        mark: str,
        revision: str,
        parent: str | None,
        create_pr: bool,
    ) -> tuple[str, str | None]:
        """
        Make one commit on a parent. If an answer is lost, look whether the commit arrived before trying again.

        Args:
            operations: makes them anew for each attempt.
            mark: by which the commit is recognised; the description.

        Returns:
            The commit, which is the parent if there was nothing to change, and the address of a new pull request.
        """
        with self._explained("committing"):
            for attempt in range(1, COMMIT_ATTEMPTS + 1):
                try:
                    done = self.api.create_commit(
                        self.repo_id,
                        operations(),
                        commit_message=message,
                        commit_description=mark,
                        revision=revision,
                        create_pr=create_pr,
                        parent_commit=parent,
                    )
                except Exception as error:
                    found = self._after_a_failure(error, revision, mark, create_pr)
                    if found is not None:
                        return found
                    if attempt == COMMIT_ATTEMPTS:
                        raise
                    _wait(error, attempt)
                    continue
                if create_pr or done.oid == parent:
                    return done.oid, done.pr_url
                # Where there was nothing to change, the client reports whatever commit is the newest by then.
                arrived = _patiently(lambda: self.marked_commit(revision, mark))
                if arrived is None:
                    raise PushError(
                        f"committing: {self.repo_id} has changed meanwhile; nothing was overwritten. Look at it, then "
                        "push again"
                    )
                return arrived, None
        raise AssertionError("unreachable")

    def _after_a_failure(
        self, error: Exception, revision: str, mark: str, create_pr: bool
    ) -> tuple[str, str | None] | None:
        """What arrived of a commit that seemed to fail. Raises the error if it cannot have arrived."""
        status = _status(error)
        lost = _is_transport(error) or isinstance(error, ConnectionError | json.JSONDecodeError)
        if not lost and status not in (409, 412, 429) and not (status is not None and status >= 500):
            raise error
        logger.warning(f"the commit failed or its answer was lost ({type(error).__name__}); looking at the Hub")
        if create_pr:
            return _patiently(lambda: self.open_pull_request(mark))
        arrived = _patiently(lambda: self.marked_commit(revision, mark))
        if arrived is None and status in (409, 412):  # somebody else was faster
            raise error
        return None if arrived is None else (arrived, None)


def _wait(error: Exception, attempt: int) -> None:
    asked = str(getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", ""))
    time.sleep(min(float(asked) if asked.isdigit() else 2.0**attempt, LONGEST_WAIT))


def _patiently(look: Callable[[], T]) -> T:
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

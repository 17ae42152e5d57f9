"""Talking to the Hub: what a push asks and does there, and what went wrong there in one line."""

import hashlib
import io
import itertools
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import httpx2
from huggingface_hub import HfApi, RepoFile, get_session, get_token, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, validate_repo_id

from ..errors import UserError
from ..redaction import RedactingFilter, redact
from .bounded_client import ATTEMPTS, NoAnswer, Patience, asked_to_wait, bounded_requests

logger = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 2  # a silent one takes half of the limit, and the look after it begins a new one
COMMITS_BACK = 50  # how far a commit of ours is looked for

UNREADABLE = (json.JSONDecodeError, KeyError, TypeError, AttributeError)  # a gateway's page, or half of an answer


class PushError(UserError):
    """A push that did not happen; the message says why, and what to do."""

    prefix = "not pushed: "


class UnseenError(PushError):
    """A push whose end could not be seen."""

    prefix = "perhaps pushed: "


def _said(error: Exception) -> str:
    return redact(" ".join(str(error).split())) or type(error).__name__


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _server_words(error: HfHubHTTPError) -> str:
    """The status, and what the server said of it."""
    words = " ".join((error.server_message or "").split()) or error.response.reason_phrase
    return redact(f"{_status(error)}: {words}")


def _reason(error: HfHubHTTPError, doing: str, repo_id: str) -> str:
    status = _status(error)
    if status == 401 and isinstance(error, RepositoryNotFoundError) and doing != "asking who you are":
        return f"{repo_id} does not exist, or is private and this token may not see it"
    if status == 401:
        return "the token is not valid (any more); log in again with `hf auth login`"
    if status in (403, 409, 412):
        return f"the Hub refused this for {repo_id} and changed nothing ({_server_words(error)})"
    if status == 429:
        return "the Hub asks to wait (too many requests); push again later"
    if status is not None and status >= 500:
        return f"the Hub answered {status}; push again later"
    return _said(error)


def _may_have_arrived(error: Exception) -> bool:
    """Whether a commit that seemed to fail may be there."""
    status = _status(error)
    return not isinstance(error, NoAnswer) and (status is None or status == 408 or status >= 500)


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
    except NoAnswer as error:
        raise PushError(f"{doing}: {_said(error)}; push again later") from error
    except HfHubHTTPError as error:
        raise PushError(f"{doing}: {_reason(error, doing, repo_id)}") from error
    except UNREADABLE as error:
        raise PushError(f"{doing}: the Hub's answer could not be read; push again") from error
    except (ConnectionError, httpx2.HTTPError) as error:
        raise PushError(f"{doing}: no connection to the Hub, or it was lost ({_said(error)}); push again") from error


def check_name(repo_id: str) -> None:
    """Raise PushError for what is not a `user/name`."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise PushError(f"{repo_id!r} is not a repository's name: {error}") from None
    if repo_id.count("/") != 1:
        raise PushError(f"{repo_id!r} is not a repository's name; it must be user/name")


@contextmanager
def opened_repository(repo_id: str, timeout: float) -> Iterator["HubRepository"]:
    """The repository, for requests that end when the Hub leaves them without an answer for so many seconds."""
    for handler in logging.getLogger("huggingface_hub").handlers:
        if not any(isinstance(each, RedactingFilter) for each in handler.filters):
            handler.addFilter(RedactingFilter())
            handler.addFilter(lambda record: "not supported by Xet Storage" not in record.msg)  # no news: meant so
    with bounded_requests(timeout) as patience:
        yield HubRepository(repo_id, patience)


class HubRepository:
    """One repository of models, as the holder of the token sees it."""

    def __init__(self, repo_id: str, patience: Patience):
        check_name(repo_id)
        self.api, self.repo_id, self.patience = HfApi(), repo_id, patience

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
            own = {account["name"], *(organisation["name"] for organisation in account.get("orgs") or [])}
        if role == "read":
            raise PushError("this token may only read; make one with write permission at /settings/tokens")
        owner = self.repo_id.partition("/")[0]
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

    def tree(self, commit: str) -> dict[str, str]:
        """Each file of a commit, and the name of what it holds; see `contents_name`."""
        with self._explained("looking at the repository"):
            entries = self.api.list_repo_tree(self.repo_id, recursive=True, revision=commit)
            files = [entry for entry in entries if isinstance(entry, RepoFile)]
            return {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}

    def text(self, name: str, commit: str, contents: str) -> str:
        """A file as it was at a commit, whole, as the name of its contents shows."""
        url = hf_hub_url(self.repo_id, name, revision=commit, endpoint=self.api.endpoint)
        with self._explained(f"reading {name}"):
            for _ in range(ATTEMPTS):
                answer = get_session().get(url, headers=build_hf_headers())
                hf_raise_for_status(answer)
                if contents_name(io.BytesIO(answer.content), len(answer.content), contents) == contents:
                    return answer.content.decode("utf-8", errors="replace")
        raise PushError(f"reading {name}: the Hub did not send all of it, in {ATTEMPTS} attempts; push again later")

    def changed_between(self, before: str, after: str) -> set[str] | None:
        """Paths whose contents differ between two commits; None if one is not to be found."""
        try:
            first, second = self.tree(before), self.tree(after)
        except PushError as error:
            if isinstance(error.__cause__, RevisionNotFoundError | EntryNotFoundError):
                return None
            raise
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
        with self._explained(f"tagging it {name!r}"):
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
        holds: Callable[[dict[str, str]], bool],
    ) -> tuple[str, str | None]:
        """
        Make one commit on a parent, where it changes something. If an answer is lost, look whether the commit arrived
        before trying again.

        Args:
            operations: makes them anew for each attempt.
            mark: by which the commit is recognised; the description.
            holds: whether a tree is what the commit would make.

        Returns:
            The commit and the address of a new pull request.
        """
        lost = False
        with self._explained("committing"):
            for attempt in itertools.count(1):
                try:
                    done = self._create_commit(operations(), message, mark, revision, parent, create_pr)
                    return done.oid, done.pr_url
                except (NoAnswer, httpx2.TransportError, HfHubHTTPError, *UNREADABLE) as error:
                    lost = lost or _may_have_arrived(error)
                    if not lost and (_status(error) != 429 or attempt == COMMIT_ATTEMPTS):
                        raise
                    asked = asked_to_wait(getattr(error, "response", None))
                    if lost:
                        logger.warning(f"the answer to the commit was lost ({_said(error)}); looking at the Hub")
                        if (found := self._arrived(mark, revision, parent, create_pr, holds)) is not None:
                            return found
                        # Nothing keeps two pull requests from arriving, as the parent keeps two commits.
                        last = create_pr or attempt == COMMIT_ATTEMPTS or self.patience.left() <= asked
                        if last or not _may_have_arrived(error):
                            raise UnseenError(
                                f"the answer to the commit was lost, and it is not to be seen there ({_said(error)}); "
                                "push again: what has arrived is not sent twice"
                            ) from error
                    self.patience.wait(1.0, asked, _said(error))
        raise AssertionError("unreachable")

    def _create_commit(self, operations: list, message: str, mark: str, revision: str, parent: str | None, pr: bool):
        """What huggingface_hub warns of goes to the log, which holds no token."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            done = self.api.create_commit(
                self.repo_id,
                operations,
                commit_message=message,
                commit_description=mark,
                revision=revision,
                create_pr=pr,
                parent_commit=parent,
            )
        for warning in caught:
            if issubclass(warning.category, UserWarning):
                logger.warning(redact(" ".join(str(warning.message).split())))
        return done

    def _arrived(
        self, mark: str, revision: str, parent: str | None, create_pr: bool, holds: Callable[[dict[str, str]], bool]
    ) -> tuple[str, str | None] | None:
        """What a commit whose answer was lost has become: by its mark, or, if the list lags behind, by its contents."""
        try:
            if create_pr:
                return self.open_pull_request(mark)
            if (found := self.marked_commit(revision, mark)) is not None:
                return found, None
            head = self.references()[0].get(revision)
            return (head, None) if head not in (None, parent) and holds(self.tree(head)) else None
        except PushError as error:
            raise UnseenError(
                "the connection was lost while the commit was on its way, and the Hub cannot be asked whether it "
                f"arrived ({error}); push again: what has arrived is not sent twice"
            ) from error


def contents_name(content: BinaryIO, size: int, like: str) -> str:
    """What the Hub calls a file's contents, in the kind of another name: a sha256 if it is large, else git's id."""
    if len(like) == 64:
        return hashlib.file_digest(content, "sha256").hexdigest()
    return hashlib.file_digest(content, lambda: hashlib.sha1(b"blob %d\0" % size)).hexdigest()

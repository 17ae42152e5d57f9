"""
The options of a push: where it goes, and how.

An HTTP client for huggingface_hub that limits how long the Hub may keep it waiting.

One repository on the Hub: the requests of a push, with each failure explained in one line.
"""

import hashlib
import json
import logging
import math
import re
import shlex
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    HfApi,
    get_session,
    get_token,
    hf_hub_url,
    set_client_factory,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoFile, SpaceInfo
from huggingface_hub.utils import (
    build_hf_headers,
    hf_raise_for_status,
    httpx,  # httpx2 from its release 2.0 on
    validate_repo_id,
)

from ..errors import RedactingFilter, UserError, redact
from ..recipe import SECONDS_TO_ANSWER

logger = logging.getLogger(__name__)


@dataclass
class PushOptions:
    """The options of `scratch upload`, of a recipe's `hub` section, and of a Space's push."""

    repo_id: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    tag: str | None = None
    message: str = "Upload model"
    license: str | None = None
    overwrite: bool = False
    timeout: float = SECONDS_TO_ANSWER
    languages: tuple[str, str] | None = None  # codes of source and target; None: those the folder names
    author: str | None = None  # for the card
    space: bool = False  # also push a page that translates, as a static Space of the same name
    repo_type: str = "model"  # or "space", for the push of that page

    def __post_init__(self):
        """Raise UserError for options that cannot work, whatever the folder and the Hub hold."""
        try:
            validate_repo_id(self.repo_id)
        except HFValidationError as error:
            raise UserError(f"{self.repo_id!r} is not a repository's name: {error}") from None
        if self.repo_id.count("/") != 1:
            raise UserError(f"{self.repo_id!r} is not a repository's name; it must be user/name")
        if not self.message.strip():
            raise UserError("--message is empty")
        for name, value in (("--tag", self.tag), ("--revision", self.revision)):
            if value is not None and not re.fullmatch(r"(?!.*(\.\.|//|\.lock$))[\w][\w./-]*(?<![./])", value):
                raise UserError(f"{name} {value!r} is not a name that git takes; letters, digits, - . _ / are fine")
        if not 0 < self.timeout < math.inf:
            raise UserError(f"--timeout is {self.timeout:g}; it must be a positive number of seconds")
        if self.create_pr and (self.tag or self.revision):
            raise UserError("--create-pr proposes a change of main: --tag and --revision do not go with it")
        if self.space and (self.create_pr or self.tag or self.revision):
            raise UserError("--space pushes to main: --create-pr, --tag and --revision do not go with it")

    @property
    def branch(self) -> str:
        return self.revision or "main"

    @property
    def place(self) -> str:
        """The repository's path below the Hub's address, which is also its key in a folder's record of its pushes."""
        return self.repo_id if self.repo_type == "model" else f"{self.repo_type}s/{self.repo_id}"

    def command(self, folder: str) -> str:
        """The command line that pushes a run, with those options that its recipe can set."""
        words = ["scratch", "upload", folder, self.repo_id]
        words += [f"--{name}" for name in ("private", "overwrite") if getattr(self, name)]
        for name in ("revision", "license"):
            if (value := getattr(self, name)) is not None:
                words += [f"--{name}", value]
        words += ["--timeout", f"{self.timeout:g}"] if self.timeout != SECONDS_TO_ANSWER else []
        return shlex.join(words)


WAITS = (0.0, 0.5, 1.0, 2.0)  # seconds before each attempt
ATTEMPTS = len(WAITS)


class NoAnswer(ConnectionError):
    """The Hub could not be reached, or did not answer in time. Not to be retried."""


def _is_commit(request: httpx.Request) -> bool:
    """Whether this is the one request that must not be retried blindly: that could make two commits."""
    return request.method == "POST" and "/commit/" in request.url.path


class BoundedClient(httpx.Client):
    """
    Limits the wait for the Hub, whatever timeout the caller sets, and retries requests that fail in transport or with a
    server error. It retries neither a commit that may have arrived nor the upload of a file: the file can be read only
    once, and huggingface_hub rewinds it and retries that request itself.
    """

    limit = SECONDS_TO_ANSWER  # of the class, since huggingface_hub may replace the client at any time

    def __init__(self, event_hooks: dict):
        super().__init__(event_hooks=event_hooks, follow_redirects=True, timeout=None)
        self._failing: dict[str, float] = {}  # when the upload to an address first failed

    def send(self, request: httpx.Request, **options) -> httpx.Response:
        is_upload, until, fault = not isinstance(request.stream, httpx.ByteStream), time.monotonic() + self.limit, ""
        for number, wait in enumerate(WAITS, start=1):
            time.sleep(min(wait, max(until - time.monotonic(), 0) / 2))
            if (left := until - time.monotonic()) <= 0:
                break
            # The last attempt and uploads may take all the time left, others half of it. An upload may take longer as
            # long as it makes progress: this limits each wait for the socket.
            seconds = left if is_upload or number == ATTEMPTS else left / 2
            request.extensions["timeout"] = httpx.Timeout(seconds).as_dict()
            try:
                response = super().send(request, **options)
            except httpx.TransportError as error:
                if _is_commit(request):
                    raise
                fault = f"no connection to the Hub, or it was lost: {error}"
                if isinstance(error, httpx.TimeoutException):
                    fault = f"the Hub has not answered within {self.limit:g} seconds"
                    if is_upload:
                        break
            else:
                status = response.status_code
                if (status not in (408, 429) and status < 500) or (_is_commit(request) and status != 429):
                    self._failing.pop(str(request.url), None)
                    return response
                response.close()
                fault = f"the Hub answered {status}"
            if is_upload:
                if time.monotonic() - self._failing.setdefault(str(request.url), time.monotonic()) < self.limit:
                    raise httpx.ReadError(fault)  # which huggingface_hub tries again
                del self._failing[str(request.url)]
                break
        raise NoAnswer(fault)


@contextmanager
def bounded_requests(limit: float) -> Iterator[None]:
    """
    Make huggingface_hub use a client that waits no longer than `limit` seconds. The client stays in place afterwards,
    with the default limit, since other threads may be reading from it.
    """
    session = get_session()
    if not isinstance(session, BoundedClient):
        hooks = session.event_hooks
        set_client_factory(lambda: BoundedClient(hooks))
    BoundedClient.limit = limit
    try:
        yield
    finally:
        BoundedClient.limit = SECONDS_TO_ANSWER


COMMIT_ATTEMPTS = 2  # one without an answer takes half of the time limit
UNREADABLE = (json.JSONDecodeError, KeyError, TypeError, AttributeError)  # a gateway's page, or a truncated answer
COMMIT_ERRORS = (NoAnswer, httpx.TransportError, HfHubHTTPError, *UNREADABLE)


def has_identifier(content: bytes, identifier: str) -> bool:
    """Whether a file's content matches its identifier in `HubRepository.tree`."""
    if len(identifier) == 64:  # of a large file
        return hashlib.sha256(content).hexdigest() == identifier
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == identifier


# -- what went wrong ---------------------------------------------------------------------------------------------------


def _said(error: Exception) -> str:
    return redact(" ".join(str(error).split())) or type(error).__name__


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: HfHubHTTPError, repo_id: str) -> str:
    status = _status(error)
    if status == 401 and isinstance(error, RepositoryNotFoundError):
        return f"{repo_id} does not exist, or is private and this token may not see it"
    if status == 401:
        return "the token is not valid (any more); log in again with `hf auth login`"
    if status in (403, 409, 412):
        words = " ".join((error.server_message or "").split()) or error.response.reason_phrase
        return f"the Hub refused this for {repo_id} and changed nothing ({redact(f'{status}: {words}')})"
    if status is not None and status >= 500:
        return f"the Hub answered {status}; push again later"
    return _said(error)


def _may_have_arrived(error: Exception) -> bool:
    """Whether a commit that seemed to fail may have been made."""
    status = _status(error)
    return not isinstance(error, NoAnswer) and (status is None or status == 408 or status >= 500)


# -- the repository ----------------------------------------------------------------------------------------------------


@contextmanager
def opened_repository(options: PushOptions) -> Iterator["HubRepository"]:
    """The repository to push to. Its requests fail once the Hub has not answered for `options.timeout` seconds."""
    for handler in logging.getLogger("huggingface_hub").handlers:
        if not any(isinstance(each, RedactingFilter) for each in handler.filters):
            handler.addFilter(RedactingFilter())
            handler.addFilter(lambda record: "not supported by Xet Storage" not in record.msg)  # we send open files
    with bounded_requests(options.timeout):
        yield HubRepository(options)


class HubRepository:
    """One repository, of a model or a static Space, as the token's owner sees it."""

    def __init__(self, options: PushOptions):
        self.api = HfApi()
        self.repo_id, self.repo_type, self.place = options.repo_id, options.repo_type, options.place
        self.has_gitignore = False  # on the branch that is pushed to

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """
        Turn what huggingface_hub raises into a one-line UserError, which says what failed, what is on the Hub or may
        be, and what to do.
        """
        try:
            try:
                yield
            except RuntimeError as error:  # huggingface_hub wraps errors in uploads of large files
                raise error.__cause__ or error from None
        except UserError:
            raise
        except OfflineModeIsEnabled:
            raise UserError(f"{doing}: HF_HUB_OFFLINE is set; unset it to push") from None
        except NoAnswer as error:
            raise UserError(f"{doing}: {_said(error)}; push again later") from error
        except HfHubHTTPError as error:
            raise UserError(f"{doing}: {_reason(error, self.repo_id)}") from error
        except UNREADABLE as error:
            raise UserError(f"{doing}: the Hub's answer could not be read; push again") from error
        except (ConnectionError, httpx.HTTPError) as error:
            raise UserError(
                f"{doing}: no connection to the Hub, or it was lost ({_said(error)}); push again"
            ) from error
        except ValueError as error:  # the Hub refuses the card; or a token or an answer is not text
            raise UserError(f"{doing}: {_said(error)}") from error

    def url(self, commit: str) -> str:
        return f"{self.api.endpoint}/{self.place}/commit/{commit}"

    def check_account(self, may_be_others: bool) -> None:
        """Raise UserError if there is no valid token that may write, or the repository belongs to somebody else."""
        if get_token() is None:
            raise UserError("there is no token: log in with `hf auth login`, or set HF_TOKEN")
        with self._explained("asking who you are"):
            account = self.api.whoami()
            role = ((account.get("auth") or {}).get("accessToken") or {}).get("role")
            own = {account["name"], *(organization["name"] for organization in account.get("orgs") or [])}
        if role == "read":
            raise UserError("this token may only read; make one with write permission at /settings/tokens")
        owner = self.repo_id.partition("/")[0]
        if owner not in own and not may_be_others:
            raise UserError(
                f"{self.repo_id} belongs to {owner}, and you are {account['name']}; push to {account['name']}/..., or "
                "open a pull request with --create-pr"
            )

    # -- reading ---------------------------------------------------------------------------------------------------

    def info(self) -> ModelInfo | SpaceInfo | None:
        """None: there is no such repository."""
        with self._explained("looking at the repository"):
            try:
                return self.api.repo_info(self.repo_id, repo_type=self.repo_type)
            except RepositoryNotFoundError as error:
                if _status(error) == 401:
                    raise
                return None

    def references(self) -> tuple[dict[str, str], dict[str, str]]:
        """The newest commit of each branch, and the commit of each tag."""
        with self._explained("looking at the repository"):
            found = self.api.list_repo_refs(self.repo_id, repo_type=self.repo_type)
        return tuple({each.name: each.target_commit for each in kind} for kind in (found.branches, found.tags))

    def tree(self, commit: str) -> dict[str, str]:
        """{path: SHA-256 of a large file, git's blob id of any other} at a commit."""
        with self._explained("looking at the repository"):
            entries = self.api.list_repo_tree(self.repo_id, recursive=True, revision=commit, repo_type=self.repo_type)
            files = [entry for entry in entries if isinstance(entry, RepoFile)]
            return {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}

    def text(self, path: str, commit: str, identifier: str) -> str:
        """A small file at a commit. Its identifier from `tree` shows whether all of it was sent."""
        url = hf_hub_url(self.repo_id, path, revision=commit, endpoint=self.api.endpoint, repo_type=self.repo_type)
        with self._explained(f"reading {path}"):
            for _ in range(ATTEMPTS):
                answer = get_session().get(url, headers=build_hf_headers())
                hf_raise_for_status(answer)
                content = answer.content
                if has_identifier(content, identifier):
                    return content.decode("utf-8", errors="replace")
        raise UserError(f"reading {path}: the Hub did not send all of it, in {ATTEMPTS} attempts; push again later")

    def changed_since(self, commit: str, tree: dict[str, str]) -> set[str] | None:
        """Paths whose contents differ between a commit and a later tree; None if the commit is gone."""
        try:
            before = self.tree(commit)
        except UserError as error:
            if isinstance(error.__cause__, RevisionNotFoundError | EntryNotFoundError):
                return None
            raise
        return {path for path in before | tree if before.get(path) != tree.get(path)}

    def find_commit(self, revision: str, mark: str) -> str | None:
        """The commit of a revision whose description holds a mark; None if there is none."""
        with self._explained("looking at the history"):
            commits = self.api.list_repo_commits(self.repo_id, revision=revision, repo_type=self.repo_type)
            return next((commit.commit_id for commit in commits if mark in commit.message), None)

    # -- writing ---------------------------------------------------------------------------------------------------

    def create(self, private: bool) -> None:
        with self._explained("making the repository"):
            kind = {"repo_type": "space", "space_sdk": "static"} if self.repo_type == "space" else {}
            self.api.create_repo(self.repo_id, private=private or None, exist_ok=True, **kind)

    def create_branch(self, name: str) -> None:
        with self._explained("making the branch"):
            self.api.create_branch(self.repo_id, branch=name, exist_ok=True, repo_type=self.repo_type)

    def create_tag(self, name: str, commit: str) -> None:
        """Tag a commit. The tag may already exist, from a request whose answer was lost."""
        with self._explained(f"tagging it {name!r}"):
            try:
                self.api.create_tag(self.repo_id, tag=name, revision=commit, exist_ok=False, repo_type=self.repo_type)
            except HfHubHTTPError as error:
                if _status(error) != 409 or self.references()[1].get(name) != commit:
                    raise

    def commit(self, operations: Callable[[], list], message: str, mark: str, revision: str, parent: str | None) -> str:
        """
        Make one commit. If the answer is lost, check whether the commit arrived before trying again.

        Args:
            operations: creates the operations, anew for each attempt.
            mark: the commit's description, by which it is recognized.
            parent: the Hub refuses the commit if this is no longer the newest one.

        Returns:
            The commit's id.

        Raises:
            UserError: it was not made, or may have been made.
        """
        lost = False
        with self._explained("committing"):
            for attempt in range(1, COMMIT_ATTEMPTS + 1):
                try:
                    return self._create_commit(operations(), message, mark, revision, parent).oid
                except COMMIT_ERRORS as error:
                    lost = lost or _may_have_arrived(error)
                    if not lost:
                        raise
                    logger.warning(f"the answer to the commit was lost ({_said(error)}); looking at the Hub")
                    if (found := self._find_arrived(revision, mark)) is not None:
                        return found
                    if attempt == COMMIT_ATTEMPTS or not _may_have_arrived(error):
                        raise UserError(
                            f"the answer to the commit was lost, and the Hub does not show it ({_said(error)}); push "
                            "again: what has arrived is not sent twice"
                        ) from error
                time.sleep(1)
        raise AssertionError("unreachable")

    def open_pull_request(self, operations: list, message: str, parent: str | None) -> tuple[str, str]:
        """Open a pull request of one commit. Returns the commit's id and the address. Raises what `commit` does."""
        with self._explained("opening the pull request"):
            try:
                done = self._create_commit(operations, message, "", "main", parent, create_pr=True)
            except COMMIT_ERRORS as error:
                if not _may_have_arrived(error):
                    raise
                raise UserError(
                    f"the answer was lost ({_said(error)}): look whether the pull request is at "
                    f"{self.api.endpoint}/{self.place}/discussions before you push again"
                ) from error
        return done.oid, done.pr_url

    def _create_commit(
        self,
        operations: list,
        message: str,
        description: str,
        revision: str,
        parent: str | None,
        create_pr: bool = False,
    ) -> CommitInfo:
        """Commit, and log huggingface_hub's warnings with tokens redacted."""
        place = {"revision": revision, "create_pr": create_pr, "repo_type": self.repo_type}
        if self.has_gitignore:  # otherwise the commit would leave out what it names
            additions = [each for each in operations if isinstance(each, CommitOperationAdd)]
            self.api.preupload_lfs_files(self.repo_id, additions, gitignore_content="#", free_memory=False, **place)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            done = self.api.create_commit(
                self.repo_id,
                operations,
                commit_message=message,
                commit_description=description,
                parent_commit=parent,
                **place,
            )
        for warning in caught:
            if issubclass(warning.category, UserWarning):
                logger.warning(redact(" ".join(str(warning.message).split())))
        return done

    def _find_arrived(self, revision: str, mark: str) -> str | None:
        """The commit whose answer was lost; None if it did not arrive."""
        try:
            return self.find_commit(revision, mark)
        except UserError as error:
            raise UserError(
                "the connection was lost while the commit was on its way, and the Hub cannot be asked whether it "
                f"arrived ({error}); push again: what has arrived is not sent twice"
            ) from error

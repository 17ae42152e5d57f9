"""
Push a model folder to the Hugging Face Hub, in one commit that arrives whole or not at all.

`push` looks at the repository, checks the folder, and commits. It never overwrites a file that this folder did not
send, and every failure leaves the repository at the old revision or the new one, so the remedy is to run it again.
"""

import hashlib
import io
import json
import logging
import math
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session, get_token, hf_hub_url
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.hf_api import CommitInfo, ModelInfo, RepoFile, SpaceInfo
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, httpx, validate_repo_id

from ..errors import RedactingFilter, UserError, as_user_error, redact
from ..files import read_json, reading, temporary_folder, write_whole
from ..recipe import SECONDS_TO_ANSWER, SECONDS_TO_PUSH
from ..recipe.schema import Recipe
from ..run.folder import COMPANIONS
from ..run.records import run_of
from .allowed_files import ALLOWED, CARD, EVAL_RESULTS, matches
from .card import benchmark_result, check_languages, check_license, required_metadata, updated_card
from .check import check_model
from .probe import HANDLER

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PAST_PUSHES = ".hub.json"
EDITABLE = {CARD, ".gitattributes"}  # files that may be changed on the Hub between two pushes
# Files of a model, as this project and others write them. A push deletes those on the Hub that it does not contain.
MODEL_FILES = (*ALLOWED, "*.py", "*.safetensors", "*.index.json")
MODEL_FILES += ("*.bin", "*.pt", "*.h5", "*.msgpack", "*.onnx", "*.spm")


@dataclass
class PushOptions:
    """The options of `scratch upload`, of a recipe's `hub` section, and of the push of a Space."""

    repo_id: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    tag: str | None = None
    message: str = "Upload model"
    license: str | None = None
    overwrite: bool = False
    timeout: float = SECONDS_TO_ANSWER  # seconds, for each response of the Hub
    deadline: float = SECONDS_TO_PUSH  # seconds, for the whole upload
    languages: tuple[str, str] | None = None  # source and target; None: as the run or an earlier push names them
    author: str | None = None  # for the card
    space: bool = False  # also push a page that translates, as a static Space of the same name
    marian: str | None = None  # also push the model as a Marian model, to this repository
    endpoint_handler: bool = False  # with a handler.py for Inference Endpoints
    benchmark: tuple[str, str] | None = None  # the task and metric of the test set, a benchmark on the Hub
    repo_type: str = "model"  # or "space", for that page

    def __post_init__(self):
        """Raise UserError for options that cannot work, regardless of the folder and the Hub."""
        try:
            validate_repo_id(self.repo_id)
        except HFValidationError as error:
            raise UserError(f"{self.repo_id!r} is not the name of a repository: {error}") from None
        if self.repo_id.count("/") != 1:
            raise UserError(f"{self.repo_id!r} is not the name of a repository; it must be user/name")
        if not self.message.strip():
            raise UserError("--message is empty")
        for name in ("message", "license", "author"):
            with as_user_error(f"--{name}: "):
                (getattr(self, name) or "").encode()
        for name, value in (("--tag", self.tag), ("--revision", self.revision)):
            if value is not None and not re.fullmatch(r"(?!.*(\.\.|//|\.lock$))[\w][\w./-]*(?<![./])", value):
                raise UserError(f"{name} {value!r} is not a valid name in git; use letters, digits, - . _ /")
        for name, seconds in (("--timeout", self.timeout), ("--deadline", self.deadline)):
            if not 0 < seconds < math.inf:
                raise UserError(f"{name} is {seconds:g}; it must be a positive number of seconds")
        if self.create_pr and (self.tag or self.revision):
            raise UserError("--create-pr proposes a change to main: it excludes --tag and --revision")
        for name, is_asked in (("--space", self.space), ("--marian", self.marian is not None)):
            if is_asked and (self.create_pr or self.tag or self.revision):
                raise UserError(f"{name} pushes to main: it excludes --create-pr, --tag and --revision")
        if self.marian is not None:
            if self.marian == self.repo_id:
                raise UserError(f"--marian {self.marian}: the Marian model needs a repository of its own")
            try:
                self.of_marian()
            except UserError as error:
                raise UserError(f"--marian: {error}") from None

    def of_marian(self) -> "PushOptions":
        """The options for pushing the Marian model to its own repository."""
        assert self.marian is not None
        return replace(self, repo_id=self.marian, marian=None, space=False, benchmark=None)

    @property
    def branch(self) -> str:
        return self.revision or "main"

    @property
    def place(self) -> str:
        """The repository's path below the Hub's address."""
        return self.repo_id if self.repo_type == "model" else f"{self.repo_type}s/{self.repo_id}"

    @property
    def url(self) -> str:
        return f"{HfApi().endpoint}/{self.place}"

    def command(self, folder: str) -> str:
        """The command that pushes a run's folder with these options, as far as a recipe can set them."""
        words = ["scratch", "upload", folder, self.repo_id]
        words += [f"--{name}" for name in ("private", "overwrite") if getattr(self, name)]
        defaults = {"revision": None, "license": None, "timeout": SECONDS_TO_ANSWER, "deadline": SECONDS_TO_PUSH}
        for name, default in defaults.items():
            if (value := getattr(self, name)) != default:
                words += [f"--{name}", value if isinstance(value, str) else f"{value:g}"]
        return shlex.join(words)


# -- requests: limited in time, and their failures explained -----------------------------------------------------------


@contextmanager
def limited_requests(options: PushOptions) -> Iterator[None]:
    """Limit how long huggingface_hub waits for each response (by default, forever), and keep tokens out of its log."""
    for handler in logging.getLogger("huggingface_hub").handlers:
        if not any(isinstance(present, RedactingFilter) for present in handler.filters):
            handler.addFilter(RedactingFilter())

    def limit(request: httpx.Request) -> None:  # a hook, since some functions of huggingface_hub set a timeout of None
        request.extensions["timeout"] = httpx.Timeout(options.timeout).as_dict()

    hooks = get_session().event_hooks["request"]
    hooks.append(limit)
    try:
        yield
    finally:
        hooks.remove(limit)


def within(seconds: float, action: Callable[[], Result]) -> Result:
    """
    Run a function in another thread, and wait for its result no longer than `seconds`, then raise TimeoutError. Neither
    huggingface_hub's retries nor Xet's uploads have a limit of their own. After a timeout the thread runs on, and ends
    with the process.
    """
    done: Future[Result] = Future()

    def work() -> None:
        try:
            done.set_result(action())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return done.result(timeout=seconds)
    except TimeoutError:
        if done.done():  # the function itself raised it
            raise
        raise TimeoutError(f"not finished within {seconds:g} seconds (--deadline)") from None


@contextmanager
def explained(doing: str, options: PushOptions, changes: bool = False) -> Iterator[None]:
    """
    Turn the failure of a request into a one-line UserError that states what failed, why, and what to do.

    Args:
        changes: whether the request may have changed the repository although it failed, as when its response is lost.
    """
    try:
        yield
    except UserError:
        raise
    except OfflineModeIsEnabled:
        raise UserError(f"{doing}: HF_HUB_OFFLINE is set; unset it to push") from None
    except Exception as error:
        # huggingface_hub wraps failures of uploads in RuntimeErrors.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        reason, is_final = _reason(cause, options)
        advice = "; try again later"
        if is_final:
            advice = ""
        elif changes:
            advice = (
                f". The repository is at the old revision or the new one: look at {options.url}, then run the same "
                "command again"
            )
        raise UserError(redact(f"{doing}: {reason}{advice}")) from error


def _reason(error: BaseException, options: PushOptions) -> tuple[str, bool]:
    """Why a request failed, and whether the Hub refused it, so that nothing has changed there."""
    said = " ".join(str(error).split()) or type(error).__name__
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        if status == 401 and isinstance(error, RepositoryNotFoundError):
            return f"{options.place} does not exist, or this token has no access to it", True
        if status == 401:
            return "the token is not valid; log in again with `hf auth login`", True
        words = getattr(error, "server_message", None) or response.reason_phrase
        return f"the Hub refused this for {options.place} ({status}: {' '.join(words.split())})", True
    if status is not None:
        return f"the Hub responded with status {status}", False
    if isinstance(error, httpx.TimeoutException):
        return f"no response from the Hub within {options.timeout:g} seconds (--timeout)", False
    if isinstance(error, httpx.TransportError):
        return f"no connection to the Hub, or it was lost ({said})", False
    if isinstance(error, OSError | RuntimeError) or "Invalid metadata" in said:
        return said, "Invalid metadata" in said  # the Hub checks metadata before anything is sent
    return f"the Hub's response cannot be read ({type(error).__name__}: {said})", False


# -- what this folder has sent -----------------------------------------------------------------------------------------


def identifiers(content: bytes | Path) -> set[str]:
    """How the Hub may identify a file: by git's blob id or, if it is stored as a large file, by its SHA-256."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    hashes = [hashlib.sha1(b"blob %d\0" % size), hashlib.sha256()]
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        while block := file.read(2**20):
            for digest in hashes:
                digest.update(block)
    return {digest.hexdigest() for digest in hashes}


@dataclass
class PastPushes:
    """What a folder remembers of its pushes, in `.hub.json`."""

    sent: set[str] = field(default_factory=set)  # identifiers of all files sent: a file with one of them is ours
    author: str | None = None  # as given at an earlier push
    languages: list[str] | None = None
    space: str | None = None  # the name of the Space and the model that were pushed together
    marian: dict[str, str] = field(default_factory=dict)  # {repository of the model: repository of its Marian model}
    commit: str | None = None  # the last commit; version 0.1.0 wrote this instead of `sent`

    @staticmethod
    def read(folder: Path, options: PushOptions) -> "PastPushes":
        content = read_json(folder / PAST_PUSHES) if (folder / PAST_PUSHES).is_file() else {}
        older = content.get("repositories", {})
        old = older.get(options.place, {}).get(options.branch, {})
        space = options.repo_id if f"spaces/{options.repo_id}" in older else None
        return PastPushes(
            set(content.get("sent", [])),
            content.get("author") or old.get("author"),
            content.get("languages") or old.get("languages"),
            content.get("space") or space,
            content.get("marian", {}),
            old.get("commit"),
        )

    def write(self, folder: Path, with_options: bool) -> None:
        """
        Write what was sent, added to what the file already says: pushes of a model and of its Space both write it.

        Args:
            with_options: also write the author, languages and so on, which only the push of the model itself knows.
        """
        before = read_json(folder / PAST_PUSHES) if (folder / PAST_PUSHES).is_file() else {}
        options = {name: getattr(self, name) for name in ("author", "languages", "space", "marian")}
        content = {name: value for name, value in options.items() if value} if with_options else {}
        content["sent"] = sorted(self.sent.union(before.get("sent", [])))
        write_whole(folder / PAST_PUSHES, json.dumps(before | content, indent=1))


# -- the destination ---------------------------------------------------------------------------------------------------


@dataclass
class Destination:
    """A branch of a repository on the Hub."""

    exists: bool = False  # the repository
    has_branch: bool = False
    is_copy: bool = False  # whether this is a branch other than main that is still at the head of main
    head: str | None = None  # the newest commit of the branch, or of main if there is no such branch yet
    tree: dict[str, str] = field(default_factory=dict)  # the identifier of each file of `head`
    card: str | None = None  # the card of `head`
    tag: str | None = None  # the commit that has the tag

    def others_files(self, options: PushOptions, past: PastPushes, contents: dict[str, set[str]]) -> list[str]:
        """
        Files on the branch that a push would replace or delete, and that this folder did not send.

        Args:
            contents: the identifiers of each file to push.
        """
        if not self.has_branch or self.is_copy or options.create_pr or options.overwrite:
            return []
        touched = {name for name in self.tree if name in contents or belongs(name, options)} - EDITABLE
        return sorted(name for name in touched if self.tree[name] not in past.sent | contents.get(name, set()))


def belongs(name: str, options: PushOptions) -> bool:
    """Whether a file on the Hub is part of what is pushed there, so that a push without it deletes it."""
    return matches(name, MODEL_FILES) if options.repo_type == "model" else name not in EDITABLE


def as_private_as(model: PushOptions, options: PushOptions) -> PushOptions:
    """
    Options for pushing something that contains a model's weights: private if the model is private or gated.

    Args:
        model: the options of the model's own push.
        options: the options to change.
    """
    with limited_requests(model), explained("looking at the repository", model):
        info = repository_info(model)
    return replace(options, private=model.private or (info is not None and bool(info.private or info.gated)))


def repository_info(options: PushOptions) -> ModelInfo | SpaceInfo | None:
    """The Hub's description of the repository; None if there is no such repository."""
    try:
        api = HfApi()
        return api.space_info(options.repo_id) if options.repo_type == "space" else api.model_info(options.repo_id)
    except RepositoryNotFoundError as error:
        if error.response.status_code == 401:
            raise
        return None


def look(options: PushOptions, past: PastPushes) -> Destination:
    """
    Look at the destination of a push. What turns out to be sent from this folder is added to `past.sent`.

    Raises:
        UserError: the account may not push there, or the request failed.
    """
    with explained("looking at the repository", options):
        return within(options.deadline, lambda: _look(options, past))


def _look(options: PushOptions, past: PastPushes) -> Destination:
    api, kind = HfApi(), options.repo_type
    _check_account(options)
    info = repository_info(options)
    if info is None:
        if options.create_pr:
            raise UserError(f"{options.repo_id} does not exist, or this token has no access to it")
        return Destination()
    if options.private and not info.private:
        raise UserError(f"{options.place} exists and is public; make it private in its settings")
    references = api.list_repo_refs(options.repo_id, repo_type=kind)
    branches = {branch.name: branch.target_commit for branch in references.branches}
    tags = {tag.name: tag.target_commit for tag in references.tags}
    main, has_branch = branches.get("main"), options.branch in branches
    head = branches.get(options.branch, main)
    is_copy = options.branch != "main" and head == main
    found = Destination(True, has_branch, is_copy, head, tag=tags.get(options.tag))

    def tree(commit: str) -> dict[str, str]:
        entries = api.list_repo_tree(options.repo_id, recursive=True, revision=commit, repo_type=kind)
        files = [entry for entry in entries if isinstance(entry, RepoFile)]
        return {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}

    if found.head is not None:
        found.tree = tree(found.head)
        if past.commit is not None:
            past.sent |= set((found.tree if past.commit == found.head else tree(past.commit)).values())
        if options.repo_type == "space":  # a new one has a page and a card that the Hub made
            newest = next(iter(api.list_repo_commits(options.repo_id, revision=found.head, repo_type=kind)))
            past.sent |= set(found.tree.values()) if newest.title == "initial commit" else set()
        if CARD in found.tree:
            url = hf_hub_url(options.repo_id, CARD, revision=found.head, endpoint=api.endpoint, repo_type=kind)
            answer = get_session().get(url, headers=build_hf_headers())
            hf_raise_for_status(answer)
            found.card = answer.text
    return found


def _check_account(options: PushOptions) -> None:
    """Raise UserError if there is no token that may write, or the repository belongs to somebody else."""
    if get_token() is None:
        raise UserError("there is no token: log in with `hf auth login`, or set HF_TOKEN")
    account = HfApi().whoami()
    if ((account.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
        raise UserError("this token has only read permission; make one with write permission at /settings/tokens")
    owner = options.repo_id.partition("/")[0]
    own = {account["name"], *(organization["name"] for organization in account.get("orgs") or [])}
    if owner not in own and not options.create_pr:
        raise UserError(
            f"{options.repo_id} belongs to {owner}, and you are {account['name']}; push to {account['name']}/..., or "
            "open a pull request with --create-pr"
        )


def check_is_own(
    found: Destination, options: PushOptions, past: PastPushes, contents: dict[str, set[str]] | None = None
) -> None:
    """Raise UserError if a push of files with these contents would overwrite somebody else's work."""
    if names := found.others_files(options, past, contents or {}):
        raise UserError(
            f"{options.place} holds {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}, which this folder "
            f"did not push, or somebody has changed since. Look at {options.url}; scratch upload --overwrite (in a "
            "recipe: hub.overwrite=true) replaces them, and you may choose another name or revision"
        )


# -- pushing -----------------------------------------------------------------------------------------------------------


@dataclass
class Prepared:
    """What a push would send."""

    files: dict[str, Path]  # {path in the repository: local file}, except the card
    card: str
    findings: list[str] = field(default_factory=list)  # of the check
    kept: dict[str, str] = field(default_factory=dict)  # files to write to the folder afterwards: {name: text}
    has_options: bool = False  # whether PastPushes now has the options of this push

    @property
    def needs_code(self) -> bool:
        """Whether loading the model runs code from the repository."""
        return any(name.endswith(".py") for name in self.files)

    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        sizes = {name: path.stat().st_size for name, path in sorted(self.files.items())}
        return sizes | {CARD: len(self.card.encode())}


@dataclass
class Pushed:
    """Where the model, or its page, is now."""

    url: str
    changed: bool  # False: the Hub had all of it
    repo_id: str
    commit: str
    is_model: bool = True
    needs_code: bool = True  # whether loading the model runs code from the repository

    @property
    def outcome(self) -> str:
        return f"{'pushed' if self.changed else 'already up to date'}: {self.url}"

    def describe(self) -> str:
        """The outcome, and the line of Python that loads exactly this model."""
        if not self.is_model:
            return self.outcome
        name = f'"{self.repo_id}", revision="{self.commit}"'
        trust = ", trust_remote_code=True" if self.needs_code else ""
        return f"{self.outcome}\n  AutoModelForSeq2SeqLM.from_pretrained({name}{trust})"


def prepare_push(
    folder: Path, options: PushOptions, copy: Path, past: PastPushes, card_on_hub: str | None = None
) -> Prepared:
    """
    Copy the files to push to an empty folder, check them there, and make the card.

    Args:
        copy: the empty folder. The files in it are pushed, even if `folder` changes meanwhile.
        past: the earlier pushes of the folder. The options of this push that are to be remembered are set in it.
        card_on_hub: the text of the card on the Hub, if the owner's edits of it are to be kept.

    Raises:
        UserError: what is wrong with the folder or the card.
    """
    run = run_of(folder)
    findings = check_model(folder, copy, run, options.endpoint_handler)
    past.author = options.author or past.author
    past.languages = list(options.languages or past.languages or []) or None
    past.space = options.repo_id if options.space else past.space
    if options.repo_id in past.marian.values():
        raise UserError(f"{options.repo_id} is the repository of this model as a Marian model; choose another")
    if options.marian is not None:
        past.marian = past.marian | {options.repo_id: options.marian}
    if options.benchmark is not None:
        result = benchmark_result(folder, options.repo_id, run, *options.benchmark)
        (copy / EVAL_RESULTS).parent.mkdir(exist_ok=True)
        (copy / EVAL_RESULTS).write_text(result, encoding="utf-8")
    card = updated_card(
        folder,
        options.repo_id,
        run,
        license=options.license,
        languages=past.languages,
        author=past.author,
        has_space=past.space == options.repo_id,
        marian=past.marian.get(options.repo_id),
        before=card_to_keep(folder, past, card_on_hub),
    )
    expected = ("language", "license") if run is None or run.tags else ("license",)
    missing = [key for key in expected if key not in required_metadata(run) and f"\n{key}:" not in card]
    findings.append(f"card: complete, but without {' and '.join(missing)}" if missing else "card: complete")
    files = {path.relative_to(copy).as_posix(): path for path in sorted(copy.rglob("*")) if path.is_file()}
    kept = {CARD: card}
    if HANDLER in files and not (folder / HANDLER).exists():
        kept[HANDLER] = files[HANDLER].read_text(encoding="utf-8")
    return Prepared(files, card, findings, kept, has_options=True)


def card_to_keep(folder: Path, past: PastPushes, on_hub: str | None) -> str | None:
    """
    The card from which the next one keeps the owner's text: the one that was edited since the last push, be it on the
    Hub or in the folder.

    Raises:
        UserError: both cards were edited.
    """
    in_folder = None
    if (folder / CARD).is_file():
        with reading(folder / CARD, "correct or delete it: "):
            in_folder = (folder / CARD).read_text(encoding="utf-8")
    cards = [text for text in (on_hub, in_folder) if text is not None]
    edited = [text for text in cards if not identifiers(text.encode()) & past.sent]
    if len(edited) == 2 and edited[0] != edited[1]:
        raise UserError(
            f"the card was edited both on the Hub and in {folder}: delete {folder / CARD} to keep the Hub's, or push "
            "with --overwrite to keep the folder's"
        )
    return next(iter(edited or cards), None)


Operation = CommitOperationAdd | CommitOperationDelete
Preparation = Callable[[Path, PushOptions, Path, PastPushes, str | None], Prepared]


@dataclass
class Ready:
    """A push that has been prepared."""

    prepared: Prepared
    send: Callable[[], Pushed]  # makes the commit; if the Hub has all of it already, there is none


@contextmanager
def prepared_push(folder: Path, options: PushOptions, preparation: Preparation = prepare_push) -> Iterator[Ready]:
    """
    Check a model's folder, look at the repository, and prepare what is pushed.

    Args:
        preparation: makes what is pushed from the folder.

    Raises:
        UserError: here and in `Ready.send`; the message says what happened, what is on the Hub, and what to do.
    """
    past = PastPushes.read(folder, options)
    with limited_requests(options), temporary_folder() as copy:
        found = look(options, past)
        card_on_hub = None if options.overwrite or options.create_pr else found.card
        prepared = preparation(folder, options, copy, past, card_on_hub)
        contents: dict[str, Path | bytes] = {**prepared.files, CARD: prepared.card.encode()}
        known = {name: identifiers(content) for name, content in contents.items()}
        check_is_own(found, options, past, known)
        added = [name for name in contents if found.tree.get(name) not in known[name]]
        stale = sorted(name for name in found.tree if belongs(name, options) and name not in contents)
        if found.tag is not None and (found.tag != found.head or added or stale):
            raise UserError(f"the tag {options.tag} exists, at {found.tag[:7]}; choose another, or delete it there")

        def send() -> Pushed:
            sizes = prepared.sizes()
            logger.info(f"pushing {len(sizes)} files, {sum(sizes.values()):,} bytes, to {options.place}")
            # Before anything is sent: if the response is lost, the next push knows what is this folder's own work.
            past.sent = past.sent.union(*known.values())
            past.write(folder, prepared.has_options)
            operations: list[Operation] = [CommitOperationAdd(name, contents[name]) for name in added]
            operations += [CommitOperationDelete(name) for name in stale]
            pushed = _commit(operations, options, found, prepared.needs_code)
            # The card of a pull request is the other repository's.
            kept = {name: text for name, text in prepared.kept.items() if name != CARD or not options.create_pr}
            _finish(folder, options, kept, pushed, found)
            return pushed

        yield Ready(prepared, send)


def push(folder: Path, options: PushOptions) -> Pushed:
    """Check a model's folder and push it; see `prepared_push`."""
    with prepared_push(folder, options) as ready:
        return ready.send()


def _commit(operations: list[Operation], options: PushOptions, found: Destination, needs_code: bool) -> Pushed:
    """Create the repository and the branch if necessary, and make one commit, or open a pull request with it."""
    api, name, kind = HfApi(), options.repo_id, options.repo_type
    is_model, parent = options.repo_type == "model", found.head
    if not found.exists:
        with explained("creating the repository", options):
            private, sdk = options.private or None, None if is_model else "static"
            api.create_repo(name, private=private, exist_ok=True, repo_type=kind, space_sdk=sdk)
            branches = api.list_repo_refs(name, repo_type=kind).branches  # the Hub has made a first commit
            parent = next((branch.target_commit for branch in branches if branch.name == "main"), None)
    if not found.has_branch and options.branch != "main":
        with explained("creating the branch", options):
            api.create_branch(name, branch=options.branch, exist_ok=True, repo_type=kind)
    if not operations:
        return Pushed(f"{options.url}/commit/{parent}", False, name, parent, is_model, needs_code)

    def commit() -> CommitInfo:  # huggingface_hub retries uploads, but sends the commit itself only once
        return api.create_commit(
            name,
            operations,
            commit_message=options.message,
            revision=options.branch,
            parent_commit=parent,
            create_pr=options.create_pr,
            repo_type=kind,
        )

    with explained("opening the pull request" if options.create_pr else "committing", options, changes=True):
        done = within(options.deadline, commit)
    return Pushed(done.pr_url or f"{options.url}/commit/{done.oid}", True, name, done.oid, is_model, needs_code)


def _finish(folder: Path, options: PushOptions, kept: dict[str, str], pushed: Pushed, found: Destination) -> None:
    """Write the files to keep, and create the tag. A UserError from here begins with where the model already is."""
    try:
        for name, text in kept.items():
            write_whole(folder / name, text)
        if options.tag and found.tag is None:
            with explained(f"creating the tag {options.tag!r}", options):
                HfApi().create_tag(pushed.repo_id, tag=options.tag, revision=pushed.commit, repo_type=options.repo_type)
    except (UserError, OSError) as error:
        raise UserError(
            f"the model is at {pushed.url} (revision {pushed.commit}), but a later step failed ({error}): the same "
            "command does the rest"
        ) from error


# -- for runs ----------------------------------------------------------------------------------------------------------


def _options(recipe: Recipe, message: str = "Upload model") -> PushOptions:
    hub = recipe.hub
    assert hub.repository is not None
    return PushOptions(hub.repository, message=message, **hub.model_dump(exclude={"repository", "push"}))


def check_destination(recipe: Recipe) -> None:
    """Before training, raise UserError for anything that would make the recipe's push fail."""
    options, folder = _options(recipe), Path(recipe.output_dir)
    if options.license is not None:
        check_license(options.license)
    check_languages(*recipe.data.languages or ())
    companions = [path for pattern in COMPANIONS for path in folder.glob(pattern) if path.is_file()]
    past = PastPushes.read(folder, options)
    with limited_requests(options):
        found = look(options, past)
    check_is_own(found, options, past, {path.name: identifiers(path) for path in companions})


def push_run(recipe: Recipe) -> Pushed:
    """Push a finished run as its recipe specifies. UserError names the command that pushes it later."""
    options = _options(recipe)
    by_hand = f"The model is complete in {recipe.output_dir}; push it with: {options.command(recipe.output_dir)}"
    try:
        return push(Path(recipe.output_dir), options)
    except (ValueError, OSError) as error:
        raise UserError(f"{error}. {by_hand}") from error
    except KeyboardInterrupt:
        interrupted = "interrupted; the repository is at the old revision or the new one"
        raise KeyboardInterrupt(f"{interrupted}. {by_hand}") from None


def try_push(recipe: Recipe, message: str) -> None:
    """Push during training. A failure is only logged: the next push sends everything."""
    try:
        logger.info(push(Path(recipe.output_dir), _options(recipe, message)).outcome)
    except UserError as error:
        logger.warning(redact(f"not pushed: {error}"))
    except Exception as error:  # no failure of a push may end the training
        logger.warning(redact(f"not pushed: {type(error).__name__}: {' '.join(str(error).split())}"))

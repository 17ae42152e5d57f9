"""A folder's record of its pushes, so that the next one can tell the folder's commits from somebody else's."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import as_user_error
from ..files import write_whole

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


def _read(folder: Path) -> dict[str, dict[str, LastPush]]:
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
    return _read(folder).get(repo_id, {}).get(revision, LastPush())


def push_of_card(folder: Path, card: str | None) -> LastPush:
    """The record of the push of a card from this folder to any place; an empty `LastPush` for any other card."""
    pushes = (push for revisions in _read(folder).values() for push in revisions.values())
    return next((push for push in pushes if card is not None and push.card == card), LastPush())


def write_last_push(folder: Path, repo_id: str, revision: str, push: LastPush) -> None:
    """Record a push in place of the one before."""
    content = _read(folder)
    content.setdefault(repo_id, {})[revision] = push
    write_whole(folder / RECORD, json.dumps({"repositories": content}, default=asdict, indent=2))

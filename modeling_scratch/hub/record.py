"""A folder's record of its pushes, so that the next one can tell the folder's commits from somebody else's."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
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


def _read(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """{repository: {revision: the fields of a LastPush}}"""
    path = folder / RECORD
    if not path.is_file():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))["repositories"]


def read_last_push(folder: Path, repo_id: str, revision: str) -> LastPush:
    """
    The record of the last push; an empty `LastPush` if there was none.

    Raises:
        UserError: the file that holds it is damaged.
    """
    try:
        return LastPush(**_read(folder).get(repo_id, {}).get(revision, {}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{folder / RECORD}: damaged ({error}); delete it, look at the repository, then push with --overwrite"
        ) from None


def push_of_card(folder: Path, card: str | None) -> LastPush:
    """The record of the push of a card from this folder to any place; an empty `LastPush` for any other card."""
    pushes = (push for revisions in _read(folder).values() for push in revisions.values())
    return next((LastPush(**push) for push in pushes if card is not None and push.get("card") == card), LastPush())


def write_last_push(folder: Path, repo_id: str, revision: str, push: LastPush) -> None:
    """Record a push in place of the one before."""
    content = _read(folder)
    content.setdefault(repo_id, {})[revision] = asdict(push)
    write_whole(folder / RECORD, json.dumps({"repositories": content}, indent=2))

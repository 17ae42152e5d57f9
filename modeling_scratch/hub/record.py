"""What a run's folder remembers of its pushes, so that the next one knows its own commits from somebody else's."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_whole

RECORD = ".hub.json"


@dataclass
class Push:
    """One push to a repository's revision."""

    commit: str | None = None  # None: not known to have arrived
    parent: str | None = None  # the newest commit when it was made
    mark: str = ""  # by which the commit is recognised
    card: str = ""  # as pushed
    license: str | None = None  # this and the next two for the card, as asked for, or as remembered
    files: list[str] = field(default_factory=list)
    languages: list[str] | None = None
    author: str | None = None


class PushRecord:
    """
    The pushes of a folder, kept in it.

    Raises:
        UserError: the file that holds them is damaged.
    """

    def __init__(self, folder: Path):
        self.path = folder / RECORD
        self.written = ""  # the card as the last push left it in the folder
        self._last: dict[str, dict[str, dict[str, Push]]] = {}
        try:
            if self.path.is_file():
                self._read(json.loads(self.path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self.path}: damaged ({error}); delete it, look at the repository, then push with --overwrite"
            ) from None

    def _read(self, content: dict[str, Any]) -> None:
        self.written = content["written"]
        for repository, revisions in content["repositories"].items():
            for revision, pushes in revisions.items():
                for kind, push in pushes.items():
                    self._put(repository, revision, kind, Push(**push))

    def _put(self, repository: str, revision: str, kind: str, push: Push) -> None:
        self._last.setdefault(repository, {}).setdefault(revision, {})[kind] = push

    def done(self, repository: str, revision: str) -> Push | None:
        """The last push that arrived."""
        return self._last.get(repository, {}).get(revision, {}).get("done")

    def begun(self, repository: str, revision: str) -> Push | None:
        """A later push whose end was not seen."""
        return self._last.get(repository, {}).get(revision, {}).get("begun")

    def begin(self, repository: str, revision: str, push: Push) -> None:
        """Before anything is sent."""
        self._put(repository, revision, "begun", push)
        self._save()

    def finish(self, repository: str, revision: str, push: Push) -> None:
        """The commit is known."""
        self._last.setdefault(repository, {})[revision] = {"done": push}
        self._save()

    def write(self, card: str) -> None:
        """The card that is now in the folder."""
        self.written = card
        self._save()

    def _save(self) -> None:
        repositories: dict[str, dict] = {}
        for repository, revisions in self._last.items():
            for revision, pushes in revisions.items():
                kinds = {kind: asdict(push) for kind, push in pushes.items()}
                repositories.setdefault(repository, {})[revision] = kinds
        write_whole(self.path, json.dumps({"written": self.written, "repositories": repositories}, indent=2))

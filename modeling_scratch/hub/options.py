"""What a push is told: where to, and how."""

import math
import re
import shlex
from dataclasses import dataclass

from .bounded_client import SECONDS_TO_ANSWER
from .client import PushError, check_name


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
    timeout: float = SECONDS_TO_ANSWER
    languages: tuple[str, str] | None = None  # codes of source and target; None: as the folder says
    author: str | None = None  # for the card

    def check(self) -> None:
        """Raise PushError for what cannot be, whatever the folder and the Hub hold."""
        check_name(self.repo_id)
        if not self.message.strip():
            raise PushError("--message is empty")
        for name, value in (("--tag", self.tag), ("--revision", self.revision)):
            if value is not None and not re.fullmatch(r"(?!.*(\.\.|//|\.lock$))[\w][\w./-]*(?<![./])", value):
                raise PushError(f"{name} {value!r} is no name that git takes; letters, digits, - . _ / are fine")
        if not 0 < self.timeout < math.inf:
            raise PushError(f"--timeout is {self.timeout:g}; it must be a positive number of seconds")
        if self.create_pr and (self.tag or self.revision):
            raise PushError("--create-pr proposes a change of main: --tag and --revision do not go with it")

    def command(self, folder: str) -> str:
        """What to type for this push."""
        words = ["python", "hub_upload.py", folder, self.repo_id]
        for name, default in (("private", False), ("overwrite", False)):
            words += [f"--{name}"] * (getattr(self, name) != default)
        for name in ("revision", "license", "tag", "author"):
            words += [f"--{name}", value] if (value := getattr(self, name)) is not None else []
        words += ["--languages", *self.languages] if self.languages else []
        words += ["--timeout", f"{self.timeout:g}"] * (self.timeout != SECONDS_TO_ANSWER)
        return shlex.join(words)

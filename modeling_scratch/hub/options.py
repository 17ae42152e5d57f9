"""The options of a push: where it goes, and how."""

import math
import re
import shlex
from dataclasses import dataclass

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..defaults import SECONDS_TO_ANSWER
from ..errors import UserError


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

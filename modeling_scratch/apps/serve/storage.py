"""What the service keeps on disk: translated files until they are downloaded, and suggestions."""

import asyncio
import json
import os
import re
import secrets
from contextlib import ExitStack
from pathlib import Path, PurePath

from ...errors import UserError
from ...files import temporary_folder

_MOST_BYTES = 2**30  # of all translated files, and of a file of suggestions
_LONGEST_NAME = 100  # characters


def translated_name(name: str, target: str) -> str:
    """The name of a translated file: report.de.docx for report.docx."""
    name = re.sub(r"[\x00-\x1f\x7f]", "", re.split(r"[\\/]", name)[-1])[-_LONGEST_NAME:].lstrip(".") or "file"
    path = PurePath(name)
    return f"{path.stem}.{target}{path.suffix}"


class Downloads:
    """
    Translated files in a temporary folder, each deleted after a while, or earlier if they take too much room. Use it in
    a `with` block and an event loop: leaving the block deletes all of them.

    Args:
        seconds: for how long a file is kept.
    """

    def __init__(self, seconds: float):
        self._seconds, self._stack = seconds, ExitStack()
        self._kept: dict[str, tuple[str, int]] = {}  # {secret: name and size of a file}

    def __enter__(self) -> "Downloads":
        self._folder = self._stack.enter_context(temporary_folder())
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    async def add(self, name: str, content: bytes) -> str:
        """Keep a file. Returns what `find` finds it by: a secret, a dot, and its name."""
        secret = secrets.token_urlsafe(16)
        await asyncio.to_thread((self._folder / secret).write_bytes, content)
        self._kept[secret] = name, len(content)
        while sum(size for _, size in self._kept.values()) > _MOST_BYTES:
            self._delete(next(iter(self._kept)))
        asyncio.get_running_loop().call_later(self._seconds, self._delete, secret)
        return f"{secret}.{name}"

    def find(self, address: str) -> tuple[Path, str] | None:
        """Where a file is, and its name; None if it is not kept, or no longer."""
        secret = address.partition(".")[0]
        return (self._folder / secret, self._kept[secret][0]) if secret in self._kept else None

    def _delete(self, secret: str) -> None:
        if self._kept.pop(secret, None) is not None:
            (self._folder / secret).unlink(missing_ok=True)


class Suggestions:
    """
    Translations that users suggest: in a folder, a file for each direction with a JSON object on each line, such as
    {"en": "A cat.", "de": "Eine Katze."} in en-de.jsonl. Training reads these files.

    Raises:
        UserError: the folder cannot be made.
    """

    def __init__(self, folder: Path):
        self._folder, self._lock = folder, asyncio.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--suggestions {folder}: {error.strerror}") from error

    async def add(self, source: str, target: str, text: str, suggestion: str) -> bool:
        """Add a suggestion. Returns once it is on disk; False if the file is full."""
        line = json.dumps({source: text, target: suggestion}, ensure_ascii=False) + "\n"
        async with self._lock:
            return await asyncio.to_thread(_append, self._folder / f"{source}-{target}.jsonl", line.encode())


def _append(path: Path, line: bytes) -> bool:
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if size + len(line) > _MOST_BYTES:
            return False
        if file.write(line) < len(line):  # the disk is full
            file.truncate(size)
            raise OSError(f"{path}: no space left")
        os.fsync(file.fileno())
    return True

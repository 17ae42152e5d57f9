"""Write files atomically, and read them with errors that name them."""

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import UserError


def sha256(path: Path) -> str:
    """The SHA-256 of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written_whole(path: Path, only_writer: bool = True) -> Iterator[Path]:
    """
    A temporary path that replaces `path` at the end: readers see the old file or the new one, even after a crash. The
    old file's permissions are kept.

    Args:
        only_writer: no other process writes this file at the same time. The temporary file then has a fixed name, so
            one left by a killed process is reused; otherwise its name is random.
    """
    temporary = path.with_name(f".{path.name}.tmp" if only_writer else f".{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch(exist_ok=only_writer)
        mode = stat.S_IMODE((path if path.exists() else temporary).stat().st_mode)  # safetensors makes files private
        os.chmod(temporary, mode | stat.S_IWUSR)  # a private file is private from the start
        yield temporary
        os.chmod(temporary, mode)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def one_line(text: str) -> str:
    """A text with its line breaks replaced by spaces."""
    return text.replace("\r", " ").replace("\n", " ")


def write_lines(path: Path, texts: Iterable[str]) -> None:
    """Write texts, one a line, whole or not at all; line breaks in them become spaces."""
    write_whole(path, "".join(f"{one_line(text)}\n" for text in texts))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. UserError names the file if it holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; save the model again") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be read; save the model again") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected an object, found {type(content).__name__}")
    return content

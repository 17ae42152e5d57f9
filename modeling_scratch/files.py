"""Write files atomically, and read them with errors that name them."""

import errno
import hashlib
import json
import os
import secrets
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .errors import UserError, as_user_error

LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the beginning of a Git LFS pointer file


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
def ending_on_signals() -> Iterator[None]:
    """
    Inside this context, SIGTERM and SIGHUP raise SystemExit unless something else handles them, so that temporary files
    are deleted.
    """
    is_main = threading.current_thread() is threading.main_thread()  # other threads cannot set handlers
    usual = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    ending = [number for number in usual if signal.getsignal(number) == signal.SIG_DFL]
    for number in ending:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def temporary_folder(within: Path | None = None) -> Iterator[Path]:
    """A folder that is deleted afterwards, even if a signal ends the process; `within` another one if given."""
    with ending_on_signals(), TemporaryDirectory(dir=within) as folder:
        yield Path(folder)


def is_real_folder(path: Path) -> bool:
    """Whether a path is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def remove(path: Path) -> None:
    """Delete a file, a folder with its contents, or a link but not its target. Do nothing if there is none."""
    shutil.rmtree(path) if is_real_folder(path) else path.unlink(missing_ok=True)


@contextmanager
def written_whole(path: Path, only_writer: bool = True) -> Iterator[Path]:
    """
    A temporary path for a file or folder that replaces `path` at the end, so that readers see either the old one or the
    new one. For a file this holds even if the machine crashes; files in a folder may then be truncated. After an error
    or a signal the temporary path is deleted. An old file's permissions are kept, and its owner if this process may.

    Args:
        only_writer: no other process writes this path at the same time. The temporary path then has a fixed name, so
            that one left behind by a killed process is replaced; otherwise its name is random.

    Raises:
        UserError: there is a write-protected file or folder. It could be replaced, but its protection says not to.
    """
    check_not_protected(path)
    temporary = path.with_name(f".{path.name}.tmp" if only_writer else f".{secrets.token_hex(4)}.tmp")
    with ending_on_signals():
        try:
            remove(temporary)
            temporary.touch(exist_ok=False)
            # The permissions of the old file, or of any new file here: safetensors makes its files private.
            old = (path if path.is_file() else temporary).stat()
            mode = stat.S_IMODE(old.st_mode)
            if path.is_file():
                os.chmod(temporary, mode | stat.S_IWUSR)  # a private file is private from the start
            else:
                temporary.unlink()  # for a folder to take its place
            yield temporary
            if temporary.is_file():
                with suppress(OSError):  # only root may give files away
                    os.chown(temporary, old.st_uid, old.st_gid)
                os.chmod(temporary, mode)
            sync(temporary)
            _replace(temporary, path)
        finally:
            remove(temporary)


def check_not_protected(path: Path) -> None:
    """Raise UserError for an old file or folder without permission to write, and OSError for a link to itself."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    # `access` is true for root, who should not write by mistake either. A link itself is replaced, not its target.
    if not path.is_symlink() and not (mode & 0o222 and os.access(path, os.W_OK)):
        raise UserError(f"{path} is write-protected; choose another name, or allow writing: chmod u+w")


def _replace(new: Path, path: Path) -> None:
    """`os.replace`, and for a folder in place of an old one, which is first renamed, and back if that fails."""
    if not (is_real_folder(path) and is_real_folder(new)):
        os.replace(new, path)
        return
    old = path.with_name(f".{secrets.token_hex(4)}.tmp")
    os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        os.replace(old, path)
        raise
    remove(old)


def check_new_output(out: Path, check_old: Callable[[Path], None] | None = None) -> None:
    """
    Raise UserError if a file or folder exists already, or cannot be made there.

    Args:
        check_old: raises UserError unless the file or folder that exists may be replaced.
    """
    if out.exists() or out.is_symlink():
        if check_old is None:
            raise UserError(f"{out} exists; choose another name")
        check_old(out)
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out}: the folder {out.absolute().parent} does not exist")


@contextmanager
def new_output(out: Path, check_old: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """
    `written_whole` for a file or folder that a user names, and `check_new_output` allows. Raises UserError if the disk
    is full, or the user may not write as much.
    """
    from safetensors import SafetensorError  # here: this module is imported by what needs no packages

    check_new_output(out, check_old)
    try:
        with written_whole(out, only_writer=False) as temporary:
            yield temporary
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(f"{out} cannot be written ({error.strerror}): make room, or write it elsewhere") from error
        raise
    except SafetensorError as error:  # written in Rust, and without an errno
        raise UserError(f"{out} cannot be written ({error}): make room, or write it elsewhere") from error


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


def lfs_pointer_message(path: Path) -> str:
    return f"{path} is a Git LFS pointer, not the file itself; run git lfs pull"


def _pointer(path: Path) -> Path | None:
    """The file, or the first one in a folder, that is a Git LFS pointer."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                if opened.read(len(LFS_POINTER)) == LFS_POINTER:
                    return file
    return None


@contextmanager
def reading(path: Path, how: str = "") -> Iterator[None]:
    """
    Turn any error about a user's file or folder into a UserError that names it, as `as_user_error` does.

    Args:
        how: the words after the name, such as "cannot be read as JSON: ".
    """
    with as_user_error(f"{path}: {how}"):
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.strerror:
                raise UserError(f"{error.filename or path}: {error.strerror.lower()}") from error
            if (pointer := _pointer(path)) is not None:
                raise UserError(lfs_pointer_message(pointer)) from error
            raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. UserError names the file if it holds anything else."""
    with reading(path, "cannot be read as JSON: "):
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected an object, found {type(content).__name__}")
    return content

"""The lines of text files, plain or gzipped, with errors that name file and line."""

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError


def check_file(path: Path) -> None:
    """UserError if a file is missing, not readable or empty."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; a file is needed")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: permission to read it is denied")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzipped, with their line ends. Only a line feed ends a line."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, line {number}: not valid UTF-8 ({error.reason})") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path}: not a complete gzip file ({error})") from None

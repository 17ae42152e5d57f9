"""The lines of text files, plain or gzipped, with errors that name file and line."""

import gzip
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import UserError, beginning
from ..files import LFS_POINTER, reading

# How XML begins, and test sets and talks of WMT and IWSLT; or a line that is one tag, with a closing tag below it.
_MARKUP = re.compile(
    rb"<(\?xml|!doctype|mteval|srcset|refset|tstset|doc docid|url>http|tmx|[a-z][^<>\n]*+>\s*?\n.*</[a-z])", re.I | re.S
)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read, unpacked. What reading it raises is about the file."""
    compressed = path.suffix == ".gz"
    with (
        reading(path, "not a complete gzip file: " if compressed else ""),
        gzip.open(path, "rb") if compressed else path.open("rb") as file,
    ):
        yield file


def check_file(path: Path) -> None:
    """UserError if a file is missing, not readable or empty, or if its lines are not sentences: XML, or a pointer."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; a file is needed")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: permission to read it is denied")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    with _opened(path) as file:
        start = file.read(4000).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(LFS_POINTER):
        raise UserError(f"{path} is a pointer of Git LFS, not the file itself: run git lfs pull")
    if _MARKUP.match(start):
        first = start.partition(b"\n")[0].decode(errors="replace")
        raise UserError(
            f"{path} is XML or SGML ({beginning(first)}), not a sentence per line; write its "
            "sentences to a text file, one per line: the text of each <seg> in test sets of WMT and IWSLT, and of each "
            "language's <seg> in TMX"
        )


def read_lines(path: Path) -> Iterator[str]:
    """
    The lines of a UTF-8 text file, plain or gzipped, with their line ends. Only a line feed ends a line, but in a file
    that has none a carriage return does.
    """
    with _opened(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if number == 1 and not text.endswith("\n"):
                    yield from io.StringIO(text.replace("\r", "\n"))
                else:
                    yield text
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, line {number}: not valid UTF-8 ({error.reason})") from None

"""The files that a recipe names, and the lines and rows in them."""

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from glob import escape as glob_escape
from glob import glob
from pathlib import Path

from ..errors import UserError
from ..recipe.schema import SOURCE, TABLE_SUFFIXES, TARGET, DataSection, Files

FORMATS = (
    f"a {', '.join(list(TABLE_SUFFIXES)[:-1])} or {list(TABLE_SUFFIXES)[-1]} file or several, two text files [source, "
    "target], plain or .gz, or the prefix of two (data/train for data/train.en and data/train.de)"
)


def find_files(files: Files, data: DataSection, key: str) -> list[Path] | list[tuple[Path, Path]]:
    """
    The tables, or the pairs of text files, that a recipe's value names; in names with a `*` all that fit, in order.

    Args:
        key: of the recipe, for messages.

    Raises:
        UserError: none is there, they cannot be told apart or paired, or nobody here reads such files.
    """
    names = [files] if isinstance(files, str) else files
    for name in names:
        _check_name(name, key)
    kinds = {TABLE_SUFFIXES.get(Path(name).suffix.lower()) for name in names}
    if kinds != {None}:
        if None in kinds:
            raise UserError(f"{key}: tables and text files together: {', '.join(names)}; name {FORMATS}")
        return [path for name in names for path in _expand(name, key)]
    for side in ("source", "target"):
        if getattr(data, f"{side}_column") is not None:
            raise UserError(f"data.{side}_column: text files, as in {key}, have no columns; set it to null")
    if len(names) == 1:
        sides = [_with_language(names[0], language, key) for language in (data.source_language, data.target_language)]
    elif len(names) == 2:
        if Path(names[0]).resolve() == Path(names[1]).resolve():
            raise UserError(f"{key}: source and target are one file, {names[0]}")
        sides = [_expand(name, key) for name in names]
    else:
        raise UserError(f"{key}: {len(names)} text files, {', '.join(names)}; name {FORMATS}")
    if len(sides[0]) != len(sides[1]):
        raise UserError(f"{key}: {len(sides[0])} files of sources, {len(sides[1])} of targets; each needs the other")
    return list(zip(*sides, strict=True))


def _check_name(name: str, key: str) -> None:
    if re.match(r"[a-z][a-z0-9+.-]*://", name):
        raise UserError(f"{key}: {name} is a web address; download it, or set data.name to a data set on the Hub")
    if Path(name).is_dir() and not list(Path(name).parent.glob(f"{glob_escape(Path(name).name)}.*")):
        raise UserError(f"{key}: {name} is a folder; name {FORMATS}")


def _expand(name: str, key: str) -> list[Path]:
    if "*" not in name:
        return [Path(name)]
    if not (found := sorted(glob(name, recursive=True))):
        raise UserError(f"{key}: no file fits {name}")
    return list(map(Path, found))


def _with_language(prefix: str, language: str, key: str) -> list[Path]:
    candidates = [Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")]
    for path in candidates:
        if "*" in prefix and glob(str(path), recursive=True):
            return _expand(str(path), key)
        if path.exists():
            return [path]
    if Path(prefix).is_file():
        raise UserError(f"{key}: {prefix} is one file of a kind that is not read; name {FORMATS}")
    raise UserError(f"{key}: {candidates[0]}: no such file, nor {candidates[1].name}; name {FORMATS}")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzipped, each with its end. Only a line feed ends a line."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        lines = enumerate(file, start=1)
        while True:
            try:
                number, line = next(lines)
            except StopIteration:
                return
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise UserError(f"{path}: not a complete gzip file ({error})") from None
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}, line {number}: not valid UTF-8 ({error.reason})") from None


def read_pairs(source: str, target: str, stamps: str) -> Iterator[dict[str, str]]:
    # `stamps` takes part in the cache's key: a file that changed is read again. Text, since datasets takes a list for
    # shards, and would read both files once for each of its entries.
    for source_line, target_line in zip(read_lines(Path(source)), read_lines(Path(target)), strict=True):
        yield {SOURCE: source_line.strip(), TARGET: target_line.strip()}


def read_rows(paths: str, stamps: str) -> Iterator[dict[str, str]]:
    """The rows of CSV and TSV files. Every cell is text: "1" is a sentence, and so are "NA" and "null"."""
    for path in map(Path, json.loads(paths)):
        # As corpora are, a quotation mark in a TSV file is text.
        dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix.lower() == ".tsv" else {"strict": True}
        reader = csv.reader(read_lines(path), **dialect)
        try:
            header = next(reader)
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise UserError(
                        f"{path}, line {reader.line_num}: {len(row)} fields, but the header has {len(header)}"
                    )
                yield dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def check_file(path: Path) -> None:
    """UserError if there is no such file, it may not be read, or nothing is in it."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; a file is needed")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: you may not read it")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")


def check_files(data: DataSection) -> None:
    """
    UserError, before anything is read, if a file of any split is missing or empty, or one to train on is one to
    validate or test with too.
    """
    train: set[Path] = set()
    for split, files in data.files().items():
        key = data.files_key(split)
        paths = [path for entry in find_files(files, data, key) for path in as_paths(entry)]
        for path in paths:
            check_file(path)
        found = {path.resolve() for path in paths}
        if both := train & found:
            raise UserError(f"{key}: {min(both)} is a training file too; name another one, or set the key to null")
        train = found if split == "train" else train


def as_paths(entry: Path | tuple[Path, Path]) -> tuple[Path, ...]:
    """The files of an entry of `find_files`."""
    return entry if isinstance(entry, tuple) else (entry,)

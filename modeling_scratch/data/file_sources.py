"""Sentence pairs in local files: two text files, or a table with a column for each language."""

import glob
import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, IterableDataset, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..errors import UserError
from ..recipe.schema import SOURCE, TARGET, DataSection, Files
from .columns import as_pairs, choose_columns, text_of
from .lines import check_file, read_lines
from .pair_files import as_paths, find_files
from .pair_source import PairSource, Provenance, local_provenance
from .table_formats import FORMATS

_FIRST_ROWS = 100  # whose names are the columns of a table


class FileSource(PairSource):
    """
    Base class of the sources in local files.

    Args:
        files: as the recipe names them.
        key: the recipe's key, for messages.
    """

    def __init__(self, files: Files, data: DataSection, key: str):
        self.files, self.data, self.key = files, data, key
        self.name = str(files)

    def found(self) -> list[Path] | list[tuple[Path, Path]]:
        """The tables, or the pairs of text files. UserError if one is missing or empty."""
        found = find_files(self.files, self.data, self.key)
        for entry in found:
            for path in as_paths(entry):
                check_file(path)
        return found

    def fingerprint(self) -> str:
        """Names, sizes and beginnings of the files: reading a whole corpus just for this would take too long."""
        paths = [path for entry in self.found() for path in as_paths(entry)]
        return ", ".join(f"{path} ({path.stat().st_size:,} bytes, beginning {_beginning(path)})" for path in paths)

    def provenance(self) -> Provenance:
        return local_provenance(self.files)

    def _load(self, read: Callable[..., Iterator], entries: list[tuple], found: list) -> Dataset:
        """
        The pairs that `read` yields of the files found, cached. UserError as it raises it, in which case nothing is
        cached.
        """
        options = {"entries": tuple(entries), "names": (SOURCE, TARGET), "stamps": _stamps(found)}
        try:
            return Dataset.from_generator(
                read, features=Features({SOURCE: Value("string"), TARGET: Value("string")}), gen_kwargs=options
            )
        except DatasetGenerationError as error:
            cause = error.__cause__
            if isinstance(cause, UserError) or (isinstance(cause, OSError) and cause.errno):  # as of a full disk
                raise cause from None
            raise

    def _stream(self, read: Callable[..., Iterator], entries: list[tuple]) -> IterableDataset:
        data = self.data
        names = (data.source_column or data.source_language, data.target_column or data.target_language)
        return IterableDataset.from_generator(read, gen_kwargs={"entries": entries, "names": names})


class TextFiles(FileSource):
    """One or more pairs of text files, in which line i of one translates line i of the other."""

    def load(self) -> Dataset:
        found = self.found()
        return self._load(read_texts, self._entries(found), found)

    def stream(self) -> IterableDataset:
        return self._stream(read_texts, self._entries(self.found()))

    @staticmethod
    def _entries(found: list[tuple[Path, Path]]) -> list[tuple[str, str]]:
        return [(str(source.absolute()), str(target.absolute())) for source, target in found]


class Tables(FileSource):
    """Tables in one of `table_formats.FORMATS`, with a text for each language in every row."""

    def load(self) -> Dataset:
        paths = self.found()
        if self._reader(paths) is None:
            return as_pairs(self._parquet(paths), self.data, ", ".join(map(str, paths)))
        return self._load(read_tables, self._entries(paths), paths)

    def stream(self) -> IterableDataset:
        paths = self.found()
        if self._reader(paths) is None:
            return self._parquet(paths, streaming=True)
        return self._stream(read_tables, self._entries(paths))

    def _reader(self, paths: list[Path]) -> Callable[[Path], Iterator[dict[str, Any]]] | None:
        suffixes = {path.suffix.lower() for path in paths}
        if len(suffixes) > 1:
            raise UserError(f"{self.key}: the files must be of one kind, got {', '.join(sorted(suffixes))}")
        return FORMATS[suffixes.pop()]

    def _entries(self, paths: list[Path]) -> list[tuple[str, tuple]]:
        """Each table that has rows, with the two columns that hold its texts; the tables may differ in the others."""
        entries, read = [], self._reader(paths)
        for path in paths:
            if rows := list(islice(read(path), _FIRST_ROWS)):
                cells = [row["translation"] for row in rows if isinstance(row.get("translation"), dict)]
                languages = list(dict.fromkeys(language for cell in cells for language in cell)) if cells else None
                names = list(dict.fromkeys(name for row in rows for name in row))
                columns = choose_columns(names, languages, self.data, str(path))
                entries.append((str(path.absolute()), (columns[SOURCE], columns[TARGET])))
        if not entries:
            raise UserError(f"{', '.join(map(str, paths))}: there are no rows")
        return entries

    def _parquet(self, paths: list[Path], streaming: bool = False) -> Dataset | IterableDataset:
        try:
            names = [glob.escape(str(path.absolute())) for path in paths]  # the library takes names for patterns
            return load_dataset("parquet", data_files=names, split="train", streaming=streaming)
        except (DatasetGenerationError, ValueError, OSError) as error:
            cause = error.__cause__ or error
            if isinstance(cause, OSError) and cause.errno and not streaming:  # as of a full disk
                raise cause from None
            if "Expected to be able to read" in str(error):
                raise  # see `explained_damage_of_the_cache`
            reason = " ".join(str(cause).split())
            raise UserError(f"{', '.join(map(str, paths))}: cannot be read as parquet: {reason}") from error


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(2**20)).hexdigest()[:8]


def _stamps(found: list) -> str:
    """Changes with the files."""
    stats = [path.stat() for entry in found for path in as_paths(entry)]
    return repr([(each.st_size, each.st_mtime_ns) for each in stats])


# Generators for the datasets library, which treats each entry of a list argument as a shard, but not those of a tuple.
# `names` are the keys of source and target. `stamps` are part of the cache key, so that changed files are read again.


def read_texts(entries: Sequence[tuple[str, str]], names: tuple[str, str], stamps: str = "") -> Iterator[dict]:
    for paths in entries:
        for lines in zip_longest(*(read_lines(Path(path)) for path in paths)):
            if None in lines:
                raise UserError(_unequal(*map(Path, paths)))
            yield dict(zip(names, map(str.strip, lines), strict=True))


def _unequal(source: Path, target: Path) -> str:
    counts = [sum(1 for _ in read_lines(path)) for path in (source, target)]
    if 0 in counts:
        return f"{(source, target)[counts.index(0)]}: the file is empty"
    return (
        f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; line i of one must translate line i of the "
        "other"
    )


def read_tables(entries: Sequence[tuple[str, tuple]], names: tuple[str, str], stamps: str = "") -> Iterator[dict]:
    for path, columns in entries:
        for number, row in enumerate(FORMATS[Path(path).suffix.lower()](Path(path)), start=1):
            texts = (text_of(row, *column, where=f"{path}, row {number}") for column in columns)
            yield dict(zip(names, texts, strict=True))

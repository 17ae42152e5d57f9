"""Sentence pairs in local files: two text files, or a table with a column for each language."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..errors import UserError
from ..recipe.schema import SOURCE, TARGET, DataSection, Files
from .columns import as_pairs, choose_columns
from .lines import check_file, read_lines
from .pair_files import as_paths, find_files
from .pair_source import PairSource, Provenance, local_provenance
from .table_formats import FORMATS


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


class TextFiles(FileSource):
    """One or more pairs of text files, in which line i of one translates line i of the other."""

    def load(self) -> Dataset:
        return concatenate_datasets([self._load(*pair) for pair in self.found()])

    @staticmethod
    def _load(source: Path, target: Path) -> Dataset:
        counts = {}
        for path in (source, target):
            counts[path] = sum(1 for _ in read_lines(path))  # also finds invalid UTF-8 before anything is cached
            if counts[path] == 0:
                raise UserError(f"{path}: the file is empty")
        if counts[source] != counts[target]:
            raise UserError(
                f"{source} has {counts[source]:,} lines and {target} has {counts[target]:,}; line i of one must "
                "translate line i of the other"
            )
        paths = {"source": str(source.resolve()), "target": str(target.resolve())}
        return Dataset.from_generator(
            read_pairs,
            features=Features({SOURCE: Value("string"), TARGET: Value("string")}),
            gen_kwargs=paths | {"stamps": _stamps([source, target])},
        )

    def stream(self) -> IterableDataset:
        found = self.found()
        sources, targets = ([str(path.resolve()) for path in side] for side in zip(*found, strict=True))
        languages = (self.data.source_language, self.data.target_language)
        return IterableDataset.from_generator(
            _stream_pairs, gen_kwargs={"sources": sources, "targets": targets, "languages": languages}
        )


class Tables(FileSource):
    """Tables in one of `table_formats.FORMATS`, with a text for each language in every row."""

    def _suffix(self, paths: list[Path]) -> str:
        suffixes = {path.suffix.lower() for path in paths}
        if len(suffixes) > 1:
            raise UserError(f"{self.key}: the files must be of one kind, got {', '.join(sorted(suffixes))}")
        return suffixes.pop()

    def _columns(self, paths: list[Path], suffix: str) -> tuple[str, ...]:
        """The names of the two columns. UserError if a file lacks one: others may have other columns besides."""
        names: tuple[str, ...] = ()
        for path in paths:
            if (row := next(FORMATS[suffix](path), None)) is not None:
                names = tuple(name for name, _ in choose_columns(list(row), None, self.data, str(path)).values())
        return names

    def load(self) -> Dataset:
        paths = self.found()
        suffix = self._suffix(paths)
        where = ", ".join(map(str, paths))
        names = tuple(str(path.resolve()) for path in paths)
        if callable(FORMATS[suffix]):
            if sum(1 for _ in read_rows(names)) == 0:  # reading them all finds errors before anything is cached
                raise UserError(f"{where}: no rows below the header")
            options = {"paths": names, "columns": self._columns(paths, suffix), "stamps": _stamps(paths)}
            dataset = Dataset.from_generator(read_rows, gen_kwargs=options)
        else:
            for path in paths if FORMATS[suffix] == "json" else []:
                for _ in read_lines(path):  # reports invalid UTF-8 with file and line
                    pass
            try:
                dataset = load_dataset(FORMATS[suffix], data_files=list(names), split="train")
            except (DatasetGenerationError, ValueError) as error:
                raise UserError(f"{where}: cannot be read as {suffix[1:]}: {error.__cause__ or error}") from error
        return as_pairs(dataset, self.data, where)

    def stream(self) -> IterableDataset:
        paths = self.found()
        suffix = self._suffix(paths)
        reader, names = FORMATS[suffix], [str(path.resolve()) for path in paths]
        if callable(reader):
            options = {"paths": names, "columns": self._columns(paths, suffix)}
            return IterableDataset.from_generator(read_rows, gen_kwargs=options)
        return load_dataset(reader, data_files=names, split="train", streaming=True)


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(2**20)).hexdigest()[:8]


def _stamps(paths: list[Path]) -> str:
    return repr([(path.stat().st_size, path.stat().st_mtime_ns) for path in paths])


# Generators for the datasets library, which treats each entry of a list argument as a shard, but not those of a tuple.
# Stamps become part of its cache key, so that changed files are read again.


def read_pairs(source: str, target: str, stamps: str = "") -> Iterator[dict[str, str]]:
    for source_line, target_line in zip(read_lines(Path(source)), read_lines(Path(target)), strict=True):
        yield {SOURCE: source_line.strip(), TARGET: target_line.strip()}


def read_rows(paths: Sequence[str], columns: tuple[str, ...] = (), stamps: str = "") -> Iterator[dict[str, Any]]:
    for path in map(Path, paths):
        for row in FORMATS[path.suffix.lower()](path):
            yield {name: row[name] for name in columns} if columns else row


def _stream_pairs(sources: list[str], targets: list[str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    for source, target in zip(sources, targets, strict=True):
        try:
            for pair in read_pairs(source, target):
                yield dict(zip(languages, (pair[SOURCE], pair[TARGET]), strict=True))
        except ValueError as error:
            same = "they do not have the same number of lines" if str(error).startswith("zip()") else error
            raise UserError(f"{source} and {target}: {same}") from None

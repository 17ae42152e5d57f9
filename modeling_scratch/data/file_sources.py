"""Sentence pairs in local files: two text files, or a table with a column for each language."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path

from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetGenerationError

from ..errors import UserError
from ..recipe.schema import SOURCE, TARGET, DataSection
from .columns import FIRST_ROWS, Columns, choose_columns, text_of
from .lines import check_file, read_lines
from .pair_files import as_paths, find_files
from .pair_source import PairSource, Provenance, local_provenance
from .table_formats import read_table


class FileSource(PairSource):
    """
    Base class of the sources in local files.

    Args:
        files: as the recipe names them.
        key: the recipe's key, for messages.
    """

    def __init__(self, files: list[str], data: DataSection, key: str):
        self.files, self.data, self.key = files, data, key
        self.name = ", ".join(files)

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

    @abstractmethod
    def entries(self, found: list) -> list[tuple]:
        """What `read` needs to know of each of the files found."""

    @staticmethod
    @abstractmethod
    def read(entries: Sequence[tuple], stamps: str = "") -> Iterator[dict[str, str]]:
        """
        The pairs, for the datasets library, which treats each entry of a list as a shard, but not those of a tuple.
        `stamps` are part of the cache key, so that changed files are read again.
        """

    def load(self) -> Dataset:
        """The pairs, cached; nothing is, if one cannot be read."""
        found = self.found()
        options = {"entries": tuple(self.entries(found)), "stamps": _stamps(found)}
        features = Features({SOURCE: Value("string"), TARGET: Value("string")})
        try:
            return Dataset.from_generator(self.read, features=features, gen_kwargs=options)
        except DatasetGenerationError as error:
            raise error.__cause__ from None  # a UserError, or an OSError as of a full disk

    def stream(self) -> IterableDataset:
        return IterableDataset.from_generator(self.read, gen_kwargs={"entries": self.entries(self.found())})


class TextFiles(FileSource):
    """One or more pairs of text files, in which line i of one translates line i of the other."""

    def entries(self, found: list[tuple[Path, Path]]) -> list[tuple[str, str]]:
        return [(str(source.absolute()), str(target.absolute())) for source, target in found]

    @staticmethod
    def read(entries: Sequence[tuple[str, str]], stamps: str = "") -> Iterator[dict[str, str]]:
        for paths in entries:
            for lines in zip_longest(*(read_lines(Path(path)) for path in paths)):
                if None in lines:
                    raise UserError(_unequal(*map(Path, paths)))
                yield {SOURCE: lines[0].strip(), TARGET: lines[1].strip()}


class Tables(FileSource):
    """Tables, each in one of `table_formats.FORMATS`, with a text for each language in every row."""

    def entries(self, found: list[Path]) -> list[tuple[str, Columns]]:
        """Each table that has rows, with the two columns that hold its texts; tables may differ in the others."""
        first = {path: list(islice(read_table(path), FIRST_ROWS)) for path in found}
        if not any(first.values()):
            raise UserError(f"{', '.join(map(str, found))}: there are no rows")
        return [
            (str(path.absolute()), choose_columns(rows, self.data, str(path))) for path, rows in first.items() if rows
        ]

    @staticmethod
    def read(entries: Sequence[tuple[str, Columns]], stamps: str = "") -> Iterator[dict[str, str]]:
        for path, columns in entries:
            for number, row in enumerate(read_table(Path(path)), start=1):
                yield {
                    side: text_of(row.get(name), name, key, where=f"{path}, row {number}")
                    for side, (name, key) in columns.items()
                }


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(2**20)).hexdigest()[:8]


def _stamps(found: list) -> str:
    """Changes with the files."""
    stats = [path.stat() for entry in found for path in as_paths(entry)]
    return repr([(each.st_size, each.st_mtime_ns) for each in stats])


def _unequal(source: Path, target: Path) -> str:
    counts = [sum(1 for _ in read_lines(path)) for path in (source, target)]
    if 0 in counts:
        return f"{(source, target)[counts.index(0)]}: the file is empty"
    return (
        f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; line i of one must translate line i of the "
        "other"
    )

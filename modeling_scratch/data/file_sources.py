"""Sentence pairs in local files: two text files, or a table with a column for each language."""

import hashlib
import logging
import shutil
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path

from datasets import Dataset, Features, IterableDataset, Value, config
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from xxhash import xxh3_128

from ..errors import UserError, as_user_error, first_line
from ..recipe.schema import SOURCE, TARGET, DataSection
from .columns import FIRST_ROWS, Columns, choose_columns, text_of
from .lines import read_lines
from .pair_files import find_files
from .pair_source import PairSource, Provenance, local_provenance
from .table_formats import read_table

logger = logging.getLogger(__name__)

# Two text files, or a table with the columns that hold its texts.
Entry = tuple[tuple[Path, ...], Columns | None]


class LocalFiles(PairSource):
    """
    Pairs of text files, in which line i of one translates line i of the other, or tables, each in one of
    `table_formats.FORMATS`, with a text for each language in every row.

    Args:
        files: as the recipe names them.
        key: the recipe's key, for messages.
    """

    def __init__(self, files: list[str], data: DataSection, key: str):
        self.files, self.data, self.key = files, data, key
        self.name = ", ".join(files)

    def fingerprint(self) -> str:
        """Names, sizes and beginnings of the files: reading a whole corpus just for this would take too long."""
        paths = [path for paths in find_files(self.files, self.data, self.key) for path in paths]
        return ", ".join(f"{path} ({path.stat().st_size:,} bytes, beginning {_beginning(path)})" for path in paths)

    def provenance(self) -> Provenance:
        return local_provenance(self.files)

    def _entries(self) -> list[Entry]:
        """What is to be read. Tables without rows are left out; tables may differ in the columns that are not used."""
        found = find_files(self.files, self.data, self.key)
        if len(found[0]) == 2:
            return [((source.absolute(), target.absolute()), None) for source, target in found]
        header = not isinstance(self.data.source_column, int)
        first = {path: list(islice(read_table(path, header), FIRST_ROWS)) for (path,) in found}
        if not any(first.values()):
            raise UserError(f"{', '.join(map(str, first))}: there are no rows")
        return [
            ((path.absolute(),), choose_columns(rows, self.data, str(path))) for path, rows in first.items() if rows
        ]

    def load(self) -> Dataset:
        """
        The pairs, cached until the content of a file changes; nothing is, if one cannot be read. What is left of a
        damaged cache is read anew.
        """
        entries = self._entries()
        key = Hasher.hash([entries, [_digest(path) for paths, _ in entries for path in paths]])
        folder = config.HF_DATASETS_CACHE / "modeling_scratch" / key
        for cached in (folder.exists(), False):
            with as_user_error(f"the cache of the datasets library, {folder}: "):
                try:
                    return _cache(entries, folder, key)
                except DatasetGenerationError as error:
                    of_reading = error.__cause__
                    if isinstance(of_reading, OSError):  # of writing, as of a full disk
                        raise of_reading from None
                except Exception as error:  # of many kinds: what the library says of damage depends on the place
                    if not cached:
                        raise
                    logger.warning(f"data: {folder} is damaged ({first_line(error)}); the files are read again")
                    shutil.rmtree(folder)
                    continue
            raise of_reading

    def stream(self) -> IterableDataset:
        return IterableDataset.from_generator(_read, gen_kwargs={"entries": self._entries()})


def _cache(entries: list[Entry], folder: Path, key: str) -> Dataset:
    pairs = Dataset.from_generator(
        _read,
        features=Features({SOURCE: Value("string"), TARGET: Value("string")}),
        cache_dir=str(folder),
        gen_kwargs={"entries": entries},
        fingerprint=key,
    )
    if (count := pairs.info.splits[pairs.split].num_examples) != len(pairs):  # which the library does not check
        raise ValueError(f"it has {len(pairs):,} of {count:,} pairs")
    for path in folder.rglob("cache-*.arrow"):  # made of them since, such as tokens
        Dataset.from_file(str(path))
    return pairs


def _read(entries: list[Entry]) -> Iterator[dict[str, str]]:
    """The pairs; the datasets library treats each entry as a shard."""
    for paths, columns in entries:
        yield from _read_texts(*paths) if columns is None else _read_table(*paths, columns)


def _read_texts(source: Path, target: Path) -> Iterator[dict[str, str]]:
    lines = (None, None)
    for lines in zip_longest(read_lines(source), read_lines(target)):
        if None in lines:
            break
        yield {SOURCE: lines[0].strip(), TARGET: lines[1].strip()}
    if None in lines:  # also if there are none, in files that are compressed
        raise UserError(_unequal(source, target))


def _read_table(path: Path, columns: Columns) -> Iterator[dict[str, str]]:
    header = not isinstance(columns[SOURCE][0], int)
    for number, row in enumerate(read_table(path, header), start=1):
        yield {
            side: text_of(row.get(name), name, key, where=f"{path}, row {number}")
            for side, (name, key) in columns.items()
        }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxh3_128).hexdigest()


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(2**20)).hexdigest()[:8]


def _unequal(source: Path, target: Path) -> str:
    counts = [sum(1 for _ in read_lines(path)) for path in (source, target)]
    return (
        f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; line i of one must translate line i of the "
        "other"
    )

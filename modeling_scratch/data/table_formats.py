"""The table formats that can be read. To support another, add it to `FORMATS`."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .lines import read_lines


def _read_csv(path: Path, **dialect) -> Iterator[dict[str, str]]:
    """Rows below the header. Every cell is text, "1", "NA" and "null" too."""
    reader = csv.reader(read_lines(path), **dialect)
    try:
        header = next(reader)
        for row in filter(None, reader):
            if len(row) != len(header):
                raise UserError(f"{path}, line {reader.line_num}: {len(row)} fields, but the header has {len(header)}")
            yield dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def read_csv(path: Path) -> Iterator[dict[str, str]]:
    return _read_csv(path, strict=True)


def read_tsv(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a .tsv file, where a quotation mark is text."""
    return _read_csv(path, delimiter="\t", quoting=csv.QUOTE_NONE)


@dataclass(frozen=True)
class TableFormat:
    """
    How to read a table.

    Args:
        read: yields a file's rows as mappings of column names to values; None: `builder` reads it.
        builder: a loader of the datasets library, such as "json".
        is_text: whether the file is UTF-8 text, so that invalid bytes are reported with their line.
    """

    read: Callable[[Path], Iterator[dict]] | None = None
    builder: str | None = None
    is_text: bool = True


FORMATS = {
    ".jsonl": TableFormat(builder="json"),
    ".json": TableFormat(builder="json"),
    ".csv": TableFormat(read=read_csv),
    ".tsv": TableFormat(read=read_tsv),
    ".parquet": TableFormat(builder="parquet", is_text=False),
}

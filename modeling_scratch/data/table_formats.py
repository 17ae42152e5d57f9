"""The table formats that can be read. To support another, add it to `FORMATS`."""

import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ..errors import UserError
from .lines import read_lines


def _read_csv(path: Path, **dialect) -> Iterator[dict[str, str]]:
    """Rows below the header. Every cell is text, even "1", "NA" and "null"."""
    reader = csv.reader(read_lines(path), **dialect)
    try:
        header = next(reader)
        for row in filter(None, reader):
            if len(row) != len(header):
                raise UserError(f"{path}, line {reader.line_num}: {len(row)} fields, but the header has {len(header)}")
            yield dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


# The reader of each format: a function that yields rows as {column: text}, or the name of a datasets loader.
FORMATS: dict[str, Callable[[Path], Iterator[dict[str, str]]] | str] = {
    ".jsonl": "json",
    ".json": "json",
    ".csv": partial(_read_csv, strict=True),
    ".tsv": partial(_read_csv, delimiter="\t", quoting=csv.QUOTE_NONE),  # a quotation mark is text
    ".parquet": "parquet",
}

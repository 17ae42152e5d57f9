"""The table formats that can be read. To support another, add it to `FORMATS`."""

import csv
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..errors import UserError
from .lines import read_lines

_BATCH_ROWS = 1000  # of a Parquet file, in memory at once


def _read_csv(path: Path, **dialect) -> Iterator[dict[str, Any]]:
    """Rows below the header. Every cell is text, even "1", "NA" and "null", but a list where columns share a name."""
    reader = csv.reader(read_lines(path), **dialect)
    try:
        header = next(reader)
        twice = {name for name in header if header.count(name) > 1}
        for row in filter(None, reader):
            if len(row) != len(header):
                raise UserError(f"{path}, line {reader.line_num}: {len(row)} fields, but the header has {len(header)}")
            cells: dict[str, Any] = dict(zip(header, row, strict=True))
            for name in twice:  # no text, so that choosing such a column is an error
                cells[name] = [cell for column, cell in zip(header, row, strict=True) if column == name]
            yield cells
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def _read_json(path: Path) -> Iterator[dict[str, Any]]:
    """
    JSON objects, one per line or all in one list. A number is the text that it is written as. The JSON loader of the
    datasets library would alter texts in a column that also has numbers.
    """
    lines = read_lines(path)
    first = next(lines, "")
    if first.lstrip().startswith("["):
        rows = _parsed("".join([first, *lines]), path, 1)
    else:
        numbered = enumerate(chain([first], lines), start=1)
        rows = (_parsed(line, path, number) for number, line in numbered if line.strip())
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{path}: row {number} is {row!r}, not a JSON object")
        yield row


def _parsed(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text.rstrip(), parse_int=str, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {line + error.lineno - 1}: not JSON ({error.msg})") from None
    except RecursionError:
        raise UserError(f"{path}, line {line}: nested too deeply") from None


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:  # also in one cell
        raise UserError(f"{path}: cannot be read as parquet: {' '.join(str(error).split())}") from None


# The reader of each format, a function that yields rows as {column: cell}.
FORMATS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": partial(_read_csv, strict=True),
    ".tsv": partial(_read_csv, delimiter="\t", quoting=csv.QUOTE_NONE),  # a quotation mark is text
    ".parquet": _read_parquet,
}


def read_table(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table, as {column: cell}. UserError, naming the file and mostly the line, if one cannot be read."""
    return FORMATS[path.suffix.lower()](path)

"""The table formats that can be read. To support another, add it to `FORMATS`."""

import csv
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

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


# The reader of each format, a function that yields rows as {column: cell}; None: the datasets library's Parquet loader.
FORMATS: dict[str, Callable[[Path], Iterator[dict[str, Any]]] | None] = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": partial(_read_csv, strict=True),
    ".tsv": partial(_read_csv, delimiter="\t", quoting=csv.QUOTE_NONE),  # a quotation mark is text
    ".parquet": None,
}

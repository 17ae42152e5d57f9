"""The table formats that can be read. To support another, add it to `FORMATS`."""

import csv
import json
import logging
import re
import reprlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet

from ..errors import UserError, as_user_error
from .columns import FIRST_ROWS
from .lines import read_lines

logger = logging.getLogger(__name__)

_BATCH_ROWS = 1000  # of a Parquet file, in memory at once
_QUOTED = re.compile(r'"[^"]*+(?:""[^"]*+)*+"')  # a cell as CSV writers quote it
_CELL = rf'(?:{_QUOTED.pattern}|[^"\t\r\n]*+)'
_RECORD = re.compile(rf"{_CELL}(?:\t{_CELL})*+\r?\n?")


def _row(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A row. Columns that share a name get a list, which is no text, so that choosing such a column is an error."""
    row = dict(pairs)
    if len(row) < len(pairs):
        cells = defaultdict(list)
        for name, cell in pairs:
            cells[name].append(cell)
        row |= {name: each for name, each in cells.items() if len(each) > 1}
    return row


def _read_cells(
    path: Path, header: bool, records: Callable[[Path, bool], Iterator[tuple[int, list[str]]]]
) -> Iterator[dict[Any, Any]]:
    """The rows below the header. Every cell is text, even "1", "NA" and "null"."""
    names: list[Any] = []
    for line, cells in records(path, header):
        if cells in ([], [""]):
            continue
        if not names:
            names = cells if header else list(range(1, len(cells) + 1))
            if header:
                continue
        if len(cells) != len(names):
            first = "header" if header else "first line"
            raise UserError(f"{path}, line {line}: {len(cells)} fields, but the {first} has {len(names)}")
        yield _row(list(zip(names, cells, strict=True)))


def _csv_records(path: Path, _: bool) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, and the number of its last line."""
    reader = csv.reader(read_lines(path), delimiter=_delimiter(path), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def _delimiter(path: Path) -> str:
    """
    The one of comma, semicolon and tab that cuts a file's first rows into equally many cells, two or more; a comma if
    none does. If several do, as without a header some may, it is the one with the fewest cells, since most tables are
    of pairs; a warning says so. (`csv.Sniffer` counts characters, and those of sentences mislead it.)
    """
    found = {}
    for delimiter in ",;\t":
        rows = filter(None, csv.reader(read_lines(path), delimiter=delimiter, strict=True))
        try:
            counts = {len(row) for row in islice(rows, FIRST_ROWS)}
        except csv.Error:
            continue
        if len(counts) == 1 and counts != {1}:
            found[delimiter] = counts.pop()
    chosen = min(found, key=found.__getitem__, default=",")
    if len(found) > 1:
        _say_once(
            logging.WARNING,
            f"data: {path}: each of {' '.join(map(repr, found))} may separate its cells; {chosen!r} is taken; if that "
            "is wrong, write the table as TSV or JSONL",
        )
    return chosen


def _tsv_records(path: Path, header: bool) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, and the number of its last line. Before the first quotation mark, quoting is no matter."""
    quoted = None
    for number, line in enumerate(read_lines(path), start=1):
        if quoted is None and '"' in line:
            quoted = _is_quoted(path, header)
        if quoted:
            break
        yield number, line.rstrip("\r\n").split("\t")
    if quoted:
        for last, record in islice(_records(path), number - 1, None):
            yield last, _cells(record, path)


def _records(path: Path) -> Iterator[tuple[int, str]]:
    """
    The rows of a TSV file, where a line end between marks ends none, and the number of each one's last line. One that
    is longer than a cell can be is cut: its mark is text.
    """
    record, size, is_open = [], 0, False
    for number, line in enumerate(read_lines(path), start=1):
        record.append(line)
        size += len(line)
        is_open ^= line.count('"') % 2 == 1
        if not is_open or size > csv.field_size_limit():
            yield number, "".join(record)
            record, size, is_open = [], 0, False
    if record:
        yield number, "".join(record)


def _cells(record: str, path: Path) -> list[str]:
    with as_user_error(f"{path}: "):
        return next(csv.reader([record], delimiter="\t", strict=True), [])


def _is_quoted(path: Path, header: bool) -> bool:
    """
    Whether a CSV writer wrote a TSV file, so that its quotation marks are not all text.

    Such a writer puts marks around each cell that contains one, and doubles those within. A file is read so if all of
    it keeps this rule, and something in it proves that the rule was meant: doubled marks, marks around all names of a
    header, or a tab or line end between marks, where lines cut at tabs would be no rows. Elsewhere a mark is text: a
    single cell against the rule proves that, as in collections of sentences; if nothing proves either, or there is
    proof of both, a warning says so. The whole file decides, so every reader of it decides the same.
    """
    fields, proven, keeps_the_rule = 0, False, True
    for _, record in _records(path):
        if '"' in record and not _RECORD.fullmatch(record):
            keeps_the_rule = False
            break
        if '"' in record or not fields:
            cells = _cells(record, path)
            names_are_quoted = header and not fields and '"' in record and not _QUOTED.sub("", record).strip()
            fields = fields or len(cells)
            are_rows = [line.count("\t") + 1 == fields for line in record.split("\n") if line]
            if len(cells) != fields or (len(are_rows) > 1 and all(are_rows)):
                keeps_the_rule = False
                break
            proven = proven or names_are_quoted or not all(are_rows) or any('"' in cell for cell in cells)
    if keeps_the_rule and proven:
        _say_once(logging.INFO, f"data: {path} is written as CSV: the quotation marks around its cells are not text")
        return True
    if keeps_the_rule or proven or any(map(_has_doubled_marks, read_lines(path))):
        _say_once(
            logging.WARNING,
            f"data: {path}: quotation marks around whole cells are kept as text; if a spreadsheet or a program put "
            f"them there, name the file {path.stem}.csv",
        )
    return False


def _has_doubled_marks(line: str) -> bool:
    return '""' in line and bool(_RECORD.fullmatch(line)) and any('""' in cell[1:-1] for cell in _QUOTED.findall(line))


@cache
def _say_once(level: int, message: str) -> None:
    logger.log(level, message)


def _read_json(path: Path, _: bool) -> Iterator[dict[str, Any]]:
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
            raise UserError(f"{path}: row {number} is {reprlib.repr(row)}, not a JSON object")
        yield row


_JSON = json.JSONDecoder(object_pairs_hook=_row, parse_int=str, parse_float=str, parse_constant=str)


def _parsed(text: str, path: Path, line: int) -> Any:
    try:
        with as_user_error(f"{path}: ", RecursionError):
            return _JSON.decode(text.rstrip())
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {line + error.lineno - 1}: not JSON ({error.msg})") from None


def _read_parquet(path: Path, _: bool) -> Iterator[dict[str, Any]]:
    for names, columns in _batches(path):
        for cells in zip(*columns, strict=True):
            yield _row(list(zip(names, cells, strict=True)))


def _batches(path: Path) -> Iterator[tuple[list[str], list[list[Any]]]]:
    """The names of a Parquet file's columns and their cells, for some rows at a time."""
    with (
        as_user_error(f"{path}: cannot be read as parquet: "),
        pyarrow.parquet.ParquetFile(path) as file,
    ):
        for batch in file.iter_batches(_BATCH_ROWS):
            yield batch.schema.names, [column.to_pylist() for column in batch.columns]


# The reader of each format: a function of a file, and of whether its first line names the columns of a format that can
# do without. It yields rows as {column: cell}; a column without a name has a number, from 1.
FORMATS: dict[str, Callable[[Path, bool], Iterator[dict[Any, Any]]]] = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": partial(_read_cells, records=_csv_records),
    ".tsv": partial(_read_cells, records=_tsv_records),
    ".parquet": _read_parquet,
}


def read_table(path: Path, header: bool = True) -> Iterator[dict[Any, Any]]:
    """
    The rows of a table, as {column: cell}. UserError, naming the file and mostly the line, if one cannot be read.

    Args:
        header: whether the first line of a CSV or TSV file names the columns; otherwise numbers do, from 1.
    """
    return FORMATS[path.suffix.lower()](path, header)

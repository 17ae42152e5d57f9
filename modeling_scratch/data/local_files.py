"""
Local data files: find the files that a recipe names, and read text lines and the rows of tables.

To support another kind of table, add its reader to `FORMATS`.
"""

import csv
import gzip
import io
import json
import logging
import os
import re
import reprlib
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from glob import escape, glob
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet

from ..errors import UserError, as_user_error, beginning
from ..files import LFS_POINTER, lfs_pointer_message, reading
from ..recipe.schema import FEATURES, SOURCE, TARGET, DataSection

logger = logging.getLogger(__name__)

FIRST_ROWS = 100  # rows from which the columns of a table are known

# -- lines of text files -----------------------------------------------------------------------------------------------

# The beginning of XML and of the test sets and talks of WMT and IWSLT.
_MARKUP = re.compile(rb"<(\?xml|!doctype|mteval|srcset|refset|tstset|doc docid|url>http|tmx)", re.I)
_TAG = re.compile(rb"<([a-z][^\s<>/]*)[^<>\n]*+>\s*?\n", re.I)  # a line that is one tag


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file to read, decompressed. Errors while reading it name the file."""
    compressed = path.suffix == ".gz"
    opener: Any = gzip.open if compressed else open
    with reading(path, "not a complete gzip file: " if compressed else ""), opener(path, "rb") as file:
        yield file


def check_file(path: Path) -> None:
    """
    Raise UserError if a file is missing, unreadable or empty, or holds XML or a Git LFS pointer instead of sentences.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a file")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: permission denied")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    with _opened(path) as file:
        start = file.read(4000).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(LFS_POINTER):
        raise UserError(lfs_pointer_message(path))
    if _MARKUP.match(start) or _is_element(path, start):
        first = start.partition(b"\n")[0].decode(errors="replace")
        raise UserError(
            f"{path} is XML or SGML ({beginning(first)}), not one sentence per line; make pairs of it, if it is TMX, "
            f"XLIFF or a test set: scratch corpus from {shlex.quote(str(path))} pairs.jsonl --source-language ... "
            "--target-language ..."
        )


def _is_element(path: Path, start: bytes) -> bool:
    """Whether the first line is a tag, and the last one closes it. Sentences may be tags too, such as <br>."""
    if (tag := _TAG.match(start)) is None:
        return False
    with _opened(path) as file:
        if path.suffix != ".gz":
            file.seek(max(0, path.stat().st_size - len(start)))
        *_, last = filter(None, map(bytes.strip, file))
    return last.lower() == b"</" + tag[1].lower() + b">"


def read_lines(path: Path) -> Iterator[str]:
    """
    The lines of a UTF-8 text file, plain or gzipped, with their line ends. Only a line feed ends a line, except in a
    file without any, where a carriage return does.
    """
    with _opened(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if number == 1 and not text.endswith("\n"):
                    yield from io.StringIO(text.replace("\r", "\n"))
                else:
                    yield text
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, line {number}: not valid UTF-8 ({error.reason})") from None


def read_line_pairs(source: Path, target: Path) -> Iterator[dict[str, str]]:
    """The pairs of two text files. UserError if they have not equally many lines, or none."""
    one = other = None
    for one, other in zip_longest(read_lines(source), read_lines(target)):
        if one is None or other is None:
            break
        yield {SOURCE: one.strip(), TARGET: other.strip()}
    if one is None or other is None:  # also if there are no lines, in compressed files
        counts = [sum(1 for _ in read_lines(path)) for path in (source, target)]
        if not any(counts):
            raise UserError(f"{source} and {target} are empty")
        raise UserError(
            f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; line i of one must belong to line i of "
            "the other"
        )


# -- rows of tables ----------------------------------------------------------------------------------------------------

_BATCH_ROWS = 1000  # rows of a Parquet file in memory at once
_QUOTED = re.compile(r'"[^"]*+(?:""[^"]*+)*+"')  # a cell as CSV writers quote it
_CELL = rf'(?:{_QUOTED.pattern}|[^"\t\r\n]*+)'
_CSV_ROW = re.compile(rf"{_CELL}(?:\t{_CELL})*+\r?\n?")


def read_table(path: Path, header: bool = True) -> Iterator[dict[Any, Any]]:
    """
    The rows of a table, as {column: cell}. UserError names the file, and usually the line, if one cannot be read.

    Args:
        header: whether the first line of a CSV or TSV file names the columns; otherwise they are numbered from 1.
    """
    return FORMATS[_kind(path)](path, header)


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, or of any other one as TSV, without a header: the number of the last line, the cells."""
    return (_csv_rows if _kind(path) == ".csv" else _tsv_rows)(path, False)


def is_table(path: Path) -> bool:
    """Whether `read_table` reads files with this ending."""
    return _kind(path) in FORMATS


def _kind(name: Path | str) -> str:
    """The ending of a file's name: .tsv for pairs.tsv and for pairs.tsv.gz."""
    return Path(str(name).removesuffix(".gz")).suffix.lower()


def _row(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A row. Columns of the same name get a list, which is not text, so choosing such a column is an error."""
    row = dict(pairs)
    if len(row) < len(pairs):
        cells = defaultdict(list)
        for name, cell in pairs:
            cells[name].append(cell)
        row |= {name: several for name, several in cells.items() if len(several) > 1}
    return row


def _read_cells(
    path: Path, header: bool, rows_of: Callable[[Path, bool], Iterator[tuple[int, list[str]]]]
) -> Iterator[dict[Any, Any]]:
    """The rows below the header. Every cell is text, even "1", "NA" and "null"."""
    names: list[Any] = []
    for line, cells in rows_of(path, header):
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


# What Python's messages mean, and what to do.
_CSV_ERRORS = {
    "new-line character": "a carriage return in a cell without quotation marks; replace it with a space, or quote the "
    "cell",
    "unexpected end": "a quotation mark begins a cell, and none ends it; a mark that is text is written twice, within "
    "quotation marks around the cell",
    "expected after": "text after the quotation mark that ends a cell; a mark that is text is written twice",
    "field larger": f"a cell of more than {csv.field_size_limit():,} characters; is a quotation mark not closed?",
}
# A first line that tells Excel the delimiter. Other programs may have added delimiters at its end.
_DECLARATION = re.compile(r'"?sep=(.)"?\1*\r?\n?', re.I)


def _csv_rows(path: Path, _: bool) -> Iterator[tuple[int, list[str]]]:
    """The number of each row's last line, and its cells."""
    delimiter, skipped = _delimiter(path)
    reader = csv.reader(islice(read_lines(path), skipped, None), delimiter=delimiter, strict=True)
    last = skipped
    try:
        for cells in reader:
            last = reader.line_num + skipped
            yield last, cells
    except csv.Error as error:
        meaning = next((meaning for words, meaning in _CSV_ERRORS.items() if words in str(error)), error)
        raise UserError(f"{path}, line {last + 1}: {meaning}") from None


def _delimiter(path: Path) -> tuple[str, int]:
    """
    The delimiter, and the number of lines before the table: 1 if the first line declares the delimiter.

    Otherwise it is the one of comma, semicolon and tab that splits the first rows into equally many cells, at least
    two; a comma if none does. Several may do, in a file without a header: then the one with the fewest cells is taken,
    since most tables are of pairs, with a warning. (`csv.Sniffer` counts characters, and sentences mislead it.)
    """
    if declared := _DECLARATION.fullmatch(next(read_lines(path), "")):
        return declared[1], 1
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
        _log_once(
            path,
            logging.WARNING,
            f"data: {path}: the delimiter may be any of {' '.join(map(repr, found))}; using {chosen!r}. If that is "
            "wrong, convert the table to TSV or JSONL",
        )
    return chosen, 0


def _tsv_rows(path: Path, header: bool) -> Iterator[tuple[int, list[str]]]:
    """The number of each row's last line, and its cells. Before the first quotation mark, nothing is quoted."""
    quoted = None
    for number, line in enumerate(read_lines(path), start=1):
        if quoted is None and '"' in line:
            quoted = _is_quoted(path, header)
        if quoted:
            break
        yield number, line.rstrip("\r\n").split("\t")
    if quoted:
        for last, row in islice(_multiline_rows(path), number - 1, None):
            yield last, _cells(row, path)


def _multiline_rows(path: Path) -> Iterator[tuple[int, str]]:
    """
    The number of each row's last line, and the row, of a TSV file in which quoted cells may contain line ends. A row is
    cut where it exceeds the longest possible cell: its quotation mark is text.
    """
    lines, size, is_open = [], 0, False
    for number, line in enumerate(read_lines(path), start=1):
        lines.append(line)
        size += len(line)
        is_open ^= line.count('"') % 2 == 1
        if not is_open or size > csv.field_size_limit():
            yield number, "".join(lines)
            lines, size, is_open = [], 0, False
    if lines:
        yield number, "".join(lines)


def _cells(row: str, path: Path) -> list[str]:
    if '"' not in row:
        return row.rstrip("\r\n").split("\t")
    with as_user_error(f"{path}: "):
        return next(csv.reader([row], delimiter="\t", strict=True), [])


def _is_quoted(path: Path, header: bool) -> bool:
    """
    Whether a CSV writer wrote a TSV file, so that some of its quotation marks are not text.

    Such a writer quotes each cell that contains a quotation mark, and doubles the marks inside. A file is taken as
    quoted if all of it follows this rule and something shows that the rule was meant: doubled marks, quoted names in
    the whole header, or a tab or line end inside quotes without which the lines would not be rows. Otherwise marks are
    text: a single cell against the rule proves it, as in many collections of sentences. If the evidence is missing or
    contradictory, a warning is logged. The whole file decides, so all its readers agree.
    """
    fields, proven, keeps_the_rule = 0, False, True
    for _, row in _multiline_rows(path):
        if '"' in row and not _CSV_ROW.fullmatch(row):
            keeps_the_rule = False
            break
        if '"' in row or not fields:
            cells = _cells(row, path)
            names_are_quoted = header and not fields and '"' in row and not _QUOTED.sub("", row).strip()
            fields = fields or len(cells)
            are_rows = [line.count("\t") + 1 == fields for line in row.split("\n") if line]
            if len(cells) != fields or (len(are_rows) > 1 and all(are_rows)):
                keeps_the_rule = False
                break
            proven = proven or names_are_quoted or not all(are_rows) or any('"' in cell for cell in cells)
    if keeps_the_rule and proven:
        _log_once(path, logging.INFO, f"data: {path} is quoted like CSV: the quotation marks around cells are not text")
        return True
    if keeps_the_rule or proven or any(map(_has_doubled_marks, read_lines(path))):
        _log_once(
            path,
            logging.WARNING,
            f"data: {path}: quotation marks around whole cells are kept as text; if a program added them, rename the "
            f"file to {path.name.replace('.tsv', '.csv')}",
        )
    return False


def _has_doubled_marks(line: str) -> bool:
    return '""' in line and bool(_CSV_ROW.fullmatch(line)) and any('""' in cell[1:-1] for cell in _QUOTED.findall(line))


_TOLD: set[tuple[Path, int]] = set()


def _log_once(path: Path, level: int, message: str) -> None:
    """Log the message about the format of a file, once for all the paths that lead to it."""
    if (key := (path.resolve(), level)) not in _TOLD:
        _TOLD.add(key)
        logger.log(level, message)


def _read_json(path: Path, _: bool) -> Iterator[dict[str, Any]]:
    """
    JSON objects, one per line or all in one list. Numbers are kept as written: the JSON loader of the datasets library
    would alter texts in a column that also has numbers.
    """
    lines = read_lines(path)
    first = next(lines, "")
    rows: Any
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
    for names, columns in _parquet_batches(path):
        for cells in zip(*columns, strict=True):
            yield _row(list(zip(names, cells, strict=True)))


def _parquet_batches(path: Path) -> Iterator[tuple[list[str], list[list[Any]]]]:
    """The names of the columns and their cells, for some rows at a time."""
    with (
        as_user_error(f"{path}: cannot be read as parquet: "),
        pyarrow.parquet.ParquetFile(path) as file,
    ):
        for batch in file.iter_batches(_BATCH_ROWS):
            yield batch.schema.names, [column.to_pylist() for column in batch.columns]


# A reader takes a path and whether the first line names the columns (for formats that may lack such a line), and yields
# rows as {column: cell}; columns without names are numbered from 1.
FORMATS: dict[str, Callable[[Path, bool], Iterator[dict[Any, Any]]]] = {
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".csv": partial(_read_cells, rows_of=_csv_rows),
    ".tsv": partial(_read_cells, rows_of=_tsv_rows),
    ".parquet": _read_parquet,
}

# -- columns of tables -------------------------------------------------------------------------------------------------

# The columns of `source`, `target` and, if the data have them, `features`: one for a text, several for features. A
# column is (name, key): its name, or its number if there is no header; and a language if its cells are mappings from
# languages to texts, else None.
Columns = dict[str, list[tuple[str | int, str | None]]]
_SHOWN = 20  # columns that a message names


def choose_columns(rows: list[dict], data: DataSection, where: str) -> Columns:
    """
    Choose the source and target columns of a table: `data.source_column` and `data.target_column`, or the columns named
    like `data.source_language` and `data.target_language`, or these keys of a `translation` column. Choose the
    columns of features too.

    Args:
        rows: the first rows of the table.
        where: the table, for messages.

    Raises:
        UserError: there is no row, or no such column or language.
    """
    if not rows:
        raise UserError(f"{where}: there are no rows")
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [row["translation"] for row in rows if isinstance(row.get("translation"), dict)]
    languages = list(dict.fromkeys(language for cell in cells for language in cell))
    columns: Columns = {}
    for side in (SOURCE, TARGET):
        language, column = data.names[side == TARGET], getattr(data, f"{side}_column")
        if column is None and languages:
            if language not in languages:
                advice = "" if data.languages else " (set data.source_language and data.target_language)"
                raise UserError(f"{where} has no language {language!r}; it has {_listed(languages)}{advice}")
            columns[side] = [("translation", language)]
        else:
            columns[side] = [(column or language, None)]
    if data.feature_columns:
        columns[FEATURES] = [(name, None) for name in data.feature_columns]
    for side, setting in ((SOURCE, "source_column"), (TARGET, "target_column"), (FEATURES, "feature_columns")):
        for name, _ in columns.get(side, []):
            if name in names:
                continue
            advice = f"set data.{setting}"
            if side != FEATURES and getattr(data, setting) is None and data.languages is None:
                advice += ", or data.source_language and data.target_language"
            if isinstance(name, str) and _kind(where) in (".csv", ".tsv"):
                settings = setting if side == FEATURES else "source_column and data.target_column"
                advice += (
                    f"; if these are not names, the file has no header: set data.{settings} to the numbers of the "
                    "columns, counted from 1"
                )
            raise UserError(f"{where} has no column {reprlib.repr(name)}; it has {_listed(names)} ({advice})")
    if both := [name for name, key in columns.get(FEATURES, []) if [(name, key)] in (columns[SOURCE], columns[TARGET])]:
        raise UserError(f"data.feature_columns: {both[0]!r} is the source or the target of {where}")
    if columns[SOURCE] == columns[TARGET] and data.source_column is data.target_column is None:
        name, key = columns[SOURCE][0]
        raise UserError(
            f"{where}: source and target are the same column, {key or name!r}; set data.source_column and "
            "data.target_column"
        )
    return columns


def joined_cells(cells: Sequence[tuple[Any, str | int, str | None]], where: str) -> str:
    """The text of a column, or the features of several, from the cells of a row with their columns."""
    return ";".join(filter(None, (cell_text(*cell, where) for cell in cells)))


def _listed(names: list[str | int]) -> str:
    """Names for a message. Those of a file without a header are sentences."""
    shown = [name if len(name) <= 40 else f"{name[:40]}..." for name in map(str, names[:_SHOWN])]
    return ", ".join([*shown, *["..."] * (len(names) > _SHOWN)])


def cell_text(value: Any, name: str | int, key: str | None, where: str) -> str:
    """
    The text in a cell of column `name`, stripped; a missing text is empty. UserError, naming the row `where`, if the
    cell holds anything else.
    """
    try:
        text = value if value is None or key is None else value.get(key)
        if text is None:
            return ""
        text.encode()
        return text.strip()
    except (AttributeError, UnicodeEncodeError):
        expected = "text" if key is None else "a text for each language"
        raise UserError(f"{where}: column {name!r} holds {reprlib.repr(value)}, not {expected}") from None


# -- finding the files of a recipe -------------------------------------------------------------------------------------

# The endings of other files of pairs, of which `scratch corpus from` makes JSONL.
CONVERTED = {
    *(".tmx", ".xliff", ".xlf", ".sdlxliff", ".mqxliff", ".mxliff", ".po", ".mo", ".ts", ".xlsx", ".ods", ".arb"),
    *(".properties", ".strings", ".sgm", ".sgml", ".srt", ".vtt", ".zip", ".xml"),
}

WHAT_CAN_BE_READ = (
    f"a {', '.join(list(FORMATS)[:-1])} or {list(FORMATS)[-1]} file or several, two text files [source, target], "
    "or their common prefix (data/train for data/train.en and data/train.de), plain or .gz"
)


def find_files(names: list[str], data: DataSection, key: str) -> list[tuple[Path, ...]]:
    """
    The tables, each alone, or the pairs of text files, that a recipe names. A `*` in a name matches any number of
    files, sorted.

    Args:
        key: the recipe's key, for messages.

    Raises:
        UserError: a file is missing or empty, files cannot be paired, or this kind of file is not supported.
    """
    _check_not_converted(names, data, key)
    tables = [_is_table(name) for name in names]
    if any(tables) and not all(tables):
        raise UserError(f"{key} mixes tables and text files: {', '.join(names)}; name {WHAT_CAN_BE_READ}")
    found: list[tuple[Path, ...]]
    found = [(path,) for name in names for path in _expand(name, key)] if any(tables) else _pairs(names, data, key)
    for paths in found:
        for path in paths:
            check_file(path)
    return found


def _check_not_converted(names: list[str], data: DataSection, key: str) -> None:
    """Raise UserError if a file is of a kind of which pairs have to be made first; .ts may also name a language."""
    for name in names:
        if _kind(name) in CONVERTED and _kind(name)[1:] not in data.names and Path(name).is_file():
            source, target = data.names if data.languages else ("en", "de")
            languages = ["--source-language", source, "--target-language", target]
            command = shlex.join(["scratch", "corpus", "from", *names, "pairs.jsonl", *languages])
            raise UserError(f"{key}: make pairs of {name} first: {command}; then set {key}=pairs.jsonl")


def names_of_files(names: list[str], data: DataSection) -> list[str]:
    """The files that a recipe names, two for a prefix; these without .gz, even if they end in it."""
    is_prefix = len(names) == 1 and not _is_table(names[0])
    return [f"{names[0]}.{side}" for side in data.names] if is_prefix else names


def _is_table(name: str) -> bool:
    return _kind(name) in FORMATS


def _pairs(names: list[str], data: DataSection, key: str) -> list[tuple[Path, ...]]:
    """Pairs of text files: source and target."""
    if len(names) == 1:
        _check_prefix(names[0], data, key)
    has_tables = any(_is_table(name) for files in data.files().values() for name in files)
    for column in ("source_column", "target_column", "feature_columns"):
        may_be_of_others = column != "feature_columns" and (data.on_the_hub or has_tables)
        if getattr(data, column) is not None and not may_be_of_others:
            raise UserError(f"data.{column}: text files, as in {key}, have no columns; set it to null")
    if len(names) == 1:
        if data.names[0] == data.names[1]:
            raise UserError(f"{key}: source and target are the same file, {names[0]}.{data.names[0]}")
        found = [_with_ending(names[0], name, data, key) for name in data.names]
        for one, other in (found, found[::-1]):
            if alone := one.keys() - other.keys():
                raise UserError(f"{key}: {one[min(alone)]} has no counterpart with the other ending")
        return list(zip(*(side.values() for side in found), strict=True))
    if len(names) != 2:
        raise UserError(f"{key}: {len(names)} text files, {', '.join(names)}; name {WHAT_CAN_BE_READ}")
    if names[0] == names[1]:
        raise UserError(f"{key}: source and target are the same file, {names[0]}")
    endings = [Path(name.removesuffix(".gz")).suffix for name in names]
    if data.names[0] != data.names[1] and endings == [f".{name}" for name in data.names[::-1]]:
        raise UserError(f"{key}: name the source before the target: [{names[1]}, {names[0]}]")
    sources, targets = (_expand(name, key) for name in names)
    if len(sources) != len(targets):
        raise UserError(f"{key}: {len(sources)} source files, but {len(targets)} target files")
    return list(zip(sources, targets, strict=True))


def _expand(name: str, key: str) -> list[Path]:
    if "*" not in name:
        return [Path(name)]
    if not (found := _matching(name, key)):
        raise UserError(f"{key}: no file matches {name}")
    return list(map(Path, found))


def _matching(pattern: str, key: str) -> list[str]:
    """The paths that match a pattern in which only `*` is special, sorted."""
    with as_user_error(f"{key}: "):
        return sorted(glob("*".join(map(escape, pattern.split("*"))), recursive=True))


def _check_prefix(prefix: str, data: DataSection, key: str) -> None:
    """Raise UserError if a name is not the prefix of two files but the name of one."""
    path = Path(prefix)
    if not path.is_file() or any(Path(f"{prefix}.{side}{end}").exists() for side in data.names for end in ("", ".gz")):
        return
    check_file(path)
    with _opened(path) as file:
        start = file.read(4000).removeprefix(b"\xef\xbb\xbf").lstrip()
    have_tabs = [b"\t" in line for line in start.splitlines()]
    kind = ".jsonl" if start.startswith((b"{", b"[")) else ".tsv" if 2 * sum(have_tabs) > len(have_tabs) else None
    if kind is None:
        raise UserError(f"{key}: {prefix} is a single file of an unsupported kind; name {WHAT_CAN_BE_READ}")
    gzipped = ".gz" if path.suffix == ".gz" else ""
    name = Path(prefix.removesuffix(gzipped)).with_suffix(f"{kind}{gzipped}")
    advice = "; if it has no header, set data.source_column=1 data.target_column=2" if kind == ".tsv" else ""
    raise UserError(f"{key}: {prefix} looks like a table of the kind {kind}; rename it to {name}{advice}")


def _with_ending(prefix: str, side: str, data: DataSection, key: str) -> dict[str, Path]:
    """The files of one side, which end in its language or else its name, by their names without the ending, sorted."""
    found: dict[str, Path] = {}
    for ending in (f".{side}.gz", f".{side}"):
        paths = _matching(f"{prefix}{ending}", key) if "*" in prefix else [f"{prefix}{ending}"]
        found |= {path.removesuffix(ending): Path(path) for path in paths if Path(path).exists()}
    if found:
        return dict(sorted(found.items()))
    name = Path(f"{prefix}.{side}")
    advice = f"Name {WHAT_CAN_BE_READ}"
    if data.languages is None:
        advice = f"For {prefix}.en and {prefix}.de, set data.source_language=en data.target_language=de"
    raise UserError(f"{key}: neither {name} nor {name.name}.gz exists. {advice}")


def check_files(data: DataSection) -> None:
    """
    Check the files of all splits before any of them is read. Raises UserError if one is missing or empty, or if a
    training file is also used for validation or testing.
    """
    train: set[Path] = set()
    for place, section in enumerate(data.mixed()):
        if section.train_files:
            train |= _resolved(section.train_files, section, f"data.mix[{place}].files")
    for split, files in data.files().items():
        key = data.files_key(split)
        found = _resolved(files, data, key)
        both = train & found
        if split == "train":
            if both and data.validation_files is None:
                raise UserError(
                    f"data.mix: {min(both)} is also in data.train_files, from which validation pairs are held out; set "
                    "data.validation_files"
                )
            train |= found
        elif both:
            raise UserError(f"{key}: {min(both)} is also a training file; name another one or set the key to null")


def _resolved(files: list[str], data: DataSection, key: str) -> set[Path]:
    return {path.resolve() for paths in find_files(files, data, key) for path in paths}

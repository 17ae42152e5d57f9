"""Tables with a column per language: XLSX, ODS, CSV and TSV, among them Tatoeba's and Anki's."""

import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any
from xml.parsers.expat import ParserCreate
from zipfile import BadZipFile, ZipFile

from ...errors import UserError, as_user_error
from ...files import temporary_folder
from ...languages import language_code, language_name
from .corpus_files import CorpusFile, check_archive
from .streamed_xml import XmlElement, stream_elements
from .units import Request, Unit

NO_COLUMNS = "tables without a column for each language"
NO_TEXT = "with a number, a date or nothing in a cell"
Row = list[Any]

_REGION = re.compile(r"([A-Z][A-Za-z ]*[A-Za-z]) *\((?:([A-Z]{2})|[^()]*)\)")
_HIGHEST_ROWS = 10  # among which the names of columns are
_MOST_ROWS, _MOST_COLUMNS = 2**20, 2**14  # of a sheet, in LibreOffice and Excel
_CHARACTER = re.compile("_x00(0[9ADad])_")  # how XLSX writes a tab and line ends that are not in XML


def read_sheet(file: CorpusFile, request: Request) -> Iterator[Unit]:
    """
    The rows of all sheets that have both columns; any other one that is not empty is a unit that is skipped. One of the
    first rows names the columns, unless the request numbers them; what is above it, such as a title, is left out.

    Raises:
        UserError: no sheet of a file that the user named has both columns, or the file cannot be read.
    """
    kind = Path(file.plain_name).suffix.lower()
    rows = {".xlsx": _xlsx_sheets, ".ods": _ods_sheets}.get(kind, _text_sheets)
    headers, is_found = [], False
    for sheet, content in rows(file):
        content = iter(content)
        beginning = list(islice(content, _HIGHEST_ROWS))
        columns, above = None, 0
        for above, row in enumerate(beginning, start=1):
            columns, has_header = _columns(row, file, request)
            if columns is not None:
                above = above if has_header else 0
                break
        if columns is None:
            # The first of the rows with the most texts, which is no title; none of an empty sheet.
            rows_shown = chain(sorted(beginning, key=_texts_of, reverse=True)[:1], content)
            shown = (row for row in rows_shown if any(cell is not None for cell in row))
            headers += [(sheet, row) for row in islice(shown, 1)]
            continue
        is_found = True
        body = islice(chain(beginning, content), above, None)
        for number, row in enumerate(body, start=above + 1):
            cells = [row[column] if column < len(row) else None for column in columns]
            place = f"{sheet} {number}".strip()
            is_text = all(isinstance(cell, str) and cell.strip() for cell in cells)
            if is_text or any(cell is not None for cell in row):
                yield Unit(place, *(cells if is_text else ()), skipped="" if is_text else NO_TEXT)
    if headers and not is_found and file.is_named:
        shown = ", ".join(f"{cell}"[:40] for cell in headers[0][1][:20] if cell is not None)
        raise UserError(
            f"{file.name}: no column for {request.source} and {request.target} among {shown}; add --source-column and "
            "--target-column with their names or, without a header, their numbers"
        )
    yield from (Unit(sheet, skipped=NO_COLUMNS) for sheet, _ in headers)


def _columns(first: Row, file: CorpusFile, request: Request) -> tuple[tuple[int, ...] | None, bool]:
    """The indices of the columns of source and target, None if there are none, and whether the first row names them."""
    if request.columns is not None:
        names = [f"{cell}".strip() for cell in first]
        numbers = [column - 1 if isinstance(column, int) else _index(names, column) for column in request.columns]
        has_header = isinstance(request.columns[0], str)
        return (None if any(not 0 <= number < len(first) for number in numbers) else tuple(numbers)), has_header
    best = request.best((tag, index) for index, cell in enumerate(first) for tag in _tags(cell, request))
    if best is not None:
        return tuple(best), True
    return _known_columns(first, file, request), False


def _texts_of(row: Row) -> int:
    return sum(isinstance(cell, str) for cell in row)


def _index(names: list[str], name: str) -> int:
    return names.index(name) if name in names else -1


def _tags(cell: Any, request: Request) -> list[str]:
    """The language that a header names, by a tag or the name in English."""
    name = cell.strip() if isinstance(cell, str) else ""
    if match := _REGION.fullmatch(name):  # English (US)
        tags = _tags(match[1], request)
        return [f"{tag}-{match[2]}" if match[2] and "-" not in tag else tag for tag in tags]
    for language in (request.source, request.target):
        if name.lower() in (language_name(language).lower(), language_name(language.split("-")[0]).lower()):
            return [language]
    return [name] if re.fullmatch(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]+)*", name) else []


def _known_columns(first: Row, file: CorpusFile, request: Request) -> tuple[int, int] | None:
    """
    The columns of Tatoeba's "Sentence pairs in English-German" (number, text, number, text) in the order of its name,
    and of the pairs for Anki, whose first column is English and whose third one attributes.
    UserError: those for Anki are named by the code of another language.
    """
    texts = [cell for cell in first if isinstance(cell, str)]
    if len(first) == 3 and len(texts) == 3 and texts[2].startswith("CC-BY"):
        english = [side for side in (0, 1) if request.rank(side, "en") is not None]
        if not english:
            return None
        code = Path(file.plain_name).stem  # of the language of the second column
        other = 1 - english[0]
        if len(code) == 3 and language_code(code) is not None and request.rank(other, code) is None:
            if not file.is_named:
                return None
            asked = (request.source, request.target)[other]
            raise UserError(f"{file.name}: by its name, pairs of English and {language_name(code)}, not {asked}")
        return (0, 1) if other == 1 else (1, 0)
    if len(first) == 4 and len(texts) == 4 and texts[0].isdecimal() and texts[2].isdecimal():
        names = [language_name(language.split("-")[0]) for language in (request.source, request.target)]
        for order in ((0, 1), (1, 0)):
            if "-".join(names[side] for side in order) in file.name:
                return (1, 3) if order == (0, 1) else (3, 1)
    return None


# -- kinds of files ----------------------------------------------------------------------------------------------------


def _text_sheets(file: CorpusFile) -> Iterator[tuple[str, Iterable[Row]]]:
    """A table of text, as recipes read them; in it, every cell is text."""
    if Path(file.name).is_file():
        yield "", _text_rows(Path(file.name), file.name)
        return
    with temporary_folder() as folder:  # a part of an archive, which is read more than once
        path = folder / Path(file.plain_name).name
        with file.opened() as packed, path.open("wb") as unpacked:
            copyfileobj(packed, unpacked)
        yield "", _text_rows(path, file.name)


def _text_rows(path: Path, name: str) -> Iterator[Row]:
    from ...data.local_files import table_rows

    try:
        for _, cells in table_rows(path):
            yield cells
    except UserError as error:
        raise UserError(f"{error}".replace(str(path), name)) from None


def _opened(file: CorpusFile, kind: str) -> tuple[IO[bytes], ZipFile]:
    content = BytesIO(file.content())
    with as_user_error(f"{file.name}: not {kind}, or damaged: ", (BadZipFile, OSError, RuntimeError)):
        archive = ZipFile(content)
    check_archive(archive, file.name)
    return content, archive


def _xlsx_sheets(file: CorpusFile) -> Iterator[tuple[str, Iterable[Row]]]:
    import openpyxl  # from an extra of this package

    content, archive = _opened(file, "an XLSX file")
    for part in archive.namelist():
        if part.endswith((".xml", ".rels")):
            _check_entities(archive, part, file.name)
    failed = f"{file.name}: not an XLSX file, or damaged: "
    with as_user_error(failed):
        book = openpyxl.load_workbook(content, read_only=True, data_only=True)
    for name in book.sheetnames:
        sheet = book[name]
        if hasattr(sheet, "iter_rows"):  # not a chart
            yield name if len(book.sheetnames) > 1 else "", _xlsx_rows(sheet, failed)


def _xlsx_rows(sheet: Any, failed: str) -> Iterator[Row]:
    with as_user_error(failed):
        sheet.reset_dimensions()  # some programs write wrong ones
        for row in sheet.iter_rows(values_only=True):
            yield [_CHARACTER.sub(" ", cell) if isinstance(cell, str) else cell for cell in row]


def _check_entities(archive: ZipFile, part: str, name: str) -> None:
    """Raise UserError if a part declares entities, which openpyxl's parser would expand."""

    def refuse(*_: Any) -> None:
        raise UserError(f"{name}: {part} declares entities, as no program does")

    parser = ParserCreate()
    started: list[str] = []
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = lambda tag, _: started.append(tag)
    with as_user_error(f"{name}: {part}: "), archive.open(part) as content:
        while not started and (chunk := content.read(4096)):
            parser.Parse(chunk)


def _ods_sheets(file: CorpusFile) -> Iterator[tuple[str, Iterable[Row]]]:
    _, archive = _opened(file, "an ODS file")
    if "content.xml" not in archive.namelist():
        raise UserError(f"{file.name}: not an ODS file: it has no content.xml")
    size = archive.getinfo("content.xml").compress_size
    part = CorpusFile(f"{file.name}/content.xml", lambda: archive.open("content.xml"), size, is_named=False)
    found = (
        (next(element for element in reversed(within) if element.name == "table"), row)
        for row, within in stream_elements(part, {"table-row"})
    )
    for table, rows in groupby(found, key=lambda pair: pair[0]):
        yield table.get("name"), islice(chain.from_iterable(_repeated_row(row) for _, row in rows), _MOST_ROWS)


def _repeated_row(row: XmlElement) -> Iterator[Row]:
    """A row, as often as it is repeated."""
    cells: Row = []
    for cell in row.find("table-cell", "covered-table-cell"):
        text = "\n".join(map(_ods_text, cell.find("p", "h"))) or cell.get("string-value")
        is_text = cell.get("value-type") == "string"
        cells += [text if is_text else 0 if cell.get("value-type") else None] * _count(cell, "number-columns-repeated")
        if len(cells) > _MOST_COLUMNS:
            break
    while cells and cells[-1] is None:
        cells.pop()
    return repeat(cells, _count(row, "number-rows-repeated"))


def _count(element: XmlElement, name: str) -> int:
    count = element.get(name)
    return min(int(count), _MOST_COLUMNS if "columns" in name else _MOST_ROWS) if count.isdecimal() else 1


def _ods_text(paragraph: XmlElement) -> str:
    """The text of a paragraph, without comments."""
    parts = []
    for child in paragraph.children:
        if isinstance(child, str):
            parts.append(child)
        elif child.name == "s":
            parts.append(" " * _count(child, "c"))
        elif child.name in ("tab", "line-break"):
            parts.append(" ")
        elif child.name not in ("annotation", "note", "ruby-text"):
            parts.append(_ods_text(child))
    return "".join(parts)

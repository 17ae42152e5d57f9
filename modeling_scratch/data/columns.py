"""Choose the columns of a table that hold the sources and the targets, and take the texts from them."""

import reprlib
from typing import Any

from ..errors import UserError
from ..recipe.schema import SOURCE, TARGET, DataSection

FIRST_ROWS = 100  # whose names are the columns of a table

# For `source` and `target`: the column, by its name or, without a header, by its number; and the key in it if each of
# its cells holds a text per language.
Columns = dict[str, tuple[str | int, str | None]]
_SHOWN = 20  # columns that a message names


def choose_columns(rows: list[dict], data: DataSection, where: str) -> Columns:
    """
    Choose two of a table's columns: those that `data.source_column` and `data.target_column` name or number, or those
    named like `data.source_language` and `data.target_language`; or two keys of a `translation` column.

    Args:
        rows: the table's first.
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
        language, column = getattr(data, f"{side}_language"), getattr(data, f"{side}_column")
        if column is None and languages:
            if language not in languages:
                raise UserError(f"{where} has no language {language!r}; it has {_listed(languages)}")
            columns[side] = ("translation", language)
            continue
        name = column or language
        if name not in names:
            advice = f"set data.{side}_column"
            if isinstance(name, str) and where.lower().endswith((".csv", ".tsv")):
                advice += (
                    "; if these are no names but a pair, the file has no header: set data.source_column and "
                    "data.target_column to the numbers of the columns, counted from 1"
                )
            raise UserError(f"{where} has no column {reprlib.repr(name)}; it has {_listed(names)} ({advice})")
        columns[side] = (name, None)
    return columns


def _listed(names: list[str | int]) -> str:
    """Names for a message. Those of a file without a header are sentences."""
    shown = [name if len(name) <= 40 else f"{name[:40]}..." for name in map(str, names[:_SHOWN])]
    return ", ".join([*shown, *["..."] * (len(names) > _SHOWN)])


def text_of(value: Any, name: str | int, key: str | None, where: str) -> str:
    """
    The text in a cell of column `name`, without surrounding whitespace; a missing text is empty. UserError, naming the
    place as `where`, if the cell holds something else.
    """
    try:
        text = value if value is None or key is None else value.get(key)
        if text is None:
            return ""
        text.encode()
        return text.strip()
    except (AttributeError, UnicodeEncodeError):
        wanted = "a text" if key is None else "a text for each language"
        raise UserError(f"{where}: column {name!r} holds {reprlib.repr(value)}, not {wanted}") from None


def texts_of(batch: dict[str, list], columns: Columns, where: str) -> dict[str, list[str]]:
    """The sources and targets of a batch of rows."""
    return {side: [text_of(value, name, key, where) for value in batch[name]] for side, (name, key) in columns.items()}

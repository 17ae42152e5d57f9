"""Choose the columns of a table that hold the sources and the targets, and take the texts from them."""

from typing import Any

from ..errors import UserError
from ..recipe.schema import SOURCE, TARGET, DataSection

FIRST_ROWS = 100  # whose names are the columns of a table

# For `source` and `target`: the column, and the key in it if each of its cells holds a text per language.
Columns = dict[str, tuple[str, str | None]]


def choose_columns(rows: list[dict[str, Any]], data: DataSection, where: str) -> Columns:
    """
    Choose two of a table's columns: those that `data.source_column` and `data.target_column` name, or those named like
    `data.source_language` and `data.target_language`; or two keys of a `translation` column.

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
                raise UserError(f"{where} has no language {language!r}; it has {', '.join(languages)}")
            columns[side] = ("translation", language)
            continue
        name = column or language
        if name not in names:
            raise UserError(f"{where} has no column {name!r}; it has {', '.join(names)} (set data.{side}_column)")
        columns[side] = (name, None)
    return columns


def text_of(value: Any, name: str, key: str | None, where: str) -> str:
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
        raise UserError(f"{where}: column {name!r} holds {value!r}, not {wanted}") from None


def texts_of(batch: dict[str, list], columns: Columns, where: str) -> dict[str, list[str]]:
    """The sources and targets of a batch of rows."""
    return {side: [text_of(value, name, key, where) for value in batch[name]] for side, (name, key) in columns.items()}

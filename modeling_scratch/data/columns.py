"""Choose the columns of a table that hold the sources and the targets."""

from functools import partial
from typing import Any

from datasets import Dataset, Value
from datasets.fingerprint import Hasher

from ..errors import UserError
from ..recipe.schema import SOURCE, TARGET, DataSection

# For `source` and `target`: the column, and the key in it if each of its cells holds a text per language.
Columns = dict[str, tuple[str, str | None]]


def choose_columns(names: list[str], languages: list[str] | None, data: DataSection, where: str) -> Columns:
    """
    Choose two of a table's columns: those that `data.source_column` and `data.target_column` name, or those named like
    `data.source_language` and `data.target_language`; or two keys of a `translation` column.

    Args:
        names: the table's columns.
        languages: the keys of its `translation` column; empty if it has no keys, None if there is no such column.
        where: the table, for messages.

    Raises:
        UserError: there is no such column or language.
    """
    columns: Columns = {}
    for side in (SOURCE, TARGET):
        language, column = getattr(data, f"{side}_language"), getattr(data, f"{side}_column")
        if column is None and languages is not None:
            if not languages:
                raise UserError(
                    f"{where}: its column 'translation' does not hold a sentence per language; set data.source_column "
                    "and data.target_column"
                )
            if language not in languages:
                raise UserError(f"{where} has no language {language!r}; it has {', '.join(languages)}")
            columns[side] = ("translation", language)
            continue
        name = column or language
        if name not in names:
            raise UserError(f"{where} has no column {name!r}; it has {', '.join(names)} (set data.{side}_column)")
        columns[side] = (name, None)
    return columns


def text_of(row: dict[str, Any], name: str, key: str | None, where: str) -> str:
    """
    The text in a column of a row, without surrounding whitespace; a missing text is empty. UserError, naming the row as
    `where`, if it holds something else.
    """
    value, wanted = row.get(name), "a text" if key is None else "a text for each language"
    try:
        if value is not None and key is not None:
            value = value.get(key)
        if value is not None:
            value.encode()
        return "" if value is None else value.strip()
    except (AttributeError, UnicodeEncodeError):
        raise UserError(f"{where}: column {name!r} holds {row[name]!r}, not {wanted}") from None


def texts_of(batch: dict[str, list], columns: Columns) -> dict[str, list[str]]:
    """The sources and targets of a batch of rows; a missing text becomes an empty one."""
    result = {}
    for side, (name, key) in columns.items():
        values = batch[name] if key is None else [(row or {}).get(key) for row in batch[name]]
        result[side] = ["" if value is None else str(value).strip() for value in values]
    return result


def as_pairs(dataset: Dataset, data: DataSection, where: str) -> Dataset:
    """The two chosen columns of a table, as `source` and `target`. UserError if they do not hold texts."""
    languages = None
    if "translation" in dataset.column_names:
        feature = dataset.features["translation"]
        languages = list(getattr(feature, "languages", list(feature) if isinstance(feature, dict) else []))
    columns = choose_columns(dataset.column_names, languages, data, where)
    for name, key in columns.values():
        feature = dataset.features[name] if key is None else Value("string")
        if not isinstance(feature, Value) or "binary" in feature.dtype:
            raise UserError(f"{where}: column {name!r} holds {feature}, not a text in each row")
    try:
        return dataset.map(
            partial(texts_of, columns=columns),
            batched=True,
            remove_columns=dataset.column_names,
            new_fingerprint=Hasher.hash([dataset._fingerprint, columns]),
            desc="selecting columns",
        )
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not valid UTF-8 ({error.reason})") from None

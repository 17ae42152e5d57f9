"""Find the columns of a table that hold the source and target texts."""

from functools import partial

from datasets import Dataset, Value
from datasets.fingerprint import Hasher

from ..errors import UserError
from ..recipe.schema import SOURCE, TARGET, DataSection

Columns = dict[str, tuple[str, str | None]]  # side: (column, its key if it holds a text for each language)


def find_columns(names: list[str], languages: list[str] | None, data: DataSection, where: str) -> Columns:
    """
    Where a data set's sources and targets are: in a `translation` column with language keys, or in flat columns.

    Args:
        names: the names of its columns.
        languages: the keys of its `translation` column; empty if that has none, None if there is no such column.
    """
    columns: Columns = {}
    for side in (SOURCE, TARGET):
        language, column = getattr(data, f"{side}_language"), getattr(data, f"{side}_column")
        if column is None and languages is not None:
            if not languages:
                raise UserError(
                    f"{where}: its column 'translation' does not hold a sentence a language; set data.source_column "
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


def pick_columns(batch: dict[str, list], columns: Columns) -> dict[str, list[str]]:
    """A batch's sources and targets; a missing text becomes an empty one."""
    result = {}
    for side, (name, key) in columns.items():
        values = batch[name] if key is None else [(row or {}).get(key) for row in batch[name]]
        result[side] = ["" if value is None else str(value).strip() for value in values]
    return result


def select_columns(dataset: Dataset, data: DataSection, where: str) -> Dataset:
    languages = None
    if "translation" in dataset.column_names:
        feature = dataset.features["translation"]
        languages = list(getattr(feature, "languages", list(feature) if isinstance(feature, dict) else []))
    columns = find_columns(dataset.column_names, languages, data, where)
    for name, key in columns.values():
        feature = dataset.features[name] if key is None else Value("string")
        if not isinstance(feature, Value):
            raise UserError(f"{where}: column {name!r} holds {feature}, not a text in each row")
    return dataset.map(
        partial(pick_columns, columns=columns),
        batched=True,
        remove_columns=dataset.column_names,
        new_fingerprint=Hasher.hash([dataset._fingerprint, columns]),
        desc="selecting columns",
    )

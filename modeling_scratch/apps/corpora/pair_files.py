"""Files of training pairs, as a recipe's `data.train_files` names them, row by row with all their columns."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from ...data.local_files import (
    FIRST_ROWS,
    Columns,
    choose_columns,
    find_files,
    is_table,
    joined_cells,
    read_line_pairs,
    read_table,
)
from ...errors import UserError
from ...recipe.schema import SOURCE, TARGET, DataSection

Row = dict[str, Any]


class PairFiles:
    """
    The pairs of files, which can be read several times.

    Args:
        files: tables, two text files, or the prefix of two.
        data: the languages and columns of a recipe.
        option: what names the files, for messages.

    Raises:
        UserError: a file is missing or empty, or lacks a column.
    """

    def __init__(self, files: Sequence[str], data: DataSection, option: str):
        self.data = data
        self._entries: list[tuple[tuple[Path, ...], Columns | None]] = []
        with _naming_options():
            for paths in find_files(list(files), data, option):
                columns = None
                if len(paths) == 1:
                    first = list(islice(read_table(paths[0], self._has_header), FIRST_ROWS))
                    if not first:
                        continue
                    columns = choose_columns(first, data, str(paths[0]))
                self._entries.append((paths, columns))
        if not self._entries:
            raise UserError(f"{', '.join(files)}: there are no rows")

    @property
    def _has_header(self) -> bool:
        return not isinstance(self.data.source_column, int)

    def rows(self) -> Iterator[tuple[tuple[str, str], Row]]:
        """Each pair, and its row with all columns: named as in the file, and the texts of text files as in a recipe."""
        for paths, columns in self._entries:
            if columns is None:
                for pair in read_line_pairs(*paths):
                    source, target = pair[SOURCE], pair[TARGET]
                    yield (source, target), dict(zip(self.data.names, (source, target), strict=True))
                continue
            for number, row in enumerate(read_table(paths[0], self._has_header), start=1):
                where = f"{paths[0]}, row {number}"
                source, target = (
                    joined_cells([(row.get(name), name, key) for name, key in columns[side]], where)
                    for side in (SOURCE, TARGET)
                )
                yield (source, target), self._named(row, columns)

    def _named(self, row: dict[Any, Any], columns: Columns) -> Row:
        """A row of a file without a header with names for its columns."""
        if self._has_header:
            return row
        names = {columns[side][0][0]: name for side, name in zip((SOURCE, TARGET), self.data.names, strict=True)}
        return {names.get(number, f"column {number}"): cell for number, cell in row.items()}

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Source and target of each row."""
        for pair, _ in self.rows():
            yield pair


_KEY = re.compile(r"\bdata\.(source|target)_(language|column)\b")


@contextmanager
def _naming_options() -> Iterator[None]:
    """Errors advise options of the commands on corpora, where a recipe has keys."""
    try:
        yield
    except UserError as error:
        raise UserError(_KEY.sub(r"--\1-\2", str(error))) from error


def sources_of_tests(names: Sequence[str], data: DataSection) -> Iterator[str]:
    """
    The sources of test sets.

    Args:
        names: tables and prefixes of two text files; or two text files, source and target.
    """
    are_two = len(names) == 2 and all(Path(name).is_file() and not is_table(Path(name)) for name in names)
    for one in [names] if are_two else [[name] for name in names]:
        for source, _ in PairFiles(one, data, "--test").pairs():
            yield source

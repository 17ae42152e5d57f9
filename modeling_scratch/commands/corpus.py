"""`scratch corpus`: write the embedded corpus to text files."""

from pathlib import Path
from typing import Annotated

import typer

from ..data.corpus import write_corpus
from ..errors import UserError
from .cli import one_line_errors, report


def main(
    folder: Annotated[Path, typer.Argument(help="a new or empty folder, for train.en, train.de, and so on")],
    train_size: Annotated[int, typer.Option(min=1, help="training pairs")] = 24000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Write the embedded corpus to text files, one sentence per line."""
    with one_line_errors(debug=False):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists and is not an empty folder; choose another name")
        written = write_corpus(folder, train_size, seed)
        report(f"wrote {', '.join(map(str, written))}", f"{folder} is written")

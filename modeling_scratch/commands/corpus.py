"""`scratch corpus`: make files of training pairs, and look at them."""

from pathlib import Path
from typing import Annotated

import typer

from ..data.corpus import write_corpus
from ..errors import UserError
from .cli import one_line_errors, report

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help="Make files of training pairs."
)


@app.callback()
def _group() -> None:
    """Has the commands below named even while there is one."""


@app.command("embedded")
def embedded_command(
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

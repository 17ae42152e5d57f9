"""`scratch corpus`: make files of training pairs, and look at them."""

from pathlib import Path
from typing import Annotated

import typer

from ..data.corpus import write_corpus
from ..errors import UserError
from .cli import Debug, log_to_terminal, one_line_errors, report

_SHOWN = 10  # files that a report names

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


@app.command("split")
def split_command(
    pairs: Annotated[Path, typer.Argument(help="a table of pairs, such as `scratch corpus from` writes")],
    folder: Annotated[Path, typer.Argument(help="a new folder, for train.jsonl, validation.jsonl and test.jsonl")],
    source_language: Annotated[str, typer.Option(help="the column of the sources")],
    by: Annotated[
        str, typer.Option(help="pairs with the same text in this column, up to a #, stay together")
    ] = "origin",
    validation: Annotated[int, typer.Option(min=0, help="about how many pairs to hold out for validation")] = 1000,
    test: Annotated[int, typer.Option(min=0, help="about how many pairs to hold out for the test")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="decides which files are held out")] = 0,
    debug: Debug = False,
) -> None:
    """
    Hold out whole files or packages for validation and test, without the sources that other files have too, so that
    scores are those of new files.
    """
    log_to_terminal(uses_transformers=False)
    with one_line_errors(debug):
        from ..apps.corpora.splitting import split_corpus

        split = split_corpus(pairs, folder, source_language, by, validation, test, seed)
        lines = [f"{folder / name}.jsonl: {count:,} pairs" for name, count in split.pairs.items()]
        for name, files in split.held_out.items():
            shown = [*files[:_SHOWN], *([f"{len(files) - _SHOWN:,} more"] if len(files) > _SHOWN else [])]
            lines += [f"held out for {name}: {', '.join(shown)}"] if files else []
        lines.append(f"left out of both: {split.also_elsewhere:,} pairs whose sources are in other files too")
        report("\n".join(lines), f"{folder} is written")

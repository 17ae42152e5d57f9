"""`scratch figures`: draw a run's curves, positional encodings, attention and the architecture."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError, as_user_error
from .cli import Debug, log_to_terminal, one_line_errors, report

_HELP = "Draw figures, as PNG files."
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=_HELP)


def _report(paths: Iterable[Path], *lines: str) -> None:
    report("\n".join([*lines, *map(str, paths)]), "the figure is written")


@app.command()
def curves(
    run: Annotated[Path, typer.Argument(help="the folder of a run")],
    out: Annotated[Path | None, typer.Option(help="the file to write (default: RUN/curves.png)")] = None,
    debug: Debug = False,
) -> None:
    """Loss, validation scores and learning rate of a run, from its metrics.jsonl."""
    with one_line_errors(debug):
        from ..run.curves import curves_figure, save
        from ..run.records import METRICS_FILE, read_metrics

        if not run.is_dir():
            raise UserError(f"{run}: no such folder; name that of a run")
        if not (records := read_metrics(run)):
            raise UserError(f"{run} contains no records of a run ({METRICS_FILE})")
        _report([save(curves_figure(records), out or run / "curves.png")])


@app.command()
def positions(
    d_model: Annotated[int, typer.Option(min=1, max=8192, help="the model's width")] = 128,
    length: Annotated[int, typer.Option(min=2, max=8192, help="how many positions")] = 100,
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("positions.png"),
    debug: Debug = False,
) -> None:
    """The sinusoidal positional encodings."""
    with one_line_errors(debug):
        from ..apps.figures.positions import positions_figure
        from ..run.curves import save

        _report([save(positions_figure(d_model, length), out)])


@app.command()
def attention(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    sentence: Annotated[str, typer.Argument(help="a sentence or other input")],
    layer: Annotated[str, typer.Option(help="'last', 'all', or a number, counted from 1")] = "last",
    beams: Annotated[int | None, typer.Option(min=1, max=1000, help="default: as the model was saved")] = None,
    out: Annotated[Path, typer.Option(help="the folder to write to")] = Path("attention"),
    debug: Debug = False,
) -> None:
    """Run a model on a sentence and draw what each head attends to: in encoder, decoder and cross-attention."""
    log_to_terminal(logging.INFO)
    with one_line_errors(debug):
        from ..apps.figures.attention_maps import attention_maps, parse_layer, save_attention
        from ..loading import best_device, load_tokenizers, load_translator

        number = parse_layer(layer)  # fails before anything is loaded
        tokenizers = load_tokenizers(model)
        translator = load_translator(model).to(best_device())
        with as_user_error("the sentence: ", UnicodeEncodeError):
            sentence.encode("utf-8")
        with as_user_error(kinds=ValueError):
            maps = attention_maps(translator, *tokenizers, sentence, beams)
        paths = save_attention(maps, out, number)
        _report(paths, maps.translation)


@app.command()
def architecture(
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("architecture.png"),
    debug: Debug = False,
) -> None:
    """Encoder and decoder, post-norm and pre-norm, labelled with module names."""
    with one_line_errors(debug):
        from ..apps.figures.architecture import architecture_figure
        from ..run.curves import save

        _report([save(architecture_figure(), out)])

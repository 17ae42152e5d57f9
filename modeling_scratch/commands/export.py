"""`scratch export`: export a model for use without this project, as a web page or for transformers.js."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..files import new_output
from .cli import Debug, log_to_terminal, one_line_errors, report

_HELP = "Export a model for use without this project."
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=_HELP)


def _report(out: Path, difference: float, advice: str) -> None:
    how_far = f"largest difference of log-probabilities of random ids, in float32: {difference:.1e}"
    report(f"{how_far}\nwrote {out}; {advice}", f"{out} is written")


@app.command("web")
def web_command(
    models: Annotated[
        list[str],
        typer.Argument(
            help="a Scratch model for each direction, or a faster one and a better one: folders or Hub names",
            metavar="MODEL...",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Argument(help="the folder to write, or a file that ends in .html")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a page that this command wrote")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="store 8-bit weights: a quarter of the model's size")] = False,
    debug: Debug = False,
) -> None:
    """
    Write a page that runs the model in the browser, on the reader's device; with several models, the reader chooses the
    direction. Of two models of one direction, the one saved with greedy search is "Faster" and the other "Better". A
    folder is for any static server; a file that ends in .html contains everything, and browsers open it from disk.
    """
    log_to_terminal()
    with one_line_errors(debug):
        from ..apps.web.export import export_one_file, export_page
        from ..apps.web.site import check_is_page, keep_files_of_github_pages

        is_file = out.suffix.lower() == ".html"
        with new_output(out, check_is_page if overwrite else None) as path:
            difference = (export_one_file if is_file else export_page)(models, path, int8)
            keep_files_of_github_pages(out, path)
        how = "open it in a browser"
        if not is_file:
            how = f"serve it with: python -m http.server --directory {shlex.quote(str(out))}"
        _report(out, difference, how)


@app.command("transformersjs")
def transformersjs_command(
    src: Annotated[str, typer.Argument(help="a Scratch model: a folder or Hub name")],
    out: Annotated[Path, typer.Argument(help="the folder to write; it must not exist")],
    debug: Debug = False,
) -> None:
    """
    Write a folder that transformers.js loads, with 32-bit and with 8-bit weights. Its README.md shows the JavaScript to
    run it.
    """
    log_to_terminal()
    with one_line_errors(debug):
        from ..apps.web.transformersjs import export_transformersjs

        with new_output(out) as path:
            difference = export_transformersjs(src, path)
        _report(out, difference, f"push it to the Hub with: hf upload user/name-onnx {shlex.quote(str(out))}")


@app.command("runtime")
def runtime_command(debug: Debug = False) -> None:
    """Fetch the JavaScript runtime of pages and cache it, as `scratch export web` does when needed."""
    log_to_terminal()
    with one_line_errors(debug):
        from ..apps.web.runtime import runtime_files

        report(f"the runtime of pages is in {runtime_files()[0].parent}", "the runtime is cached")

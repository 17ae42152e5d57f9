"""The `scratch` command, which dispatches to the commands of this package."""

import typer

from .commands import (
    compare,
    convert,
    corpus,
    evaluate,
    export,
    figures,
    improve,
    recipes,
    serve,
    train,
    translate,
    upload,
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
app.command("train")(train.main)
app.command("evaluate")(evaluate.main)
app.command("compare")(compare.main)
app.command("improve")(improve.main)
app.command("translate")(translate.main)
app.command("serve")(serve.main)
app.command("upload")(upload.main)
app.add_typer(convert.app, name="convert")
app.add_typer(export.app, name="export")
app.add_typer(figures.app, name="figures")
app.command("corpus")(corpus.main)
app.command("recipes")(recipes.main)


@app.callback()
def describe() -> None:
    """Train a Transformer translator from sentence pairs, score it, translate with it, share it."""


if __name__ == "__main__":
    app()

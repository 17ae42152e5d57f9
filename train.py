"""Train a translator from a recipe, resume a stopped run, or score a model: same as `scratch train`."""

from modeling_scratch.commands.train import main  # isort: skip; first, since importing the package prepares the process

import typer

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()

"""`python -m modeling_scratch.translate`: as `scratch translate`."""

import typer

from modeling_scratch.commands.translate import main

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()

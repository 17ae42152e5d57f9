"""`python -m modeling_scratch.corpus`: as `scratch corpus`."""

import typer

from modeling_scratch.commands.corpus import main

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()

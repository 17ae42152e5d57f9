"""Share a model folder on the Hugging Face Hub: same as `scratch upload`."""

from modeling_scratch.commands.upload import main  # isort: skip; first, since importing the package prepares the process

import typer

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()

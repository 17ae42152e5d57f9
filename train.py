"""Train a translator from sentence pairs by a recipe, continue a stopped run, or score a model: `scratch train`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python imports is no traceback

import typer

from modeling_scratch.commands.train import main

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()

"""Train a translator from a recipe, resume a stopped run, or score a model: same as `scratch train`."""

import os
import signal

if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:
        # How long a thread waits busily for others, about 0.2 ms, before it lets another process have its core. By
        # default it waits so long that two trainings on the same cores all but stop each other.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that Ctrl-C during the imports prints no traceback

import typer

from modeling_scratch.commands.train import main

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()

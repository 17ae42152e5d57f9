"""Share a model folder on the Hugging Face Hub: same as `scratch upload`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that Ctrl-C during the imports prints no traceback

import typer

from modeling_scratch.commands.upload import main

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()

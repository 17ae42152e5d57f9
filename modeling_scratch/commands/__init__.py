"""The commands of `scratch`, a module each, imported only when its command runs: help does not wait for torch."""

from importlib import import_module

import typer
import typer.main
from typer.core import TyperGroup

# Modules of this package, and their descriptions in `scratch --help`.
COMMANDS = {
    "train": "Train a model from a recipe; resume a run.",
    "evaluate": "Score a model on the data of a recipe.",
    "compare": "Compare the scores of runs, with intervals and significance.",
    "improve": "Train a better model of the same size from a run's own pairs.",
    "distill": "Train a fast student on the translations by any models.",
    "translate": "Run a model on lines, texts and documents.",
    "serve": "Serve a web page and LibreTranslate's API.",
    "upload": "Check a model folder and push it to the Hub as one commit.",
    "convert": "Convert from and to Marian and PyTorch, and to CTranslate2.",
    "export": "Export a model as a web page or for transformers.js.",
    "figures": "Draw curves, attention, positions and the architecture.",
    "corpus": "Make files of training pairs, and look at them.",
    "recipes": "List the recipes that come with this package.",
}


def load_command(name: str):
    """Import a command: a function without arguments that reads those of this process."""
    module = import_module(f".{name}", __package__)
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(module.main)
    return typer.main.get_command(app)


class _Commands(TyperGroup):
    def resolve_command(self, ctx, args):
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(name), rest


_HELP = "Train a Transformer on pairs of sequences, such as translations; score it, run it and share it."
app = typer.Typer(cls=_Commands, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=_HELP)
for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)  # a placeholder, which `resolve_command` replaces

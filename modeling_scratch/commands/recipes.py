"""`scratch recipes`: list the recipes that come with this package."""

import typer

from ..cli import one_line_errors
from ..recipe.shipped import shipped_recipes


def main() -> None:
    """List the recipes that come with this package, for `scratch train --config NAME`."""
    with one_line_errors(debug=False):
        for name, path in shipped_recipes().items():
            first = path.read_text(encoding="utf-8").splitlines()[0]
            typer.echo(f"{name:<16} {first.removeprefix('#').strip()}")

"""`scratch recipes`: list the recipes that come with this package."""

from ..recipe import shipped_recipes
from .cli import one_line_errors, report


def main() -> None:
    """List the recipes that come with this package, for `scratch train --config NAME`."""
    with one_line_errors(debug=False):
        firsts = {name: path.read_text(encoding="utf-8").splitlines()[0] for name, path in shipped_recipes().items()}
        report("\n".join(f"{name:<16} {first.lstrip('# ')}" for name, first in firsts.items()))

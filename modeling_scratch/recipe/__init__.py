"""
The recipe: everything that defines a run, typed and checked.

This module finds the recipes and model files that come with the package, and does not import torch.
"""

from pathlib import Path

from ..errors import UserError

_PACKAGE = Path(__file__).resolve().parent.parent
# Inside the package if installed from a wheel, beside it in a checkout.
CONFIGURATION_FOLDER = next(
    folder for folder in (_PACKAGE / "configuration", _PACKAGE.parent / "configuration") if folder.is_dir()
)

SOURCE, TARGET = "source", "target"  # the two sides of a pair
SECONDS_TO_ANSWER = 60.0  # how long a push waits for each response of the Hub
SECONDS_TO_PUSH = 3600.0  # how long its whole upload may take


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with this package, by name."""
    return {path.stem: path for path in sorted((CONFIGURATION_FOLDER / "recipes").glob("*.yaml"))}


def find_recipe(name: str) -> Path:
    """The file of a recipe, given its path or the name of one that comes with this package."""
    path, shipped = Path(name), shipped_recipes()
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return path
    if name in shipped:
        return shipped[name]
    if (own := path / "recipe.yaml").is_file():
        raise UserError(f"--config: {name!r} is the folder of a run; name its recipe: {own}")
    raise UserError(f"--config: {name!r} is neither a file nor one of {', '.join(shipped)}")

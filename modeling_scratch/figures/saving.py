"""How pictures are written, and their colours."""

import logging
import warnings
from pathlib import Path

from matplotlib.figure import Figure

from ..errors import UserError

logger = logging.getLogger(__name__)

# Figures are made without pyplot: they need no display, and a notebook that imports this keeps its own backend.

# Okabe and Ito's colours, which stay apart for colour-blind readers.
BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
# Perceptually uniform, and told apart by colour-blind readers too: one for encodings in [-1, 1], one that is pale
# where nothing is attended to.
WAVES, HEAT = "viridis", "magma_r"
DOTS_PER_INCH = 110


def save(figure: Figure, path: Path) -> Path:
    """
    Write a figure as a PNG, whole or not at all. Characters that no font at hand has become boxes, and a warning says
    so. UserError if the name does not end in .png.
    """
    if path.suffix != ".png":
        raise UserError(f"{path}: pictures are PNG files; give a name that ends in .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(temporary, dpi=DOTS_PER_INCH, format="png", bbox_inches="tight", pad_inches=0.1)
    boxes = [warning for warning in caught if str(warning.message).startswith("Glyph ")]
    for warning in caught:
        if warning not in boxes:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if boxes:
        logger.warning(f"{path}: the fonts here lack some characters, drawn as boxes; the first: {boxes[0].message}")
    temporary.replace(path)
    return path

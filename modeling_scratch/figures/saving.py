"""Colours of the figures, and how they are saved."""

import logging
import warnings
from pathlib import Path

from matplotlib.figure import Figure

from ..errors import UserError
from ..files import written_whole

logger = logging.getLogger(__name__)

# Without pyplot, figures need no display, and a notebook that imports this keeps its own backend.

# Okabe and Ito's palette, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY_BLUE, PURPLE = "#56B4E9", "#CC79A7"
# Perceptually uniform colour maps, also for colour-blind readers: one for encodings in [-1, 1], and one that is pale
# where nothing is attended to.
WAVES, HEAT = "viridis", "magma_r"
DOTS_PER_INCH = 110


def save(figure: Figure, path: Path) -> Path:
    """
    Save a figure as a PNG, completely or not at all. A warning tells if characters were drawn as boxes because no
    installed font has them. UserError if the name does not end in .png.
    """
    if path.suffix != ".png":
        raise UserError(f"{path}: pictures are PNG files; give a name that ends in .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(temporary, dpi=DOTS_PER_INCH, format="png", bbox_inches="tight", pad_inches=0.1)
    missing = [warning for warning in caught if str(warning.message).startswith("Glyph ")]
    for warning in caught:
        if warning not in missing:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        logger.warning(f"{path}: no font here has some characters, drawn as boxes; the first: {missing[0].message}")
    return path

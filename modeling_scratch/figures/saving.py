"""The figures' colours and fonts, and how they are saved."""

import logging
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font, weight_dict
from matplotlib.text import Text

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
# In inches. The Hub shows pictures 740 pixels wide, so a figure of this width gets 100 pixels per inch, and
# 10-point text is 14 pixels high. The file has twice as many pixels, for high-resolution screens.
PAGE_WIDTH = 7.4
_BOXES = ("Last Resort", ".LastResort")  # fonts that draw every letter as a box
_MOST_DOTS, _LEAST_DOTS = 200, 110  # per inch
_WIDTH, _HEIGHT = 1480, 16_000  # in pixels: larger pictures get fewer dots per inch


@cache
def _fonts_for(letters: frozenset[str]) -> list[str]:
    """Installed fonts that together cover the letters that the default font lacks, as far as possible."""
    missing = set(map(ord, letters)) - set(get_font(findfont(FontProperties())).get_charmap())
    upright = (font for font in fontManager.ttflist if font.style == "normal" and not font.name.startswith(_BOXES))
    # The face closest to regular in each family; sans-serif families first.
    by_weight = sorted(upright, key=lambda font: abs(weight_dict.get(font.weight, font.weight) - 400), reverse=True)
    files = {font.name: font.fname for font in by_weight}
    found: list[str] = []
    for name in sorted(files, key=lambda name: ("Serif" in name or "Mono" in name, "Sans" not in name, name)):
        if not missing:
            break
        with suppress(RuntimeError, OSError):  # a file that is gone or damaged
            font = get_font(files[name])
            if has := {letter for letter in missing if font.get_char_index(letter)}:
                missing -= has
                found.append(name)
    return found


def _give_fonts(figure: Figure) -> None:
    """
    Let text fall back to installed fonts for letters that its own font lacks. The first font that has a letter is used
    for it, so Chinese characters may take the shapes of another language.
    """
    texts = [text for text in figure.findobj(Text) if not text.get_text().isascii()]
    fonts = _fonts_for(frozenset(letter for text in texts for letter in text.get_text() if letter.isprintable()))
    for text in texts:
        text.set_family([*text.get_family(), *fonts])


def save(figure: Figure, path: Path) -> Path:
    """
    Save a figure as a PNG, completely or not at all. Logs a warning if characters are drawn as boxes because no
    installed font has them. UserError if the name does not end in .png.
    """
    if path.suffix != ".png":
        raise UserError(f"{path}: pictures are PNG files; give a name that ends in .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    _give_fonts(figure)
    width, height = figure.get_size_inches()
    dots = max(_LEAST_DOTS, min(_MOST_DOTS, _WIDTH / width, _HEIGHT / height))
    with written_whole(path) as temporary, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(temporary, dpi=dots, format="png", bbox_inches="tight", pad_inches=0.1)
    missing = [warning for warning in caught if str(warning.message).startswith("Glyph ")]
    for warning in caught:
        if warning not in missing:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        logger.warning(
            f"{path}: no font here has some characters, drawn as boxes; install one that has, such as "
            f"Noto Sans. The first: {missing[0].message}"
        )
    return path

"""Plot the curves of a run, or of several; and how all figures of this project look and are saved."""

import logging
import math
import warnings
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, FontProperties, findfont, fontManager, get_font, weight_dict
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from ..errors import UserError
from ..files import check_not_protected, written_whole
from ..metrics import METRICS

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

# Styles of the compared runs, in turn: each colour, then the same ones with other dashes and markers.
_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY_BLUE)
_DASHES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
_GREY = "#666666"
# Panel heights in inches, without titles: the loss, a score, and the learning rate or a single point.
_TALL, _MEDIUM, _LOW = 2.5, 1.3, 0.7
_STEPS = [1, 2, 2.5, 5, 10]  # between ticks
_FEW = 40  # lines with at most this many points get markers
_WARM_UP = 0.1  # the share of updates whose values may lie out of view

Points = list[tuple[int, float]]


def plot_curves(metrics: list[dict[str, Any]], path: Path) -> None:
    """Write `curves_figure` as a PNG."""
    save(curves_figure(metrics), path)


def curves_figure(metrics: list[dict[str, Any]]) -> Figure:
    """
    Training and validation cross-entropy, the minimized training loss if it differs, validation scores and the learning
    rate, stacked, by update.

    Args:
        metrics: the records of metrics.jsonl, which in earlier versions lack the training cross-entropy.
    """
    train, validation = _records(metrics, "train"), _records(metrics, "validation")
    scores = _scores(validation)
    lines: dict[str, list[tuple[Points, str]]] = {"loss": [(_points(train, "cross_entropy"), BLUE)]}
    lines["loss"].append((_points(validation, "loss"), VERMILLION))
    titles = {"loss": "Cross-entropy per target token (nats)"}
    both = [record for record in train if record.get("cross_entropy") is not None]
    if (train and not both) or any(record.get("loss") != record["cross_entropy"] for record in both):
        lines["objective"] = [(_points(train, "loss"), BLUE)]
        titles["objective"] = "Training loss as minimized (nats)"
    lines |= {key: [(_points(validation, key), VERMILLION)] for key in scores}
    titles |= {key: f"{METRICS[key].title} on validation" for key in scores}
    lines["rate"], titles["rate"] = [(_points(train, "learning_rate"), _GREY)], "Learning rate"
    low = {key for key in scores if len(lines[key][0][0]) == 1} | {"rate"}
    figure, panels = _stacked(titles, low)
    for key, panel in panels.items():
        for points, colour in lines[key]:
            _draw(panel, points, colour)
            if colour == VERMILLION and points:
                panel.annotate(
                    f"{points[-1][1]:.2f}",
                    points[-1],
                    xytext=(5, 0),
                    textcoords="offset points",
                    color=colour,
                    fontsize=9,
                    va="center",
                    annotation_clip=False,
                )
        _set_range(panel, key)
    panels["loss"].set_xlim(0, 1.02 * max((1, *(record["step"] for record in metrics))))
    drawn = zip(panels["loss"].lines, lines["loss"], ("training", "validation"), strict=True)
    for line, (points, _), label in drawn:
        line.set_label(label if points else f"_{label}")  # an underscore: not in the legend
    if any(points for points, _ in lines["loss"]):
        panels["loss"].legend(frameon=False, fontsize=10)
    return figure


def comparison_figure(runs: dict[str, list[dict[str, Any]]]) -> Figure:
    """
    Validation loss and scores of several runs by update, one line per run.

    Args:
        runs: the records of metrics.jsonl, by the run's name.
    """
    validation = {name: _records(records, "validation") for name, records in runs.items()}
    scores = _scores([record for records in validation.values() for record in records])
    titles = {"loss": "Cross-entropy per target token on validation (nats)"}
    figure, panels = _stacked(titles | {key: f"{METRICS[key].title} on validation" for key in scores})
    for key, panel in panels.items():
        styles = cycle((colour, *dash) for dash in _DASHES for colour in _COLOURS)
        for records, style in zip(validation.values(), styles, strict=False):
            _draw(panel, _points(records, key), *style)
        _set_range(panel, key)
    panels["loss"].set_xlim(left=0)
    columns = max(1, min(4, 95 // (max(map(len, runs)) + 8)))
    legend = figure.legend(panels["loss"].lines, list(runs), loc="outside lower center", ncols=columns, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a folder's name is no formula
    return figure


def confidence_figure(scores: dict[str, dict[str, Any]]) -> Figure:
    """
    How the score grows if only the outputs with the highest confidence are kept, one line per test set.

    Args:
        scores: by test set, the records of its scores, with `confidence` as `translate_and_score` returns it.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 3.2), layout="constrained")
    panel = figure.subplots()
    (metric,) = {record["confidence"]["metric"] for record in scores.values()}
    for (name, record), colour in zip(scores.items(), cycle(_COLOURS), strict=False):
        points = [(100 * share, score) for share, score in record["confidence"]["kept"]]
        panel.plot(*zip(*points, strict=True), color=colour, linewidth=1.3, marker="o", markersize=3, label=name)
    panel.set_title(f"{METRICS[metric].title} of the outputs with the highest confidence", loc="left", fontsize=10)
    panel.set_xlabel("share of the outputs that is kept, in percent", fontsize=10)
    panel.invert_xaxis()
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=9)
    if len(scores) > 1:
        panel.legend(frameon=False, fontsize=10)
    return figure


def _records(metrics: list[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    """The records of a split during training."""
    return [record for record in metrics if record["split"] == split and "final" not in record]


def _scores(records: list[dict[str, Any]]) -> list[str]:
    return [key for key in METRICS if any(key in record for record in records)]


def _points(records: list[dict[str, Any]], key: str) -> Points:
    """(update, value) from the first record with the key. A loss or rate missing later was not finite: a gap."""
    known = [index for index, record in enumerate(records) if key in record]
    if not known:
        return []
    if key in METRICS:  # not computed at every evaluation
        return [(records[index]["step"], records[index][key]) for index in known]
    return [(record["step"], record.get(key, math.nan)) for record in records[known[0] :]]


def _draw(panel: Axes, points: Points, colour: str, dash: str = "-", marker: str = "o") -> None:
    steps, values = zip(*points, strict=True) if points else ((), ())
    marker = marker if len(points) <= _FEW else ""
    panel.plot(steps, values, color=colour, linestyle=dash, linewidth=1.3, marker=marker, markersize=3)


def _stacked(titles: dict[str, str], low: Collection[str] = ()) -> tuple[Figure, dict[str, Axes]]:
    """A figure with one panel per title, stacked, sharing the axis of updates."""
    heights = [_LOW if key in low else _TALL if key == "loss" else _MEDIUM for key in titles]
    figure = Figure(figsize=(PAGE_WIDTH, sum(heights) + 0.35 * len(heights) + 0.5), layout="constrained")
    panels = figure.subplots(len(titles), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (key, title) in zip(panels, titles.items(), strict=True):
        panel.set_title(title, loc="left", fontsize=10)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
        panel.yaxis.set_major_locator(MaxNLocator(nbins=2 if key in low else 6 if key == "loss" else 4, steps=_STEPS))
    panels[-1].set_xlabel("update", fontsize=10)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=_STEPS))
    panels[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure, dict(zip(titles, panels, strict=True))


def _set_range(panel: Axes, key: str) -> None:
    """Fit a panel to its lines except in the warm-up, whose values would flatten all others."""
    lines = [[point for point in line.get_xydata().tolist() if math.isfinite(point[1])] for line in panel.lines]
    lines = [points for points in lines if points]
    if not lines:
        panel.set_yticks([])
        return
    warm_up = _WARM_UP * max(points[-1][0] for points in lines)
    # A short run beside long ones still shows its second half. Update 0 does not count as warm-up.
    seen = [y for points in lines for x, y in points if x == 0 or x >= min(warm_up, points[-1][0] / 2)]
    low, high = min(seen), max(seen)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    least, most = METRICS[key].range if key in METRICS else (0, None)
    bottom = 0 if key == "rate" else max(low - margin, least)
    panel.set_ylim(bottom, high + margin if most is None else min(high + margin, most))


# -- saving ------------------------------------------------------------------------------------------------------------


def check_picture(path: Path) -> None:
    """Raise UserError if a figure cannot be saved there. For commands that take long before they draw it."""
    if path.suffix != ".png":
        raise UserError(f"{path}: pictures are PNG files; give a name that ends in .png")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give another name")
    check_not_protected(path)


def save(figure: Figure, path: Path) -> Path:
    """
    Save a figure as a PNG, completely or not at all. Logs a warning if characters are drawn as boxes because no
    installed font has them. Raises UserError as `check_picture` does.
    """
    check_picture(path)
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


def _give_fonts(figure: Figure) -> None:
    """
    Let text fall back to installed fonts for letters that its own font lacks. The first font that has a letter is used
    for it, so Chinese characters may take the shapes of another language.
    """
    texts = [text for text in figure.findobj(Text) if not text.get_text().isascii()]
    fonts = _fonts_for(frozenset(letter for text in texts for letter in text.get_text() if letter.isprintable()))
    for text in texts:
        text.set_fontfamily([*text.get_fontfamily(), *fonts])


@cache
def _fonts_for(letters: frozenset[str]) -> list[str]:
    """Installed fonts that together cover the letters that the default font lacks, as far as possible."""
    missing = set(map(ord, letters)) - set(get_font(findfont(FontProperties())).get_charmap())
    upright = (font for font in fontManager.ttflist if font.style == "normal" and not font.name.startswith(_BOXES))
    # The face closest to regular in each family; sans-serif families first.
    by_weight = sorted(upright, key=lambda font: abs(_weight(font) - 400), reverse=True)
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


def _weight(font: FontEntry) -> int:
    return weight_dict[font.weight] if isinstance(font.weight, str) else font.weight

"""Draws the benchmarks' figures as PNG files: bar charts of ratios, and curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import peers  # noqa: F401  (finds modeling_scratch)
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_scratch.run.curves import BLUE, GREEN, ORANGE, VERMILLION, save

COLOURS = (BLUE, ORANGE, GREEN, VERMILLION)


def bars(path: str, names: Sequence[str], panels: Sequence[tuple[str, Mapping[str, Sequence[float]]]]) -> None:
    """
    Panels of horizontal bars side by side, with a line at a ratio of 1.

    Args:
        names: of the groups of bars, from the top.
        panels: for each, a title and the named series, each with one value per group (nan: no bar).
    """
    figure = Figure(figsize=(6 * len(panels), 1 + 0.55 * len(names)), layout="constrained")
    for axis, (title, series) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        height = 0.8 / len(series)
        for number, (name, values) in enumerate(series.items()):
            places = [place + (number - (len(series) - 1) / 2) * height for place in range(len(names))]
            drawn = axis.barh(places, values, height, label=name, color=COLOURS[number % len(COLOURS)])
            axis.bar_label(drawn, [f"{value:.2f}" if value == value else "" for value in values], padding=2, fontsize=8)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set(title=title, yticks=range(len(names)), yticklabels=names)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.grid(axis="x", alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(series))
    save(figure, Path(path))


def curves(axis: Axes, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """A line plot of each named series of x and y."""
    for colour, (name, (x, y)) in zip(COLOURS, series.items(), strict=False):
        axis.plot(x, y, label=name, color=colour, marker="o", markersize=4)
    axis.grid(alpha=0.3)
    axis.legend()

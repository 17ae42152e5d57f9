"""Draws the benchmarks' figures as PNG files: bar charts of ratios, curves, and what quality costs in speed."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import peers  # noqa: F401  (finds modeling_scratch)
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from modeling_scratch.run.curves import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION, save

COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY_BLUE, "black")


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


def frontier(path: Path, points: Sequence[dict[str, Any]], speeds: Sequence[float]) -> None:
    """
    Plot BLEU over sentences a second: a circle for each point, whose area stands for the bytes of the weights, filled
    for greedy search; a line from greedy search to more beams, with the name of the model beside it; and a line along
    the points that no other is faster and better than.

    Args:
        points: of benchmarks/frontier.py.
        speeds: sentences a second of each.
    """
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    axis = figure.subplots()
    axis.set(xscale="log", xlabel="sentences a second, from text to text", ylabel="BLEU")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.3)
    axis.margins(0.08)
    programs = dict.fromkeys(point["program"] for point in points)
    colours = dict(zip(programs, COLOURS, strict=False))
    sizes = [point["bytes"] for point in points]
    lines: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for point, speed in reversed(list(zip(points, speeds, strict=True))):  # the first ones on top
        colour, area = colours[point["program"]], 260 * point["bytes"] / max(sizes)
        fill = colour if point["beams"] == 1 else "white"
        axis.scatter(speed, point["bleu"], area, fill, edgecolors=colour, linewidths=1.5, zorder=3)
        lines.setdefault((point["model"], point["program"], point["kind"]), []).append((speed, point["bleu"]))
    for (_, program, _), ends in lines.items():
        axis.plot(*zip(*ends, strict=True), color=colours[program], linewidth=1, zorder=2)
    best = best_points([end for ends in lines.values() for end in ends])
    axis.set(xlim=axis.get_xlim(), ylim=axis.get_ylim())
    steps = [(axis.get_xlim()[0], best[0][1]), *best, (best[-1][0], axis.get_ylim()[0])]
    axis.plot(*zip(*steps, strict=True), "k:", linewidth=1, drawstyle="steps-pre", zorder=1)

    def key(label: str, colour: str, fill: str | None = None, area: float = 64) -> Line2D:
        circle = {"marker": "o", "linestyle": "", "markersize": math.sqrt(area), "markerfacecolor": fill or colour}
        return Line2D([], [], color=colour, label=label, **circle)

    keys = [key(program, colour) for program, colour in colours.items()]
    keys += [key("greedy search", "gray"), key("several beams", "gray", "white")]
    for size in (max(sizes), min(sizes)):
        keys.append(key(f"weights of {size / 1e6:.1f} MB", "gray", area=260 * size / max(sizes)))
    keys.append(Line2D([], [], color="black", linestyle=":", linewidth=1, label="none is faster and better"))
    figure.legend(handles=keys, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    write_names(axis, lines)
    save(figure, path)


def best_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (x, y) that no other one lies above and to the right of, from left to right."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points, reverse=True):
        if not found or y > found[-1][1]:
            found.append((x, y))
    return found[::-1]


def write_names(axis: Axes, lines: Mapping[tuple[str, ...], Sequence[tuple[float, float]]]) -> list[Annotation]:
    """
    Write the model's name, the first part of each key, beside an end of its line, but not twice near one place. Names
    hide neither points nor one another, and lines as little as possible.
    """
    axis.figure.draw_without_rendering()
    pixels = {key: axis.transData.transform(ends) for key, ends in lines.items()}
    on_lines = np.concatenate([np.linspace(ends[0], ends[-1], 50) for ends in pixels.values()])
    taken = [Bbox.from_bounds(x - 11, y - 11, 22, 22) for ends in pixels.values() for x, y in ends]
    names: list[Annotation] = []
    for key, ends in pixels.items():
        near = [axis.transData.transform(name.xy) for name in names if name.get_text() == key[0]]
        if any(math.dist(place, end) < 90 for place in near for end in ends):
            continue
        name = axis.annotate(key[0], lines[key][0], (0, 0), textcoords="offset points", fontsize=8, ha="center")
        name.set(va="center", path_effects=[withStroke(linewidth=2, foreground="white")])
        size = np.array(name.get_window_extent().size)
        free = []
        for distance, (place, end), turn in product(range(4, 60, 8), zip(lines[key], ends, strict=True), range(16)):
            direction = np.array([math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)])
            offset = direction * (size / 2 + 11 + distance)
            box = Bbox([end + offset - size / 2, end + offset + size / 2])
            if not box.count_overlaps(taken) and axis.bbox.contains(*box.min) and axis.bbox.contains(*box.max):
                crossed = ((on_lines > box.min) & (on_lines < box.max)).all(axis=1).sum()
                free.append((crossed + distance / 8, len(free), place, offset, box))
        if not free:
            name.remove()
            continue
        *_, name.xy, offset, box = min(free)
        name.set_position(offset * 72 / axis.figure.dpi)
        taken.append(box)
        names.append(name)
    return names

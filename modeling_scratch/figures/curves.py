"""The curves of a training run, and of several beside each other."""

import math
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..metrics import METRICS
from .saving import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION, save

_STYLES = [(BLUE, "o"), (VERMILLION, "s"), (GREEN, "^"), (ORANGE, "D")]  # of the scores, in turn
# Of runs, in turn: colours, then the same ones in other dashes.
_COLOURS, _DASHES = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY_BLUE), ("-", "--", ":", "-.")


def curves_figure(metrics: list[dict[str, Any]]) -> Figure:
    """
    Loss, validation scores and learning rate by update.

    Args:
        metrics: the records of metrics.jsonl.
    """
    records = [record for record in metrics if "final" not in record]
    train = [record for record in records if record["split"] == "train"]
    validation = [record for record in records if record["split"] == "validation"]
    scores = [key for key in METRICS if any(key in record for record in validation)]
    # At this width, 10-point text is 11 pixels high in the Hub's column of 740 pixels.
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplot_mosaic([["loss", "loss"], ["score", "rate"]], height_ratios=(1.2, 1))
    loss_axis, score_axis, rate_axis = axes["loss"], axes["score"], axes["rate"]
    series = [
        (loss_axis, train, "loss", "training (smoothed labels)", BLUE, None),
        (loss_axis, validation, "loss", "validation", VERMILLION, "o"),
        (rate_axis, train, "learning_rate", "learning rate", BLUE, None),
    ]
    for key, style in zip(scores, cycle(_STYLES)):
        rows = [record for record in validation if key in record]
        series.append((score_axis, rows, key, METRICS[key].title, *style))
    for axis, rows, key, label, colour, marker in series:
        steps, values = [row["step"] for row in rows], [row.get(key, math.nan) for row in rows]
        axis.plot(steps, values, label=label, color=colour, marker=marker, markersize=4)
    loss_axis.set(title="Loss per target token", ylabel="nats")
    score_axis.set(title="Validation scores", ylim=_score_limits(scores))
    rate_axis.set(title="Learning rate", ylim=(0, None))
    for axis in (loss_axis, score_axis, rate_axis):
        axis.set_xlabel("update")
        axis.grid(alpha=0.3)
    loss_axis.legend()
    if scores:
        score_axis.legend()
    return figure


def comparison_figure(runs: dict[str, list[dict[str, Any]]]) -> Figure:
    """
    Validation loss and scores of several runs by update, a line a run.

    Args:
        runs: the records of metrics.jsonl, by the run's name.
    """
    validation = {
        name: [record for record in records if record["split"] == "validation" and "final" not in record]
        for name, records in runs.items()
    }
    keys = [key for key in METRICS if any(key in record for rows in validation.values() for record in rows)]
    figure = Figure(figsize=(9, 6 if keys else 4), layout="constrained")
    mosaic = [["loss"] * len(keys), keys] if keys else [["loss"]]
    axes = figure.subplot_mosaic(mosaic, sharex=True)
    styles = cycle((colour, dash) for dash in _DASHES for colour in _COLOURS)
    for key, axis in axes.items():
        title = "Validation loss per target token" if key == "loss" else f"{METRICS[key].title} on validation"
        axis.set(title=title, xlabel="update", ylabel="nats" if key == "loss" else "")
        axis.tick_params(labelbottom=True)  # sharing the axis hides the upper one's numbers
        axis.grid(alpha=0.3)
    for rows, (colour, dash) in zip(validation.values(), styles, strict=False):
        for key, axis in axes.items():
            points = [(row["step"], row[key]) for row in rows if key in row]
            steps, values = zip(*points, strict=True) if points else ((), ())
            axis.plot(steps, values, color=colour, linestyle=dash, linewidth=1.2, marker="o", markersize=3)
    columns = 4 if max(map(len, runs)) < 24 else 2
    legend = figure.legend(axes["loss"].lines, list(runs), loc="outside lower center", ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a folder's name is no formula
    return figure


def _score_limits(keys: list[str]) -> tuple[float, float | None]:
    """The scores' common axis; None: as high as they are."""
    ranges = [METRICS[key].range for key in keys] or [(0, 100)]
    highs = [high for _, high in ranges]
    return min(low for low, _ in ranges), None if None in highs else max(highs)


def plot_curves(metrics: list[dict[str, Any]], path: Path) -> None:
    """Write `curves_figure` as a PNG."""
    save(curves_figure(metrics), path)

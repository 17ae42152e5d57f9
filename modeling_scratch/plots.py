"""Pictures: the curves of a training run."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def plot_curves(metrics: list[dict[str, Any]], path: Path) -> None:
    """
    Loss, learning rate and validation scores over updates, as a PNG.

    Args:
        metrics: the records of metrics.jsonl.
    """
    records = [record for record in metrics if "final" not in record]
    train = [record for record in records if record["split"] == "train"]
    validation = [record for record in records if record["split"] == "validation"]
    scored = [record for record in validation if "bleu" in record]
    figure, (loss_axis, score_axis, rate_axis) = pyplot.subplots(1, 3, figsize=(14, 4), layout="constrained")
    series = [
        (loss_axis, train, "loss", "training (smoothed labels)", "C0", None),
        (loss_axis, validation, "loss", "validation", "C1", "."),
        (score_axis, scored, "bleu", "BLEU", "C2", "."),
        (score_axis, scored, "chrf", "chrF", "C3", "."),
        (rate_axis, train, "learning_rate", "learning rate", "C0", None),
    ]
    for axis, rows, key, label, colour, marker in series:
        axis.plot([row["step"] for row in rows], [row[key] for row in rows], label=label, color=colour, marker=marker)
    loss_axis.set(title="Loss a target token", ylabel="nats")
    score_axis.set(title="Validation scores", ylim=(0, 100))
    rate_axis.set(title="Learning rate", ylim=(0, None))
    for axis in (loss_axis, score_axis, rate_axis):
        axis.set_xlabel("update")
        axis.grid(alpha=0.3)
    loss_axis.legend()
    score_axis.legend(loc="lower right")
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=110, format="png")
    pyplot.close(figure)
    temporary.replace(path)

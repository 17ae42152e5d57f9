"""A figure of the sinusoidal positional encodings."""

import torch
from matplotlib.figure import Figure

from ...model.position_embeddings import SinusoidalPositionEmbedding
from ...run.curves import BLUE, GREEN, ORANGE, WAVES


def positions_figure(d_model: int = 128, length: int = 100) -> Figure:
    """The sinusoidal encodings of section 3.5, (length, d_model): a few dimensions as curves, and all as an image."""
    positions = torch.arange(length).unsqueeze(0)  # (1, length)
    encodings = SinusoidalPositionEmbedding.encode(positions, d_model)[0].numpy()  # (length, d_model)
    # A sine with its cosine, then two slower sines. Even dimensions are sines.
    first, second, third = (2 * (d_model * part // 16) for part in (1, 2, 3))
    dimensions = sorted({first, min(first + 1, d_model - 1), second, third})
    styles = [(BLUE, "-"), (BLUE, "--"), (ORANGE, "-"), (GREEN, "-")]
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    curves, heat = figure.subplots(1, 2, width_ratios=(1, 1.2))
    for dimension, (colour, style) in zip(dimensions, styles, strict=False):
        label = f"dimension {dimension} ({'cosine' if dimension % 2 else 'sine'})"
        curves.plot(encodings[:, dimension], label=label, color=colour, linestyle=style)
    curves.set(title="Some dimensions", xlabel="position", ylabel="encoding", ylim=(-1.1, 1.1), xlim=(0, length - 1))
    curves.grid(alpha=0.3)
    curves.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    image = heat.imshow(encodings, cmap=WAVES, vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    heat.set(title="All dimensions", xlabel="dimension", ylabel="position")
    heat.locator_params(integer=True)
    figure.colorbar(image, ax=heat, label="encoding")
    figure.suptitle(f"Sinusoidal positions, d_model {d_model}")
    return figure

"""A diagram of the architecture, labelled with the names in the code (`scratch figures architecture`)."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

# In data units: heights of a box and of a thin box, radius of a plus sign, gap below a box, width of a box.
_BOX, _THIN, _RING, _GAP, _WIDTH = 0.62, 0.44, 0.17, 0.3, 3.3
_COLOURS = {"attention": "#FBE3B5", "feed_forward": "#BFDDF0", "norm": "#BFE5D8", "embedding": "#F3D3E3", "": "#E8E8E8"}


class _Column:
    """Draws a stack from the bottom up: boxes on a line, with residual connections on one side."""

    def __init__(self, axis: Axes, x: float, side: int):
        """side: -1 puts residual connections on the left, 1 on the right."""
        self.axis, self.x, self.side, self.top = axis, x, side, 0.0

    def line(self, *points: tuple[float, float], arrow: bool = True) -> None:
        self.axis.plot(*zip(*points, strict=True), color="#333333", linewidth=1.1, solid_joinstyle="miter", zorder=1)
        if arrow:
            style = {"arrowstyle": "-|>", "color": "#333333", "shrinkA": 0, "shrinkB": 0, "linewidth": 1.1}
            self.axis.annotate("", points[-1], points[-2], arrowprops=style, zorder=1)

    def write(self, text: str, **style: Any) -> None:
        """Write text at the current height."""
        self.axis.text(self.x, self.top, text, ha="center", va="bottom", fontsize=9.5, **style)
        self.top += 0.3

    def box(self, name: str, colour: str = "", note: str = "", gap: float = _GAP) -> float:
        """Draw a box labelled with a module's name, and an arrow into it. Returns the height of its middle."""
        height = _BOX if colour else _THIN
        bottom = self.top + gap
        self.line((self.x, self.top), (self.x, bottom))
        patch = FancyBboxPatch((self.x - _WIDTH / 2 + 0.08, bottom + 0.08), _WIDTH - 0.16, height - 0.16, zorder=2)
        patch.set(boxstyle="round,pad=0.08", facecolor=_COLOURS[colour], edgecolor="#555555", linewidth=0.8)
        self.axis.add_patch(patch)
        middle = bottom + height / 2
        size = 9 if colour else 8.5
        text = f"{name} {note}".strip()
        self.axis.text(self.x, middle, text, ha="center", va="center", fontsize=size, family="monospace", zorder=3)
        self.top = bottom + height
        return middle

    def sub_layer(self, name: str, norm: str, pre_norm: bool) -> float:
        """Draw x + Dropout(Sublayer(x)) with its norm. Returns the height of the sub-layer's box."""
        self.line((self.x, self.top), (self.x, self.top + 0.16), arrow=False)
        fork = self.top = self.top + 0.16
        if pre_norm:
            self.box(norm, "norm")
        middle = self.box(name, "feed_forward" if name == "feed_forward" else "attention")
        self.box("dropout", gap=0.2)
        ring = self.top + 0.24 + _RING
        self.line((self.x, self.top), (self.x, ring - _RING))
        self.axis.add_patch(Circle((self.x, ring), _RING, facecolor="white", edgecolor="#333333", zorder=2))
        self.axis.text(self.x, ring, "+", ha="center", va="center", fontsize=11, zorder=3)
        beside = self.x + self.side * (_WIDTH / 2 + 0.26)
        self.line((self.x, fork), (beside, fork), (beside, ring), (self.x + self.side * _RING, ring))
        self.top = ring + _RING
        if not pre_norm:
            self.box(norm, "norm", gap=0.22)
        return middle

    def frame(self, bottom: float, text: str) -> None:
        """Draw a dashed frame around the repeated part, from `bottom` to the current height."""
        left, top = self.x - _WIDTH / 2 - 0.45, self.top + 0.2
        patch = FancyBboxPatch((left, bottom), _WIDTH + 0.9, top - bottom, boxstyle="round,pad=0", zorder=0)
        patch.set(facecolor="#FAFAFA", edgecolor="#888888", linestyle="--")
        self.axis.add_patch(patch)
        beside = self.x - self.side * (_WIDTH / 2 + 0.22)  # the side without residual connections
        style = {"rotation": 90, "ha": "center", "va": "top", "fontsize": 8.5, "family": "monospace"}
        self.axis.text(beside, top - 0.15, text, **style)
        self.line((self.x, self.top), (self.x, top), arrow=False)
        self.top = top


def _draw_stack(column: _Column, side: str, sub_layers: list[str], pre_norm: bool) -> dict[str, float]:
    """Draw a stack from its ids to its output. Returns the height of each sub-layer's box."""
    column.write("input_ids" if side == "Encoder" else "decoder_input_ids")
    column.box("embed_tokens", "embedding", "× √d_model", gap=0.22)  # noqa: RUF001
    column.box("embed_positions", "embedding", "(added)", gap=0.22)
    column.box("dropout", gap=0.22)
    column.line((column.x, column.top), (column.x, column.top + 0.3), arrow=False)
    bottom = column.top = column.top + 0.3
    heights = {name: column.sub_layer(name, f"{name}_layer_norm", pre_norm) for name in sub_layers}
    column.frame(bottom, f"Scratch{side}Layer × {side.lower()}_layers")  # noqa: RUF001
    if pre_norm:  # the paper has none
        column.box("layer_norm", "norm", "(final_norm)", gap=0.24)
    return heights


def architecture_figure() -> Figure:
    """Encoder and decoder, labelled with module names: post-norm, as in the paper, beside pre-norm."""
    figure = Figure(figsize=(11.5, 9.3), layout="constrained")
    for axis, pre_norm in zip(figure.subplots(1, 2), (False, True), strict=True):
        encoder, decoder = _Column(axis, 0.0, side=-1), _Column(axis, 4.9, side=1)
        _draw_stack(encoder, "Encoder", ["self_attn", "feed_forward"], pre_norm)
        heights = _draw_stack(decoder, "Decoder", ["self_attn", "cross_attn", "feed_forward"], pre_norm)
        between, middle = 2.45, heights["cross_attn"]
        above = encoder.top + 0.3
        into = (decoder.x - _WIDTH / 2, middle)
        encoder.line((0.0, encoder.top), (0.0, above), (between, above), (between, middle), into)
        place = {"ha": "right", "va": "bottom", "fontsize": 8.5}
        axis.text(between, above + 0.06, "encoder_hidden_states", family="monospace", **place)
        decoder.box("lm_head", "embedding", gap=0.24)
        decoder.line((decoder.x, decoder.top), (decoder.x, decoder.top + 0.26))
        decoder.top += 0.3
        decoder.write("logits")
        name = "pre" if pre_norm else "post"
        axis.set(xlim=(-2.3, 7.2), ylim=(-0.1, 15.2), aspect="equal")
        title = f'norm_position: "{name}"' + ("" if pre_norm else " (the paper's)")
        axis.text(-2.1, 14.9, title, fontsize=12, ha="left", va="center")
        axis.set_axis_off()
    return figure

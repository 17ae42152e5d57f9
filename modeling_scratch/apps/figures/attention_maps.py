"""Attention maps: what each head of each layer attends to during a translation."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import east_asian_width

import torch
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ...errors import UserError
from ...inference.alignments import returning_weights
from ...model.text import clean
from ...run.curves import HEAT, PAGE_WIDTH, save

MOST_TOKENS = 100  # a larger map would be unreadable, and its file large
_LONGEST_LABEL = 40  # characters
# In inches: the side of a cell, which needs room for a line of text, and the greatest height of a panel.
_LEAST_CELL, _GOOD_CELL, _MOST_CELL, _MOST_HEIGHT = 0.12, 0.16, 0.27, 9.0


@dataclass
class AttentionMaps:
    """
    The attention weights of a sentence of S tokens and its translation of T tokens, one tensor per layer. Row t of the
    decoder's maps is the decoding step that reads `read[t]` and writes `written[t]`.
    """

    sentence: str
    translation: str
    source: list[str]  # S labels, the end token included
    read: list[str]  # T labels: the start token, then the translation
    written: list[str]  # T labels: the translation, then the end token
    encoder: Sequence[torch.Tensor]  # encoder self-attention, (num_heads, S, S)
    decoder: Sequence[torch.Tensor]  # decoder self-attention, (num_heads, T, T)
    cross: Sequence[torch.Tensor]  # cross-attention, (num_heads, T, S)


# {kind of attention: the fields of AttentionMaps with its weights, row labels and column labels}
KINDS = {
    "encoder self-attention": ("encoder", "source", "source"),
    "decoder self-attention": ("decoder", "written", "read"),
    "cross-attention": ("cross", "written", "source"),
}
_ROW_LABELS = {"source": "attending token", "written": "token being written"}
_COLUMN_LABELS = {"source": "source token attended to", "read": "token read so far"}


def token_labels(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """
    A readable label for each token. Byte-level BPE represents bytes by stand-in characters ('Ġ' for a space, 'Ã¼' for
    'ü'), which are turned back into text. A space is shown as '▁', as in SentencePiece, and a byte that is only part of
    a character as '\\xe6'. Special tokens and the tokens of other tokenizers are left unchanged.
    """
    tokens = tokenizer.convert_ids_to_tokens(ids)
    decoder = tokenizer.backend_tokenizer.decoder if tokenizer.is_fast else None
    if decoder is None or b'"ByteLevel"' not in decoder.__getstate__():
        return tokens
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    labels = []
    for token_id, token in zip(ids, tokens, strict=True):
        if token_id in tokenizer.added_tokens_decoder or not set(token) <= set(byte_of):
            labels.append(token)
            continue
        text = bytes(byte_of[letter] for letter in token).decode("utf-8", errors="backslashreplace")
        visible = (letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text.replace(" ", "▁"))
        labels.append("".join(visible))
    return labels


def _check_length(what: str, length: int) -> None:
    if length > MOST_TOKENS:
        raise UserError(f"the {what} has {length} tokens; a map of more than {MOST_TOKENS} would be unreadable")


@torch.inference_mode()
def attention_maps(
    model: PreTrainedModel,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    num_beams: int | None = None,
) -> AttentionMaps:
    """
    Translate a sentence, then collect all attention weights in one forward pass over the sentence and its translation.
    They equal the weights of the decoding steps, since no position sees a later one. Both run without dropout, and with
    eager attention, the implementation that returns weights.

    Args:
        num_beams: the beam size; None: the model's default.

    Raises:
        UserError: the sentence is empty, or it or its translation has more than MOST_TOKENS tokens.
    """
    if not clean(sentence):
        raise UserError("the sentence is empty")
    inputs = source_tokenizer([clean(sentence)], return_tensors="pt").to(model.device)
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}  # (1, S)
    _check_length("sentence", inputs["input_ids"].shape[1])
    with returning_weights(model):
        sequence = model.generate(**inputs, **({} if num_beams is None else {"num_beams": num_beams}))  # (1, T + 1)
        _check_length("output", sequence.shape[1] - 1)
        outputs = model(**inputs, decoder_input_ids=sequence[:, :-1], output_attentions=True, use_cache=False)
    labels = token_labels(target_tokenizer, sequence[0].tolist())
    return AttentionMaps(
        sentence=sentence.strip(),
        translation=target_tokenizer.decode(sequence[0], skip_special_tokens=True),
        source=token_labels(source_tokenizer, inputs["input_ids"][0].tolist()),
        read=labels[:-1],
        written=labels[1:],
        encoder=[weights[0].float().cpu() for weights in outputs.encoder_attentions],
        decoder=[weights[0].float().cpu() for weights in outputs.decoder_attentions],
        cross=[weights[0].float().cpu() for weights in outputs.cross_attentions],
    )


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else f"{label[:_LONGEST_LABEL]}…"


@dataclass
class _Layout:
    """How a page arranges the maps of a layer's heads: `across` side by side, and large maps cut into parts."""

    cell: float  # the side of a map's cell, in inches
    across: int
    rows: list[slice]
    columns: list[slice]


def _parts(length: int, number: int) -> list[slice]:
    size = -(-length // number)
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _layout(num_heads: int, rows: int, columns: int, space: float) -> _Layout:
    """Put as many heads side by side, in `space` inches, as leave room for their labels."""
    cells = {across: (space / across - 0.15) / columns for across in (4, 3, 2, 1) if num_heads % across == 0}
    across = next((across for across, cell in cells.items() if cell >= _GOOD_CELL), 1)
    column_parts = _parts(columns, math.ceil(_LEAST_CELL / cells[across]))
    most = _MOST_CELL if len(column_parts) == 1 else _GOOD_CELL
    cell = min(most, (space / across - 0.15) / len(range(columns)[column_parts[0]]))
    return _Layout(cell, across, _parts(rows, math.ceil(rows * cell / _MOST_HEIGHT)), column_parts)


def _span(tokens: list[str]) -> int:
    """The width of the widest token, in characters; wide East Asian characters count as two."""
    return max(sum(2 if east_asian_width(letter) in "WF" else 1 for letter in token) for token in tokens)


def attention_figure(maps: AttentionMaps, kind: str, layer: int) -> Figure:
    """
    The heads of one layer, one panel each, on a common colour scale from 0 to 1. A map that is too wide for the page,
    or too high to be seen together with its labels, is cut into several panels.

    Args:
        kind: a key of KINDS.
        layer: counted from 1.
    """
    field, rows, columns = KINDS[kind]
    layers, row_tokens, column_tokens = (getattr(maps, name) for name in (field, rows, columns))
    row_tokens, column_tokens = list(map(_short, row_tokens)), list(map(_short, column_tokens))
    weights = layers[layer - 1].numpy()  # (num_heads, rows, columns)
    margins = [0.085 * _span(tokens) + 0.3 for tokens in (row_tokens, column_tokens)]  # of the labels, in inches
    layout = _layout(len(weights), len(row_tokens), len(column_tokens), PAGE_WIDTH - margins[0])
    # Panels in reading order: some heads side by side, then the other parts of their maps.
    heads = [range(first, first + layout.across) for first in range(0, len(weights), layout.across)]
    places = [(group, row, column) for group in heads for row in layout.rows for column in layout.columns]
    size = len(range(len(row_tokens))[layout.rows[0]]), len(range(len(column_tokens))[layout.columns[0]])
    is_cut = len(places) > len(heads)
    titles = [f"{kind[0].upper()}{kind[1:]}, layer {layer} of {len(layers)}"]
    for text in (maps.sentence, maps.translation):
        titles += textwrap.wrap(text, 76 * len(text) // max(1, _span([text])) or 1)
    height = len(places) * (size[0] * layout.cell + 0.3) + (len(places) if is_cut else 1) * margins[1]
    figure = Figure(figsize=(PAGE_WIDTH, height + 0.2 * len(titles) + 0.9), layout="compressed")
    panels = figure.subplots(len(places), layout.across, squeeze=False)
    # With parse_math, text between dollar signs would become a formula.
    style = {"fontsize": min(9.0, 54 * layout.cell), "parse_math": False}
    for (group, row, column), across in zip(places, panels, strict=True):
        for head, panel in zip(group, across, strict=True):
            image = panel.imshow(weights[head, row, column], cmap=HEAT, vmin=0, vmax=1, interpolation="nearest")
            panel.set(xlim=(-0.5, size[1] - 0.5), ylim=(size[0] - 0.5, -0.5), xticks=[], yticks=[])
            panel.set_title(_title(layer, head, layout, row, column), fontsize=10)
            panel.tick_params(length=0)
            if is_cut or group == heads[-1]:  # otherwise only the panels at the bottom have labels
                labels = column_tokens[column]
                panel.set_xticks(range(len(labels)), labels, rotation=90, **style)
        labels = row_tokens[row]
        across[0].set_yticks(range(len(labels)), labels, **style)
        across[0].set_ylabel(_ROW_LABELS[rows], fontsize=10)
    for panel in panels[-1][: None if layout.across <= 2 else 1]:  # the labels of three panels would overlap
        panel.set_xlabel(_COLUMN_LABELS[columns], fontsize=10)
    bar = {"location": "bottom", "shrink": 0.5, "aspect": 30, "pad": 0.15 / figure.get_figheight()}
    figure.colorbar(image, ax=panels, label="attention weight", **bar)
    figure.suptitle("\n".join(titles), fontsize=11, parse_math=False)
    return figure


def _title(layer: int, head: int, layout: _Layout, row: slice, column: slice) -> str:
    parts = [f"rows {row.start + 1} to {row.stop}"] if len(layout.rows) > 1 else []
    parts += [f"columns {column.start + 1} to {column.stop}"] if len(layout.columns) > 1 else []
    return ", ".join([f"layer {layer}, head {head + 1}", *parts])


def parse_layer(text: str) -> int | None:
    """
    Parse the value of `--layer`: None for "all", 0 for "last", otherwise a number. Raises UserError for anything else.
    """
    if text in ("all", "last"):
        return None if text == "all" else 0
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"--layer must be 'last', 'all' or a number counted from 1, not {text!r}")
    return int(text)


def save_attention(maps: AttentionMaps, folder: Path, layer: int | None) -> list[Path]:
    """
    Draw each kind of attention to FOLDER/KIND-layer-N.png. Returns the paths.

    Args:
        layer: as from `parse_layer`.

    Raises:
        UserError: the encoder or decoder has no such layer.
    """
    chosen = []
    for kind, (field, _, _) in KINDS.items():
        depth = len(getattr(maps, field))
        if layer is not None and layer > depth:
            raise UserError(f"--layer is {layer}, but {kind} has only {depth} layers")
        chosen += [(kind, number) for number in ([layer or depth] if layer is not None else range(1, depth + 1))]
    return [
        save(attention_figure(maps, kind, number), folder / f"{kind.replace(' ', '-')}-layer-{number}.png")
        for kind, number in chosen
    ]

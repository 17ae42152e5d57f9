"""Attention maps: what each head of each layer attends to during a translation."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..errors import UserError
from .saving import HEAT, save

# A larger map would be unreadable and its file large.
MOST_TOKENS = 100


@dataclass
class AttentionMaps:
    """
    The attention weights of a sentence of S tokens and its translation of T tokens, one tensor per layer. Row t of the
    decoder's maps is the step that reads `read[t]` and writes `written[t]`.
    """

    sentence: str
    translation: str
    source: list[str]  # S labels, the end token included
    read: list[str]  # T labels: the start token, then the translation
    written: list[str]  # T labels: the translation, then the end token
    encoder: Sequence[torch.Tensor]  # encoder self-attention, (num_heads, S, S)
    decoder: Sequence[torch.Tensor]  # decoder self-attention, (num_heads, T, T)
    cross: Sequence[torch.Tensor]  # cross-attention, (num_heads, T, S)


# {kind of attention: fields of AttentionMaps with its weights, row labels and column labels}
KINDS = {
    "encoder self-attention": ("encoder", "source", "source"),
    "decoder self-attention": ("decoder", "written", "read"),
    "cross-attention": ("cross", "written", "source"),
}
_ROW_LABELS = {"source": "attending token", "written": "token being written"}
_COLUMN_LABELS = {"source": "source token attended to", "read": "token read so far"}


def token_labels(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """
    A readable label per token. Byte-level BPE represents bytes by stand-in letters ('Ġ' for a space, 'Ã¼' for 'ü'),
    which become text again. A space is shown as '▁', as in SentencePiece, and a byte that is only part of a character
    as '\\xe6'. Special tokens, and the tokens of other tokenizers, are left unchanged.
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
        raise UserError(f"the {what} has {length} tokens; a map of more than {MOST_TOKENS} cannot be read")


@torch.inference_mode()
def attention_maps(
    model: PreTrainedModel,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    num_beams: int | None = None,
) -> AttentionMaps:
    """
    Translate a sentence, then record all attention weights in one forward pass over it and its translation. They equal
    those of the decoding steps, since no position sees a later one. Both run without dropout and with eager attention,
    the implementation that returns weights.

    Args:
        num_beams: None: the model's default.

    Raises:
        UserError: the sentence is empty, or it or its translation has more than MOST_TOKENS tokens.
    """
    if not sentence.strip():
        raise UserError("the sentence is empty")
    inputs = source_tokenizer([sentence], return_tensors="pt").to(model.device)
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}  # (1, S)
    _check_length("sentence", inputs["input_ids"].shape[1])
    training, implementation = model.training, model.config._attn_implementation
    model.eval()
    model.set_attn_implementation("eager")
    try:
        sequence = model.generate(**inputs, **({} if num_beams is None else {"num_beams": num_beams}))  # (1, T + 1)
        _check_length("translation", sequence.shape[1] - 1)
        outputs = model(**inputs, decoder_input_ids=sequence[:, :-1], output_attentions=True, use_cache=False)
    finally:
        model.train(training)
        model.set_attn_implementation(implementation)
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


def attention_figure(maps: AttentionMaps, kind: str, layer: int) -> Figure:
    """
    The heads of one layer, one panel each, on a common colour scale from 0 to 1.

    Args:
        kind: a key of KINDS.
        layer: counted from 1.
    """
    field, rows, columns = KINDS[kind]
    layers, row_tokens, column_tokens = getattr(maps, field), getattr(maps, rows), getattr(maps, columns)
    weights = layers[layer - 1].numpy()  # (num_heads, rows, columns)
    num_heads = len(weights)
    # Inches a token: room for a line of 9 points, less in a long sentence.
    cell = min(0.27, max(0.16, 10 / max(len(row_tokens), len(column_tokens))))
    font_size = min(9.0, 50 * cell)
    panel_width = cell * len(column_tokens)
    across = num_heads if num_heads <= 3 else 2 if num_heads == 4 else 3 if num_heads < 7 else 4
    across = max(1, min(across, int(22 / panel_width)))
    down = -(-num_heads // across)
    margins = [0.009 * font_size * max(map(len, tokens)) for tokens in (column_tokens, row_tokens)]  # of the labels
    width = max(6.5, across * (panel_width + 0.2) + margins[1] + 1.5)
    height = down * (cell * len(row_tokens) + 0.4) + margins[0] + 1.2
    figure = Figure(figsize=(width, height), layout="compressed")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for panel in panels[num_heads:]:
        panel.remove()
    for head, panel in enumerate(panels[:num_heads]):
        image = panel.imshow(weights[head], cmap=HEAT, vmin=0, vmax=1, interpolation="nearest")
        panel.set_title(f"layer {layer}, head {head + 1}", fontsize=10)
        # Labels only at the left and bottom of the grid. With parse_math, text between dollar signs would be a formula.
        style = {"fontsize": font_size, "parse_math": False}
        if head % across == 0:
            panel.set_yticks(range(len(row_tokens)), row_tokens, **style)
            panel.set_ylabel(_ROW_LABELS[rows], fontsize=10)
        else:
            panel.set_yticks([])
        if head + across >= num_heads:
            panel.set_xticks(range(len(column_tokens)), column_tokens, rotation=90, **style)
            panel.set_xlabel(_COLUMN_LABELS[columns], fontsize=10)
        else:
            panel.set_xticks([])
        panel.tick_params(length=0)
    bar = {"shrink": min(1.0, 4 / height), "aspect": 25, "pad": 0.25 / width}
    figure.colorbar(image, ax=panels[:num_heads], label="attention weight", **bar)
    title = f"{kind[0].upper()}{kind[1:]}, layer {layer} of {len(layers)}"
    lines = [title, *textwrap.wrap(maps.sentence, int(11 * width)), *textwrap.wrap(maps.translation, int(11 * width))]
    figure.suptitle("\n".join(lines), fontsize=11, parse_math=False)
    return figure


def parse_layer(text: str) -> int | None:
    """The value of `--layer` as a number: None for "all", 0 for "last". UserError if it is neither nor a number."""
    if text in ("all", "last"):
        return None if text == "all" else 0
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"--layer is {text!r}; it must be 'last', 'all', or a number, counted from 1")
    return int(text)


def save_attention(maps: AttentionMaps, folder: Path, layer: str = "last") -> list[Path]:
    """
    Draw each kind of attention to FOLDER/KIND-layer-N.png. Returns the files.

    Args:
        layer: "last", "all", or a number, counted from 1.

    Raises:
        UserError: a stack has no such layer.
    """
    number = parse_layer(layer)
    chosen = []
    for kind, (field, _, _) in KINDS.items():
        depth = len(getattr(maps, field))
        if number is not None and number > depth:
            raise UserError(f"--layer is {number}, but {kind} has {depth} layers; 'all' draws every layer")
        chosen += [(kind, each) for each in ([number or depth] if number is not None else range(1, depth + 1))]
    return [
        save(attention_figure(maps, kind, each), folder / f"{kind.replace(' ', '-')}-layer-{each}.png")
        for kind, each in chosen
    ]

"""
Conversion from and to torch.nn.Transformer, which packs the query, key and value projections into one matrix.

torch.nn.Transformer has only the layers; embeddings, positions and output projection are everyone's own.
`TorchTranslator` adds them with the names of PyTorch's translation tutorial. To read another state dict, its tensors
are given the names of a `TorchTranslator`.
"""

import math
import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from ...errors import UserError, as_user_error
from ...files import reading
from ...model import ScratchForConditionalGeneration
from ...model.configuration_scratch import ScratchConfig
from ...model.position_embeddings import SinusoidalPositionEmbedding
from ...recipe.reading import check_fields
from .marian import check_plain_weights, misfits

# Names in a TorchTranslator.
TRANSFORMER = "transformer"
SOURCE_EMBEDDING, TARGET_EMBEDDING = "src_tok_emb.embedding.weight", "tgt_tok_emb.embedding.weight"
GENERATOR, GENERATOR_BIAS = "generator.weight", "generator.bias"

_FEED_FORWARD = {"linear1": ["feed_forward.up_proj"], "linear2": ["feed_forward.down_proj"]}


def _attention(ours: str, theirs: str) -> dict[str, list[str]]:
    return {f"{theirs}.in_proj": [f"{ours}.{kind}_proj" for kind in "qkv"], f"{theirs}.out_proj": [f"{ours}.o_proj"]}


_LAYER_PARTS = {
    "encoder": _attention("self_attn", "self_attn")
    | _FEED_FORWARD
    | {"norm1": ["self_attn_layer_norm"], "norm2": ["feed_forward_layer_norm"]},
    "decoder": _attention("self_attn", "self_attn")
    | _attention("cross_attn", "multihead_attn")
    | _FEED_FORWARD
    | {"norm1": ["self_attn_layer_norm"], "norm2": ["cross_attn_layer_norm"], "norm3": ["feed_forward_layer_norm"]},
}


def packed_layout(config: ScratchConfig) -> dict[str, list[str]]:
    """{name in torch.nn.Transformer: names of the parameters of ScratchModel whose rows it concatenates}."""
    parts = {}
    for side, layer_parts in _LAYER_PARTS.items():
        for index in range(getattr(config, f"{side}_layers")):
            at = f"{side}.layers.{index}."
            parts |= {at + theirs: [at + name for name in ours] for theirs, ours in layer_parts.items()}
        if config.final_norm:
            parts[f"{side}.norm"] = [f"{side}.layer_norm"]
    kinds = ["weight", "bias"] if config.attention_bias else ["weight"]  # torch.nn.Transformer has all biases or none
    return {
        f"{theirs}{'_' if theirs.endswith('in_proj') else '.'}{kind}": [f"{name}.{kind}" for name in ours]
        for theirs, ours in parts.items()
        for kind in kinds
    }


def empty_transformer(config: ScratchConfig) -> nn.Transformer:
    """A torch.nn.Transformer of the shape that a config describes, with random weights."""
    name = config.activation_function
    stacks = {}
    for side, layer_class, stack_class in (
        ("encoder", nn.TransformerEncoderLayer, nn.TransformerEncoder),
        ("decoder", nn.TransformerDecoderLayer, nn.TransformerDecoder),
    ):
        layer = layer_class(
            config.d_model,
            getattr(config, f"{side}_attention_heads"),
            getattr(config, f"{side}_ffn_dim"),
            config.dropout,
            name if name in ("relu", "gelu") else ACT2FN[name],
            config.norm_eps,
            batch_first=True,
            norm_first=config.norm_position == "pre",
            bias=config.attention_bias,
        )
        norm = nn.LayerNorm(config.d_model, config.norm_eps, bias=config.attention_bias) if config.final_norm else None
        # Nested tensors would drop padding from the output.
        nested = {"enable_nested_tensor": False} if side == "encoder" else {}
        stacks[f"custom_{side}"] = stack_class(layer, getattr(config, f"{side}_layers"), norm, **nested)
    heads = config.encoder_attention_heads
    return nn.Transformer(
        config.d_model, heads, config.encoder_layers, config.decoder_layers, batch_first=True, **stacks
    )


class TorchTranslator(nn.Module):
    """A translator around torch.nn.Transformer. In evaluation mode it computes the same as the Scratch model."""

    def __init__(self, config: ScratchConfig):
        super().__init__()
        self.config = config
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.src_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(config.vocab_size, config.d_model)})
        self.tgt_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(config.target_vocab_size, config.d_model)})
        self.transformer = empty_transformer(config)
        self.generator = nn.Linear(config.d_model, config.target_vocab_size, bias=config.lm_head_bias)

    def embed(self, embedding: nn.Embedding, input_ids: torch.Tensor) -> torch.Tensor:
        """(batch_size, sequence_length) to (batch_size, sequence_length, d_model), scaled, with positions added."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        encodings = SinusoidalPositionEmbedding.encode(positions, self.config.d_model)
        return embedding(input_ids) * self.scale + encodings.to(embedding.weight.dtype)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        """
        Args:
            input_ids: (batch_size, source_length).
            attention_mask: (batch_size, source_length); nonzero attends.
            decoder_input_ids: (batch_size, target_length).

        Returns:
            Logits (batch_size, target_length, target vocabulary).
        """
        hidden = attention_mask == 0  # in torch.nn.Transformer, True hides
        length = decoder_input_ids.shape[1]
        return self.generator(
            self.transformer(
                self.embed(self.src_tok_emb["embedding"], input_ids),
                self.embed(self.tgt_tok_emb["embedding"], decoder_input_ids),
                tgt_mask=torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1),
                src_key_padding_mask=hidden,
                memory_key_padding_mask=hidden,
            )
        )


def build_scratch(translator: TorchTranslator) -> ScratchForConditionalGeneration:
    """
    The Scratch model that computes the same. For a translator without biases (bias=False), attention_bias and ffn_bias
    are False, and the norms' biases are 0. The generation config's `max_length` is max_position_embeddings.
    """
    config, weights, state = translator.config, translator.transformer.state_dict(), {}
    model = ScratchForConditionalGeneration(config).to(translator.generator.weight.dtype)
    for theirs, ours in packed_layout(config).items():
        state |= dict(zip(ours, weights[theirs].chunk(len(ours)), strict=True))
    if not config.attention_bias:
        state |= {
            name: torch.zeros_like(bias) for name, bias in model.model.state_dict().items() if "norm.bias" in name
        }
    for side, embedding in (("encoder", translator.src_tok_emb), ("decoder", translator.tgt_tok_emb)):
        state[f"{side}.embed_tokens.weight"] = embedding["embedding"].weight
    model.model.load_state_dict(state)
    model.lm_head.load_state_dict(translator.generator.state_dict())
    model.generation_config.max_length = config.max_position_embeddings  # not Transformers' 20 tokens
    return model.eval()


def to_torch(model: ScratchForConditionalGeneration) -> TorchTranslator:
    """
    A translator around torch.nn.Transformer with the weights and dtype of a Scratch model. Shared weights are
    duplicated. Its only dropout is the model's `dropout`.

    Raises:
        UserError: torch.nn.Transformer cannot express the model; the message names each field, its value and the value
            needed.
    """
    check_plain_weights(model)
    config = model.config
    needed = {
        "norm_type": ("layer_norm",),
        "gated_ffn": (False,),
        "position_embedding_type": ("sinusoidal",),
        "final_norm": (True, False),
        "share_layers": (False,),
        "activation_function": ("relu", "gelu"),
    }
    wrong = misfits(config, needed)
    for first, second in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("attention_bias", "ffn_bias"),
    ):
        values = getattr(config, first), getattr(config, second)
        if values[0] != values[1]:
            wrong.append(f"{first} is {values[0]!r} and {second} is {values[1]!r}, which must be equal")
    state = model.model.state_dict()
    if not config.attention_bias and any(value.any() for name, value in state.items() if "norm.bias" in name):
        wrong.append("attention_bias and ffn_bias are False, but then the norms' biases must be 0")
    if wrong:
        raise UserError(f"torch.nn.Transformer cannot express this model: {'; '.join(wrong)}")
    translator = TorchTranslator(config).to(device=model.device, dtype=model.dtype)
    translator.transformer.load_state_dict(
        {theirs: torch.cat([state[name] for name in ours]) for theirs, ours in packed_layout(config).items()}
    )
    translator.src_tok_emb["embedding"].load_state_dict(model.model.encoder.embed_tokens.state_dict())
    translator.tgt_tok_emb["embedding"].load_state_dict(model.model.decoder.embed_tokens.state_dict())
    translator.generator.load_state_dict(model.lm_head.state_dict())
    return translator.train(model.training)


# -- reading a state dict ----------------------------------------------------------------------------------------------

_PACKED = "encoder.layers.0.self_attn.in_proj_weight"


def save_state_dict(module: nn.Module, path: Path) -> None:
    """Write a module's state dict. Raises OSError if the disk is full."""
    buffer = BytesIO()  # writing to a file, PyTorch 2.13 reports a full disk as "unexpected pos", without a reason
    torch.save(module.state_dict(), buffer)
    path.write_bytes(buffer.getbuffer())


def load_state_dict_file(path: Path) -> dict[str, torch.Tensor]:
    """
    The state dict in a file saved by torch.save. No code in the file is run. Raises UserError if it contains anything
    else.
    """
    with reading(path, "not a state dict saved by torch.save (save model.state_dict(), not the model): "):
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise UserError(f"{path} contains a {type(state).__name__}, not a state dict")
    return state


def from_torch(state: Mapping[str, torch.Tensor], **arguments) -> ScratchForConditionalGeneration:
    """
    A Scratch model with the weights and dtype of a translator around torch.nn.Transformer, from its state dict. See
    `read_torch` for arguments and errors.
    """
    return build_scratch(read_torch(state, **arguments))


def read_torch(
    state: Mapping[str, torch.Tensor],
    *,
    source_embedding: str = SOURCE_EMBEDDING,
    target_embedding: str = TARGET_EMBEDDING,
    output_projection: str = GENERATOR,
    **settings,
) -> TorchTranslator:
    """
    The translator in a state dict, as a `TorchTranslator`.

    torch.nn.Transformer takes embeddings to which positions have been added. As in PyTorch's tutorial,
    `TorchTranslator` multiplies a token's embedding by sqrt(d_model) if `scale_embedding`, and adds alternating sines
    and cosines of its position, counted from 0. A table of such positions is recognized and left out. d_model, depths,
    feed-forward widths, biases, final norms, vocabularies and the sharing of embeddings are read from the weights.

    Args:
        source_embedding, target_embedding, output_projection: the name of a weight, or of the module that has it; the
            projection's bias is read too. Source and target may share a name.
        settings: everything that the weights do not tell; see `implied_config`.

    Raises:
        UserError: a weight is missing, has an unexpected shape, or has no counterpart.
    """
    pairs = state.items()
    if wrong := [f"{name}" for name, value in pairs if not (isinstance(name, str) and isinstance(value, torch.Tensor))]:
        raise UserError(f"not a state dict: {_listed(wrong)} is not a tensor; save the result of model.state_dict()")
    prefix = _find_prefix(state)
    names = {
        SOURCE_EMBEDDING: _find(state, source_embedding, "source_embedding"),
        TARGET_EMBEDDING: _find(state, target_embedding, "target_embedding"),
        GENERATOR: _find(state, output_projection, "output_projection"),
    }
    bias = names[GENERATOR].removesuffix("weight") + "bias"
    if bias in state:
        names[GENERATOR_BIAS] = bias
    for name in state.keys() - set(names.values()):
        if name.startswith((f"{prefix}encoder.", f"{prefix}decoder.")):
            names[f"{TRANSFORMER}.{name.removeprefix(prefix)}"] = name
    d_model, read = state[prefix + _PACKED].shape[-1], set(names.values())
    if unread := [name for name in state if name not in read and not _is_sinusoidal(state[name], d_model)]:
        raise UserError(
            f"a Scratch model has no counterpart of {_listed(unread)}. Tables of the paper's alternating sines and "
            "cosines are recognized and left out; learned positions cannot be converted"
        )
    renamed = {ours: state[theirs] for ours, theirs in names.items()}
    dtypes = {weight.dtype for weight in renamed.values()}
    if len(dtypes) > 1 or not renamed[GENERATOR].is_floating_point():
        raise UserError(
            f"the weights must all have the same floating-point dtype, not {', '.join(sorted(map(str, dtypes)))}; save "
            "model.float().state_dict()"
        )
    translator = TorchTranslator(implied_config(renamed, **settings)).to(renamed[SOURCE_EMBEDDING].dtype)
    with as_user_error("in the names of PyTorch's tutorial: "):
        translator.load_state_dict(renamed)
    return translator.eval()


def implied_config(
    state: Mapping[str, torch.Tensor],
    *,
    num_heads: int,
    norm_position: str,
    activation_function: str,
    scale_embedding: bool,
    pad_token_id: int,
    bos_token_id: int,
    eos_token_id: int,
    unk_token_id: int | None = None,
    norm_eps: float = 1e-5,
    dropout: float = 0.1,
    max_position_embeddings: int = 1024,
) -> ScratchConfig:
    """
    The config of a TorchTranslator with these weights.

    Args:
        num_heads: heads per attention layer.
        norm_position: "pre" for norm_first=True, "post" for False.
        activation_function: "relu", "gelu" or another name that ScratchConfig takes.
        bos_token_id: also the token that decoding starts from.

    Raises:
        UserError: a setting is not valid, or a weight is missing.
    """
    source, target, output = (state[name] for name in (SOURCE_EMBEDDING, TARGET_EMBEDDING, GENERATOR))
    shared = torch.equal(source, target)
    fields = {
        "vocab_size": len(source),
        "decoder_vocab_size": None if shared else len(target),
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": torch.equal(output, target),
        "lm_head_bias": GENERATOR_BIAS in state,
        "encoder_attention_heads": num_heads,
        "decoder_attention_heads": num_heads,
        "norm_position": norm_position,
        "activation_function": activation_function,
        "scale_embedding": scale_embedding,
        "pad_token_id": pad_token_id,
        "bos_token_id": bos_token_id,
        "decoder_start_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "unk_token_id": unk_token_id,
        "norm_eps": norm_eps,
        "max_position_embeddings": max_position_embeddings,
        # torch.nn.Transformer has a single dropout rate.
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), dropout),
        **_read_shape(state),
    }
    check_fields(fields, "the model")
    return ScratchConfig(**fields)


def _find_prefix(state: Mapping[str, torch.Tensor]) -> str:
    """The prefix of the names of the torch.nn.Transformer, such as `transformer.`."""
    found = [name.removesuffix(_PACKED) for name in state if name.endswith(_PACKED)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"the state dict contains several torch.nn.Transformer ({', '.join(map(repr, found))}); save only one"
        )
    raise UserError(
        f"there is no {_PACKED}, so these are not the weights of a torch.nn.Transformer; the first names are "
        f"{', '.join(list(state)[:3]) or 'none'}"
    )


def _find(state: Mapping[str, torch.Tensor], given: str, what: str) -> str:
    """The name of a matrix (vocabulary, d_model), given its own name or its module's."""
    name = given if given in state else f"{given}.weight"
    if name not in state:
        raise UserError(f"{what}: there is no weight {given!r} or {name!r}")
    if state[name].ndim != 2:
        raise UserError(f"{what} has the shape {tuple(state[name].shape)}; it must be (vocabulary, d_model)")
    return name


def _is_sinusoidal(table: torch.Tensor, d_model: int) -> bool:
    """Whether a tensor is a table of the positions that a Scratch model computes, up to rounding."""
    rows = table.squeeze()
    if rows.ndim != 2 or rows.shape[1] != d_model or not rows.is_floating_point():
        return False
    positions = SinusoidalPositionEmbedding.encode(torch.arange(len(rows)), d_model)
    return torch.allclose(rows.double().cpu(), positions, rtol=0, atol=5e-3)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")


def _read_shape(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The config fields that the names and shapes of the torch.nn.Transformer's weights imply."""
    layers = {name.removeprefix(f"{TRANSFORMER}."): value for name, value in state.items()}
    has_bias = "encoder.layers.0.self_attn.in_proj_bias" in layers
    shape = {"d_model": layers[_PACKED].shape[-1], "final_norm": "encoder.norm.weight" in layers}
    shape |= {"attention_bias": has_bias, "ffn_bias": has_bias}
    for side in ("encoder", "decoder"):
        found = [re.match(rf"{side}\.layers\.(\d+)\.", name) for name in layers]
        shape[f"{side}_layers"] = len({match[1] for match in found if match})
        first = f"{side}.layers.0.linear1.weight"
        if first not in layers:
            raise UserError(f"{first} is missing from the weights of the torch.nn.Transformer")
        shape[f"{side}_ffn_dim"] = len(layers[first])
    return shape

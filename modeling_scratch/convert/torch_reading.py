"""Reading the weights of a torch.nn.Transformer and its embeddings: which is which, and the config they imply."""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..errors import UserError
from ..model.configuration_scratch import ScratchConfig
from ..recipe.architecture import check_fields
from .torch_translator import empty_transformer, sinusoidal_positions

# Fields of ScratchConfig that cannot be read from the weights and that a caller may give.
UNTOLD_FIELDS = (
    "norm_eps",
    "max_position_embeddings",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "init_std",
    "unk_token_id",
    "decoder_start_token_id",
    "use_cache",
)

_PACKED = "encoder.layers.0.self_attn.in_proj_weight"


def load_state_dict_file(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in a file written by torch.save. UserError if it holds anything else; no code in it is run."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise UserError(
            f"{path} is not a state dict written by torch.save (save model.state_dict(), not the model): "
            f"{str(error).splitlines()[0]}"
        ) from error
    if not isinstance(state, dict):
        raise UserError(f"{path} holds a {type(state).__name__}, not a state dict")
    return state


@dataclass
class TorchWeights:
    """The weights of a user's translator, sorted, and their config."""

    config: ScratchConfig
    transformer: dict[str, torch.Tensor]  # by their names in torch.nn.Transformer
    source_embedding: torch.Tensor  # (vocab_size, d_model)
    target_embedding: torch.Tensor  # (target vocabulary, d_model)
    output_weight: torch.Tensor | None  # (target vocabulary, d_model)
    output_bias: torch.Tensor | None  # (target vocabulary,)


def read_torch(
    weights: nn.Module | Mapping[str, torch.Tensor],
    *,
    scale_embedding: bool,
    pad_token_id: int | None,
    bos_token_id: int | None,
    eos_token_id: int | list[int] | None,
    source_embedding: str | torch.Tensor | None = None,
    target_embedding: str | torch.Tensor | None = None,
    output_projection: str | None = None,
    num_heads: int | None = None,
    norm_position: str | None = None,
    activation_function: str | None = None,
    prefix: str | None = None,
    **fields,
) -> TorchWeights:
    """Sort a user's weights and find their config. Arguments and errors as in `from_torch`."""
    if refused := sorted(set(fields) - set(UNTOLD_FIELDS)):
        raise UserError(
            f"{', '.join(refused)} cannot be given, because it is read from the weights or is not a field; you can "
            f"give: {', '.join(UNTOLD_FIELDS)}"
        )
    state = _read_state(weights)
    prefix = _find_prefix(state, prefix)
    given = {"norm_position": norm_position, "activation_function": activation_function, **fields}
    given |= {"encoder_attention_heads": num_heads, "decoder_attention_heads": num_heads}
    told = _merge_told(weights, prefix, given)
    ids = {"pad_token_id": pad_token_id, "bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
    check_fields(told | ids, "the model")
    transformer = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    d_model = transformer[_PACKED].shape[-1]
    matrices, names = _read_matrices(state, source_embedding, target_embedding, output_projection, d_model)
    source, target, output, bias = matrices
    shared = torch.equal(source, target)
    config = ScratchConfig(
        vocab_size=len(source),
        decoder_vocab_size=None if shared else len(target),
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=output is not None and torch.equal(output, target),
        lm_head_bias=bias is not None,
        scale_embedding=scale_embedding,
        **ids,
        **({"unk_token_id": None, "decoder_start_token_id": bos_token_id} | _read_shape(transformer) | told),
    )
    transformer = _check_weights(transformer, config)
    read = names | {prefix + name for name in transformer}
    unread = [name for name in state if name not in read and not _is_sinusoidal(state[name], d_model)]
    if unread:
        raise UserError(
            f"nothing in a Scratch model corresponds to {_listed(unread)}. A table of positions is recognised by its "
            "values if it holds the paper's alternating sines and cosines; learned positions are not converted"
        )
    dtypes = {value.dtype for value in (*transformer.values(), *matrices) if value is not None}
    if len(dtypes) > 1:
        raise UserError(f"the weights have several dtypes: {', '.join(sorted(map(str, dtypes)))}")
    return TorchWeights(config, transformer, *matrices)


def _read_state(weights: nn.Module | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not isinstance(weights, nn.Module | Mapping):
        raise UserError(f"a {type(weights).__name__} holds no weights; give a module or its state_dict()")
    state = dict(weights.state_dict() if isinstance(weights, nn.Module) else weights)
    if wrong := [str(name) for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise UserError(f"not a state dict: {_listed(wrong)} is not a tensor; give what a model's state_dict() returns")
    return state


def _merge_told(weights: nn.Module | Mapping[str, torch.Tensor], prefix: str, given: dict[str, Any]) -> dict[str, Any]:
    """The fields from the caller, and from `weights` if it is a module. UserError if they differ or one is missing."""
    told = {}
    if isinstance(weights, nn.Module) and isinstance(inner := weights.get_submodule(prefix[:-1]), nn.Transformer):
        told = _told_by_module(inner)
    for name, value in given.items():
        if value is not None and told.setdefault(name, value) != value:
            raise UserError(f"{name} is given as {value!r}, but the torch.nn.Transformer has {told[name]!r}")
    arguments = {"encoder_attention_heads": "num_heads"}
    needed = ("encoder_attention_heads", "norm_position", "activation_function")
    if missing := [arguments.get(name, name) for name in needed if name not in told]:
        raise UserError(f"{', '.join(missing)} must be given: a state dict does not contain it")
    for name in ("dropout", "attention_dropout", "activation_dropout"):  # torch.nn.Transformer has a single number
        told.setdefault(name, told.get("dropout", 0.1))
    return told


def _read_matrices(
    state: dict[str, torch.Tensor],
    source_embedding: str | torch.Tensor | None,
    target_embedding: str | torch.Tensor | None,
    output_projection: str | None,
    d_model: int,
) -> tuple[list[torch.Tensor | None], set[str]]:
    """
    Source and target embeddings, output projection and its bias (None: not named, or not there), and the names of these
    tensors in the state dict. UserError if their shapes disagree.
    """
    source_name, source = _take(state, source_embedding, "source_embedding")
    target_name, target = _take(state, target_embedding, "target_embedding")
    names, output, bias = {source_name, target_name}, None, None
    if output_projection is not None:
        output_name, output = _take(state, output_projection, "output_projection")
        bias_name = output_name.removesuffix("weight") + "bias"
        bias = state.get(bias_name)
        names |= {output_name, bias_name}
        if bias is not None and bias.shape != output.shape[:1]:
            raise UserError(f"the output projection's bias has the shape {tuple(bias.shape)}, not ({len(output)},)")
    for what, matrix in (("source", source), ("target", target), ("output projection", output)):
        if matrix is not None and matrix.shape[1] != d_model:
            raise UserError(f"{what}: the shape is {tuple(matrix.shape)}, but d_model is {d_model}")
    if output is not None and len(output) != len(target):
        raise UserError(f"the output projection has {len(output)} rows and the target's embedding {len(target)}")
    return [source, target, output, bias], names


def _one(values: set, what: str):
    if len(values) != 1:
        raise UserError(f"{what} differs between layers: {', '.join(sorted(map(str, values)))}")
    return values.pop()


def _activation_name(activation) -> str | None:
    if activation in (functional.relu, torch.relu) or isinstance(activation, nn.ReLU):
        return "relu"
    exact = isinstance(activation, nn.GELU) and activation.approximate == "none"
    return "gelu" if activation is functional.gelu or exact else None


def _told_by_module(transformer: nn.Transformer) -> dict:
    """The fields that a torch.nn.Transformer has and its state dict lacks."""
    if type(transformer.encoder) is not nn.TransformerEncoder or type(transformer.decoder) is not nn.TransformerDecoder:
        return {}  # custom stacks
    layers = {"encoder": list(transformer.encoder.layers), "decoder": list(transformer.decoder.layers)}
    both = layers["encoder"] + layers["decoder"]
    norms = [module for module in transformer.modules() if isinstance(module, nn.LayerNorm)]
    told = {
        f"{side}_attention_heads": _one({layer.self_attn.num_heads for layer in layers[side]}, "the number of heads")
        for side in layers
    }
    told["norm_position"] = _one({"pre" if layer.norm_first else "post" for layer in both}, "norm_first")
    told["norm_eps"] = _one({norm.eps for norm in norms}, "layer_norm_eps")
    told["dropout"] = _one({layer.dropout1.p for layer in both}, "dropout")
    told["attention_dropout"] = _one({layer.self_attn.dropout for layer in both}, "the dropout of attention weights")
    told["activation_dropout"] = _one({layer.dropout.p for layer in both}, "the dropout inside the feed-forward")
    activation = _one({_activation_name(layer.activation) for layer in both}, "activation")
    return told | ({} if activation is None else {"activation_function": activation})


def _find_prefix(state: Mapping[str, torch.Tensor], prefix: str | None) -> str:
    if prefix is None:
        found = [name.removesuffix(_PACKED) for name in state if name.endswith(_PACKED)]
        if len(found) > 1:
            choices = ", ".join(repr(each) for each in found)
            raise UserError(f"the weights hold several torch.nn.Transformer; choose one by prefix: {choices}")
        prefix = found[0] if found else ""
    elif prefix and not prefix.endswith("."):
        prefix += "."
    if prefix + _PACKED not in state:
        raise UserError(
            f"{prefix + _PACKED} is missing, so these are not the weights of a torch.nn.Transformer; the first names "
            f"are {', '.join(list(state)[:3]) or 'none'}"
        )
    return prefix


def _take(state: dict[str, torch.Tensor], given: str | torch.Tensor | None, what: str) -> tuple[str, torch.Tensor]:
    """A matrix, given as a tensor, or by its name or its module's name in the state dict. Returns its name too."""
    if isinstance(given, torch.Tensor):
        name, weight = "", given.detach()
    elif given is None:
        raise UserError(
            f"{what} must be given, as a name in the state dict or as a tensor (vocabulary, d_model): "
            "torch.nn.Transformer holds none"
        )
    else:
        name = given if given in state else f"{given}.weight"
        if name not in state:
            raise UserError(f"{what}: the weights have no {given!r} and no {name!r}")
        weight = state[name]
    if weight.ndim != 2:
        raise UserError(f"{what} has the shape {tuple(weight.shape)}; it must be (vocabulary, d_model)")
    return name, weight


def _is_sinusoidal(table: torch.Tensor, d_model: int) -> bool:
    """Whether a tensor is a table of the positions that a Scratch model computes, up to rounding."""
    rows = table.squeeze()
    if rows.ndim != 2 or rows.shape[1] != d_model or not rows.is_floating_point():
        return False
    return torch.allclose(rows.double().cpu(), sinusoidal_positions(len(rows), d_model), rtol=0, atol=5e-3)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")


def _read_shape(transformer: dict[str, torch.Tensor]) -> dict:
    """The fields that can be read from the names and shapes of the weights."""
    shape = {"d_model": transformer[_PACKED].shape[-1], "final_norm": "encoder.norm.weight" in transformer}
    if shape["final_norm"] != ("decoder.norm.weight" in transformer):
        having, lacking = ("encoder", "decoder") if shape["final_norm"] else ("decoder", "encoder")
        raise UserError(f"the {having} has a final norm and the {lacking} has none; a Scratch model has both or none")
    shape["attention_bias"] = shape["ffn_bias"] = "encoder.layers.0.self_attn.in_proj_bias" in transformer
    for side in ("encoder", "decoder"):
        indices = [re.match(rf"{side}\.layers\.(\d+)\.", name) for name in transformer]
        shape[f"{side}_layers"] = max((int(match[1]) + 1 for match in indices if match), default=0)
        first = f"{side}.layers.0.linear1.weight"
        if first not in transformer:
            raise UserError(f"{first} is missing from the weights of the torch.nn.Transformer")
        shape[f"{side}_ffn_dim"] = len(transformer[first])
    return shape


def _check_weights(transformer: dict[str, torch.Tensor], config: ScratchConfig) -> dict[str, torch.Tensor]:
    """The weights of the torch.nn.Transformer itself. UserError if one is missing or has an unexpected shape."""
    with torch.device("meta"):
        expected = {name: tuple(value.shape) for name, value in empty_transformer(config).state_dict().items()}
    if missing := [name for name in expected if name not in transformer]:
        raise UserError(f"the torch.nn.Transformer has no {_listed(missing)}")
    wrong = [
        f"{name} is {tuple(transformer[name].shape)} and should be {shape}"
        for name, shape in expected.items()
        if tuple(transformer[name].shape) != shape
    ]
    if wrong:
        raise UserError(f"the shapes of the weights disagree: {_listed(wrong)}")
    return {name: transformer[name] for name in expected}

"""Weights from and to torch.nn.Transformer, whose query, key and value projections lie packed in one matrix."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from ..errors import UserError
from ..model.configuration_scratch import ScratchConfig
from ..model.modeling_scratch import ScratchForConditionalGeneration, ScratchModel
from .marian import check_plain_weights
from .torch_translator import TorchTranslator, empty_transformer, packed_layout, sinusoidal_positions

# What weights do not tell and a caller may say, under ScratchConfig's names.
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


@dataclass
class TorchWeights:
    """A user's weights, sorted, and the config that they and the user told."""

    config: ScratchConfig
    transformer: dict[str, torch.Tensor]  # by their names in torch.nn.Transformer
    source_embedding: torch.Tensor  # (vocab_size, d_model)
    target_embedding: torch.Tensor  # (target vocabulary, d_model)
    output_weight: torch.Tensor | None  # (target vocabulary, d_model)
    output_bias: torch.Tensor | None  # (target vocabulary,)


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
    """The fields that torch.nn.Transformer knows and its state dict does not tell."""
    if type(transformer.encoder) is not nn.TransformerEncoder or type(transformer.decoder) is not nn.TransformerDecoder:
        return {}  # a user's own stacks
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
    """A matrix given as it is, or by its name or its module's in the state dict: the name ("" if none) and it."""
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
    """Whether it is a table of the positions that a Scratch model computes, as float32 or coarser has them."""
    rows = table.squeeze()
    if rows.ndim != 2 or rows.shape[1] != d_model or not rows.is_floating_point():
        return False
    return torch.allclose(rows.double().cpu(), sinusoidal_positions(len(rows), d_model), rtol=0, atol=5e-3)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")


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
    if known := sorted(set(fields) - set(UNTOLD_FIELDS)):
        raise UserError(
            f"{', '.join(known)} cannot be given: it is read from the weights, or no field; those that can be: "
            f"{', '.join(UNTOLD_FIELDS)}"
        )
    if not isinstance(weights, nn.Module | Mapping):
        raise UserError(f"a {type(weights).__name__} holds no weights; give a module or its state_dict()")
    state = dict(weights.state_dict() if isinstance(weights, nn.Module) else weights)
    if wrong := [str(name) for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise UserError(f"not a state dict: {_listed(wrong)} is no tensor; give what a model's state_dict() returns")
    prefix = _find_prefix(state, prefix)

    given = {
        "encoder_attention_heads": num_heads,
        "decoder_attention_heads": num_heads,
        "norm_position": norm_position,
        "activation_function": activation_function,
        **fields,
    }
    told = {}
    if isinstance(weights, nn.Module) and isinstance(inner := weights.get_submodule(prefix[:-1]), nn.Transformer):
        told = _told_by_module(inner)
    for name, value in given.items():
        if value is not None and told.setdefault(name, value) != value:
            raise UserError(f"{name} is given as {value!r}, but the torch.nn.Transformer has {told[name]!r}")
    needed = {"encoder_attention_heads": "num_heads"} | {
        name: name for name in ("norm_position", "activation_function")
    }
    if missing := [argument for name, argument in needed.items() if name not in told]:
        raise UserError(f"{', '.join(missing)} must be given: a state dict does not tell")
    for name in ("dropout", "attention_dropout", "activation_dropout"):  # one number in torch.nn.Transformer
        told.setdefault(name, told.get("dropout", 0.1))

    source_name, source = _take(state, source_embedding, "source_embedding")
    target_name, target = _take(state, target_embedding, "target_embedding")
    output_name, output, bias = "", None, None
    if output_projection is not None:
        output_name, output = _take(state, output_projection, "output_projection")
        bias = state.get(output_name.removesuffix("weight") + "bias")
        if bias is not None and bias.shape != output.shape[:1]:
            raise UserError(f"the output projection's bias has the shape {tuple(bias.shape)}, not ({len(output)},)")

    transformer = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    outside = {source_name, target_name, output_name}
    if bias is not None:
        outside.add(output_name.removesuffix("weight") + "bias")
    d_model = transformer[_PACKED].shape[-1]
    for what, matrix in (("source", source), ("target", target), ("output projection", output)):
        if matrix is not None and matrix.shape[1] != d_model:
            raise UserError(f"{what}: the shape is {tuple(matrix.shape)}, but d_model is {d_model}")
    if output is not None and len(output) != len(target):
        raise UserError(f"the output projection has {len(output)} rows and the target's embedding {len(target)}")
    shared = torch.equal(source, target)
    config = ScratchConfig(
        vocab_size=len(source),
        decoder_vocab_size=None if shared else len(target),
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=output is not None and torch.equal(output, target),
        lm_head_bias=bias is not None,
        scale_embedding=scale_embedding,
        pad_token_id=pad_token_id,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        **({"unk_token_id": None, "decoder_start_token_id": bos_token_id} | _read_shape(transformer) | told),
    )
    transformer = _check_weights(transformer, config)
    read = outside | {prefix + name for name in transformer}
    unread = [name for name in state if name not in read and not _is_sinusoidal(state[name], d_model)]
    if unread:
        raise UserError(
            f"nothing in a Scratch model corresponds to {_listed(unread)}. A table of positions is known by its "
            "values, if it is the paper's sines and cosines in turn; learned positions are not converted"
        )
    around = [matrix for matrix in (source, target, output, bias) if matrix is not None]
    if len(dtypes := {value.dtype for value in (*transformer.values(), *around)}) > 1:
        raise UserError(f"the weights have several dtypes: {', '.join(sorted(map(str, dtypes)))}")
    return TorchWeights(config, transformer, source, target, output, bias)


def _read_shape(transformer: dict[str, torch.Tensor]) -> dict:
    """The fields that the names and shapes of torch.nn.Transformer's weights tell."""
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
    """Those weights that torch.nn.Transformer has. UserError if one is missing or has another shape than expected."""
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


def build_scratch(weights: TorchWeights) -> ScratchModel | ScratchForConditionalGeneration:
    """The Scratch model of sorted weights: a translator if there is an output projection."""
    translates = weights.output_weight is not None
    model = (ScratchForConditionalGeneration if translates else ScratchModel)(weights.config)
    model.to(device=weights.source_embedding.device, dtype=weights.source_embedding.dtype)
    stacks = model.model if translates else model
    state = {
        "encoder.embed_tokens.weight": weights.source_embedding,
        "decoder.embed_tokens.weight": weights.target_embedding,
    }
    for theirs, ours in packed_layout(weights.config).items():
        state |= dict(zip(ours, weights.transformer[theirs].chunk(len(ours)), strict=True))
    if not weights.config.attention_bias:
        # bias=False takes the biases of torch.nn.Transformer's norms too; a Scratch model's norms keep theirs, at 0.
        state |= {name: torch.zeros_like(value) for name, value in stacks.state_dict().items() if "norm.bias" in name}
    stacks.load_state_dict(state)
    if translates:
        head = {"weight": weights.output_weight, "bias": weights.output_bias}
        model.lm_head.load_state_dict({name: value for name, value in head.items() if value is not None})
        model.generation_config.max_length = weights.config.max_position_embeddings  # not Transformers' 20 tokens
    return model.eval()


def reference_translator(weights: TorchWeights) -> TorchTranslator:
    """Sorted weights with an output projection in modules of the kind that they were trained in."""
    translator = TorchTranslator(weights.config).to(weights.source_embedding.dtype)
    translator.transformer.load_state_dict(weights.transformer)
    head = {"weight": weights.output_weight, "bias": weights.output_bias}
    translator.generator.load_state_dict({name: value for name, value in head.items() if value is not None})
    translator.src_tok_emb["embedding"].load_state_dict({"weight": weights.source_embedding})
    translator.tgt_tok_emb["embedding"].load_state_dict({"weight": weights.target_embedding})
    return translator.eval()


def from_torch(
    weights: nn.Module | Mapping[str, torch.Tensor], **arguments
) -> ScratchModel | ScratchForConditionalGeneration:
    """
    A Scratch model with the weights and dtype of a torch.nn.Transformer and of the embeddings around it: with an output
    projection a ScratchForConditionalGeneration, without one a ScratchModel.

    torch.nn.Transformer reads vectors that are embedded and positioned already. The Scratch model does that itself: it
    takes a token's embedding, times sqrt(d_model) if `scale_embedding`, and adds sinusoidal positions, sines and
    cosines in turn, from 0, as the PositionalEncoding of PyTorch's tutorial does. Given that input, the hidden states
    are equal. A table of such positions among the weights is recognised and left out.

    d_model, depths, feed-forward widths, biases, final norms, vocabularies and which embeddings are shared are read
    from the weights. Weights without biases (bias=False) become a model with attention_bias and ffn_bias False, whose
    norms have biases of 0. `max_length` of the generation config is set to max_position_embeddings.

    Args:
        weights: a module that is or holds a torch.nn.Transformer, or its state dict.
        source_embedding, target_embedding: the embeddings: the name of a tensor, or of the module that holds it as
            `weight`, or the tensor, (vocabulary, d_model). Give one twice if source and target share it.
        output_projection: the name of the projection to the target's vocabulary; its bias is taken along.
        scale_embedding: whether embeddings are multiplied by sqrt(d_model).
        num_heads: heads of each attention.
        norm_position: "pre" for norm_first=True, "post" for False.
        activation_function: "relu", "gelu" or another name that ScratchConfig takes.
        prefix: what stands before the names of the torch.nn.Transformer, such as "transformer."; found if None.
        pad_token_id, bos_token_id, eos_token_id: special tokens.
        **fields: others of `UNTOLD_FIELDS`. decoder_start_token_id is bos_token_id and unk_token_id None if not given;
            dropout alone stands for attention_dropout and activation_dropout too, as in torch.nn.Transformer.

    num_heads, norm_position, activation_function, norm_eps and dropouts are read from a module and need not be given;
    a state dict does not tell them.

    Raises:
        UserError: something that is needed was not given, contradicts the module, or is missing from the weights; the
            weights hold what a Scratch model has no place for, or shapes that disagree.
    """
    return build_scratch(read_torch(weights, **arguments))


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise UserError(f"torch.nn.Transformer has no such model: {'; '.join(wrong)}")


def to_torch(model: ScratchModel | ScratchForConditionalGeneration) -> nn.Transformer:
    """
    A torch.nn.Transformer (batch_first) with the weights and dtype of a Scratch model's layers. It holds no embeddings
    and no output projection: it reads what `from_torch` says it reads, and returns the last hidden states.

    Without final_norm its `encoder.norm` and `decoder.norm` are None. It has one dropout, the model's `dropout`.

    Raises:
        UserError: the model is not what a torch.nn.Transformer can be; the message names each field, its value and
            the value that is needed.
    """
    if not isinstance(model, ScratchModel | ScratchForConditionalGeneration):
        raise UserError(f"to_torch takes a ScratchModel or a translator, not a {type(model).__name__}")
    check_plain_weights(model)
    config = model.config
    needed = {
        "norm_type": ("layer_norm",),
        "gated_ffn": (False,),
        "position_embedding_type": ("sinusoidal", "learned"),
        "final_norm": (True, False),
        "share_layers": (False,),
        "activation_function": ("relu", "gelu"),
    }
    wrong = [
        f"{name} is {getattr(config, name)!r} and must be {' or '.join(map(repr, allowed))}"
        for name, allowed in needed.items()
        if getattr(config, name) not in allowed
    ]
    for first, second in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("attention_bias", "ffn_bias"),
    ):
        values = getattr(config, first), getattr(config, second)
        if values[0] != values[1]:
            wrong.append(f"{first} is {values[0]!r} and {second} is {values[1]!r}, which must be equal")
    stacks = model.model if isinstance(model, ScratchForConditionalGeneration) else model
    state = stacks.state_dict()
    if not config.attention_bias and any(value.any() for name, value in state.items() if "norm.bias" in name):
        wrong.append("attention_bias and ffn_bias are False, and then the norms' biases must be 0 and are not")
    _refuse(wrong)
    transformer = empty_transformer(config).to(device=model.device, dtype=model.dtype)
    transformer.load_state_dict(
        {theirs: torch.cat([state[name] for name in ours]) for theirs, ours in packed_layout(config).items()}
    )
    return transformer.train(model.training)


def to_torch_translator(model: ScratchForConditionalGeneration) -> TorchTranslator:
    """
    As `to_torch`, with embeddings, positions and output projection around it. What a Scratch model shares is there
    twice.

    Raises:
        UserError: as `to_torch`, or the positions are learned.
    """
    transformer = to_torch(model)
    if model.config.position_embedding_type != "sinusoidal":
        _refuse(["position_embedding_type is 'learned' and must be 'sinusoidal'"])
    translator = TorchTranslator(model.config).to(device=model.device, dtype=model.dtype)
    translator.transformer = transformer
    translator.src_tok_emb["embedding"].load_state_dict(model.model.encoder.embed_tokens.state_dict())
    translator.tgt_tok_emb["embedding"].load_state_dict(model.model.decoder.embed_tokens.state_dict())
    translator.generator.load_state_dict(model.lm_head.state_dict())
    return translator.train(model.training)

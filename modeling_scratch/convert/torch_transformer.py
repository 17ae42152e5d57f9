"""Conversion from and to torch.nn.Transformer, which packs the query, key and value projections into one matrix."""

from collections.abc import Mapping

import torch
from torch import nn

from ..errors import UserError
from ..model.modeling_scratch import ScratchForConditionalGeneration, ScratchModel
from .marian import check_plain_weights, misfits
from .torch_reading import TorchWeights, read_torch
from .torch_translator import TorchTranslator, empty_transformer, packed_layout


def build_scratch(weights: TorchWeights) -> ScratchModel | ScratchForConditionalGeneration:
    """The Scratch model with these weights: a translator if there is an output projection."""
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
        # With bias=False torch.nn.Transformer's norms have no biases either; those of a Scratch model become 0.
        state |= {name: torch.zeros_like(value) for name, value in stacks.state_dict().items() if "norm.bias" in name}
    stacks.load_state_dict(state)
    if translates:
        head = {"weight": weights.output_weight, "bias": weights.output_bias}
        model.lm_head.load_state_dict({name: value for name, value in head.items() if value is not None})
        model.generation_config.max_length = weights.config.max_position_embeddings  # not Transformers' 20 tokens
    return model.eval()


def reference_translator(weights: TorchWeights) -> TorchTranslator:
    """The weights, with an output projection, in PyTorch modules like those they were trained in."""
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
    A Scratch model with the weights and dtype of a torch.nn.Transformer and the embeddings around it: a
    ScratchForConditionalGeneration if there is an output projection, else a ScratchModel.

    torch.nn.Transformer expects vectors that are already embedded and positioned. A Scratch model does this itself: it
    takes a token's embedding, times sqrt(d_model) if `scale_embedding`, and adds alternating sines and cosines of its
    position, counted from 0, as the PositionalEncoding of PyTorch's tutorial does. Given the same input, the hidden
    states are equal. A table of such positions among the weights is recognised and left out.

    d_model, depths, feed-forward widths, biases, final norms, vocabularies and the sharing of embeddings are read from
    the weights. Weights without biases (bias=False) become a model with attention_bias and ffn_bias False and with
    biases of 0 in its norms. `max_length` of the generation config is set to max_position_embeddings.

    Args:
        weights: a module that is or contains a torch.nn.Transformer, or its state dict.
        source_embedding, target_embedding: the name of a tensor, or of the module that holds it as `weight`; or the
            tensor itself, (vocabulary, d_model). Give the same twice if source and target share it.
        output_projection: the name of the projection to the target's vocabulary; its bias is read too.
        scale_embedding: whether embeddings are multiplied by sqrt(d_model).
        num_heads: heads per attention layer.
        norm_position: "pre" for norm_first=True, "post" for False.
        activation_function: "relu", "gelu" or another name that ScratchConfig takes.
        prefix: precedes the names of the torch.nn.Transformer, such as "transformer."; None: detected.
        pad_token_id, bos_token_id, eos_token_id: special tokens.
        **fields: any of `UNTOLD_FIELDS`. By default decoder_start_token_id is bos_token_id, unk_token_id is None, and
            dropout also sets attention_dropout and activation_dropout, as in torch.nn.Transformer.

    num_heads, norm_position, activation_function, norm_eps and the dropouts need not be given with a module, which has
    them; a state dict does not.

    Raises:
        UserError: something needed was not given, contradicts the module or is missing from the weights; or the weights
            have shapes that disagree, or tensors that a Scratch model has no place for.
    """
    return build_scratch(read_torch(weights, **arguments))


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise UserError(f"torch.nn.Transformer cannot express this model: {'; '.join(wrong)}")


def to_torch(model: ScratchModel | ScratchForConditionalGeneration) -> nn.Transformer:
    """
    A torch.nn.Transformer (batch_first) with the weights and dtype of a Scratch model's layers. It has no embeddings
    and no output projection: it expects the input that `from_torch` describes, and returns the last hidden states.

    Without final_norm its `encoder.norm` and `decoder.norm` are None. Its only dropout is the model's `dropout`.

    Raises:
        UserError: torch.nn.Transformer cannot express the model; the message names each field, its value and the value
            needed.
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
    wrong = misfits(config, needed)
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
        wrong.append("attention_bias and ffn_bias are False, but then the norms' biases must be 0")
    _refuse(wrong)
    transformer = empty_transformer(config).to(device=model.device, dtype=model.dtype)
    transformer.load_state_dict(
        {theirs: torch.cat([state[name] for name in ours]) for theirs, ours in packed_layout(config).items()}
    )
    return transformer.train(model.training)


def to_torch_translator(model: ScratchForConditionalGeneration) -> TorchTranslator:
    """
    The result of `to_torch` with embeddings, positions and output projection around it. Shared weights are duplicated.

    Raises:
        UserError: as in `to_torch`, or the positions are learned.
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

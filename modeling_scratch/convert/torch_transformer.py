"""Conversion from and to torch.nn.Transformer, which packs the query, key and value projections into one matrix."""

from collections.abc import Mapping

import torch

from ..errors import UserError
from ..model.modeling_scratch import ScratchForConditionalGeneration
from .marian import check_plain_weights, misfits
from .torch_reading import read_torch
from .torch_translator import TorchTranslator, packed_layout


def from_torch(state: Mapping[str, torch.Tensor], **arguments) -> ScratchForConditionalGeneration:
    """
    A Scratch model with the weights and dtype of a translator around torch.nn.Transformer, from its state dict.
    Arguments and errors are those of `read_torch`.
    """
    return build_scratch(read_torch(state, **arguments))


def build_scratch(translator: TorchTranslator) -> ScratchForConditionalGeneration:
    """
    The Scratch model that computes the same. If the translator has no biases (bias=False), attention_bias and ffn_bias
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

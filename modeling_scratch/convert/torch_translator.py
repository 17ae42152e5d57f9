"""
The PyTorch side of a conversion from or to torch.nn.Transformer: its parameter names, and a translator around it.

torch.nn.Transformer consists of the layers only. Each user writes the embeddings, positions and output projection
around it. `TorchTranslator` does so with the names of PyTorch's translation tutorial.
"""

import math

import torch
from torch import nn
from transformers.activations import ACT2FN

from ..model.configuration_scratch import ScratchConfig
from ..model.position_embeddings import SinusoidalPositionEmbedding

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
    """A torch.nn.Transformer of the shape that a config describes."""
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
    """
    A translator as users of torch.nn.Transformer write it. Its parameters have the names of PyTorch's tutorial:
    `src_tok_emb.embedding.weight`, `tgt_tok_emb.embedding.weight`, `transformer.*`, `generator.weight`, and
    `generator.bias` if there is one. In evaluation mode it computes the same as the Scratch model.
    """

    def __init__(self, config: ScratchConfig):
        super().__init__()
        self.config = config
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.src_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(config.vocab_size, config.d_model)})
        self.tgt_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(config.target_vocab_size, config.d_model)})
        self.transformer = empty_transformer(config)
        self.generator = nn.Linear(config.d_model, config.target_vocab_size, bias=config.lm_head_bias)

    def embed(self, embedding: nn.Embedding, input_ids: torch.Tensor) -> torch.Tensor:
        """(batch_size, sequence_length) to (batch_size, sequence_length, d_model), scaled and positioned."""
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

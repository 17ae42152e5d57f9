"""
Conversion from and to torch.nn.Transformer, which packs the query, key and value projections into one matrix.

torch.nn.Transformer consists of the layers only. Each user writes the embeddings, positions and output projection
around it. `TorchTranslator` does so with the names of PyTorch's translation tutorial.
"""

import math

import torch
from torch import nn
from transformers.activations import ACT2FN

from ..errors import UserError
from ..model.configuration_scratch import ScratchConfig
from ..model.modeling_scratch import ScratchForConditionalGeneration
from ..model.position_embeddings import SinusoidalPositionEmbedding
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

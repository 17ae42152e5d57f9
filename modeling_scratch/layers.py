"""The layers of encoder and decoder (section 3.1): sub-layers, residual connections and norms."""

import torch
from torch import nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import ScratchCrossAttention, ScratchSelfAttention
from .configuration_scratch import ScratchConfig
from .dropout import ScratchDropout
from .feed_forward import ScratchFeedForward


def build_norm(config: ScratchConfig) -> nn.Module:
    """A LayerNorm (section 3.1) or an RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""
    norm_class = nn.LayerNorm if config.norm_type == "layer_norm" else nn.RMSNorm
    return norm_class(config.d_model, eps=config.norm_eps)


class ScratchLayer(GradientCheckpointingLayer):
    """What encoder and decoder layers share: the residual connection around each sub-layer (section 3.1)."""

    def __init__(self, config: ScratchConfig):
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.dropout = ScratchDropout(config.dropout)

    def enter(self, hidden_states: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """What the sub-layer reads: x, or, pre-norm, Norm(x)."""
        return norm(hidden_states) if self.pre_norm else hidden_states

    def leave(self, residual: torch.Tensor, hidden_states: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """x + Dropout(Sublayer(x)) (section 5.4), and, post-norm as in the paper, Norm of it."""
        hidden_states = residual + self.dropout(hidden_states)
        return hidden_states if self.pre_norm else norm(hidden_states)


class ScratchEncoderLayer(ScratchLayer):
    """Self-attention, then feed-forward (section 3.1, figure 1 left)."""

    def __init__(self, config: ScratchConfig, layer_idx: int):
        super().__init__(config)
        self.self_attn = ScratchSelfAttention(config, config.encoder_attention_heads, layer_idx, is_causal=False)
        self.self_attn_layer_norm = build_norm(config)
        self.feed_forward = ScratchFeedForward(config, config.encoder_ffn_dim)
        self.feed_forward_layer_norm = build_norm(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """(batch_size, source_length, d_model) to the same shape; the other arguments as in ScratchSelfAttention."""
        residual = hidden_states
        hidden_states = self.enter(hidden_states, self.self_attn_layer_norm)
        hidden_states, _ = self.self_attn(hidden_states, attention_mask, position_embeddings, **kwargs)
        hidden_states = self.leave(residual, hidden_states, self.self_attn_layer_norm)

        residual = hidden_states
        hidden_states = self.feed_forward(self.enter(hidden_states, self.feed_forward_layer_norm))
        return self.leave(residual, hidden_states, self.feed_forward_layer_norm)


class ScratchDecoderLayer(ScratchLayer):
    """Causal self-attention, attention to the source, then feed-forward (section 3.1, figure 1 right)."""

    def __init__(self, config: ScratchConfig, layer_idx: int):
        super().__init__(config)
        self.self_attn = ScratchSelfAttention(config, config.decoder_attention_heads, layer_idx, is_causal=True)
        self.self_attn_layer_norm = build_norm(config)
        self.cross_attn = ScratchCrossAttention(config, config.decoder_attention_heads, layer_idx, is_causal=False)
        self.cross_attn_layer_norm = build_norm(config)
        self.feed_forward = ScratchFeedForward(config, config.decoder_ffn_dim)
        self.feed_forward_layer_norm = build_norm(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """
        (batch_size, target_length, d_model) and (batch_size, source_length, d_model) to the shape of the first; the
        other arguments as in ScratchSelfAttention and ScratchCrossAttention.
        """
        residual = hidden_states
        hidden_states = self.enter(hidden_states, self.self_attn_layer_norm)
        hidden_states, _ = self.self_attn(
            hidden_states, attention_mask, position_embeddings, past_key_values=past_key_values, **kwargs
        )
        hidden_states = self.leave(residual, hidden_states, self.self_attn_layer_norm)

        residual = hidden_states
        hidden_states = self.enter(hidden_states, self.cross_attn_layer_norm)
        hidden_states, _ = self.cross_attn(
            hidden_states, encoder_hidden_states, encoder_attention_mask, past_key_values=past_key_values, **kwargs
        )
        hidden_states = self.leave(residual, hidden_states, self.cross_attn_layer_norm)

        residual = hidden_states
        hidden_states = self.feed_forward(self.enter(hidden_states, self.feed_forward_layer_norm))
        return self.leave(residual, hidden_states, self.feed_forward_layer_norm)

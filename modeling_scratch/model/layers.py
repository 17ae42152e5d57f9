"""Encoder and decoder layers (section 3.1): sub-layers, residual connections and norms."""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import ScratchAttention
from .configuration_scratch import ScratchConfig

# LayerNorm (section 3.1) and RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467), by the names that
# `norm_type` takes. Another kind takes the same two arguments; `_init_weights` in stacks.py initializes it.
NORMS: dict[str, type[nn.Module]] = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


def build_norm(config: ScratchConfig) -> nn.Module:
    """A norm of the kind that the config names, over the last dimension."""
    return NORMS[config.norm_type](config.d_model, eps=config.norm_eps)


def drop(dropout: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """`dropout(states)`. An `nn.Dropout` that is off is not called: that would take longer than adding the residual."""
    is_off = type(dropout) is nn.Dropout and not dropout.training
    return states if is_off else dropout(states)


class ScratchFeedForward(nn.Module):
    """
    FFN(x) = act(x W1 + b1) W2 + b2 (equation 2), or if gated (act(x Wg + bg) * (x W1 + b1)) W2 + b2
    (Shazeer 2020, https://arxiv.org/abs/2002.05202).
    """

    def __init__(self, config: ScratchConfig, ffn_dim: int):
        super().__init__()
        self.up_proj = nn.Linear(config.d_model, ffn_dim, bias=config.ffn_bias)
        self.gate_proj = nn.Linear(config.d_model, ffn_dim, bias=config.ffn_bias) if config.gated_ffn else None
        self.down_proj = nn.Linear(ffn_dim, config.d_model, bias=config.ffn_bias)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(batch_size, sequence_length, d_model) to the same shape."""
        if self.gate_proj is None:
            hidden_states = self.activation(self.up_proj(hidden_states))  # (batch_size, sequence_length, ffn_dim)
        else:
            hidden_states = self.activation(self.gate_proj(hidden_states)) * self.up_proj(hidden_states)
        return self.down_proj(drop(self.dropout, hidden_states))


class ScratchLayer(GradientCheckpointingLayer):
    """Base class of encoder and decoder layers: the residual connection around each sub-layer (section 3.1)."""

    def __init__(self, config: ScratchConfig):
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.dropout = nn.Dropout(config.dropout)

    def sublayer_input(self, hidden_states: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """x, or with pre-norm Norm(x)."""
        return norm(hidden_states) if self.pre_norm else hidden_states

    def add_and_norm(self, residual: torch.Tensor, hidden_states: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """x + Dropout(Sublayer(x)) (section 5.4); with post-norm, as in the paper, the Norm of that sum."""
        hidden_states = residual + drop(self.dropout, hidden_states)
        return hidden_states if self.pre_norm else norm(hidden_states)


class ScratchEncoderLayer(ScratchLayer):
    """Self-attention, then feed-forward (section 3.1, figure 1 left)."""

    def __init__(self, config: ScratchConfig):
        super().__init__(config)
        self.self_attn = ScratchAttention(config, config.encoder_attention_heads)
        self.self_attn_layer_norm = build_norm(config)
        self.feed_forward = ScratchFeedForward(config, config.encoder_ffn_dim)
        self.feed_forward_layer_norm = build_norm(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rotation: tuple[torch.Tensor, torch.Tensor] | None = None,
        implementation: str = "sdpa",
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: (batch_size, source_length, d_model).
            attention_mask, rotation, implementation: as in ScratchAttention.

        Returns:
            (batch_size, source_length, d_model), and the weights if attention is eager.
        """
        residual = hidden_states
        hidden_states = self.sublayer_input(hidden_states, self.self_attn_layer_norm)
        options = {"attention_mask": attention_mask, "rotation": rotation, "implementation": implementation}
        hidden_states, weights = self.self_attn(hidden_states, **options)
        hidden_states = self.add_and_norm(residual, hidden_states, self.self_attn_layer_norm)

        residual = hidden_states
        hidden_states = self.feed_forward(self.sublayer_input(hidden_states, self.feed_forward_layer_norm))
        return self.add_and_norm(residual, hidden_states, self.feed_forward_layer_norm), weights


class ScratchDecoderLayer(ScratchLayer):
    """Causal self-attention, attention to the source, then feed-forward (section 3.1, figure 1 right)."""

    def __init__(self, config: ScratchConfig):
        super().__init__(config)
        self.self_attn = ScratchAttention(config, config.decoder_attention_heads, is_causal=True)
        self.self_attn_layer_norm = build_norm(config)
        self.cross_attn = ScratchAttention(config, config.decoder_attention_heads, is_cross=True)
        self.cross_attn_layer_norm = build_norm(config)
        self.feed_forward = ScratchFeedForward(config, config.decoder_ffn_dim)
        self.feed_forward_layer_norm = build_norm(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        rotation: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values=None,
        layer_idx: int = 0,
        implementation: str = "sdpa",
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """
        Args:
            hidden_states: (batch_size, target_length, d_model).
            encoder_hidden_states: (batch_size, source_length, d_model).
            attention_mask, rotation, past_key_values, layer_idx, implementation: as in ScratchAttention.
            encoder_attention_mask: the attention_mask of cross-attention.

        Returns:
            (batch_size, target_length, d_model), and the weights of self- and cross-attention if they are eager.
        """
        options = {"past_key_values": past_key_values, "layer_idx": layer_idx, "implementation": implementation}
        residual = hidden_states
        hidden_states = self.sublayer_input(hidden_states, self.self_attn_layer_norm)
        hidden_states, self_weights = self.self_attn(
            hidden_states, attention_mask=attention_mask, rotation=rotation, **options
        )
        hidden_states = self.add_and_norm(residual, hidden_states, self.self_attn_layer_norm)

        residual = hidden_states
        hidden_states = self.sublayer_input(hidden_states, self.cross_attn_layer_norm)
        source = (encoder_hidden_states, encoder_attention_mask)
        hidden_states, cross_weights = self.cross_attn(hidden_states, *source, **options)
        hidden_states = self.add_and_norm(residual, hidden_states, self.cross_attn_layer_norm)

        residual = hidden_states
        hidden_states = self.feed_forward(self.sublayer_input(hidden_states, self.feed_forward_layer_norm))
        return self.add_and_norm(residual, hidden_states, self.feed_forward_layer_norm), self_weights, cross_weights

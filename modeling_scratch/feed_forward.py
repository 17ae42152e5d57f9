"""The position-wise feed-forward network (section 3.3), plain and gated."""

import torch
from torch import nn
from transformers.activations import ACT2FN

from .configuration_scratch import ScratchConfig
from .dropout import ScratchDropout


class ScratchFeedForward(nn.Module):
    """
    FFN(x) = act(x W1 + b1) W2 + b2 (equation 2), or, gated, (act(x Wg + bg) * (x W1 + b1)) W2 + b2
    (Shazeer 2020, https://arxiv.org/abs/2002.05202).
    """

    def __init__(self, config: ScratchConfig, ffn_dim: int):
        super().__init__()
        self.up_proj = nn.Linear(config.d_model, ffn_dim, bias=config.ffn_bias)
        self.gate_proj = nn.Linear(config.d_model, ffn_dim, bias=config.ffn_bias) if config.gated_ffn else None
        self.down_proj = nn.Linear(ffn_dim, config.d_model, bias=config.ffn_bias)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = ScratchDropout(config.activation_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(batch_size, sequence_length, d_model) to the same shape."""
        if self.gate_proj is None:
            hidden_states = self.activation(self.up_proj(hidden_states))  # (batch_size, sequence_length, ffn_dim)
        else:
            hidden_states = self.activation(self.gate_proj(hidden_states)) * self.up_proj(hidden_states)
        return self.down_proj(self.dropout(hidden_states))

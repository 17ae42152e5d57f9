"""Where a token stands: sinusoidal (section 3.5), learned and rotary positions."""

import math

import torch
from torch import nn

from .configuration_scratch import ScratchConfig


class SinusoidalPositionEmbedding(nn.Module):
    """
    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)) (section 3.5).

    Computed from the positions in float64 each time, not looked up: there is no table that a reload, a cast to bf16
    or a sequence longer than expected could spoil. Next to a layer's matrix products the cost does not show.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def forward(self, position_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """position_ids: (batch_size or 1, sequence_length). Returns (batch_size or 1, sequence_length, d_model)."""
        # MPS has no float64; float32 is exact to 1e-4 there for the lengths that a translator sees.
        wide = torch.float32 if position_ids.device.type == "mps" else torch.float64
        even_dimensions = torch.arange(0, self.d_model, 2, dtype=wide, device=position_ids.device)
        frequencies = torch.exp(even_dimensions * (-math.log(10000.0) / self.d_model))
        angles = position_ids.unsqueeze(-1).to(wide) * frequencies  # (batch_size, sequence_length, ceil(d_model / 2))
        encodings = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # sin, cos, sin, cos, ...
        return encodings[..., : self.d_model].to(dtype)  # an odd d_model ends with a sine


class LearnedPositionEmbedding(nn.Embedding):
    """One trained vector a position (section 3.5, table 3 row E). Has no value beyond max_position_embeddings."""

    def forward(self, position_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """position_ids: (batch_size or 1, sequence_length). Returns (batch_size or 1, sequence_length, d_model)."""
        return super().forward(position_ids).to(dtype)


class ScratchRotaryEmbedding(nn.Module):
    """
    Angles by which queries and keys are rotated, so that their product depends on their distance alone
    (Su et al. 2021, https://arxiv.org/abs/2104.09864). The class's name and `original_inv_freq` are what Transformers
    recognises when it refills the buffers after loading.
    """

    rope_type = "default"

    def __init__(self, config: ScratchConfig, num_heads: int):
        super().__init__()
        self.config = config
        self.head_dim = config.d_model // num_heads
        inv_freq, _ = self.compute_default_rope_parameters(config)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    def compute_default_rope_parameters(self, config: ScratchConfig) -> tuple[torch.Tensor, float]:
        """The inverse frequencies, (head_dim / 2,), and the factor 1 that other kinds of scaling would replace."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        return 1.0 / (config.rope_parameters["rope_theta"] ** exponents), 1.0

    @torch.no_grad()
    def forward(self, position_ids: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """position_ids: (batch_size or 1, sequence_length). Returns cos and sin, (batch_size, 1, length, head_dim)."""
        wide = torch.promote_types(dtype, torch.float32)
        angles = position_ids.unsqueeze(-1).to(wide) * self.inv_freq.to(wide)
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rotary(states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate the pairs (i, i + head_dim/2) of `states`, (batch_size, num_heads, sequence_length, head_dim)."""
    cos, sin = position_embeddings
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin

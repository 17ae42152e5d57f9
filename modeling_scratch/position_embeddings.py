"""Where a token stands: sinusoidal (section 3.5), learned and rotary positions."""

import math

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.utils.import_utils import is_tracing

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
        if position_ids.device.type == "cpu" and not is_tracing(position_ids):
            wrong = position_ids[(position_ids < 0) | (position_ids >= self.num_embeddings)]
            if wrong.numel():
                raise ValueError(
                    f"there is no position {wrong[0].item()}: learned positions are in [0, max_position_embeddings "
                    f"({self.num_embeddings})), and a longer sequence needs a model that was trained with more"
                )
        return super().forward(position_ids).to(dtype)


class ScratchRotaryEmbedding(nn.Module):
    """
    Angles by which queries and keys are rotated, so that their product depends on their distance alone
    (Su et al. 2021, https://arxiv.org/abs/2104.09864), scaled for long sequences as `rope_parameters` says. The
    names of the class, its buffers and attributes are what Transformers recognises when it refills the buffers after
    loading and when it changes them for `"dynamic"` scaling.
    """

    def __init__(self, config: ScratchConfig):
        """config: the heads of the stack as `num_attention_heads`, as `get_text_config` gives the decoder's."""
        super().__init__()
        self.config = config
        self.rope_type = config.rope_parameters["rope_type"]
        self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        initialise = ROPE_INIT_FUNCTIONS.get(self.rope_type, self.compute_default_rope_parameters)
        inv_freq, self.attention_scaling = initialise(config)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(config: ScratchConfig) -> tuple[torch.Tensor, float]:
        """The inverse frequencies theta^(-2i/head_dim), (head_dim / 2,), and 1, the factor of cos and sin."""
        head_dim = config.hidden_size // config.num_attention_heads
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (config.rope_parameters["rope_theta"] ** exponents), 1.0

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        hidden_states: read for its dtype; position_ids: (batch_size or 1, sequence_length). Returns cos and sin,
        (batch_size or 1, sequence_length, head_dim) each.
        """
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        angles = position_ids.unsqueeze(-1).to(wide) * self.inv_freq.to(position_ids.device, wide)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(hidden_states.dtype), sin.to(hidden_states.dtype)


def apply_rotary(states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate the pairs (i, i + head_dim/2) of `states`, (batch_size, num_heads, sequence_length, head_dim)."""
    cos, sin = (each.unsqueeze(1) for each in position_embeddings)  # (batch_size or 1, 1, sequence_length, head_dim)
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin

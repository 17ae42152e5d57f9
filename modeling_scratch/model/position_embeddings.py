"""
Position embeddings: sinusoidal (section 3.5), learned, rotary and ALiBi.

To add a kind, write a subclass of PositionEmbedding here, enter it in POSITION_EMBEDDINGS, and add its name to
`position_embedding_type` in configuration_scratch.py.
"""

import math

import torch
from torch import nn

from .configuration_scratch import ScratchConfig
from .masking import can_look_at


class PositionEmbedding:
    """
    Base class with one method for each of the three places where positions can enter a stack: the embeddings (`add`),
    the queries and keys of self-attention (`rotation`), and its scores (`bias`). By default each does nothing.

    Args:
        num_heads: attention heads of the stack.
    """

    has_bias = False  # whether the class overrides `bias`

    def __init__(self, config: ScratchConfig, num_heads: int):
        super().__init__()
        self.config = config
        self.num_heads = num_heads

    def add(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """
        Add positions, (batch_size or 1, sequence_length), to the embeddings, (batch_size, sequence_length, d_model).
        """
        return hidden_states

    def rotation(
        self, hidden_states: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """
        The cos and sin with which `apply_rotary` rotates queries and keys, (batch_size or 1, sequence_length, head_dim)
        each, in the dtype of hidden_states.
        """
        return None

    def bias(
        self, hidden_states: torch.Tensor, query_positions: torch.Tensor, key_positions: torch.Tensor
    ) -> torch.Tensor | None:
        """
        What to add to the scores of self-attention, in the dtype of hidden_states.

        Args:
            query_positions: (batch_size or 1, query_length).
            key_positions: (batch_size or 1, key_length).

        Returns:
            (batch_size or 1, num_heads, query_length, key_length).
        """
        return None


class SinusoidalPositionEmbedding(PositionEmbedding, nn.Module):
    """
    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)) (section 3.5).

    Computed in float64 at each call, so there is no table that a reload, a cast to bfloat16 or an unexpectedly long
    sequence could spoil. The cost is negligible beside a layer's matrix products.
    """

    def add(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        d_model, dtype = hidden_states.shape[-1], hidden_states.dtype
        if position_ids.shape[0] > 1 and can_look_at(position_ids) and position_ids.min() >= 0:
            largest = int(position_ids.max())
            if largest < position_ids.numel():  # compute each position once, not once per row
                table = self.encode(torch.arange(largest + 1)[None], d_model).to(dtype)
                return hidden_states + nn.functional.embedding(position_ids, table[0])
        return hidden_states + self.encode(position_ids, d_model).to(dtype)

    @staticmethod
    def encode(position_ids: torch.Tensor, d_model: int) -> torch.Tensor:
        """The encodings themselves, (batch_size or 1, sequence_length, d_model), in float64."""
        # MPS has no float64; float32 is accurate to 1e-4 for the lengths that a translator sees.
        wide = torch.float32 if position_ids.device.type == "mps" else torch.float64
        even_dimensions = torch.arange(0, d_model, 2, dtype=wide, device=position_ids.device)
        frequencies = torch.exp(even_dimensions * (-math.log(10000.0) / d_model))
        angles = position_ids.unsqueeze(-1).to(wide) * frequencies  # (batch_size, sequence_length, ceil(d_model / 2))
        encodings = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # sin, cos, sin, cos, ...
        return encodings[..., :d_model]  # an odd d_model ends with a sine


class LearnedPositionEmbedding(PositionEmbedding, nn.Embedding):
    """One trained vector per position (section 3.5, table 3 row E), up to max_position_embeddings."""

    def __init__(self, config: ScratchConfig, num_heads: int):
        nn.Embedding.__init__(self, config.max_position_embeddings, config.d_model)

    def add(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        if can_look_at(position_ids):
            wrong = position_ids[(position_ids < 0) | (position_ids >= self.num_embeddings)]
            if wrong.numel():
                raise ValueError(
                    f"there is no position {wrong[0].item()}: learned positions are in [0, max_position_embeddings "
                    f"({self.num_embeddings})); a longer sequence needs a model trained with more positions"
                )
        return hidden_states + self(position_ids).to(hidden_states.dtype)


class ScratchRotaryEmbedding(PositionEmbedding, nn.Module):
    """
    Rotary positions (Su et al. 2021, https://arxiv.org/abs/2104.09864): queries and keys are rotated by angles
    proportional to their positions, so that their product depends only on the distance between them.

    The angle is position * theta^(-2i/head_dim), divided by `factor` where `rope_parameters` stretches positions
    linearly (Chen et al. 2023, https://arxiv.org/abs/2306.15595).
    """

    def rotation(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parameters, head_dim = self.config.rope_parameters, self.config.d_model // self.num_heads
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_ids.device) / head_dim
        factor = parameters["factor"] if parameters["rope_type"] == "linear" else 1.0
        frequencies = 1.0 / parameters["rope_theta"] ** exponents / factor
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        angles = position_ids.unsqueeze(-1).to(wide) * frequencies.to(wide)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(hidden_states.dtype), angles.sin().to(hidden_states.dtype)


def apply_rotary(states: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate the pairs (i, i + head_dim/2) of `states`, (batch_size, num_heads, sequence_length, head_dim)."""
    cos, sin = (part.unsqueeze(1) for part in rotation)  # (batch_size or 1, 1, sequence_length, head_dim)
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


class ALiBiPositionEmbedding(PositionEmbedding, nn.Module):
    """
    Attention with linear biases (Press et al. 2022, https://arxiv.org/abs/2108.12409): each head subtracts its slope
    times the distance between query and key from the score. In the encoder, distance counts in both directions.
    """

    has_bias = True

    def bias(
        self, hidden_states: torch.Tensor, query_positions: torch.Tensor, key_positions: torch.Tensor
    ) -> torch.Tensor:
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        slopes = self.slopes(wide, query_positions.device).to(hidden_states.dtype)
        distances = (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs()
        return -slopes[:, None, None] * distances  # (batch_size or 1, num_heads, query_length, key_length)

    def slopes(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """
        The slopes 2^(-8/n), 2^(-16/n), ... of n heads, (num_heads,), as in the authors' code: if n is not a power of
        two, those of the next lower power, then every other slope of twice that power. They are computed on the device,
        since copying them there would make the CPU wait for it.
        """
        power = 2 ** int(math.log2(self.num_heads))
        heads = torch.arange(1, self.num_heads + 1, dtype=dtype, device=device)
        return torch.exp2(torch.where(heads <= power, -8 * heads, -8 * (heads - power) + 4) / power)


POSITION_EMBEDDINGS: dict[str, type[PositionEmbedding]] = {
    "sinusoidal": SinusoidalPositionEmbedding,
    "learned": LearnedPositionEmbedding,
    "rotary": ScratchRotaryEmbedding,
    "alibi": ALiBiPositionEmbedding,
}

"""Multi-head attention (section 3.2): scaled dot-product, self- and cross-attention, with key/value caches."""

import torch
from torch import nn

from .configuration_scratch import ScratchConfig
from .position_embeddings import apply_rotary


def eager_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1), step by step; also returns the weights.

    Args:
        query: (batch_size, num_heads, query_length, head_dim).
        key, value: (batch_size, num_heads, key_length, head_dim).
        attention_mask: 4-D, added to the scores.
        scaling: 1 / sqrt(d_k).
        dropout: probability of zeroing an attention weight.
        is_causal: hide later keys from each query. Ignored if there is a mask.

    Returns:
        (batch_size, num_heads, query_length, head_dim) and (batch_size, num_heads, query_length, key_length).
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # (batch_size, num_heads, query_length, key_length)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if attention_mask is not None:
        scores = scores + attention_mask
    elif is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout)
    return torch.matmul(weights, value), weights


class ScratchAttention(nn.Module):
    """
    The projections and the attention call that self- and cross-attention share:
    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (section 3.2.2).
    """

    def __init__(self, config: ScratchConfig, num_heads: int, is_causal: bool):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = config.d_model // num_heads
        self.is_causal = is_causal
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.o_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)

    def split_heads(self, states: torch.Tensor, beams: int = 1) -> torch.Tensor:
        """
        (batch_size, sequence_length, d_model) to (batch_size, num_heads, sequence_length, head_dim). The tokens of
        every `beams` consecutive rows are merged into one row: (batch_size / beams, num_heads, beams * sequence_length,
        head_dim).
        """
        return states.view(-1, beams * states.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        implementation: str,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Attend with split heads and project the output.

        Returns:
            (batch_size, query_length, d_model), and the weights, (batch_size, num_heads, query_length, key_length), or
            None if attention is not eager.
        """
        weights, dropout = None, self.attention_dropout if self.training else 0.0
        is_causal = query.shape[2] > 1 and self.is_causal and attention_mask is None
        if implementation == "eager":
            output, weights = eager_attention(query, key, value, attention_mask, self.scaling, dropout, is_causal)
        elif implementation == "sdpa":
            output = self.sdpa(query, key, value, attention_mask, dropout, is_causal)
        else:
            raise ValueError(f"attn_implementation is {implementation!r}; this model has 'sdpa' and 'eager'")
        return self.o_proj(output.transpose(1, 2).flatten(2)), weights  # (batch_size, query_length, d_model)

    def sdpa(self, query, key, value, attention_mask, dropout: float, is_causal: bool) -> torch.Tensor:
        """Like `eager_attention`, but with PyTorch's kernels and without the weights."""
        attend = nn.functional.scaled_dot_product_attention
        return attend(query, key, value, attention_mask, dropout, is_causal, scale=self.scaling)


class ScratchSelfAttention(ScratchAttention):
    """Attention of a sequence to itself; in the decoder, no position attends to later ones (section 3.2.3)."""

    rotate = staticmethod(apply_rotary)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rotation: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values=None,
        layer_idx: int = 0,
        implementation: str = "sdpa",
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: (batch_size, sequence_length, d_model).
            attention_mask: 4-D, added to the scores; None: attend to everything or, if causal, to nothing later. Where
                beams share keys, (sentences, 1 or heads, beams, slots).
            rotation: cos and sin of rotary positions, (batch_size or 1, sequence_length, head_dim) each.
            past_key_values: the key/value cache; this call appends to its layer `layer_idx`.
            implementation: name of the attention implementation.

        Returns:
            (batch_size, sequence_length, d_model), and the weights if attention is eager.
        """
        beams = getattr(past_key_values, "sharing", 1)  # in our own search, the beams of a sentence share their keys
        query = self.split_heads(self.q_proj(hidden_states), beams)
        key = self.split_heads(self.k_proj(hidden_states), beams)
        value = self.split_heads(self.v_proj(hidden_states), beams)
        if rotation is not None:
            query, key = self.rotate(query, rotation), self.rotate(key, rotation)
        if past_key_values is not None:
            key, value = past_key_values.self_attention_cache.update(key, value, layer_idx)
        output, weights = self.attend(query, key, value, attention_mask, implementation)
        return output.view(hidden_states.shape), weights


class ScratchCrossAttention(ScratchAttention):
    """Attention of the target to the encoded source, whose keys and values a cache keeps from the first step on."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values=None,
        layer_idx: int = 0,
        implementation: str = "sdpa",
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: (batch_size, target_length, d_model).
            encoder_hidden_states: (batch_size, source_length, d_model); with fewer rows where beams share a source.
            attention_mask: 4-D over the source, added to the scores; None: attend to everything.
            past_key_values: the key/value cache; its layer `layer_idx` is filled at the first step and read afterwards.

        Returns:
            (batch_size, target_length, d_model), and the weights if attention is eager.
        """
        beams = getattr(past_key_values, "beams", 1)  # which share the source's keys
        query = self.split_heads(self.q_proj(hidden_states), beams)
        if past_key_values is not None and past_key_values.is_updated.get(layer_idx):
            cached = past_key_values.cross_attention_cache.layers[layer_idx]
            key, value = cached.keys, cached.values
        else:
            key = self.split_heads(self.k_proj(encoder_hidden_states))
            value = self.split_heads(self.v_proj(encoder_hidden_states))
            if past_key_values is not None:
                key, value = past_key_values.cross_attention_cache.update(key, value, layer_idx)
                past_key_values.is_updated[layer_idx] = True
        output, weights = self.attend(query, key, value, attention_mask, implementation)
        return output.view(hidden_states.shape), weights

"""Multi-head attention (section 3.2): scaled dot-product, of a sequence to itself or to the source, with caches."""

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
    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (section 3.2.2):
    a sequence attends to itself or, if `is_cross`, the target to the encoded source (section 3.2.3).
    """

    def __init__(self, config: ScratchConfig, num_heads: int, is_causal: bool = False, is_cross: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = config.d_model // num_heads
        self.is_causal, self.is_cross = is_causal, is_cross
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
        return states.reshape(-1, beams * states.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotation: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values=None,
        layer_idx: int = 0,
        implementation: str = "sdpa",
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: (batch_size, query_length, d_model).
            encoder_hidden_states: for cross-attention, (batch_size, source_length, d_model); with fewer rows where
                beams share a source.
            attention_mask: 4-D, added to the scores; None: attend to everything or, if causal, to nothing later. Where
                beams share keys, (sentences, 1 or heads, beams, slots).
            rotation: cos and sin of rotary positions, (batch_size or 1, query_length, head_dim) each.
            past_key_values: the key/value cache. Self-attention appends to its layer `layer_idx`; cross-attention fills
                that layer at the first step and reads it afterwards.
            implementation: "sdpa" for PyTorch's kernels, or "eager".

        Returns:
            (batch_size, query_length, d_model), and the weights, (batch_size, num_heads, query_length, key_length), or
            None if attention is not eager.
        """
        cache, beams = None, getattr(past_key_values, "beams", 1)  # in our own search, those that share keys and values
        if past_key_values is not None:
            cache = past_key_values.cross_attention_cache if self.is_cross else past_key_values.self_attention_cache
        query = self.split_heads(self.q_proj(hidden_states), beams)
        if self.is_cross and cache is not None and past_key_values.is_updated.get(layer_idx):
            key, value = cache.layers[layer_idx].keys, cache.layers[layer_idx].values
        else:
            attended, merged = (encoder_hidden_states, 1) if self.is_cross else (hidden_states, beams)
            key, value = (self.split_heads(project(attended), merged) for project in (self.k_proj, self.v_proj))
            if rotation is not None:
                query, key = apply_rotary(query, rotation), apply_rotary(key, rotation)
            if cache is not None:
                key, value = cache.update(key, value, layer_idx)
                if self.is_cross:
                    past_key_values.is_updated[layer_idx] = True
        weights, dropout = None, self.attention_dropout if self.training else 0.0
        is_causal = query.shape[2] > 1 and self.is_causal and attention_mask is None
        if implementation == "eager":
            output, weights = eager_attention(query, key, value, attention_mask, self.scaling, dropout, is_causal)
        elif implementation == "sdpa":
            output = self.sdpa(query, key, value, attention_mask, dropout, is_causal)
        else:
            raise ValueError(f"attn_implementation is {implementation!r}; this model has 'sdpa' and 'eager'")
        output = output.transpose(1, 2).reshape(*hidden_states.shape[:2], self.num_heads * self.head_dim)
        return self.o_proj(output), weights

    def sdpa(self, query, key, value, attention_mask, dropout: float, is_causal: bool) -> torch.Tensor:
        """Like `eager_attention`, but with PyTorch's kernels and without the weights."""
        attend = nn.functional.scaled_dot_product_attention
        return attend(query, key, value, attention_mask, dropout, is_causal, scale=self.scaling)

"""Multi-head attention (section 3.2): scaled dot-product, self- and cross-attention with their caches."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_scratch import ScratchConfig
from .masking import HIDDEN_BIAS
from .position_embeddings import apply_rotary


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1), step by step, returning the weights too.

    Args:
        query: (batch_size, num_heads, query_length, head_dim).
        key, value: (batch_size, num_heads, key_length, head_dim).
        attention_mask: 4-D, added to the scores: 0 attends, the dtype's minimum hides.
        scaling: 1 / sqrt(d_k).

    Returns:
        (batch_size, query_length, num_heads, head_dim) and (batch_size, num_heads, query_length, key_length).
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # (batch_size, num_heads, query_length, key_length)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    if attention_mask is not None:
        # A query that may attend to nothing gets zeros, as sdpa gives it; elsewhere these weights are 0 already.
        weights = weights.masked_fill(attention_mask <= HIDDEN_BIAS, 0.0)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class ScratchAttention(nn.Module):
    """
    The projections and the call that self- and cross-attention share:
    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (section 3.2.2).
    """

    def __init__(self, config: ScratchConfig, num_heads: int, layer_idx: int, is_causal: bool):
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.head_dim = config.d_model // num_heads
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.o_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)

    def split_heads(self, states: torch.Tensor) -> torch.Tensor:
        """(batch_size, sequence_length, d_model) to (batch_size, num_heads, sequence_length, head_dim)."""
        return states.view(*states.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Run the configured backend on split heads and project its output. Returns (batch_size, query_length, d_model)
        and, from eager, the weights (batch_size, num_heads, query_length, key_length).
        """
        implementation = self.config._attn_implementation
        if "flash" in implementation and attention_mask is not None and attention_mask.ndim == 4:
            implementation = "sdpa"  # flash knows no mask but that of queries and keys of one sequence
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        dtype, narrow = query.dtype, query.device.type == "cpu" and query.dtype == torch.bfloat16
        # sdpa's backward pass in bfloat16 on the CPU takes longer than all else together (torch 2.13).
        widens = narrow and implementation == "sdpa" and (self.training or query.requires_grad)
        if widens:
            query, key, value = query.float(), key.float(), value.float()
            if attention_mask is not None and attention_mask.is_floating_point():
                attention_mask = attention_mask.float()
        with torch.autocast("cpu", enabled=False) if widens else nullcontext():
            output, weights = attention_interface(
                self,
                query,
                key,
                value,
                attention_mask,
                dropout=self.attention_dropout if self.training else 0.0,
                scaling=self.scaling,
                is_causal=self.is_causal,  # sdpa heeds it where there is no mask and more than one query
                **kwargs,
            )
        return self.o_proj(output.to(dtype).flatten(2)), weights  # (batch_size, query_length, d_model)


class ScratchSelfAttention(ScratchAttention):
    """Attention of a sequence to itself; in the decoder, to what came before (section 3.2.3)."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: (batch_size, sequence_length, d_model).
            attention_mask: 4-D, as the backend takes it; None: everything, or, causal, everything before.
            position_embeddings: cos and sin for rotary positions, (batch_size or 1, sequence_length, head_dim) each.
            past_key_values: the cache, which this layer's keys and values are added to.

        Returns:
            (batch_size, sequence_length, d_model), and the weights where the backend gives them.
        """
        query = self.split_heads(self.q_proj(hidden_states))
        key = self.split_heads(self.k_proj(hidden_states))
        value = self.split_heads(self.v_proj(hidden_states))
        if position_embeddings is not None:
            query, key = apply_rotary(query, position_embeddings), apply_rotary(key, position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.self_attention_cache.update(key, value, self.layer_idx)
        return self.attend(query, key, value, attention_mask, **kwargs)


class ScratchCrossAttention(ScratchAttention):
    """Attention of the target to the encoded source, whose keys and values are computed once a sentence."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: (batch_size, target_length, d_model).
            encoder_hidden_states: (batch_size, source_length, d_model).
            attention_mask: 4-D over the source, as the backend takes it; None: everything.
            past_key_values: the cache, filled here at the first step and read afterwards.

        Returns:
            (batch_size, target_length, d_model), and the weights where the backend gives them.
        """
        query = self.split_heads(self.q_proj(hidden_states))
        if past_key_values is not None and past_key_values.is_updated.get(self.layer_idx):
            cached = past_key_values.cross_attention_cache.layers[self.layer_idx]
            key, value = cached.keys, cached.values
        else:
            key = self.split_heads(self.k_proj(encoder_hidden_states))
            value = self.split_heads(self.v_proj(encoder_hidden_states))
            if past_key_values is not None:
                key, value = past_key_values.cross_attention_cache.update(key, value, self.layer_idx)
                past_key_values.is_updated[self.layer_idx] = True
        return self.attend(query, key, value, attention_mask, **kwargs)

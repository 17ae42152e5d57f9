"""Dropout and attention for training, faster than PyTorch's on the CPU, and layers with less to move in bfloat16."""

import torch
from torch import nn

from ..model import ScratchForConditionalGeneration  # noqa: F401 (registers the model with the Auto classes)
from ..model.attention import ScratchAttention, eager_attention
from ..model.position_embeddings import LearnedPositionEmbedding
from ..model.stacks import ScratchStack

_SHORT = 64 * 64  # up to this query length times key length, plain products are faster than PyTorch's kernels

# One 64-bit random number decides four elements, so the probability is rounded to a multiple of 2^-16.
_BITS = 16
_PER_WORD = 64 // _BITS


def _drop(states: torch.Tensor, draws: torch.Tensor, threshold: int) -> torch.Tensor:
    """Zero the states whose 16-bit draw is among the lowest `threshold`, and scale up the others."""
    # Compare into the states' own dtype: arithmetic with booleans takes several times as long.
    kept = torch.ge(draws, threshold - 2 ** (_BITS - 1), out=torch.empty_like(states))
    return kept.mul_(states).mul_(2**_BITS / (2**_BITS - threshold))  # the rounded probability keeps the mean


class _BitDropout(torch.autograd.Function):
    """Dropout that compares 16-bit slices of random words with a threshold, and keeps the slices for backward."""

    @staticmethod
    def forward(ctx, hidden_states: torch.Tensor, threshold: int) -> torch.Tensor:
        words = torch.empty(-(-hidden_states.numel() // _PER_WORD), dtype=torch.int64).random_(-(2**63), None)
        draws = words.view(torch.int16)[: hidden_states.numel()].view(hidden_states.shape)  # uniform in [-2^15, 2^15)
        ctx.save_for_backward(draws)
        ctx.threshold = threshold
        return _drop(hidden_states, draws, threshold)

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor):
        return _drop(grad_output, *ctx.saved_tensors, ctx.threshold), None


class FastDropout(nn.Dropout):
    """`nn.Dropout` (section 5.4), several times faster in eager mode on the CPU, where drawing numbers is slow."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Any shape; returns the same shape."""
        threshold = round(self.p * 2**_BITS)
        if not self.training or threshold == 0:
            return hidden_states
        if hidden_states.device.type != "cpu" or torch.compiler.is_compiling() or threshold == 2**_BITS:
            return super().forward(hidden_states)
        return _BitDropout.apply(hidden_states, threshold)


class NarrowingDropout(FastDropout):
    """
    The dropout at the beginning of a stack. Under autocast to bfloat16 it makes the residual stream bfloat16 too, since
    that is most of what an update reads and writes; norms still compute in float32.
    """

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Any shape; returns the same shape."""
        hidden_states = super().forward(hidden_states)
        device_type = hidden_states.device.type
        casts = not hidden_states.is_meta and torch.is_autocast_enabled(device_type)  # the meta device has no autocast
        if casts and torch.get_autocast_dtype(device_type) == torch.bfloat16 and hidden_states.dtype == torch.float32:
            return hidden_states.bfloat16()
        return hidden_states


class FastEmbedding(nn.Embedding):
    """
    `nn.Embedding` that can be captured in a CUDA graph; PyTorch's backward pass cannot
    (https://github.com/pytorch/pytorch/issues/82886).
    """

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(...): returns (..., width)."""
        if input_ids.device.type != "cuda":
            return super().forward(input_ids)
        return self.weight.index_select(0, input_ids.flatten()).view(*input_ids.shape, -1)


class FastLearnedPositionEmbedding(FastEmbedding, LearnedPositionEmbedding):
    """`LearnedPositionEmbedding` with the lookup of `FastEmbedding`."""


class FastLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` that keeps the dtype of a narrowed residual stream. Under a GPU's autocast, PyTorch's does not."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., width); returns the same shape."""
        return super().forward(hidden_states).to(hidden_states.dtype)


class FastRMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` that takes a residual stream of another dtype than its weight, and keeps it."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., width); returns the same shape."""
        return super().forward(hidden_states.to(self.weight.dtype)).to(hidden_states.dtype)


class _ShortAttention(torch.autograd.Function):
    """
    `eager_attention` without dropout, in fewer and faster operations. PyTorch's softmax of rows that are shorter than a
    vector register (16 numbers with AVX-512) takes ten times as long as its parts.
    """

    @staticmethod
    def forward(ctx, query, key, value, attention_mask, scaling: float, is_causal: bool) -> torch.Tensor:
        dtype, ctx.shapes, ctx.scaling = value.dtype, (query.shape, key.shape), scaling
        query, key, value = (states.to(dtype).reshape(-1, *states.shape[2:]) for states in (query, key, value))
        scores = torch.bmm(query, key.transpose(1, 2)).to(torch.promote_types(dtype, torch.float32)).mul_(scaling)
        if attention_mask is not None:
            scores.view(*ctx.shapes[0][:3], -1).add_(attention_mask)
        elif is_causal:
            scores += torch.full(scores.shape[1:], -torch.inf).triu(1)
        weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
        weights = weights.div_(weights.sum(dim=-1, keepdim=True)).to(dtype)
        ctx.save_for_backward(query, key, value, weights)
        return torch.bmm(weights, value).view(ctx.shapes[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output: torch.Tensor):
        query, key, value, weights = ctx.saved_tensors
        grad_output = grad_output.reshape(query.shape)
        grad_value = torch.bmm(weights.transpose(1, 2), grad_output)
        grad_weights = torch.bmm(grad_output, value.transpose(1, 2)).to(torch.promote_types(value.dtype, torch.float32))
        grad_scores = grad_weights.mul_(weights)
        # d softmax / d scores = weights (1 - weights^T)
        grad_scores = grad_scores.addcmul_(weights, grad_scores.sum(dim=-1, keepdim=True), value=-1)
        grad_scores = grad_scores.mul_(ctx.scaling).to(value.dtype)
        grad_query, grad_key = torch.bmm(grad_scores, key), torch.bmm(grad_scores.transpose(1, 2), query)
        queries, keys = ctx.shapes
        return grad_query.view(queries), grad_key.view(keys), grad_value.view(keys), None, None, None


class FastAttention(ScratchAttention):
    """
    Attention by plain products or in float32, where PyTorch's kernels (torch 2.13) are slow in training: they are made
    for long sequences, and their backward pass in bfloat16 takes longer than everything else together.
    """

    def sdpa(self, query, key, value, attention_mask, dropout: float, is_causal: bool) -> torch.Tensor:
        """Like the method that it overrides."""
        needs_grad = torch.is_grad_enabled() and query.requires_grad
        is_fast = not needs_grad or query.device.type != "cpu" or torch.compiler.is_compiling()
        if not is_fast and self.training and query.shape[2] * key.shape[2] <= _SHORT:
            learns_bias = attention_mask is not None and attention_mask.requires_grad
            if not dropout and not learns_bias:
                return _ShortAttention.apply(query, key, value, attention_mask, self.scaling, is_causal)
            return eager_attention(query, key, value, attention_mask, self.scaling, dropout, is_causal)[0]
        if is_fast or value.dtype != torch.bfloat16:  # rotated queries and keys are float32 under autocast
            return super().sdpa(query, key, value, attention_mask, dropout, is_causal)
        attention_mask = None if attention_mask is None else attention_mask.float()
        with torch.autocast("cpu", enabled=False):
            inputs = query.float(), key.float(), value.float(), attention_mask
            return super().sdpa(*inputs, dropout, is_causal).to(value.dtype)


FAST = {
    nn.Dropout: FastDropout,
    nn.Embedding: FastEmbedding,
    LearnedPositionEmbedding: FastLearnedPositionEmbedding,
    nn.LayerNorm: FastLayerNorm,
    nn.RMSNorm: FastRMSNorm,
    ScratchAttention: FastAttention,
}


def has_own_hooks(module: nn.Module) -> bool:
    """Whether somebody's functions run before or after the module's passes."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(getattr(module, kind) for kind in kinds)


def use_fast_layers(model: nn.Module) -> None:
    """
    Replace the classes of a model's layers as `FAST` says, and that of each stack's own dropout by NarrowingDropout.
    Weights and their names stay as they are. Of code that came with a checkpoint, only PyTorch's classes are replaced.
    """
    for module in model.modules():
        module.__class__ = FAST.get(type(module), type(module))
        if isinstance(module, ScratchStack):
            module.dropout.__class__ = NarrowingDropout

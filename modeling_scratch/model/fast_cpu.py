"""Faster versions of what PyTorch does slowly on the CPU: dropout, RMSNorm, and generation's linear layers and topk."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

# One 64-bit random number decides four elements, so the probability is rounded to a multiple of 2^-16.
_BITS = 16
_PER_WORD = 64 // _BITS
_BLOCK = 64  # tokens per block in `best_tokens`
# Linear layers whose weight has at least _LARGE elements are worth a method of their own in generation.
_LARGE = 2**18
# On AMD's processors the BLAS behind `nn.Linear` has one thread read the whole weight: inputs of at most _SMALL_INPUT
# elements are multiplied in parts, and larger ones in oneDNN's layout if the weight has at least _VERY_LARGE.
_VERY_LARGE, _SMALL_INPUT = 2**20, 2560
# On Intel's the threads share the weight out, and the BLAS is slow for these numbers of rows alone.
_INTEL_ROWS = range(8, 24)
_PART = 512  # outputs per part, roughly; fewer if some threads would have no part


def _drop(states: torch.Tensor, draws: torch.Tensor, threshold: int) -> torch.Tensor:
    """Zero the states whose 16-bit draw is among the lowest `threshold`, and scale up the others."""
    # Comparing into the states' own dtype: arithmetic with booleans takes several times as long.
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


class ScratchDropout(nn.Dropout):
    """`nn.Dropout` (section 5.4), several times faster in eager mode on the CPU, where drawing numbers is slow."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Any shape; returns the same shape."""
        threshold = round(self.p * 2**_BITS)
        if not self.training or threshold == 0:
            return hidden_states
        if hidden_states.device.type != "cpu" or torch.compiler.is_compiling() or threshold == 2**_BITS:
            return super().forward(hidden_states)
        return _BitDropout.apply(hidden_states, threshold)


class _RMSNormOfRows(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, with a backward pass of its own in few operations."""

    @staticmethod
    def forward(ctx, hidden_states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        ctx.dtype, hidden_states = hidden_states.dtype, hidden_states.to(weight.dtype)
        squares = torch.linalg.vecdot(hidden_states, hidden_states).unsqueeze(-1)
        scale = squares.div_(hidden_states.shape[-1]).add_(eps).rsqrt_()
        normed = hidden_states * scale
        ctx.save_for_backward(normed, scale, weight)
        return (normed * weight).to(ctx.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output: torch.Tensor):
        normed, scale, weight = ctx.saved_tensors
        grad_weight = (grad_output * normed).flatten(0, -2).sum(dim=0)
        grad_normed = grad_output * weight
        # d normed / d x = scale (1 - normed normed^T / width)
        along = torch.linalg.vecdot(grad_normed, normed).unsqueeze(-1).div_(normed.shape[-1])
        return grad_normed.addcmul_(normed, along, value=-1).mul_(scale).to(ctx.dtype), grad_weight, None


class ScratchRMSNorm(nn.RMSNorm):
    """`nn.RMSNorm`, more than twice as fast in training on the CPU, where PyTorch has no kernel of its own for it."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., width); returns the same shape."""
        is_plain = hidden_states.device.type == "cpu" and self.weight.dtype == torch.float32
        if not (self.training and torch.is_grad_enabled() and is_plain) or torch.compiler.is_compiling():
            return super().forward(hidden_states.to(self.weight.dtype)).to(hidden_states.dtype)
        return _RMSNormOfRows.apply(hidden_states, self.weight, self.eps)


def _by_parts(inputs: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """`nn.functional.linear`, with the outputs divided into parts that the threads share out."""
    weight, (outputs, width) = layer.weight, layer.weight.shape
    states, rows = inputs.reshape(1, -1, width), inputs.shape[:-1].numel()
    output = states.new_empty(rows, outputs)
    count = min(outputs, max(torch.get_num_threads(), outputs // _PART))
    size = outputs // count
    parts = weight[: count * size].view(count, size, width)
    products = torch.bmm(parts, states.transpose(1, 2).expand(count, -1, -1))  # (count, size, rows)
    output[:, : count * size] = products.view(-1, rows).t()
    if count * size < outputs:
        torch.mm(states[0], weight[count * size :].t(), out=output[:, count * size :])
    if layer.bias is not None:
        output += layer.bias
    return output.view(*inputs.shape[:-1], outputs)


def _is_amd() -> bool:
    """Whether the processor is AMD's: no other has SSE4a. Older releases of PyTorch do not say."""
    return bool(getattr(torch.cpu, "get_capabilities", dict)().get("sse4a"))


def _forward(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """`nn.Linear.forward` of a large layer, by the method that is fastest for these inputs on this processor."""
    is_plain = inputs.dtype == torch.float32 and not (
        torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    )
    if is_plain and _is_amd():
        if inputs.numel() <= _SMALL_INPUT:
            return _by_parts(inputs, layer)
        if layer.weight.numel() >= _VERY_LARGE and torch.backends.mkldnn.is_available():
            return nn.functional.linear(inputs.to_mkldnn(), layer.weight, layer.bias).to_dense()
    elif is_plain and inputs.shape[:-1].numel() in _INTEL_ROWS:
        return _by_parts(inputs, layer)
    return nn.Linear.forward(layer, inputs)


@contextmanager
def fast_products(modules: Iterable[nn.Module]) -> Iterator[None]:
    """
    Inside this context, large float32 `nn.Linear` layers on the CPU take as little as a quarter of their time for the
    few rows of a decoding step without gradients. Results differ only in rounding. Layers whose forward method has been
    replaced, such as by another such context, are left alone.
    """
    changed = []
    try:
        for module in modules:
            if type(module) is nn.Linear and "forward" not in vars(module) and _is_large(module.weight):
                # A partial, not a closure, so that a copy of the layer computes with its own weights.
                module.forward = partial(_forward, module)
                changed.append(module)
        yield
    finally:
        for module in changed:
            vars(module).pop("forward", None)


def _is_large(weight: torch.Tensor) -> bool:
    plain = type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype == torch.float32
    return plain and weight.numel() >= _LARGE


def best_tokens(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `torch.topk`, several times faster on the CPU for a large vocabulary: it searches only the blocks of tokens with the
    largest maxima, which must hold the best tokens.

    Args:
        scores: (rows, vocabulary).

    Returns:
        The largest scores in descending order, and their tokens, (rows, count) each.
    """
    rows, vocabulary = scores.shape
    blocks = vocabulary // _BLOCK
    if blocks <= 2 * count or scores.device.type != "cpu":
        return scores.topk(count)
    blocked = scores[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK))
    chosen = blocked.amax(dim=2).topk(count).indices  # (rows, count)
    candidates = blocked.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)  # (rows, count * _BLOCK)
    tokens = (chosen[..., None] * _BLOCK + torch.arange(_BLOCK, device="cpu")).flatten(1)
    rest = torch.arange(blocks * _BLOCK, vocabulary, device="cpu").expand(rows, -1)
    candidates, tokens = torch.cat([candidates, scores[:, blocks * _BLOCK :]], dim=1), torch.cat([tokens, rest], dim=1)
    values, indices = candidates.topk(count)
    return values, tokens.gather(1, indices)

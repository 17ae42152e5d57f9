"""What PyTorch is slow at on the CPU, done faster below its interfaces: dropout, and generation's products and topk."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

# One 64-bit draw serves four elements: their probability is rounded to a multiple of 2^-16.
_BITS = 16
_PER_WORD = 64 // _BITS
_BLOCK = 64  # tokens of a vocabulary whose largest score is compared first
_FEW, _SEVERAL = 16, 128  # rows of a product, from which on another way is fastest
_PART = 512  # outputs of a product that are computed together
_LARGE = 2**18  # elements of a weight from which other products than the BLAS's pay,
_HUGE = 2**23  # for however many rows: it does not fit into a cache


class _BitDropout(torch.autograd.Function):
    """Zero elements by comparing 16-bit slices of random words with a threshold; keeps a boolean mask for backward."""

    @staticmethod
    def forward(ctx, hidden_states: torch.Tensor, threshold: int) -> torch.Tensor:
        words = torch.empty(-(-hidden_states.numel() // _PER_WORD), dtype=torch.int64).random_(-(2**63), None)
        draws = words.view(torch.int16)[: hidden_states.numel()].view(hidden_states.shape)  # uniform in [-2^15, 2^15)
        keep = draws >= threshold - 2 ** (_BITS - 1)
        ctx.save_for_backward(keep)
        ctx.scale = 2**_BITS / (2**_BITS - threshold)  # of the probability as rounded, so that the mean is kept
        return hidden_states.mul(keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor):
        (keep,) = ctx.saved_tensors
        return grad_output.mul(keep).mul_(ctx.scale), None


class ScratchDropout(nn.Dropout):
    """`nn.Dropout` (section 5.4), several times faster in eager mode on the CPU, where its drawing takes long."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Any shape to the same shape."""
        threshold = round(self.p * 2**_BITS)
        if not self.training or threshold == 0:
            return hidden_states
        if hidden_states.device.type != "cpu" or torch.compiler.is_compiling() or threshold == 2**_BITS:
            return super().forward(hidden_states)
        return _BitDropout.apply(hidden_states, threshold)


def _by_parts(inputs: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """
    `nn.functional.linear` in parts of the outputs. For few rows they are shared out among the threads: the BLAS behind
    `linear` has one thread read the whole weight.
    """
    weight, (outputs, width) = layer.weight, layer.weight.shape
    states, rows = inputs.reshape(1, -1, width), inputs.shape[:-1].numel()
    found = states.new_empty(rows, outputs)
    if rows > _SEVERAL:  # many parts, each by all threads
        for part, place in zip(weight.split(_PART), found.split(_PART, dim=1), strict=True):
            torch.mm(states[0], part.t(), out=place)
    else:
        count = min(outputs, max(torch.get_num_threads(), outputs // _PART))
        size = outputs // count
        parts, main = weight[: count * size].view(count, size, width), found[:, : count * size]
        if rows <= _FEW:
            products = torch.bmm(parts, states.transpose(1, 2).expand(count, -1, -1))  # (count, size, rows)
            main.copy_(products.view(-1, rows).t())
        else:
            products = torch.bmm(states.expand(count, -1, -1), parts.transpose(1, 2))  # (count, rows, size)
            main.unflatten(1, (count, size)).copy_(products.transpose(0, 1))
        if count * size < outputs:
            torch.mm(states[0], weight[count * size :].t(), out=found[:, count * size :])
    if layer.bias is not None:
        found += layer.bias
    return found.view(*inputs.shape[:-1], outputs)


def _forward(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """`nn.Linear.forward`, for a layer that PyTorch's BLAS is slow for."""
    suits = layer.weight.numel() >= _HUGE or inputs.shape[:-1].numel() <= _SEVERAL
    suits = suits and inputs.dtype == torch.float32
    differs = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    return _by_parts(inputs, layer) if suits and not differs else nn.Linear.forward(layer, inputs)


@contextmanager
def fast_products(modules: Iterable[nn.Module]) -> Iterator[None]:
    """
    While it lasts, large float32 `nn.Linear`s on the CPU take down to a quarter of their time for the few rows of a
    decoding step, where there are no gradients. Results differ in rounding. A layer whose forward something has
    replaced, another such context for one, is left alone.
    """
    changed = []
    try:
        for module in modules:
            if type(module) is nn.Linear and "forward" not in vars(module) and _is_large(module.weight):
                module.forward = partial(_forward, module)  # which a copy copies with its own weights
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
    `torch.topk`, several times faster on the CPU for a large vocabulary: the best tokens are in the blocks with the
    largest maxima.

    Args:
        scores: (rows, vocabulary).

    Returns:
        The largest scores, descending, and their tokens, (rows, count) each.
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
    values, places = candidates.topk(count)
    return values, tokens.gather(1, places)

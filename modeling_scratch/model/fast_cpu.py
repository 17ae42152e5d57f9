"""Faster versions of what is slow in PyTorch when generating on the CPU: linear layers, argmax and topk."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

_BLOCK = 64  # tokens per block in `best_tokens` and `best_continuations`
_MANY_SCORES = 2**15  # from so many on, `best_tokens` looks at blocks
# On AMD processors, the BLAS behind `nn.Linear` neither uses AVX-512 nor divides the weight among threads. oneDNN costs
# 30 microseconds more per call; it pays from _MUCH_WORK multiplications on, or from _MUCH_TO_READ elements times rows
# (at most four count). Otherwise, weights of at least _LARGE elements are divided.
_MUCH_WORK, _MUCH_TO_READ, _LARGE = 5 * 2**20, 1.2e6, 2**18
# On Intel processors, the BLAS is slow only for these numbers of rows, with weights at least this wide and this large.
_INTEL_ROWS, _INTEL_WIDTH, _INTEL_LARGE = range(8, 17), 512, 2**20
_DTYPE = torch.float32  # of the products that are made faster
_PART = 512  # outputs per part, roughly; fewer if some threads would otherwise have none
# Elements that oneDNN returns at a time. For larger results the allocator would ask the system for fresh memory each
# time, and touching that takes longer than the product itself.
_RESULT = 2**18


def _by_parts(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """`nn.Linear.forward`, with the outputs divided into parts that the threads share."""
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


def _by_onednn(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """`nn.Linear.forward` by oneDNN, in blocks of outputs."""
    weight, (outputs, width) = layer.weight, layer.weight.shape
    bias = None if layer.bias is None else layer.bias.contiguous()  # as oneDNN requires
    states, rows = inputs.reshape(-1, width).to_mkldnn(), inputs.shape[:-1].numel()
    size = max(_PART, _RESULT // rows)
    if size >= outputs:
        return nn.functional.linear(states, weight, bias).to_dense().view(*inputs.shape[:-1], outputs)
    output = inputs.new_empty(rows, outputs)
    for part in (slice(first, first + size) for first in range(0, outputs, size)):
        part_bias = None if bias is None else bias[part]
        output[:, part] = nn.functional.linear(states, weight[part], part_bias).to_dense()
    return output.view(*inputs.shape[:-1], outputs)


def is_amd_cpu() -> bool:
    """Whether this is an AMD processor: no other has SSE4a. False in older releases of PyTorch, which cannot tell."""
    return bool(getattr(torch.cpu, "get_capabilities", dict)().get("sse4a"))


def _fast_linear(is_amd: bool, layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """`nn.Linear.forward` by the method that is fastest for these inputs on this processor."""
    if not torch.compiler.is_compiling() and _is_plain(inputs):  # a compiled graph would depend on the number of rows
        rows, elements = inputs.shape[:-1].numel(), layer.weight.numel()
        if not is_amd:
            if rows in _INTEL_ROWS and layer.in_features >= _INTEL_WIDTH and elements >= _INTEL_LARGE:
                return _by_parts(layer, inputs)
        elif rows * elements >= _MUCH_WORK or min(rows, 4) * elements >= _MUCH_TO_READ:
            if torch.backends.mkldnn.is_available():
                return _by_onednn(layer, inputs)
        elif rows and elements >= _LARGE:
            return _by_parts(layer, inputs)
    return nn.functional.linear(inputs, layer.weight, layer.bias)


class _BoundLinear:
    """`nn.Linear.forward` with the parameters at hand: looking them up takes a fifth of a small layer's time."""

    def __init__(self, layer: nn.Linear):
        self.layer, self.weight, self.bias = layer, layer.weight, layer.bias

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.weight, self.bias)

    def __reduce__(self):  # so that a copy of the layer, made meanwhile, looks up its own parameters
        return partial, (nn.Linear.forward, self.layer)


def _is_plain(inputs: torch.Tensor) -> bool:
    """Whether a product is in float32, without autocast and without gradients."""
    return inputs.dtype == _DTYPE and not torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()


@contextmanager
def fast_products(modules: Iterable[nn.Module], rows: int = 320, binds: bool = False) -> Iterator[None]:
    """
    Inside this context, float32 `nn.Linear` layers on the CPU take as little as a quarter of their usual time if
    gradients are off. Results differ only in rounding. Layers whose forward method is already replaced, as by another
    such context, are left alone.

    Args:
        rows: tokens per product, roughly; if there are few, products of small layers are left alone.
        binds: look up the parameters of small layers in advance, which pays if each runs many times. They must not be
            replaced meanwhile.
    """
    least = min(_LARGE, _MUCH_WORK / rows) if (is_amd := is_amd_cpu()) else _INTEL_LARGE
    changed = []
    try:
        for module in modules:
            if type(module) is not nn.Linear or "forward" in vars(module) or not _is_plain_weight(module.weight):
                continue
            if module.weight.numel() >= least:
                # A partial, not a closure, so that a copy of the layer, made meanwhile, computes with its own weights.
                forward = partial(_fast_linear, is_amd, module)
            elif binds and (module.bias is None or _is_plain_weight(module.bias)):
                forward = _BoundLinear(module)
            else:
                continue
            vars(module)["forward"] = forward
            changed.append(module)
        yield
    finally:
        for module in changed:
            vars(module).pop("forward", None)


def _is_plain_weight(weight: torch.Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype == _DTYPE


def best_tokens(scores: torch.Tensor) -> torch.Tensor:
    """
    `scores.argmax(dim=1)` of (rows, vocabulary), several times faster on the CPU for many scores: PyTorch vectorizes
    the maximum, but not its index, so that is searched only in the first block of tokens that holds the maximum.
    """
    vocabulary = scores.shape[1]
    if scores.numel() < _MANY_SCORES or vocabulary < _BLOCK or scores.device.type != "cpu":
        return scores.argmax(dim=1)
    in_blocks = vocabulary // _BLOCK * _BLOCK
    maxima = scores[:, :in_blocks].unflatten(1, (-1, _BLOCK)).amax(dim=2)
    if in_blocks < vocabulary:
        maxima = torch.cat([maxima, scores[:, in_blocks:].amax(dim=1, keepdim=True)], dim=1)
    # The last block overlaps the one before, in which everything is smaller if the maximum is in the last.
    first = (maxima.argmax(dim=1, keepdim=True) * _BLOCK).clamp(max=vocabulary - _BLOCK)
    return first.squeeze(1) + scores.gather(1, first + torch.arange(_BLOCK, device="cpu")).argmax(dim=1)


def best_continuations(log_probs: torch.Tensor, scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `(log_probs + scores[..., None]).flatten(1).topk(count)`, several times faster on the CPU for a large vocabulary: it
    searches only the blocks of tokens with the largest maxima, which hold the best sums. Ties may break differently.

    Args:
        log_probs: of the next token of each beam, (sentences, beams, vocabulary).
        scores: of the beams, (sentences, beams).

    Returns:
        The largest sums in descending order, and their places, beam * vocabulary + token, (sentences, count) each.
    """
    beams, vocabulary = log_probs.shape[1:]
    blocks = vocabulary // _BLOCK
    if beams * blocks <= 10 * count or log_probs.device.type != "cpu":
        return (log_probs + scores[..., None]).flatten(1).topk(count)
    in_blocks = blocks * _BLOCK
    maxima = log_probs[..., :in_blocks].unflatten(2, (blocks, _BLOCK)).amax(dim=3) + scores[..., None]
    chosen = maxima.flatten(1).topk(count).indices  # (sentences, count)
    beam = chosen // blocks
    places = (beam * vocabulary + chosen % blocks * _BLOCK)[..., None] + torch.arange(_BLOCK, device="cpu")
    sums = log_probs.flatten(1).gather(1, places.flatten(1)).view_as(places) + scores.gather(1, beam)[..., None]
    rest = torch.arange(0, beams * vocabulary, vocabulary, device="cpu")[:, None]
    rest = (rest + torch.arange(in_blocks, vocabulary, device="cpu")).expand(len(places), -1, -1)
    places = torch.cat([places.flatten(1), rest.flatten(1)], dim=1)
    sums = torch.cat([sums.flatten(1), (log_probs[..., in_blocks:] + scores[..., None]).flatten(1)], dim=1)
    values, indices = sums.topk(count)
    return values, places.gather(1, indices)

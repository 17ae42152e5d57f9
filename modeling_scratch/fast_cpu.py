"""What PyTorch is slow at on the CPU, done faster below its interfaces: dropout, and generation's products and topk."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

# One 64-bit draw serves four elements: their probability is rounded to a multiple of 2^-16.
_BITS = 16
_PER_WORD = 64 // _BITS
_BLOCK = 64  # tokens of a vocabulary whose largest score is compared first
_FEW = 8  # rows for which copies of the weights would not pay
_LARGE = 2**18  # elements of a weight from which other products than the BLAS's pay


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


def _fast_forward(layer: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    """A forward pass for a layer that PyTorch's BLAS is slow for: what was fastest, by the number of rows."""
    plain, packed = layer.forward, []

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        rows, threads = inputs.shape[:-1].numel(), torch.get_num_threads()
        if inputs.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return plain(inputs)
        if rows <= _FEW and threads > 1 and layer.out_features % threads == 0:
            # The BLAS has one thread read the whole of the weight; here each reads its part.
            parts = layer.weight.view(threads, -1, layer.in_features).transpose(1, 2)
            outputs = torch.matmul(inputs.reshape(1, rows, -1).expand(threads, -1, -1), parts)
            outputs = outputs.transpose(0, 1).reshape(*inputs.shape[:-1], layer.out_features)
            return outputs if layer.bias is None else outputs + layer.bias
        if rows == 1 or (rows > 128 and layer.in_features < 256):
            return plain(inputs)
        if not packed:  # oneDNN's copies, made when they are first of use
            packed.extend([layer.weight.to_mkldnn(), None if layer.bias is None else layer.bias.to_mkldnn()])
        return nn.functional.linear(inputs.to_mkldnn(), *packed).to_dense()

    return forward


@contextmanager
def fast_products(modules: Iterable[nn.Module]) -> Iterator[None]:
    """
    While it lasts, large float32 `nn.Linear`s on the CPU take up to half of their time for the few rows of a decoding
    step, and twice their memory. Results differ in rounding. A layer whose forward something has replaced, another such
    context for one, is left alone. Without gradients only; the weights must not change meanwhile.
    """
    changed = []
    try:
        if torch.backends.mkldnn.is_available() and not torch.is_grad_enabled():
            for module in modules:
                if type(module) is nn.Linear and "forward" not in vars(module) and _is_large(module.weight):
                    module.forward = _fast_forward(module)
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

"""Dropout (section 5.4) that does not wait for a slow stream of random numbers on the CPU."""

import torch
from torch import nn

# One 64-bit draw serves four elements: their probability is rounded to a multiple of 2^-16.
_BITS = 16
_PER_WORD = 64 // _BITS


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
    """`nn.Dropout`, several times faster in eager mode on the CPU, where drawing its numbers takes most of its time."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Any shape to the same shape."""
        threshold = round(self.p * 2**_BITS)
        if not self.training or threshold == 0:
            return hidden_states
        if hidden_states.device.type != "cpu" or torch.compiler.is_compiling() or threshold == 2**_BITS:
            return super().forward(hidden_states)
        return _BitDropout.apply(hidden_states, threshold)

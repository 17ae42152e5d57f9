"""Label-smoothed cross-entropy summed over target tokens (section 5.4), plain and fused with the output projection."""

from functools import cache

import torch
from torch import nn

from .masking import can_look_at

IGNORE_INDEX = -100
# Rows of logits that exist at once. On the CPU 512 of 32,000 tokens are 62 MiB in float32, and more are not faster; a
# GPU needs more to be busy, as many as make so many logits.
CHUNK_ROWS, LOGITS_OF_GPU = 512, 2**28
# In float16 the gradients of logits are made larger by it, or the probabilities of rare tokens would lose digits.
_FLOAT16_SCALE = 16.0


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """
    The sum over target tokens of the cross-entropy with (1 - label_smoothing) on the label plus label_smoothing / V on
    every token, as `torch.nn.functional.cross_entropy` defines it.

    Args:
        logits: (batch_size, target_length, V).
        labels: (batch_size, target_length), already aligned with the logits; -100 is ignored.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(
        logits, labels.flatten().to(logits.device), reduction="sum", label_smoothing=label_smoothing
    )


def target_token_count(labels: torch.Tensor) -> torch.Tensor:
    """How many labels count; at least 1, so that a batch of ignored labels gives a loss of 0 and not NaN."""
    return (labels != IGNORE_INDEX).sum().clamp(min=1)


def _losses_and_gradient(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    all_kept: bool,
    label_smoothing: float,
    scale: float,
    with_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    The sum of the cross-entropies of rows of logits, in float32 at least, and `scale` times its gradient, in their own
    type. Compiled, it reads the logits twice; as it stands it works in place.

    Args:
        logits: (rows, V), without the bias; may be overwritten.
        bias: (V,).
        labels: (rows,); -100 is ignored, of which there is none if `all_kept`.
    """
    dtype, vocab_size = logits.dtype, logits.shape[1]
    kept, target = (labels != IGNORE_INDEX)[:, None], labels.clamp(min=0)[:, None]
    wide = torch.promote_types(dtype, torch.float32)
    target_logits = logits.gather(1, target).to(wide)
    logits = logits.to(wide)
    if bias is not None:
        logits += bias
        target_logits += bias[target]
    mean_logits = logits.mean(dim=1, keepdim=True) if label_smoothing else 0.0
    largest = logits.amax(dim=1, keepdim=True)
    probabilities = logits.sub_(largest).exp_()
    normaliser = probabilities.sum(dim=1, keepdim=True)
    log_normaliser = normaliser.log() + largest
    # -(1-e) log p(target) - e/V sum_v log p(v), with log p(v) = logit(v) - log_normaliser
    losses = log_normaliser - (1 - label_smoothing) * target_logits - label_smoothing * mean_logits
    total = losses.masked_fill(~kept, 0.0).sum()
    if not with_gradient:
        return total, None
    # d loss / d logit(v) = p(v) - e/V - (1-e) [v = target]
    everywhere = label_smoothing / vocab_size
    gradient = probabilities.div_(normaliser).sub_(everywhere)
    at_target = (target_logits - log_normaliser).exp() - everywhere - (1 - label_smoothing)
    if not all_kept or scale != 1.0:
        factors = kept.to(logits.dtype) * scale
        gradient, at_target = gradient.mul_(factors), at_target * factors
    return total, gradient.to(dtype).scatter_(1, target, at_target.to(dtype))


@cache
def _compiled_losses_and_gradient():
    return torch.compile(_losses_and_gradient, dynamic=True)


class _LinearCrossEntropy(torch.autograd.Function):
    """
    Projection, softmax and loss over chunks of rows, with the gradients made in the forward pass while a chunk's
    probabilities are at hand: the logits never exist as a whole, neither forward nor backward.
    """

    @staticmethod
    def forward(ctx, hidden_states, weight, bias, labels, all_kept, label_smoothing, dtype, compiled):
        # hidden_states: (rows, d_model); weight: (V, d_model); bias: (V,) or None; labels: (rows,); dtype: of the
        # products. Softmax, sums and scaling are in float32 at least.
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        ctx.dtypes = [None if each is None else each.dtype for each in (hidden_states, weight, bias)]
        hidden_states, weight = hidden_states.to(dtype), weight.to(dtype)
        rows, vocab_size, device = len(hidden_states), weight.shape[0], weight.device
        wide = torch.promote_types(dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=device)
        grad_hidden = torch.empty_like(hidden_states) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if wants_weight else None
        grad_bias = torch.zeros(vocab_size, dtype=wide, device=device) if wants_bias else None
        ctx.scale = _FLOAT16_SCALE if dtype == torch.float16 else 1.0
        chunks = -(-rows // (CHUNK_ROWS if device.type == "cpu" else max(CHUNK_ROWS, LOGITS_OF_GPU // vocab_size)))
        size = -(-rows // max(chunks, 1))
        # One for all chunks: to touch fresh memory takes longer than to multiply into it.
        room = hidden_states.new_empty(size, vocab_size)
        losses_and_gradient = _compiled_losses_and_gradient() if compiled else _losses_and_gradient
        settings = (all_kept, label_smoothing, ctx.scale, wants_hidden or wants_weight or wants_bias)
        for start in range(0, rows, max(size, 1)):
            place = slice(start, start + size)
            chunk = hidden_states[place]
            logits = torch.mm(chunk, weight.t(), out=room[: len(chunk)])
            losses, gradient = losses_and_gradient(logits, bias, labels[place], *settings)
            total += losses
            if gradient is None:
                continue
            if wants_bias:
                grad_bias += gradient.sum(dim=0, dtype=wide)
            if ctx.scale != 1.0:  # a sum over rows might leave float16's range by it
                chunk = chunk / ctx.scale
            if wants_hidden:
                torch.mm(gradient, weight, out=grad_hidden[place])
            if wants_weight and dtype == wide:
                grad_weight.addmm_(gradient.t(), chunk)
            elif wants_weight:
                grad_weight += torch.mm(gradient.t(), chunk)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        # In float32: rounded to bfloat16 these factors would be off by up to 0.2 %.
        factors = (grad_output / ctx.scale, grad_output, grad_output / ctx.scale)
        gradients = (
            None if gradient is None else (gradient.to(factor.dtype) * factor).to(dtype)
            for gradient, factor, dtype in zip(ctx.saved_tensors, factors, ctx.dtypes, strict=True)
        )
        return *gradients, None, None, None, None, None


def linear_cross_entropy_sum(
    hidden_states: torch.Tensor,
    head: nn.Linear,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    compiled: bool = False,
) -> torch.Tensor:
    """
    `cross_entropy_sum(head(hidden_states), labels, label_smoothing)` without ever storing the logits.

    Args:
        hidden_states: (batch_size, target_length, d_model).
        head: the output projection, weight (V, d_model).
        labels: (batch_size, target_length); -100 is ignored.
        compiled: have what is between the matrix products compiled, in one graph for all shapes.
    """
    labels, hidden_states = labels.flatten().to(hidden_states.device), hidden_states.flatten(0, -2)
    all_kept = can_look_at(labels)
    if all_kept:  # the rows of ignored labels cost nothing
        kept = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        labels, hidden_states = labels.index_select(0, kept), hidden_states.index_select(0, kept)
    weight, bias = head.weight, head.bias
    if not torch.is_grad_enabled():  # which a Function cannot see
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    device_type = hidden_states.device.type
    autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if autocast else hidden_states.dtype
    return _LinearCrossEntropy.apply(hidden_states, weight, bias, labels, all_kept, label_smoothing, dtype, compiled)

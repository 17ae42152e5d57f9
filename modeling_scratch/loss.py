"""Label-smoothed cross-entropy summed over target tokens (section 5.4), plain and fused with the output projection."""

import torch
from torch import nn

IGNORE_INDEX = -100
# Rows of logits that exist at once: 512 rows of 32,000 tokens are 62 MiB in float32, and more are not faster.
CHUNK_ROWS = 512
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


class _LinearCrossEntropy(torch.autograd.Function):
    """
    Projection, softmax and loss over chunks of rows, with the gradients made in the forward pass while a chunk's
    probabilities are at hand: the logits never exist as a whole, neither forward nor backward.
    """

    @staticmethod
    def forward(ctx, hidden_states, weight, bias, labels, label_smoothing, ignored_left_out, dtype):
        # hidden_states: (rows, d_model); weight: (V, d_model); bias: (V,) or None; labels: (rows,), of which none is
        # ignored if `ignored_left_out`; dtype: of the products. Softmax, sums and scaling are in float32 at least.
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        ctx.dtypes = [None if each is None else each.dtype for each in (hidden_states, weight, bias)]
        hidden_states, weight = hidden_states.to(dtype), weight.to(dtype)
        vocab_size = weight.shape[0]
        wide = torch.promote_types(dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=hidden_states.device)
        grad_hidden = torch.empty_like(hidden_states) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if wants_weight else None
        grad_bias = torch.zeros(vocab_size, dtype=wide, device=weight.device) if wants_bias else None
        ctx.scale = _FLOAT16_SCALE if dtype == torch.float16 else 1.0
        # One for all chunks: to touch fresh memory takes longer than to multiply into it.
        room = hidden_states.new_empty(min(CHUNK_ROWS, hidden_states.shape[0]), vocab_size)
        for start in range(0, hidden_states.shape[0], CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            chunk, kept = hidden_states[rows], labels[rows] != IGNORE_INDEX
            target = labels[rows].clamp(min=0).unsqueeze(1)
            torch.mm(chunk, weight.t(), out=room[: len(chunk)])
            logits = room[: len(chunk)].to(wide)  # (CHUNK_ROWS, V)
            if bias is not None:
                logits += bias
            target_logits = logits.gather(1, target).squeeze(1)
            mean_logits = logits.mean(dim=1) if label_smoothing else 0.0
            largest = logits.amax(dim=1, keepdim=True)
            probabilities = logits.sub_(largest).exp_()
            normaliser = probabilities.sum(dim=1, keepdim=True)
            log_normaliser = (normaliser.log() + largest).squeeze(1)
            # -(1-e) log p(target) - e/V sum_v log p(v), with log p(v) = logit(v) - log_normaliser
            losses = log_normaliser - (1 - label_smoothing) * target_logits - label_smoothing * mean_logits
            total += (losses if ignored_left_out else losses.masked_fill(~kept, 0.0)).sum()
            if not (wants_hidden or wants_weight or wants_bias):
                continue
            # d loss / d logit(v) = p(v) - e/V - (1-e) [v = target]
            gradient = probabilities.div_(normaliser)
            if label_smoothing:
                gradient.sub_(label_smoothing / vocab_size)
            gradient.scatter_add_(1, target, torch.full_like(target, label_smoothing - 1, dtype=wide))
            if not ignored_left_out:
                gradient.masked_fill_(~kept.unsqueeze(1), 0.0)
            if wants_bias:
                grad_bias += gradient.sum(dim=0)
            if ctx.scale != 1.0:  # a sum over rows might leave float16's range by it
                gradient, chunk = gradient.mul_(ctx.scale), chunk / ctx.scale
            gradient = gradient.to(dtype)
            if wants_hidden:
                torch.mm(gradient, weight, out=grad_hidden[rows])
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
        factors = (grad_output / ctx.scale, grad_output, grad_output)
        gradients = (
            None if gradient is None else (gradient.to(factor.dtype) * factor).to(dtype)
            for gradient, factor, dtype in zip(ctx.saved_tensors, factors, ctx.dtypes, strict=True)
        )
        return *gradients, None, None, None, None


def linear_cross_entropy_sum(
    hidden_states: torch.Tensor, head: nn.Linear, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """
    `cross_entropy_sum(head(hidden_states), labels, label_smoothing)` without ever storing the logits. Ignored labels
    cost nothing: their rows are left out.

    Args:
        hidden_states: (batch_size, target_length, d_model).
        head: the output projection, weight (V, d_model).
        labels: (batch_size, target_length); -100 is ignored.
    """
    labels, hidden_states = labels.flatten().to(hidden_states.device), hidden_states.flatten(0, -2)
    leave_out = not torch.compiler.is_compiling()  # a graph's shapes must not depend on the labels
    if leave_out:
        kept = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        labels, hidden_states = labels.index_select(0, kept), hidden_states.index_select(0, kept)
    weight, bias = head.weight, head.bias
    if not torch.is_grad_enabled():  # which a Function cannot see
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    device_type = hidden_states.device.type
    autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if autocast else hidden_states.dtype
    return _LinearCrossEntropy.apply(hidden_states, weight, bias, labels, label_smoothing, leave_out, dtype)

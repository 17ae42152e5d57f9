"""Labels, and label-smoothed cross-entropy (section 5.4): plain, and fused with the output projection."""

from functools import cache

import torch
from torch import nn

from .masking import can_look_at

IGNORE_INDEX = -100
# How many rows of logits the fused loss holds at once. On the CPU, 512 rows of 32,000 tokens take 62 MiB in float32,
# and more are no faster. A GPU needs larger chunks to be busy: this many logits.
CHUNK_ROWS, LOGITS_OF_GPU = 512, 2**28
# Scales up the gradients of float16 logits, where the probabilities of rare tokens would lose digits.
_FLOAT16_SCALE = 16.0


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """
    The decoder input that predicts `labels` (section 3.1: "the output embeddings are offset by one position").

    Args:
        labels: (batch_size, target_length); -100 becomes padding.

    Returns:
        (batch_size, target_length).
    """
    if pad_token_id is None or decoder_start_token_id is None:
        raise ValueError(
            "the decoder's input cannot be made from labels: pad_token_id and decoder_start_token_id are "
            f"{pad_token_id} and {decoder_start_token_id} in the config; set them, or give decoder_input_ids"
        )
    shifted = labels.new_empty(labels.shape)
    shifted[:, 1:] = labels[:, :-1]
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill_(shifted == IGNORE_INDEX, pad_token_id)


def check_labels(labels: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """
    The labels as int64, (batch_size, target_length).

    Raises:
        ValueError: they have another shape; or, where they can be read for free, one is outside the vocabulary.
    """
    if labels.ndim != 2 or labels.is_floating_point():
        raise ValueError(
            f"labels has shape {tuple(labels.shape)} and {labels.dtype}; it must be integers (batch_size, "
            "target_length)"
        )
    if can_look_at(labels):
        wrong = labels[((labels < 0) | (labels >= vocab_size)) & (labels != IGNORE_INDEX)]
        if wrong.numel():
            raise ValueError(
                f"labels holds {wrong[0].item()}; ids must be in [0, {vocab_size}), the vocabulary, or {IGNORE_INDEX} "
                "to be ignored. Does the tokenizer belong to this model?"
            )
    return labels.long()


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """
    Label-smoothed cross-entropy summed over target tokens, as `torch.nn.functional.cross_entropy` defines it: the
    target distribution is (1 - label_smoothing) on the label plus label_smoothing / V on every token.

    Args:
        logits: (batch_size, target_length, V).
        labels: (batch_size, target_length), aligned with the logits; -100 is ignored.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(
        logits, labels.flatten().to(logits.device), reduction="sum", label_smoothing=label_smoothing
    )


def target_token_count(labels: torch.Tensor) -> torch.Tensor:
    """The number of labels not ignored, but at least 1: a batch without labels has a loss of 0, not NaN."""
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
    The summed cross-entropy of rows of logits and its gradient. In eager mode it works in place; compiled, it reads the
    logits twice.

    Args:
        logits: (rows, V), without the bias; may be overwritten.
        bias: (V,).
        labels: (rows,); -100 is ignored.
        all_kept: no label is -100.
        scale: factor on the gradient.

    Returns:
        The sum, in float32 or wider; and the gradient with respect to the logits, (rows, V), in their dtype.
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
    Projection, softmax and loss in chunks of rows. The gradients are computed in the forward pass, while a chunk's
    probabilities are at hand, so that the logits never exist as a whole.
    """

    @staticmethod
    def forward(ctx, hidden_states, weight, bias, labels, all_kept, label_smoothing, dtype, compiled):
        # hidden_states: (rows, d_model); weight: (V, d_model); bias: (V,) or None; labels: (rows,). `dtype` is that of
        # the matrix products; softmax, sums and scaling use float32 or wider.
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
        # One buffer for all chunks: touching fresh memory takes longer than multiplying into it.
        buffer = hidden_states.new_empty(size, vocab_size)
        losses_and_gradient = _compiled_losses_and_gradient() if compiled else _losses_and_gradient
        settings = (all_kept, label_smoothing, ctx.scale, wants_hidden or wants_weight or wants_bias)
        for start in range(0, rows, max(size, 1)):
            rows_of_chunk = slice(start, start + size)
            chunk = hidden_states[rows_of_chunk]
            logits = torch.mm(chunk, weight.t(), out=buffer[: len(chunk)])
            losses, gradient = losses_and_gradient(logits, bias, labels[rows_of_chunk], *settings)
            total += losses
            if gradient is None:
                continue
            if wants_bias:
                grad_bias += gradient.sum(dim=0, dtype=wide)
            if ctx.scale != 1.0:  # a scaled sum over rows might overflow float16
                chunk = chunk / ctx.scale
            if wants_hidden:
                torch.mm(gradient, weight, out=grad_hidden[rows_of_chunk])
            if wants_weight and dtype == wide:
                grad_weight.addmm_(gradient.t(), chunk)
            elif wants_weight:
                grad_weight += torch.mm(gradient.t(), chunk)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        # Kept in float32: rounded to bfloat16, these factors would be off by up to 0.2 %.
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
        compiled: compile what lies between the matrix products, in one graph for all shapes.
    """
    labels, hidden_states = labels.flatten().to(hidden_states.device), hidden_states.flatten(0, -2)
    all_kept = can_look_at(labels)
    if all_kept:  # drop the rows of ignored labels first
        kept = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        labels, hidden_states = labels.index_select(0, kept), hidden_states.index_select(0, kept)
    weight, bias = head.weight, head.bias
    if not torch.is_grad_enabled():  # a Function cannot see it
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    device_type = hidden_states.device.type
    autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if autocast else hidden_states.dtype
    return _LinearCrossEntropy.apply(hidden_states, weight, bias, labels, all_kept, label_smoothing, dtype, compiled)

"""The loss that training minimizes (section 5.4), fused with the output projection, so that logits are never stored."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from ..model import ScratchForConditionalGeneration  # noqa: F401 (registers the model with the Auto classes)
from ..model.masking import IGNORE_INDEX, can_look_at
from ..model.modeling_scratch import divisor

# How many rows of logits the fused loss holds at once. On the CPU, 512 rows of 32,000 tokens take 62 MiB in float32,
# and more are no faster. A GPU needs larger chunks to stay busy: this many logits.
CHUNK_ROWS, LOGITS_OF_GPU = 512, 2**28
# Scales up the gradients of float16 logits, where the probabilities of rare tokens would lose digits.
_FLOAT16_SCALE = 16.0


@dataclass(frozen=True)
class TrainingLoss:
    """
    A `fused_loss` for the model's forward pass, whose loss is then a pair: the loss to minimize and, without a
    gradient, the cross-entropy without label smoothing, as in evaluation.

    Args:
        label_smoothing: as in `cross_entropy_sum`.
        compiled: as in `linear_cross_entropy_sum`.

    Raises:
        ValueError: label_smoothing is not in [0, 1).
    """

    label_smoothing: float = 0.0
    compiled: bool = False

    def __post_init__(self):
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; it must be in [0, 1)")

    def __call__(
        self,
        hidden_states: torch.Tensor,
        head: nn.Module,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            hidden_states: of the decoder, (batch_size, target_length, d_model).
            head: the output projection. Its weight is read without calling its hooks.
            labels: (batch_size, target_length); -100 is ignored.
            num_items_in_batch: what to divide the sums by; None: the number of labels that are not ignored.
        """
        # A head that is wrapped or whose forward is replaced, as by adapters and offloading, must be called.
        if type(head) is nn.Linear and "forward" not in vars(head):
            loss, plain = linear_cross_entropy_sum(hidden_states, head, labels, self.label_smoothing, self.compiled)
        else:
            logits = head(hidden_states)
            loss = cross_entropy_sum(logits, labels, self.label_smoothing)
            plain = cross_entropy_sum(logits.detach(), labels)
        count = divisor(labels, num_items_in_batch)
        return loss / count, plain / count


def fused_cross_entropy(*arguments) -> torch.Tensor:
    """A `fused_loss` for evaluation: the cross-entropy alone. The arguments are those of TrainingLoss."""
    return TrainingLoss()(*arguments)[0]


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """
    Label-smoothed cross-entropy summed over target tokens, as `torch.nn.functional.cross_entropy` defines it: the
    target distribution is (1 - label_smoothing) on the label plus label_smoothing / V on every token.

    Args:
        logits: (batch_size, target_length, V).
        labels: (batch_size, target_length), aligned with the logits; -100 is ignored.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.flatten().to(logits.device)
    return nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)


def _losses_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, label_weight: float, gradient: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """
    For each row of logits: the loss, log(sum_v exp(logit(v))) - label_weight logit(label), where label_weight is 1 -
    label_smoothing; the label's log-probability; and the gradient of the loss.

    Args:
        logits: (rows, V).
        labels: (rows,), in [0, V).
        gradient: (rows, V), where the gradient may be written; None: it is not needed.

    Returns:
        The losses and log-probabilities, each (rows,), in float32 or wider; and the gradient with respect to the
        logits, (rows, V).
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    label_logits = logits.gather(1, labels[:, None]).squeeze(1).to(wide)
    if gradient is None:
        log_normalizer = logits.to(wide).logsumexp(dim=1)
        return log_normalizer - label_weight * label_logits, label_logits - log_normalizer, None
    # Softmax is a single kernel that computes in float32 and rounds its result. It does not return the normalizer, but
    # the largest logit and its probability determine it. If the label is probable, the other tokens determine it more
    # exactly: the label's own probability, rounded, hides how far it is from 1.
    torch.softmax(logits, 1, out=gradient)
    log_normalizer = logits.amax(dim=1).to(wide) - gradient.amax(dim=1).to(wide).log()
    others = gradient.sum(dim=1, dtype=wide) - gradient.gather(1, labels[:, None]).squeeze(1).to(wide)
    by_others = label_logits - torch.log1p(-others.clamp(max=0.5))
    log_normalizer = torch.where(others < 0.5, by_others, log_normalizer)
    losses, label_log_probs = log_normalizer - label_weight * label_logits, label_logits - log_normalizer
    # d loss / d logit(v) = p(v) - label_weight [v = label]
    rows = torch.arange(len(labels), device=labels.device)
    gradient.index_put_((rows, labels), (label_log_probs.exp() - label_weight).to(gradient.dtype))
    return losses, label_log_probs, gradient


def _textbook_losses_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, label_weight: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`_losses_and_gradient` as one writes it down, which a compiler turns into two passes over the logits."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_normalizer = wide.logsumexp(dim=1)
    label_logits = wide.gather(1, labels[:, None]).squeeze(1)
    is_label = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
    gradient = (wide - log_normalizer[:, None]).exp() - is_label.to(wide.dtype) * label_weight
    return log_normalizer - label_weight * label_logits, label_logits - log_normalizer, gradient.to(logits.dtype)


@cache
def _compiled_losses_and_gradient() -> Callable:
    return torch.compile(_textbook_losses_and_gradient, dynamic=True)


class _LinearCrossEntropy(torch.autograd.Function):
    """
    Projection, softmax and loss in chunks of rows. The gradients are computed in the forward pass, while a chunk's
    probabilities are at hand, so that the logits never exist as a whole.
    """

    @staticmethod
    def forward(ctx, hidden_states, weight, bias, labels, all_kept, label_weight, dtype, compiled):
        # hidden_states: (rows, d_model); weight: (V, d_model); bias: (V,) or None; labels: (rows,), none ignored if
        # `all_kept`; `label_weight` as in `_losses_and_gradient`. `dtype` is that of the matrix products; sums use
        # float32 or wider.
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        ctx.dtypes = [None if factor is None else factor.dtype for factor in (hidden_states, weight, bias)]
        ctx.scale = _FLOAT16_SCALE if dtype == torch.float16 else 1.0
        hidden_states, weight = hidden_states.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        rows, vocab_size, device = len(hidden_states), weight.shape[0], weight.device
        wide = torch.promote_types(dtype, torch.float32)
        ignored, labels = labels[:, None] == IGNORE_INDEX, labels.clamp(min=0)
        total, cross_entropy = (torch.zeros((), dtype=wide, device=device) for _ in range(2))
        grad_hidden = torch.empty_like(hidden_states) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if wants_weight else None
        grad_bias = torch.zeros(vocab_size, dtype=wide, device=device) if wants_bias else None
        chunks = -(-rows // (CHUNK_ROWS if device.type == "cpu" else max(CHUNK_ROWS, LOGITS_OF_GPU // vocab_size)))
        size = -(-rows // max(chunks, 1))
        # The same buffers for all chunks: touching fresh memory takes longer than multiplying into it.
        has_gradient = wants_hidden or wants_weight or wants_bias
        buffers = hidden_states.new_empty(1 + has_gradient, size, vocab_size)
        for start in range(0, rows, max(size, 1)):
            here = slice(start, start + size)
            chunk, is_ignored = hidden_states[here], ignored[here]
            logits, gradient = buffers[0, : len(chunk)], buffers[1, : len(chunk)] if has_gradient else None
            if bias is None:
                torch.mm(chunk, weight.t(), out=logits)
            else:
                torch.addmm(bias, chunk, weight.t(), out=logits)
            is_scaled = has_gradient and ctx.scale != 1.0
            if is_scaled:
                logits, gradient = logits.to(wide), torch.empty_like(logits, dtype=wide)
            if compiled and has_gradient:
                losses, log_probs, gradient = _compiled_losses_and_gradient()(logits, labels[here], label_weight)
            else:
                losses, log_probs, gradient = _losses_and_gradient(logits, labels[here], label_weight, gradient)
            if is_scaled:
                gradient = gradient.mul_(ctx.scale).to(dtype)
            if not all_kept:
                losses, log_probs = (values.masked_fill(is_ignored[:, 0], 0.0) for values in (losses, log_probs))
            total, cross_entropy = total + losses.sum(), cross_entropy - log_probs.sum()
            if wants_bias:
                kept = gradient if all_kept else gradient.masked_fill(is_ignored, 0.0)
                grad_bias += kept.sum(dim=0, dtype=wide)
            if wants_hidden:
                torch.mm(gradient, weight, out=grad_hidden[here])
            if not all_kept:
                chunk = chunk.masked_fill(is_ignored, 0.0)
            if is_scaled:  # a scaled sum over rows might overflow float16
                chunk = chunk / ctx.scale
            if wants_weight and dtype == wide:
                grad_weight.addmm_(gradient.t(), chunk)
            elif wants_weight:
                grad_weight += torch.mm(gradient.t(), chunk)
        if wants_hidden and not all_kept:
            grad_hidden.masked_fill_(ignored, 0.0)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(cross_entropy)
        return total, cross_entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, _):
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `cross_entropy_sum(head(hidden_states), labels, label_smoothing)` without ever storing the logits; and, without a
    gradient, the same without smoothing.

    Args:
        hidden_states: (batch_size, target_length, d_model).
        head: the output projection, weight (V, d_model).
        labels: (batch_size, target_length); -100 is ignored.
        compiled: compile what is between the products.

    Raises:
        ValueError: another label is negative, where that can be known without waiting for the device.
    """
    labels, hidden_states = labels.flatten().to(hidden_states.device), hidden_states.flatten(0, -2)
    can_drop = can_look_at(labels)
    if can_drop:  # rows with ignored labels, so that none is ignored
        kept = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        labels, hidden_states = labels.index_select(0, kept), hidden_states.index_select(0, kept)
        if (labels < 0).any():
            raise ValueError(f"labels holds {int(labels.min())}; {IGNORE_INDEX} is what is ignored")
    weight: torch.Tensor = head.weight
    bias: torch.Tensor | None = head.bias
    if not torch.is_grad_enabled():  # a Function cannot see that gradients are off
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    device_type = hidden_states.device.type
    autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if autocast else hidden_states.dtype
    with torch.autocast(device_type, enabled=False):
        options = (can_drop, 1 - label_smoothing, dtype, compiled)
        total, cross_entropy = _LinearCrossEntropy.apply(hidden_states, weight, bias, labels, *options)
        if label_smoothing:
            total = total - label_smoothing * _sum_of_mean_logits(hidden_states, weight, bias, labels, total.dtype)
        return total, cross_entropy


def _sum_of_mean_logits(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The mean logit of each row, summed over rows whose label is not ignored, without computing any logit."""
    kept = (labels != IGNORE_INDEX).to(dtype)
    total = torch.dot((kept[:, None] * hidden_states).sum(dim=0), weight.mean(dim=0, dtype=dtype))
    return total if bias is None else total + kept.sum() * bias.mean(dtype=dtype)

"""The loss that training minimises (section 5.4), fused with the output projection, so that logits are never stored."""

from dataclasses import dataclass

import torch
from torch import nn

from ..model.loss import IGNORE_INDEX, divisor
from ..model.masking import can_look_at

# How many rows of logits the fused loss holds at once. On the CPU, 512 rows of 32,000 tokens take 62 MiB in float32,
# and more are no faster. A GPU needs larger chunks to stay busy: this many logits.
CHUNK_ROWS, LOGITS_OF_GPU = 512, 2**28
# Scales up the gradients of float16 logits, where the probabilities of rare tokens would lose digits.
_FLOAT16_SCALE = 16.0


@dataclass(frozen=True)
class TrainingLoss:
    """
    A `fused_loss` for the model's forward pass, which then returns a pair as its loss: the loss, and the cross-entropy
    without label smoothing and R-Drop, as an evaluation computes it, without a gradient.

    Args:
        label_smoothing: in [0, 1); it and r_drop as in `cross_entropy_sum`.

    Raises:
        ValueError: label_smoothing is out of range; or, when called, r_drop is set and the batch's second half cannot
            repeat its first.
    """

    label_smoothing: float = 0.0
    r_drop: float = 0.0

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
        if self.r_drop and len(labels) % 2:
            raise ValueError(f"r_drop needs a batch whose second half repeats its first, not {len(labels)} rows")
        # A head that is wrapped or whose forward is replaced, as by adapters and offloading, must be called.
        if type(head) is nn.Linear and "forward" not in vars(head):
            loss, plain = linear_cross_entropy_sum(hidden_states, head, labels, self.label_smoothing, self.r_drop)
        else:
            logits = head(hidden_states)
            loss = cross_entropy_sum(logits, labels, self.label_smoothing, self.r_drop)
            plain = cross_entropy_sum(logits.detach(), labels) / (2 if self.r_drop else 1)
        count = divisor(labels, num_items_in_batch)
        return loss / count, plain / count


def fused_cross_entropy(*arguments) -> torch.Tensor:
    """A `fused_loss` for evaluation: the cross-entropy alone. The arguments are those of TrainingLoss."""
    return TrainingLoss()(*arguments)[0]


def cross_entropy_sum(
    logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0, r_drop: float = 0.0
) -> torch.Tensor:
    """
    Label-smoothed cross-entropy summed over target tokens, as `torch.nn.functional.cross_entropy` defines it: the
    target distribution is (1 - label_smoothing) on the label plus label_smoothing / V on every token.

    Args:
        logits: (batch_size, target_length, V).
        labels: (batch_size, target_length), aligned with the logits; -100 is ignored.
        r_drop: R-Drop's weight a (Wu et al. 2021, https://arxiv.org/abs/2106.14448). Above 0, the second half of the
            batch must repeat the first under other dropout; the result is the mean of both halves' cross-entropies,
            plus a/4 of KL(p || q) + KL(q || p), where p and q are what the halves predict for a token.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.flatten().to(logits.device)
    total = nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    if not r_drop:
        return total
    first, second = logits.log_softmax(dim=1).chunk(2)
    divergence = ((first.exp() - second.exp()) * (first - second)).sum(dim=1)
    return total / 2 + r_drop / 4 * divergence.masked_fill(labels[: len(first)] == IGNORE_INDEX, 0.0).sum()


def _losses_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, share: float, r_drop: float, gradient: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """
    For each row of logits: the loss, log(sum_v exp(logit(v))) - share logit(label); the label's log-probability; and
    the gradient of the loss.

    Args:
        logits: (rows, V); may be overwritten.
        labels: (rows,), in [0, V).
        r_drop: half of `cross_entropy_sum`'s, a/2. Above 0, the rows are pairs, and the first loss of each includes
            a/2 (KL(p || q) + KL(q || p)).
        gradient: (rows, V), where the gradient may be written; None: it is not needed.

    Returns:
        The losses and log-probabilities, each (rows,), in float32 or wider; and the gradient with respect to the
        logits, (rows, V).
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    label_logits = logits.gather(1, labels[:, None]).squeeze(1).to(wide)
    if gradient is None:
        log_normaliser = logits.to(wide).logsumexp(dim=1)
        return log_normaliser - share * label_logits, label_logits - log_normaliser, None
    # Softmax is a single kernel that computes in float32 and rounds its result. It does not return the normaliser, but
    # the largest logit and its probability determine it. If the label is probable, the other tokens determine it more
    # exactly: the label's own probability, rounded, hides how far it is from 1.
    torch.softmax(logits, 1, out=gradient)
    log_normaliser = logits.amax(dim=1).to(wide) - gradient.amax(dim=1).to(wide).log()
    others = gradient.sum(dim=1, dtype=wide) - gradient.gather(1, labels[:, None]).squeeze(1).to(wide)
    by_others = label_logits - torch.log1p(-others.clamp(max=0.5))
    log_normaliser = torch.where(others < 0.5, by_others, log_normaliser)
    losses, label_log_probs = log_normaliser - share * label_logits, label_logits - log_normaliser
    # d loss / d logit(v) = p(v) - share [v = label]
    at_label = label_log_probs.exp()
    if r_drop:
        gradient, at_label, divergence = _add_r_drop(logits, gradient, log_normaliser, label_log_probs, r_drop)
        losses[::2] += r_drop * divergence
    rows = torch.arange(len(labels), device=labels.device)
    gradient.index_put_((rows, labels), (at_label - share).to(gradient.dtype))
    return losses, label_log_probs, gradient


def _add_r_drop(
    logits: torch.Tensor,
    probabilities: torch.Tensor,
    log_normaliser: torch.Tensor,
    label_log_probs: torch.Tensor,
    weight: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    Add the gradient of `weight` (KL(p || q) + KL(q || p)) to p, the gradient of a cross-entropy without its label term.

    Args:
        logits: (rows, V), overwritten; the rows are pairs.
        probabilities: (rows, V), their softmax.
        log_normaliser, label_log_probs: (rows,).

    Returns:
        The gradient, (rows, V); its elements at the labels, computed more exactly, (rows,); and
        KL(p || q) + KL(q || p), (rows / 2,).
    """
    # With d = log p - log q: d/d logit_p = p (d - KL(p || q) + 1) - q, and the same with p and q exchanged.
    p, q, gap = probabilities[::2], probabilities[1::2], log_normaliser[::2] - log_normaliser[1::2]
    # In place: `logits` holds d, then p d and q d, and at the end the gradient.
    d = logits[::2].sub_(logits[1::2]).sub_(gap[:, None])
    q_times_d = torch.mul(d, q, out=logits[1::2])
    p_times_d = d.mul_(p)
    p_to_q, q_to_p = p_times_d.sum(dim=1, dtype=gap.dtype), -q_times_d.sum(dim=1, dtype=gap.dtype)
    p_factor, q_factor = 1 + weight * (1 - p_to_q), 1 + weight * (1 - q_to_p)
    p_times_d.sub_(q).mul_(weight).addcmul_(p, p_factor[:, None].to(p.dtype))
    q_times_d.add_(p).mul_(-weight).addcmul_(q, q_factor[:, None].to(q.dtype))
    label_d, (label_p, label_q) = label_log_probs[::2] - label_log_probs[1::2], label_log_probs.exp().view(-1, 2).t()
    at_label = (
        label_p * (p_factor + weight * label_d) - weight * label_q,
        label_q * (q_factor - weight * label_d) - weight * label_p,
    )
    return logits, torch.stack(at_label, dim=1).flatten(), p_to_q + q_to_p


class _LinearCrossEntropy(torch.autograd.Function):
    """
    Projection, softmax and loss in chunks of rows. The gradients are computed in the forward pass, while a chunk's
    probabilities are at hand, so that the logits never exist as a whole.
    """

    @staticmethod
    def forward(ctx, hidden_states, weight, bias, labels, all_kept, share, r_drop, dtype):
        # hidden_states: (rows, d_model); weight: (V, d_model); bias: (V,) or None; labels: (rows,), none ignored if
        # `all_kept`; `share` and `r_drop` as in `_losses_and_gradient`. `dtype` is that of the matrix products; sums
        # use float32 or wider.
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        ctx.dtypes = [None if each is None else each.dtype for each in (hidden_states, weight, bias)]
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
        size = -(-rows // max(2 * chunks, 1)) * 2  # even: pairs of rows stay together
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
            losses, log_probs, gradient = _losses_and_gradient(logits, labels[here], share, r_drop, gradient)
            if is_scaled:
                gradient = gradient.mul_(ctx.scale).to(dtype)
            if not all_kept:
                losses, log_probs = (each.masked_fill(is_ignored[:, 0], 0.0) for each in (losses, log_probs))
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
    r_drop: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `cross_entropy_sum(head(hidden_states), labels, label_smoothing, r_drop)` without ever storing the logits; and,
    without a gradient, the same without smoothing and R-Drop.

    Args:
        hidden_states: (batch_size, target_length, d_model).
        head: the output projection, weight (V, d_model).
        labels: (batch_size, target_length); -100 is ignored.
    """
    if r_drop:  # bring the two predictions of each token together
        labels, hidden_states = (torch.stack(each.chunk(2), dim=2).flatten(0, 1) for each in (labels, hidden_states))
    labels, hidden_states = labels.flatten().to(hidden_states.device), hidden_states.flatten(0, -2)
    can_drop = can_look_at(labels)
    if can_drop:  # the rows of ignored labels, so that all others are kept
        kept = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        labels, hidden_states = labels.index_select(0, kept), hidden_states.index_select(0, kept)
    weight, bias = head.weight, head.bias
    if not torch.is_grad_enabled():  # a Function cannot see that gradients are off
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    device_type = hidden_states.device.type
    autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if autocast else hidden_states.dtype
    with torch.autocast(device_type, enabled=False):
        options = (can_drop, 1 - label_smoothing, r_drop / 2, dtype)
        total, cross_entropy = _LinearCrossEntropy.apply(hidden_states, weight, bias, labels, *options)
        if label_smoothing:
            total = total - label_smoothing * _sum_of_mean_logits(hidden_states, weight, bias, labels, total.dtype)
        return (total / 2, cross_entropy / 2) if r_drop else (total, cross_entropy)


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

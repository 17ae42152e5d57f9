"""The loss: cross-entropy over target tokens."""

import torch
from torch import nn

IGNORE_INDEX = -100


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """
    -log p(label), averaged over target tokens.

    Args:
        logits: (batch_size, target_length, V).
        labels: (batch_size, target_length), aligned with the logits; -100 is ignored.
        num_items_in_batch: what to divide the sum by; None: the number of labels here that are not ignored.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.flatten().to(logits.device, torch.int64)
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    total = nn.functional.cross_entropy(logits, labels, reduction="sum")
    return total / divisor(labels, num_items_in_batch)


def divisor(labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor | int:
    """
    What to divide a sum over target tokens by: `num_items_in_batch`, or else the number of labels that are not ignored,
    at least 1 so that a batch without labels has a loss of 0, not NaN.
    """
    return (labels != IGNORE_INDEX).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch

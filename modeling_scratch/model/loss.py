"""Labels: the decoder's input that predicts them, and the loss."""

import torch
from torch import nn

from .masking import can_look_at

IGNORE_INDEX = -100


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
        ValueError: they are not 2-D integers; or, where they can be read for free, one is outside the vocabulary.
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
    labels = labels.flatten().to(logits.device)
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

"""Attention masks: checking them, and turning them into the bias that is added to the scores."""

import torch
from torch import nn

IGNORE_INDEX = -100  # the label of tokens that the loss leaves out


def can_look_at(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values can be read for free: without waiting for a device, and not inside a traced graph."""
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return tensor.device.type == "cpu" and type(tensor) is torch.Tensor and not tracing


def check_mask(name: str, attention_mask: torch.Tensor, batch_size: int, key_length: int | None) -> None:
    """
    Raise ValueError for a mask that is neither (batch_size, key_length) nor of four dimensions ending with key_length.

    Args:
        key_length: None if it cannot be known without waiting for the device.
    """
    shape = tuple(attention_mask.shape)
    fits = len(shape) == 4 or (len(shape) == 2 and shape[0] == batch_size)
    if not fits or (key_length is not None and shape[-1] != key_length):
        raise ValueError(
            f"{name} has shape {shape}; these inputs need ({batch_size}, {key_length}), or four dimensions, of which "
            f"the last is {key_length}"
        )


def is_all_attended(attention_mask: torch.Tensor) -> bool:
    """Whether the mask is known to hide nothing."""
    return can_look_at(attention_mask) and bool((attention_mask != 0).all())


def count_positions(attention_mask: torch.Tensor) -> torch.Tensor:
    """Positions that count only attended tokens, so that padding shifts nothing; shaped like the 2-D mask."""
    return ((attention_mask != 0).cumsum(dim=-1) - 1).clamp(min=0)


def as_bias(attention_mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """
    Turn a mask into the additive bias that every attention implementation takes: 0 attends, the dtype's minimum hides.
    A query with nothing to attend to, as in padding, attends to everything: its output is meaningless but finite.

    Args:
        attention_mask: (batch_size, key_length), where nonzero attends; or 4-D, either boolean or integer with the same
            meaning, or float and already a bias.

    Returns:
        A 4-D bias, with a single query row where all queries see the same; or, outside training, None if nothing is
        hidden.
    """
    if attention_mask is None:
        return None
    if attention_mask.ndim == 4 and attention_mask.is_floating_point():
        bias = attention_mask.to(dtype).clamp(min=torch.finfo(dtype).min)
        return bias.masked_fill(bias.amax(dim=-1, keepdim=True) == torch.finfo(dtype).min, 0.0)
    # In training, few batches lack padding, and compiled layers must get the same kind of argument for every batch.
    if attention_mask.ndim == 2 and not torch.is_grad_enabled() and is_all_attended(attention_mask):
        return None
    attend = attention_mask != 0 if attention_mask.ndim == 4 else (attention_mask != 0)[:, None, None, :]
    hidden = ~attend & attend.any(dim=-1, keepdim=True)
    return torch.zeros(attend.shape, dtype=dtype, device=attend.device).masked_fill(hidden, torch.finfo(dtype).min)


def source_bias(attention_mask: torch.Tensor | None, states: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """`as_bias` of a mask over the source. ValueError if it does not fit its states, (batch_size, length, d_model)."""
    if attention_mask is not None:
        check_mask("attention_mask", attention_mask, *states.shape[:2])
    return as_bias(attention_mask, dtype)


def causal_mask(
    attention_mask: torch.Tensor | None,
    query_length: int,
    key_length: int,
    past_length: int | torch.Tensor,
    device: torch.device,
) -> torch.Tensor:
    """
    The mask that hides later positions (section 3.2.3) and whatever `attention_mask` hides.

    Args:
        attention_mask: (batch_size, past_length + query_length); None: no padding.
        key_length: past_length + query_length, or the whole size of a static cache.

    Returns:
        (batch_size or 1, 1, query_length, key_length), where True attends.
    """
    queries = torch.arange(query_length, device=device) + past_length
    attend = torch.arange(key_length, device=device) <= queries[:, None]  # (query_length, key_length)
    if attention_mask is not None:
        unused = key_length - attention_mask.shape[1]  # empty slots of a static cache
        attend = attend & nn.functional.pad(attention_mask != 0, (0, unused))[:, None, None, :]
    return attend.view(-1, 1, query_length, key_length)


def check_segments(name: str, segment_ids: torch.Tensor, states: torch.Tensor, *masks: torch.Tensor | None) -> None:
    """ValueError if segments do not fit their states, (batch_size, length, d_model), or come with a mask or a cache."""
    if any(mask is not None for mask in masks):
        raise ValueError(f"{name} takes the place of masks; with one, or with a cache, it cannot be used")
    if segment_ids.shape != states.shape[:2]:
        needed = tuple(states.shape[:2])
        raise ValueError(f"{name} has shape {tuple(segment_ids.shape)}; these inputs need {needed}")


def own_segment(queries: torch.Tensor, keys: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """
    The mask of rows that hold several sequences each: a token attends to its own segment only.

    Args:
        queries, keys: (batch_size, query_length) and (batch_size, key_length): the number of each token's segment; 0 is
            padding.
        is_causal: hide later tokens too.

    Returns:
        (batch_size, 1, query_length, key_length), where True attends.
    """
    attend = queries[:, None, :, None] == keys[:, None, None, :]
    if is_causal:
        places = torch.arange(queries.shape[1], device=queries.device)
        attend = attend & (places <= places[:, None])
    return attend


def begins_segment(segment_ids: torch.Tensor) -> torch.Tensor:
    """Whether each token is the first of its segment, (batch_size, sequence_length)."""
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return begins


def positions_in_segments(segment_ids: torch.Tensor) -> torch.Tensor:
    """
    Positions that count from the first token of each segment, (batch_size, sequence_length). Those of padding are 0,
    since a row may have more of it than there are learned positions.
    """
    places = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    positions = places - places.masked_fill(~begins_segment(segment_ids), 0).cummax(dim=1).values
    return positions.masked_fill(segment_ids == 0, 0)

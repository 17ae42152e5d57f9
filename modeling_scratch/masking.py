"""What may be attended to and where tokens stand: masks of every kind brought to the form each backend expects."""

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.utils.import_utils import is_tracing

from .configuration_scratch import ScratchConfig

# An additive bias of this or less hides a key. Masks in the wild use -inf, the dtype's minimum, or BERT's -10000.
HIDDEN_BIAS = -1e4


def attended(attention_mask: torch.Tensor) -> torch.Tensor:
    """A mask of any dtype (boolean or integer: nonzero attends; float: added to the scores) as True where attended."""
    if attention_mask.is_floating_point():
        return attention_mask > HIDDEN_BIAS
    return attention_mask != 0


def as_bias(attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """
    A mask as the rest of this file reads it: a float mask (batch_size, sequence_length) with values above 0 holds ones
    and zeros, as some tools make them, and becomes boolean. Decided on the device, so that it is true of graphs too.
    """
    if attention_mask is None or attention_mask.ndim != 2 or not attention_mask.is_floating_point():
        return attention_mask
    ones_and_zeros = (attention_mask > 0).any()
    hidden = torch.where(ones_and_zeros, attention_mask <= 0, attention_mask <= HIDDEN_BIAS)
    bias = attention_mask.clamp(max=0) * ~ones_and_zeros
    return bias.masked_fill(hidden, float("-inf"))


def count_positions(
    attention_mask: torch.Tensor | None, length: int, past_length: int | torch.Tensor, device: torch.device
) -> torch.Tensor:
    """
    The position of each of the last `length` tokens: attended tokens before it, so that padding moves nothing.

    Args:
        attention_mask: (batch_size, past_length + length), or None or 4-D: then all count.
        length: tokens in this call.
        past_length: tokens already in the cache.

    Returns:
        (batch_size, length), or (1, length) where all sequences agree.
    """
    if attention_mask is None or attention_mask.ndim == 4:
        return (torch.arange(length, device=device) + past_length).unsqueeze(0)
    return (attended(attention_mask).cumsum(dim=-1) - 1).clamp(min=0)[:, -length:]


def check_mask(
    name: str,
    attention_mask: torch.Tensor | None,
    batch_size: int,
    num_heads: int,
    query_length: int,
    key_length: int | None,
    may_have_room: bool = False,
) -> None:
    """
    Raise ValueError for a mask that cannot belong to these inputs.

    Args:
        key_length: None where it is not known without asking the device.
        may_have_room: a 4-D mask may have more keys than there are: the free places of a static cache.
    """
    if attention_mask is None:
        return
    if not isinstance(attention_mask, torch.Tensor):
        raise ValueError(f"{name} is a {type(attention_mask).__name__}; it must be a tensor")
    shape = tuple(attention_mask.shape)
    if attention_mask.ndim not in (2, 4):
        raise ValueError(f"{name} has shape {shape}; it must be (batch_size, sequence_length) or 4-D")
    if attention_mask.ndim == 4:
        fits = shape[0] in (1, batch_size) and shape[1] in (1, num_heads) and shape[2] in (1, query_length)
        if key_length is not None:
            fits = fits and (shape[3] == key_length or (may_have_room and shape[3] > key_length))
        if not fits:
            raise ValueError(
                f"{name} has shape {shape}; these inputs need ({batch_size}, 1 or {num_heads}, {query_length}, "
                f"{key_length})"
            )
    elif shape[0] != batch_size or (key_length is not None and shape[1] != key_length):
        raise ValueError(f"{name} has shape {shape}; these inputs need ({batch_size}, {key_length})")


def _for_backend(
    config: ScratchConfig, attention_mask: torch.Tensor, inputs_embeds: torch.Tensor
) -> torch.Tensor | BlockMask:
    """
    A 4-D mask as the attention implementation takes it: eager adds a float; sdpa, which takes over from flash where
    there is such a mask, reads True for attend, or adds a float in which -inf hides; flex asks a function.
    """
    implementation, dtype = config._attn_implementation, inputs_embeds.dtype
    floating = attention_mask.is_floating_point()
    if implementation == "flex_attention":
        if floating:
            raise ValueError(
                f"a mask of {attention_mask.dtype} cannot go to flex_attention; use attn_implementation='sdpa', or an "
                "integer or boolean mask"
            )
        return _block_mask(attended(attention_mask), inputs_embeds.shape[1])
    hidden = torch.finfo(dtype).min if implementation == "eager" else float("-inf")
    if floating:
        return attention_mask.to(dtype).masked_fill(attention_mask <= HIDDEN_BIAS, hidden)
    attend = attended(attention_mask)
    if implementation == "eager":
        return torch.zeros((), dtype=dtype, device=attend.device).where(attend, hidden)
    return attend


def _block_mask(attend: torch.Tensor, query_length: int) -> BlockMask:
    """attend, (batch_size or 1, heads or 1, query_length or 1, key_length), True attends, as flex reads it."""
    batch_size, heads, rows, key_length = attend.shape

    def may_attend(batch, head, query, key):
        return attend[batch, head if heads > 1 else 0, query if rows > 1 else 0, key]

    return create_block_mask(
        may_attend,
        B=batch_size if batch_size > 1 else None,
        H=heads if heads > 1 else None,
        Q_LEN=query_length,
        KV_LEN=key_length,
        device=attend.device,
    )


def bidirectional_mask(
    config: ScratchConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    encoder_hidden_states: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """
    The mask of encoder self-attention, or, with `encoder_hidden_states`, of cross-attention.

    Args:
        inputs_embeds: (batch_size, query_length, d_model), read for its shape and dtype.
        attention_mask: (batch_size, key_length) or (batch_size, 1 or heads, query_length, key_length).
        encoder_hidden_states: (batch_size, key_length, d_model), if the keys are not the queries' own.

    Returns:
        None where everything is attended to; or 4-D, with one row for all queries where they see the same; or what
        else the backend takes.
    """
    if attention_mask is None:
        return None
    if attention_mask.ndim == 4:
        return _for_backend(config, attention_mask, inputs_embeds)
    if attention_mask.is_floating_point():
        return _for_backend(config, attention_mask[:, None, None, :], inputs_embeds)
    attend = attended(attention_mask)
    # Flash would take a mask of the source for one of the queries too; the mask below sends it to sdpa.
    cross_flash = encoder_hidden_states is not None and "flash" in config._attn_implementation
    if config._attn_implementation in ("eager", "sdpa") or cross_flash:
        # Transformers' helper would write a row for each query.
        if not is_tracing(attend) and attend.all():
            return None
        return _for_backend(config, attend[:, None, None, :], inputs_embeds)
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=attend,
        encoder_hidden_states=encoder_hidden_states,
    )


def causal_mask(
    config: ScratchConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache | None,
) -> torch.Tensor | None:
    """
    The mask of decoder self-attention: no position attends to a later one (section 3.2.3), nor to padding.

    Args:
        inputs_embeds: (batch_size, query_length, d_model), read for its shape and dtype.
        attention_mask: (batch_size, past_length + query_length); or 4-D, which is then the whole mask.
        past_key_values: the cache, read for the length of the past.

    Returns:
        4-D, or None where the backend's causal flag suffices, or what else the backend takes.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        return _for_backend(config, attention_mask, inputs_embeds)
    bias = attention_mask if attention_mask is not None and attention_mask.is_floating_point() else None
    if bias is None:
        return create_causal_mask(
            config=config,
            inputs_embeds=inputs_embeds,
            attention_mask=None if attention_mask is None else attended(attention_mask),
            past_key_values=past_key_values,
        )
    query_length, key_length = inputs_embeds.shape[1], bias.shape[1]
    rows = torch.arange(key_length - query_length, key_length, device=bias.device)
    later = torch.arange(key_length, device=bias.device) > rows[:, None]  # (query_length, key_length)
    return _for_backend(config, bias[:, None, None, :].masked_fill(later, float("-inf")), inputs_embeds)

"""What may be attended to and where tokens stand: masks of every kind brought to the form each backend expects."""

import torch
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from .configuration_scratch import ScratchConfig

# An additive bias of this or less hides a key. Masks in the wild use -inf, the dtype's minimum, or BERT's -10000.
HIDDEN_BIAS = -1e4


def attended(attention_mask: torch.Tensor) -> torch.Tensor:
    """A mask of any dtype (boolean or integer: nonzero attends; float: added to the scores) as True where attended."""
    if attention_mask.is_floating_point():
        return attention_mask > HIDDEN_BIAS
    return attention_mask != 0


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


def check_mask(name: str, attention_mask: torch.Tensor | None, batch_size: int, length: int | None) -> None:
    """
    Raise ValueError for a mask that cannot belong to these inputs. `length` is None where it is not known without
    asking the device.
    """
    if attention_mask is None or not isinstance(attention_mask, torch.Tensor):
        return
    shape = tuple(attention_mask.shape)
    if attention_mask.ndim not in (2, 4):
        raise ValueError(f"{name} has shape {shape}; it must be (batch_size, sequence_length) or 4-D")
    if attention_mask.ndim == 2:
        if shape[0] != batch_size or (length is not None and shape[1] != length):
            raise ValueError(f"{name} has shape {shape}; these inputs need ({batch_size}, {length})")
        # A float mask of ones and zeros would be added to the scores and hide nothing.
        readable = attention_mask.device.type == "cpu" and not torch.compiler.is_compiling()
        if attention_mask.is_floating_point() and readable and (attention_mask > 0).any():
            raise ValueError(
                f"{name} is floating point, so it is added to the scores, but holds values above 0; for a mask of "
                "ones and zeros pass an integer or boolean tensor"
            )


def _for_backend(config: ScratchConfig, attention_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """
    A 4-D mask as the attention implementation takes it: eager adds a float; sdpa takes True for attend, or adds a
    float in which -inf hides.
    """
    eager = config._attn_implementation == "eager"
    if attention_mask.is_floating_point():
        hidden = torch.finfo(dtype).min if eager else float("-inf")
        return attention_mask.masked_fill(attention_mask <= HIDDEN_BIAS, hidden).to(dtype)
    attend = attended(attention_mask)
    if not eager:
        return attend
    return torch.zeros((), dtype=dtype, device=attend.device).where(attend, torch.finfo(dtype).min)


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
        4-D, or None where everything is attended to.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        return _for_backend(config, attention_mask, inputs_embeds.dtype)
    if attention_mask is not None and attention_mask.is_floating_point():
        return _for_backend(config, attention_mask[:, None, None, :], inputs_embeds.dtype)
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=None if attention_mask is None else attended(attention_mask),
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
        4-D, or None where the backend's causal flag suffices.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        return _for_backend(config, attention_mask, inputs_embeds.dtype)
    bias = attention_mask if attention_mask is not None and attention_mask.is_floating_point() else None
    mask = create_causal_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=None if attention_mask is None else attended(attention_mask),
        past_key_values=past_key_values,
        allow_is_causal_skip=bias is None,
    )
    if bias is None:
        return mask
    bias = _for_backend(config, bias[:, None, None, :], inputs_embeds.dtype)
    if mask.dtype == torch.bool:
        return bias.where(mask, float("-inf"))
    return torch.minimum(mask, bias.expand_as(mask)).where(mask < 0, bias)

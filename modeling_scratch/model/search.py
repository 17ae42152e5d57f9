"""
When `generate()` runs our own loops, and how they get what it has prepared.

`generate` itself prepares everything (config, encoder, criteria, processors) and hands it to a loop by its
`custom_generate`, the public way to bring one. What our loops do not do, Transformers' loops do.
"""

import copy
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.generation import GenerationMixin, StoppingCriteriaList, StopStringCriteria
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from .fast_cpu import fast_products
from .masking import check_mask
from .search_loops import Decoder, beam_search, is_of_transformers, sample

logger = logging.get_logger(__name__)

# Arguments of `generate` that the loops understand, beside settings of a GenerationConfig.
_ARGUMENTS = {"inputs", "input_ids", "inputs_embeds", "attention_mask", "position_ids", "encoder_outputs"}
_ARGUMENTS |= {"decoder_input_ids", "generation_config", "logits_processor", "stopping_criteria", "streamer"}
_ARGUMENTS |= {"prefix_allowed_tokens_fn", "synced_gpus", "tokenizer", "trust_remote_code"}
# Settings with which Transformers' loops do something else.
_OTHERS = ("output_attentions", "output_hidden_states", "low_memory", "prefill_chunk_size", "is_assistant")
_OTHERS += ("prompt_lookup_num_tokens", "penalty_alpha", "dola_layers", "constraints", "force_words_ids")
_OTHERS += ("token_healing",)
_MODES = ("greedy_search", "sample", "beam_search")


class _NotHere(Exception):
    """What `generate` has prepared is not what the loops take: its own must do it."""


def search(model: nn.Module, inherited: Callable, *args, **kwargs):
    """
    `generate`: `inherited(*args, **kwargs)`, by the loops below where they do the same.

    Args:
        model: a ScratchForConditionalGeneration.
        inherited: the `generate` that GenerationMixin has.
    """
    settings = _settings(model, args, kwargs)
    if settings is None:
        return inherited(*args, **kwargs)
    if "custom_generate" not in inspect.signature(GenerationMixin.generate).parameters:
        logger.warning_once("this release of Transformers takes no loops of ours: generation is slower")
        return inherited(*args, **kwargs)
    ours = {name: value for name, value in kwargs.items() if name != "custom_generate"}
    if encoded := ours.get("encoder_outputs"):  # which `generate` expands in place, if it is no tuple
        ours["encoder_outputs"] = BaseModelOutput(*encoded) if isinstance(encoded, tuple) else copy.copy(encoded)
    tokenizer, stop_strings = ours.pop("tokenizer", None), settings("stop_strings")
    if stop_strings:  # with a loop that is not its own, `generate` does not make this criterion
        ours["stop_strings"] = None
        ended = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)
        ours["stopping_criteria"] = StoppingCriteriaList([*(kwargs.get("stopping_criteria") or []), ended])
    try:
        return inherited(*args, **ours, custom_generate=partial(_run, streamer=kwargs.get("streamer")))
    except _NotHere as reason:
        if str(reason):
            logger.warning_once(f"this release of Transformers takes no loops of ours ({reason}): generation is slower")
        return inherited(*args, **kwargs)


def _is_distributed() -> bool:
    """Whether there is a process group, be it of one process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _settings(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Callable[[str], Any] | None:
    """What looks up a setting as `generate` will have it; None where our loops do not do what is asked for."""
    config = kwargs.get("generation_config", args[1] if len(args) > 1 else None)
    given = [config, model.generation_config]
    wanted = {name for name, value in kwargs.items() if value is not None and value is not False}

    def setting(name: str) -> Any:
        values = [kwargs.get(name), *(getattr(each, name, None) for each in given)]
        return next((value for value in values if value is not None), None)

    if _is_distributed() and kwargs.get("synced_gpus") is None and torch.distributed.get_world_size() > 1:
        return None  # a model in shards must step on all processes alike
    can_end = kwargs.get("stop_strings") and kwargs.get("tokenizer")
    can_end = can_end and not any(getattr(each, "stop_strings", None) for each in given)  # which cannot be taken out
    plain = (
        len(args) <= 2
        and not kwargs.get("synced_gpus")
        and all(name in _ARGUMENTS or hasattr(model.generation_config, name) for name in wanted)
        and not any(setting(name) for name in _OTHERS)
        and setting("cache_implementation") in (None, "dynamic")
        and setting("use_cache") is not False
        and not ((setting("do_sample") or kwargs.get("streamer")) and (setting("num_beams") or 1) > 1)
        and not (model.training and model.is_gradient_checkpointing)  # which takes the cache away
        and (can_end or not setting("stop_strings"))
    )
    return setting if plain else None


def _run(model: nn.Module, input_ids: torch.Tensor, *args, streamer: Any = None, **prepared):
    """What `generate` calls with all that it has prepared."""
    names = ("logits_processor", "stopping_criteria", "generation_config", "encoder_outputs")
    if missing := [name for name in names if prepared.get(name) is None]:
        raise _NotHere(f"{', '.join(missing)} missing")
    if not len(input_ids):
        raise ValueError("there is nothing to generate from: the batch has no rows")
    processors, criteria, config, encoded = (prepared[name] for name in names)
    states, mask = encoded["last_hidden_state"], prepared.get("attention_mask")
    if config.get_generation_mode().value not in _MODES or len(states) != len(input_ids):
        raise _NotHere
    if mask is not None:
        check_mask("attention_mask", mask, len(states), 1, 1, states.shape[1])
    beams = max(config.num_beams or 1, config.num_return_sequences or 1)
    decoder = Decoder(model, states[::beams], None if mask is None else mask[::beams], beams)
    # Small steps take an eighth less of their time in inference mode. What is returned is cloned out of it; strangers'
    # processors must not meet its tensors, nor can what shards a model.
    strange = not all(map(is_of_transformers, [*criteria, *processors])) or _is_distributed()
    layers = [*model.get_decoder().modules(), model.get_output_embeddings()]
    with nullcontext() if strange else torch.inference_mode(), fast_products(layers):
        if (config.num_beams or 1) > 1:
            found = beam_search(decoder, input_ids, processors, criteria, config)
        else:
            found = sample(decoder, input_ids, processors, criteria, config, streamer)
    return _clone(found)


def _clone(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return found.clone()
    if isinstance(found, tuple):
        return tuple(map(_clone, found))
    return type(found)(**{name: _clone(value) for name, value in found.items()})

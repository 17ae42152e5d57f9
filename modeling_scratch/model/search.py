"""
Decide when `generate()` runs our own search loops, and hand them what it has prepared.

The inherited `generate` prepares everything (config, encoder output, criteria, processors) and hands it to a loop
through its public argument `custom_generate`. Whatever our loops do not support runs in Transformers' loops.
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

from .batched_generation import setting_of
from .beam_search import beam_search
from .fast_cpu import fast_products
from .search_loops import Decoder, is_of_transformers, sample

logger = logging.get_logger(__name__)

# Arguments of `generate` that our loops support, in addition to the fields of a GenerationConfig.
_ARGUMENTS = {"inputs", "input_ids", "inputs_embeds", "attention_mask", "position_ids", "encoder_outputs"}
_ARGUMENTS |= {"decoder_input_ids", "generation_config", "logits_processor", "stopping_criteria", "synced_gpus"}
_ARGUMENTS |= {"prefix_allowed_tokens_fn", "tokenizer", "trust_remote_code"}
# Fields of a GenerationConfig that our loops do not support.
_UNSUPPORTED = ("output_attentions", "output_hidden_states", "low_memory", "token_healing", "is_assistant")
_UNSUPPORTED += ("prompt_lookup_num_tokens", "penalty_alpha", "dola_layers", "constraints", "force_words_ids")
_MODES = ("greedy_search", "sample", "beam_search")


class _Unsupported(Exception):
    """Transformers' loops must run instead. The message, if any, says what this release lacks."""


def search(model: nn.Module, inherited: Callable, *args, **kwargs):
    """
    `inherited(*args, **kwargs)`, run by our own loops where they support what it asks for.

    Args:
        model: a ScratchForConditionalGeneration.
        inherited: the `generate` of GenerationMixin.
    """
    kwargs.pop("labels", None)  # from Seq2SeqTrainer; `generate` does not use them
    if not _is_supported(model, args, kwargs):
        return inherited(*args, **kwargs)
    ours = {name: value for name, value in kwargs.items() if name != "custom_generate"}
    if encoded := ours.get("encoder_outputs"):  # a copy, because `generate` expands its tensors in place
        ours["encoder_outputs"] = BaseModelOutput(*encoded) if isinstance(encoded, tuple) else copy.copy(encoded)
    has_config = len(args) > 1 or kwargs.get("generation_config")  # to which `generate` wants no argument added
    if not has_config and setting_of(model, kwargs, "cache_implementation") is None:
        ours["use_cache"] = False  # our loops have a cache of their own
    tokenizer, stop_strings = ours.pop("tokenizer", None), ours.pop("stop_strings", None)
    if stop_strings:  # `generate` makes this criterion only for its own loops
        criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)
        ours["stopping_criteria"] = StoppingCriteriaList([*(kwargs.get("stopping_criteria") or []), criterion])
    try:
        if "custom_generate" not in inspect.signature(GenerationMixin.generate).parameters:
            raise _Unsupported("custom_generate missing")
        encoder = set(model.get_encoder().modules())
        others = [module for module in model.modules() if module not in encoder]
        with fast_products(encoder):
            return inherited(*args, **ours, custom_generate=partial(_run, others))
    except _Unsupported as reason:
        if str(reason):
            logger.warning_once(
                f"this release of Transformers does not support this project's search loops ({reason}): generation is "
                "slower"
            )
        return inherited(*args, **kwargs)


def _is_distributed() -> bool:
    """Whether there is a process group, even of a single process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_supported(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether our loops do what `generate` with these arguments asks for."""
    given = {"generation_config": args[1] if len(args) > 1 else None} | kwargs
    setting = partial(setting_of, model, given)
    wanted = {name for name, value in kwargs.items() if value is not None and value is not False}
    if _is_distributed() and kwargs.get("synced_gpus") is None and torch.distributed.get_world_size() > 1:
        return False  # the processes of a sharded model must take the same steps
    # Stop strings cannot be taken out of a config, and `generate` would look for them without a tokenizer.
    stops_by_argument = kwargs.get("stop_strings") and kwargs.get("tokenizer")
    stops_by_config = setting_of(model, given | {"stop_strings": None}, "stop_strings")
    return bool(
        len(args) <= 2
        and not kwargs.get("synced_gpus")
        and all(name in _ARGUMENTS or hasattr(model.generation_config, name) for name in wanted)
        and not any(setting(name) for name in _UNSUPPORTED)
        and setting("cache_implementation") in (None, "dynamic")
        and setting("use_cache") is not False
        and not (setting("do_sample") and (setting("num_beams") or 1) > 1)
        and len(set(getattr(model, "hf_device_map", {}).values())) <= 1  # one index selects from all layers' caches
        and not model.training  # gradient checkpointing disables the cache in training mode
        and not stops_by_config
        and (stops_by_argument or not kwargs.get("stop_strings"))
    )


def _run(modules: list[nn.Module], model: nn.Module, input_ids: torch.Tensor, *args, **prepared):
    """The `custom_generate` that `generate` calls with everything it has prepared. modules: those of each step."""
    names = ("logits_processor", "stopping_criteria", "generation_config", "encoder_outputs")
    if missing := [name for name in names if prepared.get(name) is None]:
        raise _Unsupported(f"{', '.join(missing)} missing")
    if not len(input_ids):
        raise ValueError("there is nothing to generate from: the batch has no rows")
    processors, criteria, config, encoded = (prepared[name] for name in names)
    states, mask = encoded["last_hidden_state"], prepared.get("attention_mask")
    if config.get_generation_mode().value not in _MODES or len(states) != len(input_ids):
        raise _Unsupported
    if mask is not None and mask.shape != states.shape[:2]:  # rows of a 4-D mask may be shared, so not be selected
        raise _Unsupported
    beams = config.num_beams or 1
    decoder = Decoder(model, states[::beams], None if mask is None else mask[::beams], beams)
    # Inference mode saves an eighth of the time of small steps. Custom processors and sharded models cannot handle its
    # tensors, and may replace parameters during the search; callers get ordinary tensors, cloned outside it.
    is_plain = all(map(is_of_transformers, [*criteria, *processors])) and not _is_distributed()
    products = fast_products(modules, len(input_ids), binds=is_plain)
    with torch.inference_mode() if is_plain else nullcontext(), products:
        if beams > 1:
            found = beam_search(decoder, input_ids, processors, criteria, config)
        else:
            found = sample(decoder, input_ids, processors, criteria, config)
    return _clone(found)


def _clone(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return found.clone()
    if isinstance(found, tuple):
        return tuple(map(_clone, found))
    return type(found)(**{name: _clone(value) for name, value in found.items()})

"""A model's generation settings, for runtimes that have no `generate()`."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...model import ScratchForConditionalGeneration

logger = logging.getLogger(__name__)

# Settings that only `generate()` has.
NEEDS_GENERATE = ("do_sample", "forced_bos_token_id", "forced_eos_token_id")
NEEDS_GENERATE += ("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "exponential_decay_length_penalty")
NEEDS_GENERATE += ("sequence_bias", "stop_strings", "max_time", "guidance_scale", "diversity_penalty")
NEEDS_GENERATE += ("force_words_ids", "constraints", "penalty_alpha", "dola_layers", "token_healing")
NEEDS_GENERATE += ("watermarking_config",)


def as_list(ids: int | list[int] | None) -> list[int]:
    """The token ids in a field that holds one, several or none."""
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


@dataclass(frozen=True)
class SearchSettings:
    """How `generate()` searches by default. Lengths are in new tokens, including the end token."""

    start: int | None
    num_beams: int
    length_penalty: float
    early_stopping: bool | str
    shortest: int
    longest: int
    ends: list[int]
    banned: list[list[int]]  # sequences of tokens that must not occur


def read_search(model: ScratchForConditionalGeneration) -> SearchSettings:
    """The search settings of a model, from its generation config and the limit of its positions."""
    generation, config = model.generation_config, model.config
    # `max_length` and `min_length` include the start token. The default is 20 new tokens.
    longest = generation.max_new_tokens or (generation.max_length or 21) - 1
    if config.position_embedding_type == "learned":
        longest = min(longest, config.max_position_embeddings)
    start = generation.decoder_start_token_id
    ends = as_list(generation.eos_token_id) or as_list(config.eos_token_id)
    # As in `generate()`, bad_words_ids cannot ban an end token.
    bad_words = [words for words in generation.bad_words_ids or [] if words not in [[end] for end in ends]]
    return SearchSettings(
        start=config.decoder_start_token_id if start is None else start,
        num_beams=generation.num_beams or 1,
        length_penalty=1.0 if generation.length_penalty is None else generation.length_penalty,
        early_stopping=generation.early_stopping or False,
        shortest=generation.min_new_tokens or max(0, (generation.min_length or 0) - 1),
        longest=longest,
        ends=ends,
        banned=[*bad_words, *([token] for token in generation.suppress_tokens or [])],
    )


def settings_in_use(model: ScratchForConditionalGeneration, names: Iterable[str]) -> list[str]:
    """Those of these generation settings that have an effect."""
    neutral = {"repetition_penalty": 1.0}
    values = {name: getattr(model.generation_config, name, None) for name in names}
    return [name for name, value in values.items() if value and value != neutral.get(name)]


def warn_of_settings(model: ScratchForConditionalGeneration, more: Sequence[str], where: str) -> list[str]:
    """
    Warn about the generation settings in `NEEDS_GENERATE` and `more` that an export leaves out. Returns the warnings.
    """
    if not (found := settings_in_use(model, (*NEEDS_GENERATE, *more))):
        return []
    warning = f"{where} does not support the generation settings {', '.join(found)}, which are left out"
    logger.warning(warning)
    return [warning]

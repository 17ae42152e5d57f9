"""
A model's generation settings, for runtimes that have no `generate()`.

What every conversion does: copy tokenizers, compare the result with the original.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import MarianMTModel, PreTrainedModel
from transformers.utils import cached_file

from ...commands.cli import print_if_possible
from ...errors import UserError
from ...loading import TOKENIZER_FILES, load_config, load_tokenizers, load_translator, save_tokenizers
from ...model.configuration_scratch import ScratchConfig
from ...model.modeling_scratch import ScratchForConditionalGeneration
from ...model.translation_pipeline import TARGET_FOLDER
from .marian import widen

logger = logging.getLogger(__name__)

# Settings that none of the target runtimes has.
NEEDS_GENERATE = ("do_sample", "forced_bos_token_id", "forced_eos_token_id")
NEEDS_GENERATE += ("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "exponential_decay_length_penalty")
NEEDS_GENERATE += ("sequence_bias", "stop_strings", "max_time", "guidance_scale", "diversity_penalty")
NEEDS_GENERATE += ("force_words_ids", "constraints", "penalty_alpha", "dola_layers", "token_healing")
NEEDS_GENERATE += ("watermarking_config",)


def as_list(ids: int | list[int] | None) -> list[int]:
    """The ids in a field that may hold one token id, several or none."""
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


@dataclass(frozen=True)
class SearchSettings:
    """How `generate()` searches by default. Lengths count new tokens, including the end token."""

    start: int | None
    num_beams: int
    length_penalty: float
    early_stopping: bool | str
    shortest: int
    longest: int
    ends: list[int]
    banned: list[list[int]]  # sequences of tokens that must not occur


def read_search(model: ScratchForConditionalGeneration) -> SearchSettings:
    """How a model searches, according to its generation config and the limit of its positions."""
    generation, config = model.generation_config, model.config
    # `max_length` and `min_length` count the start token. The default is 20 new tokens.
    longest = generation.max_new_tokens or (generation.max_length or 21) - 1
    if config.position_embedding_type == "learned":
        longest = min(longest, config.max_position_embeddings)
    start = generation.decoder_start_token_id
    ends = as_list(generation.eos_token_id) or as_list(config.eos_token_id)
    # As `generate()` does, which never bans the end by bad_words_ids.
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


def warn_of_settings(model: ScratchForConditionalGeneration, more: Sequence[str], where: str) -> None:
    """Warn about a generation config's settings that `where` leaves out: those in `NEEDS_GENERATE` and `more`."""
    neutral = {"repetition_penalty": 1.0}
    values = {name: getattr(model.generation_config, name, None) for name in (*NEEDS_GENERATE, *more)}
    found = [name for name, value in values.items() if value and value != neutral.get(name)]
    if found:
        logger.warning(f"{where} leaves out the generation settings {', '.join(found)}")


LARGEST_DIFFERENCE = 1e-4  # between logits, in float32


def load_model(name: str, model_type: str) -> PreTrainedModel:
    """The translator in a folder or on the Hub, in its own dtype. UserError if it has another type or lacks weights."""
    config = load_config(name)
    if config.model_type != model_type:
        raise UserError(f"{name} is a {config.model_type} model; this command reads a {model_type} model")
    return load_translator(name)


def carry_tokenizers(name: str, folder: Path, both: bool = False) -> None:
    """
    Copy the tokenizers of a model folder or Hub name to a folder. Warn if there are none.

    Args:
        both: one that is shared is written for each side, as a model with two embeddings needs it.
    """
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    found = [file for file in TOKENIZER_FILES if cached_file(name, file, **quiet)]
    if not found:
        logger.warning(f"{name} has no tokenizer, so the converted model has none either")
        return
    if "source.spm" in found:
        import sentencepiece  # noqa: F401, from an extra of this package; first, so that the error names the extra
    limit = getattr(load_config(name), "max_position_embeddings", None)
    source, target = load_tokenizers(name)
    save_tokenizers(source, target, folder, limit)
    if both and target is source:
        save_tokenizers(source, source, folder / TARGET_FOLDER, limit)


@torch.inference_mode()
def verify(read: nn.Module, written: nn.Module, config: ScratchConfig) -> float:
    """
    Print and return the largest difference between two models' logits, in float32, on random right-padded ids.

    Args:
        read, written: take input_ids, attention_mask and decoder_input_ids; return logits, or outputs that have them.
        config: gives the vocabularies and the longest sequence.

    Raises:
        UserError: the difference is above `LARGEST_DIFFERENCE`.
    """
    random = torch.Generator().manual_seed(0)
    length = min(48, config.max_position_embeddings)
    mask = torch.arange(length) < torch.tensor([[length], [(length + 1) // 2], [1]])
    inputs = {
        "input_ids": torch.randint(config.vocab_size, mask.shape, generator=random),
        "attention_mask": mask.long(),
        "decoder_input_ids": torch.randint(config.target_vocab_size, mask.shape, generator=random),
    }
    models = [widen(model) if isinstance(model, MarianMTModel) else model.float() for model in (read, written)]
    outputs = [model.eval()(**inputs) for model in models]
    first, second = (getattr(output, "logits", output) for output in outputs)
    difference = (first - second).abs().max().item()
    largest = first.abs().max().item()
    found = f"{difference:.1e} (of logits up to {largest:.1f})"
    print_if_possible(f"largest logit difference on random ids, in float32: {found}")
    _check_difference(difference, "logits")
    return difference


Scorer = Callable[[list[list[int]], list[list[int]]], list[list[float]]]


def verify_scores(model: ScratchForConditionalGeneration, scorer: Scorer) -> None:
    """
    Print the largest difference between the two models' log-probabilities of random tokens. UserError if it is too
    large.

    Args:
        scorer: takes the tokens of sources and targets; returns the converted model's log-probabilities of each
            target's tokens and of the end token after them.
    """
    config, search, random = model.config, read_search(model), torch.Generator().manual_seed(0)
    lengths = [max(1, min(length, config.max_position_embeddings - 1)) for length in (48, 7, 1)]
    sources, targets = (
        [torch.randint(size, (length,), generator=random).tolist() for length in lengths]
        for size in (config.vocab_size, config.target_vocab_size)
    )
    difference = 0.0
    for source, target, found in zip(sources, targets, scorer(sources, targets), strict=True):
        before, after = [search.start, *target], [*target, search.ends[0]]
        with torch.inference_mode():
            logits = model(
                input_ids=torch.tensor([source]),
                attention_mask=torch.ones(1, len(source), dtype=torch.long),
                decoder_input_ids=torch.tensor([before]),
            ).logits[0]
        expected = logits.log_softmax(dim=-1)[torch.arange(len(after)), after]
        difference = max(difference, (expected - torch.tensor(found)).abs().max().item())
    print_if_possible(f"largest difference of log-probabilities of random ids, in float32: {difference:.1e}")
    _check_difference(difference, "log-probabilities")


def _check_difference(difference: float, what: str) -> None:
    if not difference <= LARGEST_DIFFERENCE:  # also if it is NaN
        raise UserError(
            f"the conversion went wrong: {what} differ by up to {difference:.1e}, more than {LARGEST_DIFFERENCE:.0e}; "
            "nothing was written"
        )


def convert_folder(src: str, folder: Path, model_type: str, convert: Callable) -> float:
    """Write a converted model folder. Returns the largest difference that `verify` found."""
    read = load_model(src, model_type)
    converted = convert(read)
    converted.save_pretrained(folder)
    config = converted.config
    both = config.decoder_vocab_size is not None and not config.share_encoder_decoder_embeddings
    carry_tokenizers(src, folder, both)
    scratch = read if model_type == ScratchConfig.model_type else converted
    return verify(read, load_translator(str(folder)), scratch.config)

"""What a run starts from, as its recipe asks: processes and devices, tokenizers, model."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

from .configuration_scratch import ScratchConfig
from .data import SOURCE, TARGET
from .modeling_scratch import ScratchForConditionalGeneration
from .recipe import Recipe, model_fields
from .tokenizer import adopt_tokenizer, load_tokenizers, sample_sentences, train_tokenizer, vocabulary_size

logger = logging.getLogger(__name__)

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]


def make_accelerator(recipe: Recipe | None = None) -> Accelerator:
    """Processes, devices and precision as `accelerate launch` or its config set them."""
    trackers = recipe.trackers if recipe else []
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        log_with=trackers or None,
        project_dir=recipe.output_dir if trackers else None,
    )


def on_main(accelerator: Accelerator, function: Callable[[], Any]) -> Any:
    """Run on the main process and give every process the result, or the exception: none waits for one that failed."""
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = function()
        except Exception as error:
            if accelerator.num_processes == 1:
                raise
            outcome[1] = error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def main_first(accelerator: Accelerator, function: Callable[[], Any]) -> Any:
    """Run on the main process, then on the others, which find what it cached. If it fails there, it fails on all."""
    results: list[Any] = []
    on_main(accelerator, lambda: results.append(function()))
    return results[0] if results else function()


def make_tokenizers(recipe: Recipe, train: Dataset) -> Tokenizers:
    """Adopt or train the source's and the target's tokenizer: one object if they share a vocabulary."""
    if recipe.model.start_from:
        return load_tokenizers(recipe.model.start_from)
    section = recipe.tokenizer
    if section.existing:
        tokenizer = adopt_tokenizer(section.existing)
        return tokenizer, tokenizer
    made = []
    for columns in [[SOURCE, TARGET]] if section.shared else [[SOURCE], [TARGET]]:
        sentences, total = sample_sentences(train, columns, section.max_sentences, recipe.seed)
        tokenizer = train_tokenizer(sentences, section.vocab_size)
        logger.info(f"tokenizer: {len(tokenizer):,} tokens from {total:,} sentences ({', '.join(columns)})")
        made.append(tokenizer)
    return made[0], made[-1]


def make_model(recipe: Recipe, tokenizers: Tokenizers) -> PreTrainedModel:
    """
    A new model by the recipe's file, or the one to start from. ValueError if the tokenizers have more tokens than its
    embeddings have rows.
    """
    source, target = tokenizers
    sizes = {"vocab_size": vocabulary_size(source), "decoder_vocab_size": vocabulary_size(target)}
    if recipe.model.start_from:
        config = AutoConfig.from_pretrained(recipe.model.start_from)
        for name, value in recipe.model.overrides.items():
            if name not in config:
                raise ValueError(f"model.overrides: {recipe.model.start_from} has no field {name!r}")
            setattr(config, name, value)
        model = AutoModelForSeq2SeqLM.from_pretrained(recipe.model.start_from, config=config, dtype=torch.float32)
        config = model.config
    else:
        fields = model_fields(recipe.model)
        fields.setdefault("vocab_size", sizes["vocab_size"])
        if source is not target:
            fields.setdefault("decoder_vocab_size", sizes["decoder_vocab_size"])
            if "share_encoder_decoder_embeddings" not in fields:
                fields["share_encoder_decoder_embeddings"] = False
        _check_vocabulary(fields["vocab_size"], fields.get("decoder_vocab_size"), sizes)
        config = ScratchConfig(
            **fields,
            pad_token_id=source.pad_token_id,
            bos_token_id=target.bos_token_id,
            eos_token_id=target.eos_token_id,
            unk_token_id=source.unk_token_id,
            decoder_start_token_id=target.bos_token_id,
        )
        model = ScratchForConditionalGeneration(config)
    _check_vocabulary(config.vocab_size, getattr(config, "decoder_vocab_size", None), sizes)
    return model


def _check_vocabulary(vocab_size: int, decoder_vocab_size: int | None, needed: dict[str, int]) -> None:
    given = {"vocab_size": vocab_size, "decoder_vocab_size": decoder_vocab_size or vocab_size}
    for name, size in given.items():
        if needed[name] > size:
            raise ValueError(
                f"the tokenizer has {needed[name]:,} tokens, but the model's {name} is {size:,}: leave {name} out, or "
                "make the tokenizer smaller"
            )

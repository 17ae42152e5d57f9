"""Steps that conversions share: load the original, copy its tokenizers, compare the result with the original."""

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import MarianMTModel, PreTrainedModel
from transformers.utils import cached_file

from ...errors import UserError
from ...loading import load_config, load_tokenizers, load_translator, save_tokenizers
from ...model import ScratchForConditionalGeneration
from ...model.configuration_scratch import ScratchConfig
from ...model.translation_pipeline import TARGET_FOLDER
from ...model_names import TOKENIZER_FILES
from .generation_settings import read_search
from .marian import widen

logger = logging.getLogger(__name__)

LARGEST_DIFFERENCE = 1e-4  # between logits, in float32


def convert_folder(src: str, folder: Path, model_type: str, convert: Callable) -> float:
    """
    Convert a model and its tokenizers to a new folder.

    Args:
        src: a folder or Hub name with a model of type `model_type`.
        convert: takes the model and returns the converted one.

    Returns:
        The largest difference between the models' logits; see `verify`.
    """
    original = load_model(src, model_type)
    converted = convert(original)
    converted.save_pretrained(folder)
    config = converted.config
    both = config.decoder_vocab_size is not None and not config.share_encoder_decoder_embeddings
    copy_tokenizers(src, folder, both)
    scratch = original if model_type == ScratchConfig.model_type else converted
    return verify(original, load_translator(str(folder)), scratch.config)


def load_model(name: str, model_type: str) -> PreTrainedModel:
    """
    The translator in a folder or on the Hub, in the dtype of its weights. Raises UserError if it is of another type or
    lacks weights.
    """
    config = load_config(name)
    if config.model_type != model_type:
        raise UserError(f"{name} is a {config.model_type} model; this command needs a {model_type} model")
    return load_translator(name)


def copy_tokenizers(name: str, folder: Path, both: bool = False) -> None:
    """
    Copy the tokenizers of a model folder or Hub name to a folder. Warn if there are none.

    Args:
        both: write a shared tokenizer twice, once for each side, as a model with two embeddings needs.
    """
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    found = [file for file in TOKENIZER_FILES if cached_file(name, file, **quiet)]
    if not found:
        logger.warning(f"{name} has no tokenizer, so neither has the converted model")
        return
    if "source.spm" in found:
        import sentencepiece  # noqa: F401, so that its absence is an error that names the extra
    limit = getattr(load_config(name), "max_position_embeddings", None)
    source, target = load_tokenizers(name)
    save_tokenizers(source, target, folder, limit)
    if both and target is source:
        save_tokenizers(source, source, folder / TARGET_FOLDER, limit)


@torch.inference_mode()
def verify(original: nn.Module, converted: nn.Module, config: ScratchConfig) -> float:
    """
    The largest difference between two models' logits, in float32, on random ids with padding on the right.

    Args:
        original, converted: take input_ids, attention_mask and decoder_input_ids; return logits or an output with them.
        config: for the sizes of the vocabularies and the longest sequence.

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
    models = [widen(model) if isinstance(model, MarianMTModel) else model.float() for model in (original, converted)]
    outputs = [model.eval()(**inputs) for model in models]
    first, second = (getattr(output, "logits", output) for output in outputs)
    return _checked((first - second).abs().max().item(), "logits")


Scorer = Callable[[list[list[int]], list[list[int]]], list[list[float]]]


def verify_scores(model: ScratchForConditionalGeneration, scorer: Scorer) -> float:
    """
    The largest difference between the log-probabilities of random tokens by a model and by its conversion, in float32.

    Args:
        scorer: takes token ids of sources and of targets; returns the converted model's log-probabilities of each
            target's tokens and of the end token after them.

    Raises:
        UserError: the difference is above `LARGEST_DIFFERENCE`.
    """
    config, search, random = model.config, read_search(model), torch.Generator().manual_seed(0)
    lengths = [max(1, min(length, config.max_position_embeddings - 1)) for length in (48, 7, 1)]
    sources, targets = (
        [torch.randint(size, (length,), generator=random).tolist() for length in lengths]
        for size in (config.vocab_size, config.target_vocab_size)
    )
    # No end token before the end, after which transformers.js expects the end token again.
    targets = [[token for token in target if token not in search.ends] for target in targets]
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
    return _checked(difference, "log-probabilities")


def _checked(difference: float, what: str) -> float:
    if not difference <= LARGEST_DIFFERENCE:  # also if it is NaN
        raise UserError(
            f"the conversion failed: {what} differ by up to {difference:.1e}, more than {LARGEST_DIFFERENCE:.0e}; "
            "nothing was written"
        )
    return difference

"""Turn sentence pairs into token ids, and drop those that are empty or too long."""

import logging
from dataclasses import dataclass

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from ..errors import UserError
from ..model.batched_generation import INVISIBLE, clean
from ..recipe.schema import SOURCE, TARGET

logger = logging.getLogger(__name__)

MANY_DROPPED = 0.1  # share of dropped pairs that is worth a warning: a limit may be too low


@dataclass
class PairTokenizer:
    """
    Tokenizes pairs, and drops those that are empty or too long.

    Args:
        cleans_sources: tokenize sources as `clean` leaves them, as translating does, and targets without what is
            invisible.
    """

    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    max_source_tokens: int
    max_target_tokens: int
    cleans_sources: bool = True

    def __call__(self, sources: list[str], targets: list[str], indices: list[int]) -> dict[str, list]:
        """
        Returns `input_ids` and `labels`, both ending in eos, `source_length`, `target_length`, and the `index` of each
        pair that is kept, from `indices`.
        """
        # An OPUS-MT tokenizer has a SentencePiece model for each side, so it must be told which.
        if self.cleans_sources:
            sources, targets = list(map(clean, sources)), [INVISIBLE.sub("", text).strip() for text in targets]
        inputs = self.source_tokenizer(text=sources, add_special_tokens=True).input_ids
        labels = self.target_tokenizer(text_target=targets, add_special_tokens=True).input_ids
        kept = [
            row
            for row, (source_ids, target_ids) in enumerate(zip(inputs, labels, strict=True))
            if sources[row] and len(source_ids) <= self.max_source_tokens
            if targets[row] and len(target_ids) <= self.max_target_tokens
        ]
        return {
            "input_ids": [inputs[row] for row in kept],
            "labels": [labels[row] for row in kept],
            "source_length": [len(inputs[row]) for row in kept],
            "target_length": [len(labels[row]) for row in kept],
            "index": [indices[row] for row in kept],
        }

    @property
    def limits(self) -> str:
        return f"{self.max_source_tokens} source or {self.max_target_tokens} target tokens"

    def key(self) -> str:
        """A cache key for its output: the hash of a tokenizer object differs from process to process."""
        tokenizers = [
            each.backend_tokenizer.to_str() if each.is_fast else repr(sorted(each.get_vocab().items()))
            for each in (self.source_tokenizer, self.target_tokenizer)
        ]
        return Hasher.hash([tokenizers, self.limits, self.cleans_sources and INVISIBLE.pattern])


def tokenize_pairs(dataset: Dataset, tokenizer: PairTokenizer, split: str, num_workers: int = 0) -> Dataset:
    """
    Tokenize a split, cached by the datasets library, and log how many pairs were dropped.

    Args:
        num_workers: processes that share the work; 0 or 1: this process does it.

    Raises:
        UserError: no pair is left.
    """

    def tokenize(batch: dict[str, list[str]], indices: list[int]) -> dict[str, list]:
        return tokenizer(batch[SOURCE], batch[TARGET], indices)

    tokenized = dataset.map(
        tokenize,
        with_indices=True,
        batched=True,
        remove_columns=dataset.column_names,
        new_fingerprint=Hasher.hash([dataset._fingerprint, tokenizer.key(), "tokenize each side"]),
        desc=f"tokenizing {split}",
        num_proc=num_workers if num_workers > 1 and len(dataset) >= 1000 * num_workers else None,
    )
    dropped = len(dataset) - len(tokenized)
    if dropped:
        share = dropped / len(dataset)
        logger.log(
            logging.WARNING if share > MANY_DROPPED else logging.INFO,
            f"data: dropped {dropped:,} of {len(dataset):,} {split} pairs ({share:.0%}) that were empty or longer than "
            f"{tokenizer.limits}",
        )
    if len(tokenized) == 0:
        raise UserError(
            f"all {len(dataset):,} {split} pairs were dropped: each was empty or longer than data.max_source_tokens "
            f"({tokenizer.max_source_tokens}) or data.max_target_tokens ({tokenizer.max_target_tokens})"
        )
    return tokenized


def pair_lengths(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Source and target lengths of tokenized pairs, eos included: two arrays of shape (pairs,)."""
    table = dataset.select_columns(["source_length", "target_length"]).with_format("numpy")
    return np.asarray(table["source_length"][:]), np.asarray(table["target_length"][:])


def texts(dataset: Dataset) -> tuple[list[str], list[str]]:
    """The sources and the targets of pairs that are not tokenized."""
    return dataset[SOURCE][:], dataset[TARGET][:]

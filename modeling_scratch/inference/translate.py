"""Translates with PyTorch: generates, decodes, and aligns if asked to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import resolve_revision
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import UserError
from ..loading import best_device, load_confidence, load_config, load_tokenizers, load_translator
from ..model.batched_generation import as_translations, generate_batch, setting_of, tokenize, with_spare
from ..model.confidence import Confidence
from ..model.configuration_scratch import TRANSLATION, ScratchConfig, task_of
from ..model.text import TextRules, has_whole_symbols
from ..model.translations import Translations
from .engine import Engine

if TYPE_CHECKING:
    from .alignments import Aligner


@dataclass(frozen=True, eq=False)
class Translator(Engine):
    """
    A model in PyTorch, with its tokenizers.

    Args:
        model: a model or an `Ensemble`, on its device.
        source_tokenizer, target_tokenizer: one object if they are shared.
        confidence: the model's; None: it has none, or there are several models.
    """

    model: PreTrainedModel
    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    confidence: Confidence | None = None
    is_aligned = True

    @classmethod
    def load(cls, names: Sequence[str], revision: str | None = None, dtype: str | None = None) -> "Translator":
        """
        Load a model, or an `Ensemble` of several, onto the accelerator if there is one. All files of a repository come
        from one commit.

        Args:
            names: model folders or Hub names.
            revision: a branch, tag or commit, if there is one name.
            dtype: of the weights, such as bfloat16; None: as they were saved.

        Raises:
            UserError: a model cannot be loaded, or is of a different kind; the models do not go together.
        """
        commits, confidence = [_commit(name, revision) for name in names], None
        if len(names) > 1:
            from .ensemble import load_together

            model, source, target = load_together(names, commits)
        else:
            check_is_scratch(names[0], revision=commits[0])
            source, target = load_tokenizers(names[0], revision=commits[0])
            model = load_translator(names[0], revision=commits[0])
            confidence = load_confidence(names[0], revision=commits[0])
        to = {} if dtype is None else {"dtype": getattr(torch, dtype)}
        return cls(model.to(device=best_device(), **to), source, target, confidence)

    @property
    def limit(self) -> int:
        return self.model.config.max_position_embeddings

    @property
    def longest_source(self) -> int | None:
        return getattr(self.model.generation_config, "longest_training_source", None)

    @property
    def unknown(self) -> int | None:
        return self.source_tokenizer.unk_token_id if has_whole_symbols(self.source_tokenizer) else None

    @property
    def can_fork(self) -> bool:
        # Samples of forked processes would all be the same.
        return self.model.device.type == "cpu" and not self.model.generation_config.do_sample

    @property
    def num_beams(self) -> int:
        return self.model.generation_config.num_beams or 1

    @property
    def rules(self) -> TextRules:
        is_translation = task_of(self.model.config) == TRANSLATION
        return TextRules.of(self.source_tokenizer.init_kwargs, is_translation, has_whole_symbols(self.source_tokenizer))

    @cached_property
    def aligner(self) -> "Aligner":
        """
        Aligns texts and translations; an ensemble does so by its first member.

        Raises:
            ValueError: the generation config names heads that the model does not have.
        """
        from .alignments import Aligner

        first = getattr(self.model, "members", [self.model])[0]
        return Aligner(first, self.source_tokenizer, self.target_tokenizer)

    def tokenize(
        self, texts: Sequence[str], limit: int | None = None, features: Sequence[str] | None = None
    ) -> list[list[int]]:
        return tokenize(self.source_tokenizer, texts, limit, features=features, takes_any=self.rules.takes_any)

    def translations_of_each(self, settings: dict[str, Any]) -> int:
        return setting_of(self.model, settings, "num_return_sequences") or 1

    def _hard_limit(self) -> int | None:
        return self.limit if getattr(self.model.config, "position_embedding_type", None) == "learned" else None

    def translate_batch(
        self, texts: Sequence[str], tokens: list[list[int]], scores: bool | None = False, align: int = 0, **generation
    ) -> Translations:
        """Translate one batch, as `Engine` says, without dropout."""
        generation, several = with_spare(self.model, self.rules, generation)
        sequences, log_probabilities = generate_batch(self.model, tokens, scores, **generation)
        confidence = None if log_probabilities is None else self.confidence
        found = texts, tokens, sequences, log_probabilities, several
        rows = as_translations(self.model, self.target_tokenizer, *found, self.rules, confidence)
        if not align:
            return rows
        pairs = [(text, each.text) for text, row in zip(texts, rows, strict=True) for each in row[:align]]
        weights = iter(self.aligner.weights(*zip(*pairs, strict=True)))
        return [[replace(each, weights=next(weights)) for each in row[:align]] + row[align:] for row in rows]


def check_is_scratch(name: str, **options) -> None:
    """Raise UserError if a model folder or Hub name holds a different kind of model."""
    kind = load_config(name, **options).model_type
    if kind != ScratchConfig.model_type:
        raise UserError(f"{name} is a {kind} model; this takes a {ScratchConfig.model_type} model")


def _commit(name: str, revision: str | None) -> str | None:
    """The commit that a revision of a repository names now; unchanged for a folder, or if the Hub does not answer."""
    try:
        return revision if Path(name).exists() else resolve_revision(name, revision=revision)
    except Exception:  # of many types; loading will explain it
        return revision

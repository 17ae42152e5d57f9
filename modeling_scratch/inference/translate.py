"""From texts to translations: tokenize each text once, batch by length, generate, decode, and align if asked to."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import resolve_revision
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import UserError
from ..loading import best_device, load_confidence, load_config, load_tokenizers, load_translator
from ..model.batched_generation import (
    DEFAULT_BATCH_TOKENS,
    as_translations,
    batches_by_length,
    check_inputs,
    generate_batch,
    setting_of,
    tokenize,
    with_spare,
)
from ..model.confidence import Confidence
from ..model.configuration_scratch import TRANSLATION, ScratchConfig, task_of
from ..model.text import Reading, Sentences, TextRules, has_whole_symbols, left_as_it_is
from ..model.translations import Batch, Translation, Translations

if TYPE_CHECKING:
    from .alignments import Aligner


@dataclass(frozen=True, eq=False)
class Translator:
    """
    A model with its tokenizers.

    Args:
        model: a model or an `Ensemble`, on its device.
        source_tokenizer, target_tokenizer: one object if they are shared.
        confidence: the model's; None: it has none, or there are several models.
    """

    model: PreTrainedModel
    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    confidence: Confidence | None = None

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
        """The number of source tokens that the model was made for. Only learned positions cannot go beyond it."""
        return self.model.config.max_position_embeddings

    @property
    def can_fork(self) -> bool:
        """Whether forked processes can translate with it, each a part of the texts; samples would all be the same."""
        return self.model.device.type == "cpu" and not self.model.generation_config.do_sample

    @property
    def num_beams(self) -> int:
        """The beam width that the model was saved with."""
        return self.model.generation_config.num_beams or 1

    @property
    def rules(self) -> TextRules:
        """How the model reads texts."""
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
        """
        The token ids of each text; none for a text without a letter or a digit, which is not translated unless the
        tokenizer's symbols may be anything.

        Args:
            features: of each text; None: none.

        Raises:
            ValueError: a text is not a string, is not valid Unicode, or has more than `limit` tokens.
        """
        return tokenize(self.source_tokenizer, texts, limit, features=features, takes_any=self.rules.takes_any)

    def translate(
        self,
        texts: Sequence[str],
        tokens: list[list[int]] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = DEFAULT_BATCH_TOKENS,
        min_batches: int = 1,
        map_batches: Callable[[list[Batch], dict[str, Any]], Iterable[Translations]] | None = None,
        progress: Callable[[int], Any] = lambda texts: None,
        features: Sequence[str] | None = None,
        sentences: Sentences | None = None,
        **settings,
    ) -> Translations:
        """
        Translate texts: read each as `Reading` does, or take inputs that have been read and tokenized.

        Args:
            tokens: what `tokenize` returned for these texts, which are a reading's inputs. They stay sentences.
            batch_size: the most texts in a batch; None: no limit.
            batch_tokens: the most source tokens in a batch, including padding; None: no limit.
            min_batches: make smaller batches rather than fewer than this, if there are enough texts.
            map_batches: translates the batches, given the settings, and returns the translations of each in order, as
                several processes do together; None: one after the other, here.
            progress: called after each batch with its number of texts.
            features: of each text, if `tokens` are not given; None: none.
            sentences: see `Reading`, if `tokens` are not given.
            settings: for `translate_batch`.

        Returns:
            The translations of each text, best first, in the order of the texts. A text that is not translated is
            returned without surrounding white space.

        Raises:
            ValueError: a text has more tokens than there are learned positions; a setting is not valid.
        """
        if tokens is None:
            check_inputs(texts, [""] * len(texts) if features is None else features)
            read = Reading(texts, self.rules, sentences=sentences)
            is_limited = getattr(self.model.config, "position_embedding_type", None) == "learned"
            tokens = self.tokenize(read.inputs, self.limit if is_limited else None, read.of_inputs(features))
            limits = {"batch_size": batch_size, "batch_tokens": batch_tokens, "min_batches": min_batches}
            given: dict[str, Any] = {"map_batches": map_batches, "progress": progress, **limits, **settings}
            return read.restored(self.translate(read.inputs, tokens, **given))
        if min_batches > 1:
            share = max(1, -(-sum(map(len, tokens)) // min_batches))
            batch_tokens = share if batch_tokens is None else min(batch_tokens, share)
        places = batches_by_length([len(row) for row in tokens], batch_size, batch_tokens)
        several = setting_of(self.model, settings, "num_return_sequences") or 1
        translations = [[Translation(left_as_it_is(text))] * several for text in texts]
        batches = [([texts[place] for place in batch], [tokens[place] for place in batch]) for batch in places]
        progress(sum(not row for row in tokens))
        for batch, found in zip(places, (map_batches or self._one_by_one)(batches, settings), strict=True):
            for place, each in zip(batch, found, strict=True):
                translations[place] = each
            progress(len(batch))
        return translations

    def _one_by_one(self, batches: list[Batch], settings: dict[str, Any]) -> Iterable[Translations]:
        return (self.translate_batch(*batch, **settings) for batch in batches)

    def translate_batch(
        self, texts: Sequence[str], tokens: list[list[int]], scores: bool | None = False, align: int = 0, **generation
    ) -> Translations:
        """
        Translate one batch, without dropout.

        Args:
            tokens: the token ids of each text.
            scores: add the translations' scores and, if the model has been calibrated, confidences. None: if the search
                provides them, as this project's own loops do.
            align: how many of the best translations of each text get `weights`.
            generation: arguments of `model.generate`.
        """
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

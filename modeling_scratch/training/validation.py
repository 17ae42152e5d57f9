"""Evaluate a model during a run and at its end: loss and translation scores."""

import logging
import math
from functools import partial
from typing import Any

from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.tokenization import texts
from ..metrics import METRICS, higher_is_better, score
from ..recipe.schema import Recipe
from ..runs.faults import explained_lack_of_memory
from ..runs.processes import on_main
from ..runs.stopping import StopRequest
from .alignment_scores import alignment_scores, choose_alignment_heads
from .compilation import not_compiled
from .evaluation import EVALUATION_TOKENS, corpus_loss, evaluating, score_options, translate

logger = logging.getLogger(__name__)


class Validator:
    """
    Evaluates a model as its recipe says. All processes call its methods together.

    Args:
        model: not wrapped (see Accelerator.unwrap_model).
        pairs: text, by split.
        validation_data: the validation split, tokenized.
        stop: once it is made, the methods raise Stopped.
    """

    def __init__(
        self,
        recipe: Recipe,
        accelerator: Accelerator,
        model: nn.Module,
        tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
        pairs: dict[str, Dataset],
        validation_data: Dataset,
        stop: StopRequest,
    ):
        self.recipe, self.accelerator, self.model, self.stop = recipe, accelerator, model, stop
        self.tokenizers, self.pairs, self.validation_data = tokenizers, pairs, validation_data

    def loss(self) -> float:
        """Cross-entropy per target token on the validation split, in nats, without label smoothing."""
        tokens = min(self.recipe.optimization.tokens_per_batch, EVALUATION_TOKENS)
        advice = (
            f"{tokens} tokens at once, without gradients, do not fit beside what training keeps: use a smaller model"
        )
        with not_compiled(), explained_lack_of_memory(self.accelerator, "evaluating", lambda: advice):
            pad_token_id = self.tokenizers[0].pad_token_id
            return corpus_loss(self.model, self.validation_data, tokens, pad_token_id, self.accelerator, self.stop)

    def translate(self, split: str, final: bool = True, **generation) -> tuple[list[str], dict[str, Any]]:
        """Translations of a split, and their scores; `final` includes what `score` skips during training."""
        sources, references = texts(self.pairs[split])
        section = self.recipe.evaluation
        halves = (f"evaluation.{name}={max(1, getattr(section, name) // 2)}" for name in ("batch_size", "batch_tokens"))
        advice = f"set {' '.join(halves)}, and --resume"
        with (
            not_compiled(),
            explained_lack_of_memory(self.accelerator, f"translating the {split} split", lambda: advice),
        ):
            translations = translate(
                self.model,
                *self.tokenizers,
                sources,
                batch_size=section.batch_size,
                batch_tokens=section.batch_tokens,
                accelerator=self.accelerator,
                progress=tqdm if self.accelerator.is_main_process else None,
                stop=self.stop,
                **generation,
            )
        score_them = partial(score, sources, translations, references, final, **score_options(self.recipe))
        scores = on_main(self.accelerator, score_them, "scoring the translations")
        return translations, {"sentences": len(sources), **scores}

    def validate(self, with_translations: bool) -> dict[str, Any]:
        """The record of an evaluation during training: the loss, and scores if asked for."""
        record: dict[str, Any] = {"split": "validation", "loss": self.loss()}
        if with_translations:
            beams = self.recipe.evaluation.validation_beams
            _, scores = self.translate("validation", final=False, num_beams=beams)
            record |= {key: scores[key] for key in METRICS if key in scores}
        return record

    def is_better(self, record: dict[str, Any], best: float | None) -> bool:
        """Whether an evaluation beats the best so far by the recipe's metric. A value that is not finite never does."""
        metric = self.recipe.evaluation.metric
        value = record[metric]
        if not math.isfinite(record["loss"]) or not math.isfinite(value):
            return False
        return best is None or (value > best if higher_is_better(metric) else value < best)

    def final_scores(self, split: str) -> tuple[list[str], dict[str, Any]]:
        """Translations of a split or further test set with the recipe's beams, and the record of their scores."""
        logger.info(f"translating the {len(self.pairs[split]):,} sentences of the {split} split with the final weights")
        translations, scores = self.translate(split)
        with not_compiled(), evaluating(self.model, self.accelerator):
            scores |= alignment_scores(self.recipe, self.model, self.tokenizers, split, self.pairs[split])
        named = {"split": "test", "name": split} if split in self.recipe.data.test_sets else {"split": split}
        return translations, {**named, "final": True, "num_beams": self.recipe.evaluation.num_beams, **scores}

    def choose_alignment_heads(self) -> None:
        """Write the heads that align the validation split best to the model's generation config."""
        with not_compiled(), evaluating(self.model, self.accelerator):
            choose_alignment_heads(self.recipe, self.model, self.tokenizers, self.pairs["validation"])

"""Evaluate a run's model during training and at its end: loss and translation scores."""

import logging
import math
from functools import partial
from typing import Any

from tqdm.auto import tqdm

from ..data.tokenization import texts
from ..metrics import METRICS, higher_is_better, score
from ..recipe.schema import EvaluationSection
from ..runs.faults import explained_lack_of_memory
from ..runs.processes import on_main
from .alignment_scores import alignment_scores
from .compilation import not_compiled
from .evaluation import EVALUATION_TOKENS, corpus_loss, evaluating, score_options, translate
from .run import TrainingRun

logger = logging.getLogger(__name__)

# All processes call these functions together. Once a run is asked to stop, they raise Stopped.


def validation_loss(run: TrainingRun) -> float:
    """Cross-entropy per target token on the validation split, in nats, without label smoothing."""
    tokens = min(run.recipe.optimization.tokens_per_batch, EVALUATION_TOKENS)
    advice = f"{tokens} tokens at once, without gradients, do not fit beside what training keeps: use a smaller model"
    with not_compiled(), explained_lack_of_memory(run.accelerator, "evaluating", advice):
        pad_token_id = run.tokenizers[0].pad_token_id
        return corpus_loss(run.unwrapped, run.validation_data, tokens, pad_token_id, run.accelerator, run.stop)


def advice_to_halve(section: EvaluationSection) -> str:
    """What to do if memory is too small to translate as many sentences at once."""
    halves = (f"evaluation.{name}={max(1, getattr(section, name) // 2)}" for name in ("batch_size", "batch_tokens"))
    return f"set {' '.join(halves)}, and --resume"


def translate_split(run: TrainingRun, split: str, final: bool = True, **generation) -> tuple[list[str], dict[str, Any]]:
    """Translations of a split, and their scores; `final` includes what `score` skips during training."""
    sources, references = texts(run.pairs[split])
    section = run.recipe.evaluation
    doing = f"translating the {split} split"
    with not_compiled(), explained_lack_of_memory(run.accelerator, doing, advice_to_halve(section)):
        translations = translate(
            run.unwrapped,
            *run.tokenizers,
            sources,
            batch_size=section.batch_size,
            batch_tokens=section.batch_tokens,
            accelerator=run.accelerator,
            progress=tqdm if run.accelerator.is_main_process else None,
            stop=run.stop,
            **generation,
        )
    score_them = partial(score, sources, translations, references, final, **score_options(run.recipe))
    scores = on_main(run.accelerator, score_them, "scoring the translations")
    return translations, {"sentences": len(sources), **scores}


def validate(run: TrainingRun, with_translations: bool) -> dict[str, Any]:
    """The record of an evaluation during training: the loss, and scores if asked for."""
    record: dict[str, Any] = {"split": "validation", "loss": validation_loss(run)}
    if with_translations:
        beams = run.recipe.evaluation.validation_beams
        _, scores = translate_split(run, "validation", final=False, num_beams=beams)
        record |= {key: scores[key] for key in METRICS if key in scores}
    return record


def is_better(record: dict[str, Any], metric: str, best: float | None) -> bool:
    """
    Whether an evaluation beats the best so far. A value that is not finite never does; a score of 0, which says nothing
    of a model that has hardly learnt, beats another.
    """
    value = record[metric]
    if not math.isfinite(record["loss"]) or not math.isfinite(value):
        return False
    if best is None or (higher_is_better(metric) and value == best == 0):
        return True
    return value > best if higher_is_better(metric) else value < best


def final_scores(run: TrainingRun, split: str) -> tuple[list[str], dict[str, Any]]:
    """Translations of a split or further test set with the recipe's beams, and the record of their scores."""
    logger.info(f"translating the {len(run.pairs[split]):,} sentences of the {split} split with the final weights")
    translations, scores = translate_split(run, split)
    with not_compiled(), evaluating(run.unwrapped, run.accelerator):
        scores |= alignment_scores(run.recipe, run.unwrapped, run.tokenizers, split, run.pairs[split])
    named = {"split": "test", "name": split} if split in run.recipe.data.test_sets else {"split": split}
    return translations, {**named, "final": True, "num_beams": run.recipe.evaluation.num_beams, **scores}

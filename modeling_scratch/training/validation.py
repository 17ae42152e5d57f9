"""Evaluate a run's model during training and at its end: loss and translation scores."""

import logging
import math
from typing import Any

import torch
from accelerate.utils import gather_object

from ..data.batching import PairCollator, make_loader, plan_batches
from ..data.tokenization import pair_lengths
from ..metrics import METRICS, rank
from ..recipe.schema import EvaluationSection
from ..runs.faults import explained_lack_of_memory
from .alignment_scores import alignment_scores
from .compilation import not_compiled
from .evaluation import evaluating, leave_if_asked, translate_and_score
from .loss import fused_cross_entropy
from .run import TrainingRun
from .sharding import is_sharded

logger = logging.getLogger(__name__)

# The most tokens in a batch whose loss is evaluated: a global batch of many GPUs does not fit on one.
_LOSS_TOKENS = 4096

# All processes call these functions together. Once a run is asked to stop, they raise Stopped.


def validation_loss(run: TrainingRun) -> float:
    """Cross-entropy per target token on the validation split, in nats, without label smoothing."""
    tokens = min(run.recipe.optimization.tokens_per_batch, _LOSS_TOKENS)
    advice = f"{tokens} tokens at once, without gradients, do not fit beside what training keeps: use a smaller model"
    with not_compiled(), explained_lack_of_memory(run.accelerator, "evaluating", advice):
        return corpus_loss(run, tokens)


@torch.no_grad()
def corpus_loss(run: TrainingRun, tokens_per_batch: int) -> float:
    """`validation_loss` in batches of so many tokens; the processes share the pairs."""
    model, dataset, accelerator = run.unwrapped, run.validation_data, run.accelerator
    source_lengths, target_lengths = pair_lengths(dataset)
    batches = plan_batches(source_lengths, target_lengths, tokens_per_batch, None)
    mine = [batch.tolist() for batch in batches[accelerator.process_index :: accelerator.num_processes]]
    rounds, total = -(-len(batches) // accelerator.num_processes), 0.0
    own = len(mine)
    mine += [batches[0].tolist()] * (rounds - own) if is_sharded(accelerator) else []  # their loss is not counted
    loader = iter(make_loader(dataset, mine, PairCollator(run.tokenizers[0].pad_token_id)))
    training = model.training
    model.eval()
    try:
        for number in range(rounds):
            leave_if_asked(run.stop, accelerator)
            batch = next(loader, None)
            if batch is not None:
                batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
                with evaluating(model, accelerator):
                    loss = model(**batch, num_items_in_batch=1, fused_loss=fused_cross_entropy).loss.item()
                total += loss if number < own else 0.0
    finally:
        model.train(training)
    return sum(gather_object([total])) / int(target_lengths.sum())


def advice_to_halve(section: EvaluationSection) -> str:
    """What to do if memory is too small to translate as many sentences at once."""
    halves = (f"evaluation.{name}={max(1, most // 2)}" for name, most in section.batch_limits().items())
    return f"set {' '.join(halves)}, and --resume"


def translate_split(run: TrainingRun, split: str, **options) -> tuple[list[str], dict[str, Any]]:
    """Translations of a split, and their scores; `options` of `translate_and_score`."""
    accelerator, advice = run.accelerator, advice_to_halve(run.recipe.evaluation)
    explained = explained_lack_of_memory(accelerator, f"translating the {split} split", advice)
    given = (run.recipe, run.unwrapped, run.tokenizers, run.pairs[split], accelerator, explained)
    with not_compiled():
        return translate_and_score(*given, stop=run.stop, **options)


def validate(run: TrainingRun, with_translations: bool) -> dict[str, Any]:
    """The record of an evaluation during training: the loss, and scores if asked for."""
    record: dict[str, Any] = {"split": "validation", "loss": validation_loss(run)}
    if with_translations:
        beams = run.recipe.evaluation.validation_beams
        _, scores = translate_split(run, "validation", final=False, num_beams=beams)
        record |= {key: scores[key] for key in METRICS if key in scores}
        record |= {} if run.metric_can_tell else {"chosen_by": "loss"}
    return record


def is_better(record: dict[str, Any], metric: str, best: dict[str, Any] | None) -> bool:
    """Whether an evaluation beats the best so far. A value that is not finite never does."""
    if not math.isfinite(record["loss"]) or not math.isfinite(record[metric]):
        return False
    return best is None or rank(record, metric) < rank(best, metric)


def final_scores(run: TrainingRun, split: str) -> tuple[list[str], dict[str, Any]]:
    """Translations of a split or further test set with the recipe's beams, and the record of their scores."""
    logger.info(f"translating the {len(run.pairs[split]):,} sentences of the {split} split with the final weights")
    translations, scores = translate_split(run, split)
    with not_compiled(), evaluating(run.unwrapped, run.accelerator):
        scores |= alignment_scores(run.recipe, run.unwrapped, run.tokenizers, split, run.pairs[split])
    named = {"split": "test", "name": split} if split in run.recipe.data.test_sets else {"split": split}
    return translations, {**named, "final": True, "num_beams": run.recipe.evaluation.num_beams, **scores}

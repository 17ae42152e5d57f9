"""
Evaluate a run on its validation pairs: the loss, the scores of its translations, whether its weights are the best so
far, and whether something looks wrong.

All processes call these functions together. Once a process is asked to stop, they raise Stopped.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset

from ..data.batches import PairCollator, make_loader, plan_batches
from ..data.tokenizer import pair_lengths, texts
from ..inference.translate import Translator
from ..metrics import METRICS, can_tell, rank, tells_nothing, title_of
from ..model.confidence import Confidence
from ..run.processes import advising_on_memory, on_main
from ..run.run import Run
from ..run.sharding import is_sharded
from .fused_loss import fused_cross_entropy
from .scoring import advice_to_halve, evaluating, leave_if_asked, translate_and_score

logger = logging.getLogger(__name__)

# The most tokens in a batch whose loss is evaluated: a global batch of many GPUs does not fit on one.
_LOSS_TOKENS = 4096

# Of symptoms.
_LATE = 0.25  # of a run: what a model writes before says little
PAGE = "docs/learn/symptoms.md"
_MANY = 0.5  # of the outputs
_GUESSING = 0.8  # of the loss of a uniform distribution; models that learn are far below after warm-up
_GOOD_LOSS, _LOW_BLEU = 0.5, 1.0  # the same share; BLEU from 0 to 100
_LONGEST_UNIT, _REPEATS = 60, 5  # characters that are repeated at the end of an output, and how often


def evaluate(run: Run, loss_chooses: bool) -> None:
    """
    Evaluate the weights, record the scores, note whether they are the best so far, and warn of what looks wrong.

    Args:
        loss_chooses: the loss chooses the best weights, since the recipe's metric cannot.
    """
    recipe, progress = run.recipe, run.progress
    is_last = progress.step >= run.total
    with_translations = is_last or (progress.evaluations + 1) % recipe.evaluation.translate_every == 0
    record: dict[str, Any] = {"split": "validation", "loss": validation_loss(run)}
    outputs: list[str] = []
    if with_translations:
        beams = recipe.evaluation.validation_beams
        outputs, scores = translate_split(run, "validation", final=False, num_beams=beams)
        record |= {key: scores[key] for key in METRICS if key in scores}
    note_evaluation(run, record, loss_chooses)
    run.log.validation(record)
    if progress.step > recipe.optimization.warmup_steps and progress.step >= _LATE * run.total:
        sources, references = texts(run.data.pairs["validation"]) if outputs else ((), ())
        vocab_size = run.model.config.target_vocab_size
        found = find_symptom(record["loss"], vocab_size, sources, outputs, references, record.get("bleu"))
        warn_of_symptom(found, progress.warned_of)


def metric_can_tell(run: Run) -> bool:
    """Whether the recipe's metric can choose the best weights; otherwise the loss does."""
    metric, language = run.recipe.evaluation.metric, run.recipe.data.names[1]
    references = texts(run.data.pairs["validation"])[1]
    return on_main(run.accelerator, lambda: can_tell(metric, references, language))


def note_evaluation(run: Run, record: dict[str, Any], loss_chooses: bool) -> None:
    """
    Count an evaluation, and note whether its weights are the best so far.

    Args:
        loss_chooses: as for `evaluate`; the record then says so.
    """
    metric, progress = run.recipe.evaluation.metric, run.progress
    progress.evaluations += 1
    if metric not in record:
        return
    if loss_chooses:
        record["chosen_by"] = "loss"
    best = None if progress.best is None else record | {"loss": progress.best_loss, metric: progress.best}
    if not is_better(record, metric, best):
        progress.without_better += 1
        return
    instead = "the loss chooses the best weights"
    if metric == "bleu":
        instead += "; evaluation.metric=chrf may tell more"
    if best is None and loss_chooses:
        logger.warning(
            f"{title_of(metric)} of the validation split's own references is the worst possible, so {instead}"
        )
    elif best is None and tells_nothing(metric, record[metric]):
        logger.warning(f"{title_of(metric)} is {record[metric]:g} on the validation split: while it is, {instead}")
    progress.best, progress.best_loss = record[metric], record["loss"]
    progress.best_step, progress.without_better = progress.step, 0


def is_better(record: dict[str, Any], metric: str, best: dict[str, Any] | None) -> bool:
    """Whether an evaluation beats the best so far. A value that is not finite never does."""
    if not math.isfinite(record["loss"]) or not math.isfinite(record[metric]):
        return False
    return best is None or rank(record, metric) < rank(best, metric)


# -- loss and translations ---------------------------------------------------------------------------------------------


def validation_loss(run: Run) -> float:
    """Cross-entropy per target token on the validation split, in nats, without label smoothing."""
    tokens = min(run.recipe.optimization.tokens_per_batch, _LOSS_TOKENS)
    advice = f"{tokens} tokens at once, without gradients, do not fit beside what training keeps: use a smaller model"
    with advising_on_memory(run.accelerator, "evaluating", advice):
        return corpus_loss(run, tokens)


@torch.no_grad()
def corpus_loss(run: Run, tokens_per_batch: int) -> float:
    """Cross-entropy per target token of the validation pairs, which the processes share."""
    accelerator, model, dataset = run.accelerator, run.model, run.data.validation
    source_lengths, target_lengths = pair_lengths(dataset)
    batches = plan_batches(source_lengths, target_lengths, tokens_per_batch, None)
    mine = [batch.tolist() for batch in batches[accelerator.process_index :: accelerator.num_processes]]
    rounds, total = -(-len(batches) // accelerator.num_processes), 0.0
    own = len(mine)
    mine += [batches[0].tolist()] * (rounds - own) if is_sharded(accelerator) else []  # their loss is not counted
    loader = iter(make_loader(dataset, mine, PairCollator(run.data.tokenizers[0].pad_token_id)))
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


def translate_split(
    run: Run, split: str, confidence: Confidence | None = None, **options
) -> tuple[list[str], dict[str, Any]]:
    """Translations of a split, and their scores; `options` of `translate_and_score`."""
    return translate_pairs(run, run.data.pairs[split], split, confidence, **options)


def translate_pairs(
    run: Run, pairs: Dataset, split: str, confidence: Confidence | None = None, **options
) -> tuple[list[str], dict[str, Any]]:
    """As `translate_split`, of pairs of a split that may have been changed."""
    translator = Translator(run.model, *run.data.tokenizers, confidence)
    advice = advice_to_halve(run.recipe.evaluation)
    explained = advising_on_memory(run.accelerator, f"decoding the {split} split", advice)
    return translate_and_score(run.recipe, translator, pairs, run.accelerator, explained, stop=run.stop, **options)


# -- symptoms of training that goes wrong ------------------------------------------------------------------------------


def find_symptom(
    loss: float,
    vocab_size: int,
    sources: Sequence[str] = (),
    outputs: Sequence[str] = (),
    references: Sequence[str] = (),
    bleu: float | None = None,
) -> tuple[str, str] | None:
    """
    What looks wrong in an evaluation after warm-up: a section of PAGE, and a sentence for the log. None: nothing.

    Args:
        loss: cross-entropy per target token, in nats.
        vocab_size: the target's.
        sources, outputs, references: as texts; no outputs: not translated.
        bleu: of the outputs, from 0 to 100; None: not computed.
    """
    guessing, count = math.log(vocab_size), len(outputs)
    rows = list(zip(sources, outputs, references, strict=True)) if outputs else []
    many = max(1, _MANY * count)
    if (copies := sum(source == text != reference for source, text, reference in rows)) > many:
        return "the-source-is-copied", f"{copies} of {count} outputs are copies of their source"
    if loss > _GUESSING * guessing:
        return "loss-stuck-at-ln-v", f"the loss is near that of guessing, ln({vocab_size:,}) = {guessing:.2f}"
    if (blank := sum(not text.strip() for text in outputs)) > many:
        return "blank-output", f"{blank} of {count} outputs are empty"
    most_frequent = Counter(outputs).most_common(1)[0][0] if outputs else ""
    alike = [(source, reference) for source, text, reference in rows if text == most_frequent]
    if alike and all(len(set(side)) > many for side in zip(*alike, strict=True)):
        return "one-output-for-all", f"{len(alike)} of {count} outputs are the same: {most_frequent[:80]!r}"
    loops = sum(_ends_in_a_loop(text) and not _ends_in_a_loop(reference) for _, text, reference in rows)
    if loops > many:
        return "one-word-repeated", f"{loops} of {count} outputs repeat a few words to the end"
    if bleu is not None and bleu < _LOW_BLEU and loss < _GOOD_LOSS * guessing:
        return "good-loss-and-bad-bleu", f"BLEU is {bleu:.2f}, although the loss is {loss:.2f}"
    return None


def _ends_in_a_loop(text: str) -> bool:
    longest = min(_LONGEST_UNIT, len(text) // _REPEATS)
    return any(text.endswith(text[-length:] * _REPEATS) for length in range(1, longest + 1))


def warn_of_symptom(found: tuple[str, str] | None, known: list[str]) -> None:
    """Log a symptom that is not among those known, and add it to them."""
    if found is not None and found[0] not in known:
        known.append(found[0])
        logger.warning(f"{found[1]}; {PAGE}#{found[0]} has the causes")

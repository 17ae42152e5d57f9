"""Evaluate a model, during training, at its end, or an existing one: its loss, and scores of its translations."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from ..data.batches import PairCollator, make_loader, plan_batches
from ..data.sources import load_split, sources_of
from ..data.tokenizer import features_of, pair_lengths, texts
from ..errors import Stopped, as_user_error
from ..inference.alignments import alignment_error_rate
from ..inference.ensemble import load_together
from ..inference.translate import Translator
from ..inference.translations import Batch, Translations, best_texts
from ..loading import has_whole_symbols, load_confidence
from ..metrics import GROUPED, METRICS, can_tell, check_beams, grouped_by_source, rank, score
from ..model.batched_generation import setting_of
from ..model.confidence import DOUBTFUL, Confidence
from ..recipe.schema import DataSection, EvaluationSection, Recipe
from .fused_loss import fused_cross_entropy
from .inputs import Inputs, check_metrics, gold_links_of
from .processes import advising_on_memory, main_first, on_main
from .sharding import is_sharded
from .stopping import StopDecoding, StopRequest

logger = logging.getLogger(__name__)

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)

# The most tokens in a batch whose loss is evaluated: a global batch of many GPUs does not fit on one.
_LOSS_TOKENS = 4096

# All processes call these functions together, with a model that is not wrapped (see Accelerator.unwrap_model). Once a
# process is asked to stop, they raise Stopped.


# -- a model in training -----------------------------------------------------------------------------------------------


def validate(
    recipe: Recipe,
    model: PreTrainedModel,
    inputs: Inputs,
    accelerator: Accelerator,
    stop: StopRequest,
    with_translations: bool,
) -> tuple[dict[str, Any], list[str]]:
    """The record of an evaluation during training: the loss, and scores if asked for. And the outputs, if there are."""
    loss = validation_loss(recipe, model, inputs, accelerator, stop)
    record: dict[str, Any] = {"split": "validation", "loss": loss}
    if not with_translations:
        return record, []
    options = {"final": False, "num_beams": recipe.evaluation.validation_beams}
    outputs, scores = translate_split(recipe, model, inputs, accelerator, stop, "validation", **options)
    return record | {key: scores[key] for key in METRICS if key in scores}, outputs


def metric_can_tell(recipe: Recipe, inputs: Inputs, accelerator: Accelerator) -> bool:
    """Whether the recipe's metric can choose the best weights; otherwise the loss does."""
    metric, language = recipe.evaluation.metric, recipe.data.names[1]
    references = texts(inputs.pairs["validation"])[1]
    return on_main(accelerator, lambda: can_tell(metric, references, language))


def is_better(record: dict[str, Any], metric: str, best: dict[str, Any] | None) -> bool:
    """Whether an evaluation beats the best so far. A value that is not finite never does."""
    if not math.isfinite(record["loss"]) or not math.isfinite(record[metric]):
        return False
    return best is None or rank(record, metric) < rank(best, metric)


def validation_loss(
    recipe: Recipe, model: PreTrainedModel, inputs: Inputs, accelerator: Accelerator, stop: StopRequest
) -> float:
    """Cross-entropy per target token on the validation split, in nats, without label smoothing."""
    tokens, pad = min(recipe.optimization.tokens_per_batch, _LOSS_TOKENS), inputs.tokenizers[0].pad_token_id
    advice = f"{tokens} tokens at once, without gradients, do not fit beside what training keeps: use a smaller model"
    with advising_on_memory(accelerator, "evaluating", advice):
        return corpus_loss(model, inputs.validation_data, tokens, pad, accelerator, stop)


@torch.no_grad()
def corpus_loss(
    model: PreTrainedModel,
    dataset: Dataset,
    tokens_per_batch: int,
    pad_token_id: int,
    accelerator: Accelerator,
    stop: StopRequest,
) -> float:
    """Cross-entropy per target token of tokenized pairs, which the processes share."""
    source_lengths, target_lengths = pair_lengths(dataset)
    batches = plan_batches(source_lengths, target_lengths, tokens_per_batch, None)
    mine = [batch.tolist() for batch in batches[accelerator.process_index :: accelerator.num_processes]]
    rounds, total = -(-len(batches) // accelerator.num_processes), 0.0
    own = len(mine)
    mine += [batches[0].tolist()] * (rounds - own) if is_sharded(accelerator) else []  # their loss is not counted
    loader = iter(make_loader(dataset, mine, PairCollator(pad_token_id)))
    training = model.training
    model.eval()
    try:
        for number in range(rounds):
            leave_if_asked(stop, accelerator)
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
    recipe: Recipe,
    model: PreTrainedModel,
    inputs: Inputs,
    accelerator: Accelerator,
    stop: StopRequest,
    split: str,
    **options,
) -> tuple[list[str], dict[str, Any]]:
    """Translations of a split, and their scores; `options` of `translate_and_score`."""
    advice = advice_to_halve(recipe.evaluation)
    explained = advising_on_memory(accelerator, f"decoding the {split} split", advice)
    return translate_and_score(
        recipe, model, inputs.tokenizers, inputs.pairs[split], accelerator, explained, stop=stop, **options
    )


def advice_to_halve(section: EvaluationSection) -> str:
    """What to do if memory is too small to translate as many sentences at once."""
    halves = (f"evaluation.{name}={max(1, most // 2)}" for name, most in section.batch_limits().items())
    return f"set {' '.join(halves)}, and --resume"


# -- final weights -----------------------------------------------------------------------------------------------------


def final_splits(recipe: Recipe, pairs: dict[str, Dataset]) -> list[str]:
    """What final weights are scored on: the test split and further test sets, or validation if there are none."""
    return [split for split in ("test", *recipe.data.test_sets) if split in pairs] or ["validation"]


def final_scores(
    recipe: Recipe,
    model: PreTrainedModel,
    inputs: Inputs,
    accelerator: Accelerator,
    stop: StopRequest,
    split: str,
    confidence: Confidence | None,
) -> tuple[list[str], dict[str, Any]]:
    """Translations of a split or further test set with the recipe's beams, and the record of their scores."""
    logger.info(f"scoring the final weights on the {len(inputs.pairs[split]):,} pairs of the {split} split")
    translations, scores = translate_split(recipe, model, inputs, accelerator, stop, split, confidence=confidence)
    with evaluating(model, accelerator):
        scores |= alignment_scores(recipe, model, inputs.tokenizers, split, inputs.pairs[split])
    named = {"split": "test", "name": split} if split in recipe.data.test_sets else {"split": split}
    return translations, {**named, "final": True, "num_beams": recipe.evaluation.num_beams, **scores}


# -- an existing model -------------------------------------------------------------------------------------------------


def score_model(
    recipe: Recipe, names: list[str], splits: list[str], accelerator: Accelerator, **generation
) -> dict[str, dict[str, Any]]:
    """
    Score an existing model (a folder or a name on the Hub), or an ensemble of several, on splits of the recipe's data.
    Nothing is written.

    Args:
        generation: arguments of `model.generate`; for the others, the model's own settings hold.

    Returns:
        For each split the number of sentences, the translations, and their scores as `metrics.score` names them.
    """
    model, source, target = load_together(names)
    confidence = load_confidence(names[0]) if len(names) == 1 else None
    model, tokenizers, results = model.to(accelerator.device), (source, target), {}
    for split in splits:
        pairs = main_first(accelerator, partial(load_split, recipe.data, recipe.seed, split))
        explained = as_user_error(f"{' + '.join(names)}, the {split} split: ", ValueError)
        given = (recipe, model, tokenizers, pairs, accelerator, explained)
        translations, scores = translate_and_score(*given, confidence=confidence, **generation)
        with evaluating(model, accelerator):
            scores |= alignment_scores(recipe, model, tokenizers, split, pairs)
        results[split] = {"translations": translations, **scores}
    return results


# -- translations and their scores -------------------------------------------------------------------------------------


def translate_and_score(
    recipe: Recipe,
    model: PreTrainedModel,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    pairs: Dataset,
    accelerator: Accelerator,
    explained: AbstractContextManager[None],
    final: bool = True,
    confidence: Confidence | None = None,
    **options,
) -> tuple[list[str], dict[str, Any]]:
    """
    Translate the sources of pairs and score their translations, by a recipe's evaluation section.

    Args:
        explained: a context for the translating alone, which explains its errors.
        final: include what `metrics.score` leaves out during training.
        confidence: the model's; None: the scores say nothing of confidence.
        options: of `translate_on_processes`, which raises the same errors.

    Returns:
        The best translations; and their number, `sentences`, with their scores as `metrics.score` names them, and
        `confidence`: the share of `doubtful` translations, and what `kept_curve` returns for a metric.

    Raises:
        UserError: a metric scores more outputs of each source than there are beams.
    """
    sources = texts(pairs)[0]
    section, keys = recipe.evaluation, recipe.evaluation.scored(final)
    check_metrics(recipe)
    beams = setting_of(model, options, "num_beams") or 1
    check_beams(keys, beams, "set evaluation.num_beams")
    if any(METRICS[key].top for key in keys):
        options["num_return_sequences"] = beams
    options |= section.batch_limits() | {"accelerator": accelerator, "features": features_of(pairs)}
    translator = Translator(model, tokenizers[0], tokenizers[1], confidence)
    if confidence is not None:
        options["scores"] = None
    with explained:
        translations = translate_on_processes(translator, sources, **options)
    outputs = [[each.text for each in row] for row in translations]

    def score_of(keys: list[str], places: Sequence[int], references: Sequence, final: bool) -> dict[str, Any]:
        return score(
            [sources[place] for place in places],
            [outputs[place] for place in places],
            references,
            final,
            metrics=keys,
            language=recipe.data.names[1],
            canonical=section.canonical,
            single_spaces=_joins_with_spaces(tokenizers[1]),
        )

    def scores_of_all() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for by_pair in (True, False):
            own = [key for key in keys if METRICS[key].by_pair == by_pair]
            places, grouped = items_to_score(recipe.data, pairs, by_pair)
            scores = score_of(own, places, grouped, final) if own else {}
            end = GROUPED if len(places) < len(sources) else ""
            found |= {name: f"{value}{end}" if name.endswith("_signature") else value for name, value in scores.items()}
        return found

    found = {"sentences": len(sources), **on_main(accelerator, scores_of_all)}
    if confidence is not None:
        # Of the translators' metrics, chrF says most about few sentences.
        key = "chrf" if "chrf" in keys else keys[0]
        places, grouped = items_to_score(recipe.data, pairs, METRICS[key].by_pair)

        def score_of_kept(kept: list[int]) -> Any:
            chosen = [places[item] for item in kept], [grouped[item] for item in kept]
            return score_of([key], *chosen, final=False)[key]

        numbers = [1.0 if row[0].confidence is None else row[0].confidence for row in translations]
        doubtful = sum(number < DOUBTFUL for number in numbers) / len(numbers)
        kept = on_main(accelerator, lambda: kept_curve([numbers[place] for place in places], score_of_kept))
        found["confidence"] = {"doubtful": doubtful, "metric": key, "kept": kept}
    return best_texts(translations), found


def items_to_score(data: DataSection, pairs: Dataset, by_pair: bool) -> tuple[Sequence[int], Sequence]:
    """
    The places of the pairs to score, and the references of each: every pair with its own reference for translations and
    a metric that is computed so (`Metric.by_pair`), otherwise what `grouped_by_source` returns.
    """
    references = texts(pairs)[1]
    if by_pair and data.languages is not None:
        return range(len(references)), references
    return grouped_by_source(sources_of(pairs), references)


def _joins_with_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer writes single spaces whatever it has read, such as one of `words`, of BERT or of T5."""
    if has_whole_symbols(tokenizer):
        return tokenizer.backend_tokenizer.decoder is None
    return tokenizer(text_target="a  b").input_ids == tokenizer(text_target="a b").input_ids


def kept_curve(confidences: Sequence[float], score_of: Callable[[list[int]], float]) -> list[tuple[float, float]]:
    """
    Pairs of a share, from 1 down to a half, and the score of that share of the sentences, the ones with the highest
    confidence.

    Args:
        score_of: the score of the sentences with these indices.
    """
    order = sorted(range(len(confidences)), key=lambda place: -confidences[place])
    return [(share, score_of(sorted(order[: max(1, round(share * len(order)))]))) for share in SHARES]


def alignment_scores(
    recipe: Recipe,
    model: PreTrainedModel,
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
    split: str,
    pairs: Dataset,
) -> dict[str, Any]:
    """
    The alignment error rate of a split's pairs and the heads used, for the record of its scores; {} if the recipe does
    not ask for it or the split has no gold links.

    Raises:
        UserError: the generation config names heads that the model does not have.
    """
    gold = gold_links_of(recipe, split) if recipe.evaluation.alignments else None
    if gold is None:
        return {}
    with as_user_error(kinds=ValueError):
        aligner = Translator(model, *tokenizers).aligner
    rate = alignment_error_rate(aligner.align(*texts(pairs)), gold)
    signature = "attention:cross|step:predicting|links:argmax of rows and columns|gold:sure"
    return {"aer": rate, "aer_signature": signature, "alignment_heads": aligner.heads}


def leave_if_asked(stop: StopRequest | None, accelerator: Accelerator) -> None:
    """Raise Stopped on all processes if any was asked to stop. All must call this together."""
    if stop is not None and stop.agreed(accelerator):
        raise Stopped


@contextmanager
def evaluating(model: nn.Module, accelerator: Accelerator) -> Iterator[None]:
    """
    Evaluate in the precision in which the model will be used: on the CPU, that of its weights, since bf16 is no faster
    there; elsewhere, that of its training. Meanwhile Accelerate's mixed-precision wrapper of `forward` is removed, also
    because the fast loops of `model/search.py` need the class's own method.
    """
    as_it_is = accelerator.device.type == "cpu" and not is_sharded(accelerator)
    names = ("forward", "_original_forward") if "_original_forward" in vars(model) else ()
    wrapped = {name: vars(model).pop(name) for name in names if name in vars(model)}
    try:
        with nullcontext() if as_it_is else accelerator.autocast():
            yield
    finally:
        vars(model).update(wrapped)


def translate_on_processes(
    translator: Translator, sentences: list[str], accelerator: Accelerator, stop: StopRequest | None = None, **options
) -> Translations:
    """
    Translate sentences on all processes, which call this together. They share the batches, which do not depend on the
    number of processes, so neither do the translations.

    Args:
        translator: its model is not wrapped (see Accelerator.unwrap_model).
        stop: once made, ends `generate` at its next token.
        options: of `Translator.translate`.

    Returns:
        The translations of each sentence, best first, in order, on every process.

    Raises:
        ValueError: a sentence exceeds learned positions.
        Stopped: a process was asked to stop.
    """
    rank, processes, sharded = accelerator.process_index, accelerator.num_processes, is_sharded(accelerator)
    options["synced_gpus"] = sharded
    if stop is not None:
        options["stopping_criteria"] = StoppingCriteriaList([StopDecoding(stop)])

    def share(batches: list[Batch], settings: dict[str, Any]) -> list[Translations]:
        found, hidden = [], None if accelerator.is_main_process else True  # None: shown on a terminal
        for first in tqdm(range(0, len(batches), processes), desc="decoding", leave=False, disable=hidden):
            leave_if_asked(stop, accelerator)
            number = first + rank
            if number < len(batches) or sharded:  # sharded processes must all run the model, if only on the first batch
                with evaluating(translator.model, accelerator):
                    batch = batches[number] if number < len(batches) else batches[0]
                    found.append((number, translator.translate_batch(*batch, **settings)))
        leave_if_asked(stop, accelerator)
        found = sorted(gather_object(found) if processes > 1 else found, key=itemgetter(0))
        return [translations for _, translations in found[: len(batches)]]

    return translator.translate(sentences, map_batches=share, **options)

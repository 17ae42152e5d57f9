"""
Translate pairs on all processes, and score the translations: of a model in training, or of an existing one.

All processes call these functions together. Once a process is asked to stop, they raise Stopped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import itemgetter
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList

from ..data.augmentation import NOISES, make_augmenter
from ..data.sources import load_split, sources_of
from ..data.tokenizer import features_of, texts
from ..errors import Stopped, UserError, as_user_error
from ..inference.alignments import alignment_error_rate
from ..inference.engine import Engine, EngineName, ctranslate2_engine
from ..inference.ensemble import load_together
from ..inference.translate import Translator
from ..loading import load_confidence
from ..metrics import GROUPED, METRICS, SPLIT, check_beams, grouped_by_source, score
from ..model.batched_generation import setting_of
from ..model.confidence import DOUBTFUL
from ..model.configuration_scratch import ScratchConfig
from ..model.text import has_whole_symbols
from ..model.translations import Batch, Translations, best_texts
from ..recipe.schema import SOURCE, TARGET, DataSection, EvaluationSection, Recipe
from ..run.processes import StopDecoding, StopRequest, main_first, on_main
from ..run.sharding import is_sharded
from .preparation import check_metrics, gold_links_of

_NOISE_SEED = 0
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


def score_model(
    recipe: Recipe,
    names: list[str],
    splits: list[str],
    accelerator: Accelerator,
    engine: EngineName = "torch",
    **generation,
) -> dict[str, dict[str, Any]]:
    """
    Score an existing model (a folder or a name on the Hub), or an ensemble of several, on splits of the recipe's data.
    Nothing is written.

    Args:
        engine: what translates; "auto": CTranslate2 where the scores are the same, but for near-ties.
        generation: arguments of `model.generate`; for the others, the model's own settings hold.

    Returns:
        For each split the number of sentences, the translations, and their scores as `metrics.score` names them.

    Raises:
        UserError: CTranslate2 was asked for, and cannot do it.
    """
    model, source, target = load_together(names)
    confidence = load_confidence(names[0]) if len(names) == 1 else None
    translator, results = Translator(model.to(accelerator.device), source, target, confidence), {}
    other = _ctranslate2_engine(recipe, names, translator, accelerator, engine, generation)
    for split in splits:
        pairs = main_first(accelerator, partial(load_split, recipe.data, recipe.seed, split))
        explained = as_user_error(f"{' + '.join(names)}, the {split} split: ", ValueError)
        given = generation | {"engine": other}
        translations, scores = translate_and_score(recipe, translator, pairs, accelerator, explained, **given)
        with evaluating(translator.model, accelerator):
            scores |= alignment_scores(recipe, translator, split, pairs)
        if recipe.evaluation.noise:

            def scores_of(noisy: Dataset, split=split, given=given) -> dict[str, Any]:
                explained = as_user_error(f"{' + '.join(names)}, the {split} split with noise: ", ValueError)
                return translate_and_score(recipe, translator, noisy, accelerator, explained, False, **given)[1]

            scores |= noise_scores(recipe, translator, pairs, translations, accelerator, scores_of)
        results[split] = {"translations": translations, **scores}
    return results


def _ctranslate2_engine(
    recipe: Recipe,
    names: list[str],
    translator: Translator,
    accelerator: Accelerator,
    asked: EngineName,
    generation: dict[str, Any],
) -> Engine | None:
    """The engine that translates for scores; None: PyTorch does. By "auto" CTranslate2 where its search is the same."""
    if asked == "ctranslate2" and accelerator.num_processes > 1:
        raise UserError("--engine ctranslate2: it translates on the cores of one process; start one")
    # With early_stopping, both search as long as there are fewer hypotheses than beams; without, PyTorch may go on.
    settings = {name: setting_of(translator.model, generation, name) for name in ("num_beams", "early_stopping")}
    is_same = (settings["num_beams"] or 1) == 1 or settings["early_stopping"] is True
    is_plain = isinstance(translator.model.config, ScratchConfig) and accelerator.device.type == "cpu"
    if asked == "auto" and not (is_same and is_plain and accelerator.num_processes == 1):
        return None
    several = any(METRICS[key].top for key in recipe.evaluation.scored(True))
    most = generation.get("max_new_tokens")
    return ctranslate2_engine(names, asked, max_new_tokens=most, n_best=settings["num_beams"] if several else None)


def translate_and_score(
    recipe: Recipe,
    translator: Translator,
    pairs: Dataset,
    accelerator: Accelerator,
    explained: AbstractContextManager[None],
    final: bool = True,
    engine: Engine | None = None,
    **options,
) -> tuple[list[str], dict[str, Any]]:
    """
    Translate the sources of pairs and score their translations, by a recipe's evaluation section.

    Args:
        translator: its model is not wrapped; without a confidence, the scores say nothing of it.
        explained: a context for the translating alone, which explains its errors.
        final: include what `metrics.score` leaves out during training.
        engine: translates instead of the translator, in this process.
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
    beams = setting_of(translator.model, options, "num_beams") or 1
    check_beams(keys, beams, "set evaluation.num_beams")
    if any(METRICS[key].top for key in keys):
        options["num_return_sequences"] = beams
    options["features"] = features_of(pairs)
    if translator.confidence is not None:
        options["scores"] = None
    with explained:
        if engine is None:
            options |= section.batch_limits() | {"accelerator": accelerator}
            translations = translate_on_processes(translator, sources, **options)
        else:
            translations = engine.translate(sources, **options)
    outputs = [[translation.text for translation in row] for row in translations]

    found = {
        "sentences": len(sources),
        **on_main(accelerator, lambda: score_outputs(recipe, translator, pairs, outputs, final)),
    }
    if translator.confidence is not None:
        # Of the translators' metrics, chrF says most about few sentences.
        key = "chrf" if "chrf" in keys else keys[0]
        places, grouped = items_to_score(recipe.data, pairs, METRICS[key].by_pair)

        def score_of_kept(kept: list[int]) -> Any:
            chosen = [places[item] for item in kept], [grouped[item] for item in kept]
            return _scores_at(recipe, translator, pairs, outputs, [key], *chosen, final=False)[key]

        numbers = [1.0 if row[0].confidence is None else row[0].confidence for row in translations]
        doubtful = sum(number < DOUBTFUL for number in numbers) / len(numbers)
        kept = on_main(accelerator, lambda: kept_curve([numbers[place] for place in places], score_of_kept))
        found["confidence"] = {"doubtful": doubtful, "metric": key, "kept": kept}
    return best_texts(translations), found


def score_outputs(
    recipe: Recipe, translator: Translator, pairs: Dataset, outputs: Sequence[Sequence[str]], final: bool
) -> dict[str, Any]:
    """
    The scores of what a translator has written for pairs, by a recipe's evaluation section.

    Args:
        outputs: of each pair, best first.
        final: as for `metrics.score`.
    """
    found: dict[str, Any] = {}
    for by_pair in (True, False):
        own = [key for key in recipe.evaluation.scored(final) if METRICS[key].by_pair == by_pair]
        places, grouped = items_to_score(recipe.data, pairs, by_pair)
        scores = _scores_at(recipe, translator, pairs, outputs, own, places, grouped, final) if own else {}
        end = (GROUPED if len(places) < len(outputs) else "") + (SPLIT if translator.rules.splits_lines else "")
        found |= {name: f"{value}{end}" if name.endswith("_signature") else value for name, value in scores.items()}
    return found


def _scores_at(
    recipe: Recipe,
    translator: Translator,
    pairs: Dataset,
    outputs: Sequence[Sequence[str]],
    keys: list[str],
    places: Sequence[int],
    references: Sequence,
    final: bool,
) -> dict[str, Any]:
    """The metrics `keys` of the outputs for the pairs at some places, each with its references."""
    sources = texts(pairs)[0]
    return score(
        [sources[place] for place in places],
        [outputs[place] for place in places],
        references,
        final,
        metrics=keys,
        language=recipe.data.names[1],
        canonical=recipe.evaluation.canonical,
        single_spaces=_joins_with_spaces(translator.target_tokenizer),
    )


def noise_scores(
    recipe: Recipe,
    translator: Translator,
    pairs: Dataset,
    translations: list[str],
    accelerator: Accelerator,
    scores_of: Callable[[Dataset], dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """
    Scores on sources with noise: on pairs that each function of `NOISES` has changed, always in the same way. A
    function that changes the targets too, such as to capitals, changes the references.

    Args:
        translations: of the pairs as they are.
        scores_of: translates pairs and scores them by the metrics of every evaluation.

    Returns:
        `noise`: for each function the scores of best outputs and, in `differences`, how far they are above those of
        the clean translations with the same changes. A function that changes no source, such as missing accents in
        English, is left out.
    """
    columns = {name: pairs[name][:] for name in pairs.column_names}
    found: dict[str, Any] = {}
    for name in NOISES:

        def noisy(targets: Sequence[str], name=name) -> Dataset:
            sample = list(zip(columns[SOURCE], targets, strict=True))
            change = make_augmenter({name: 1.0}, _NOISE_SEED, recipe.data.languages, lambda: sample)
            assert change is not None
            return Dataset.from_dict(change({**columns, TARGET: targets}, [(row,) for row in range(len(targets))]))

        changed = noisy(columns[TARGET])
        if changed[SOURCE][:] == columns[SOURCE]:
            continue
        scores = scores_of(changed)
        outputs = [[text] for text in noisy(translations)[TARGET]]
        score_clean = partial(score_outputs, recipe, translator, changed, outputs, final=False)
        clean = on_main(accelerator, score_clean)
        keys = [key for key in METRICS if key in scores and METRICS[key].top is None]
        found[name] = {key: scores[key] for key in keys}
        found[name]["differences"] = {key: scores[key] - clean[key] for key in keys}
    return {"noise": found}


def items_to_score(data: DataSection, pairs: Dataset, by_pair: bool) -> tuple[Sequence[int], Sequence]:
    """
    The places of the pairs to score, and their references: every pair with its own reference for translations and a
    metric that is computed so (`Metric.by_pair`), otherwise what `grouped_by_source` returns.
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


def alignment_scores(recipe: Recipe, translator: Translator, split: str, pairs: Dataset) -> dict[str, Any]:
    """
    The alignment error rate of a split's pairs and the heads used, as its scores name them; {} if the recipe does not
    ask for it or the split has no gold links.

    Raises:
        UserError: the generation config names heads that the model does not have.
    """
    gold = gold_links_of(recipe, split) if recipe.evaluation.alignments else None
    if gold is None:
        return {}
    with as_user_error(kinds=ValueError):
        aligner = translator.aligner
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
        translator: its model is not wrapped.
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


def advice_to_halve(section: EvaluationSection) -> str:
    """What to do if memory is too small to translate as many sentences at once."""
    halves = (f"evaluation.{name}={max(1, most // 2)}" for name, most in section.batch_limits().items())
    return f"set {' '.join(halves)}, and --resume"

"""
Improve a finished run with its own data: models of both directions translate it, and a new one learns from it all.

This is data diversification (Nguyen et al. 2020, https://arxiv.org/abs/1911.01986). Translating the training pairs by
models of the same direction is sequence-level distillation (Kim and Rush 2016, https://arxiv.org/abs/1606.07947), by
models of the opposite direction back-translation (Sennrich et al. 2016, https://arxiv.org/abs/1511.06709). Monolingual
text is translated too; what is back-translated from it is tagged (Caswell et al. 2019,
https://arxiv.org/abs/1906.06442).
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ..data.lines import read_lines
from ..data.sources import load_pairs
from ..data.tokenization import texts
from ..errors import Stopped, UserError
from ..files import one_line
from ..loading import load_tokenizers, load_translator
from ..model.batched_generation import tokenize
from ..recipe.schema import Recipe
from ..runs.faults import explained_lack_of_memory
from ..runs.processes import on_main
from ..runs.stopping import StopRequest
from .corpus_translation import SHARD, ShardedTranslation
from .evaluation import translate
from .finish import finish, is_finished
from .improvement_plan import BACKWARD, FORWARD, ImprovementPlan, Pairs
from .loop import train
from .run import TrainingRun
from .validation import advice_to_halve

logger = logging.getLogger(__name__)

_SAMPLE = 64  # sentences that are translated to estimate the time


def improve(plan: ImprovementPlan, accelerator: Accelerator, stop: StopRequest) -> dict[str, Any] | None:
    """
    Do all that is left to do, on all processes. Returns what `finish` returns; None if there was nothing to do.

    Raises:
        Stopped: a process was asked to stop; the next call continues.
        UserError: the improvement was begun with other data or options.
    """
    if on_main(accelerator, lambda: is_finished(plan.final)):
        on_main(accelerator, plan.check_begun)
        return None
    pairs = on_main(accelerator, lambda: _pairs(plan))
    on_main(accelerator, lambda: plan.begin(pairs))
    translations = _translations(plan, pairs["train"])
    for model, by_model in translations.items():
        recipe = plan.recipe_of(*model)
        if not on_main(accelerator, lambda model=model: plan.has_model(*model)):
            _train(recipe, accelerator, stop)
        advice = advice_to_halve(recipe.evaluation)
        with _stage(by_model.name), explained_lack_of_memory(accelerator, by_model.name, advice), stop:
            by_model.complete(recipe, accelerator, stop)
    on_main(accelerator, lambda: _merge(plan, pairs["train"], translations))
    return _train(plan.final, accelerator, stop)


def stages(plan: ImprovementPlan, accelerator: Accelerator) -> list[tuple[str, float | None]]:
    """
    The stages, each with its estimated seconds: for training, from the run's own; for translation, from a few sentences
    translated here. None: it is done.
    """
    training = plan.records.train.get("seconds", 0.0)
    final = (f"train {plan.options.out}", plan.options.length * training)
    if is_finished(plan.final):
        plan.check_begun()
        return [(final[0], None)]
    pairs = _pairs(plan)
    plan.check_begun(pairs)
    a_sentence = _seconds_a_sentence(plan, pairs["train"], accelerator) / accelerator.num_processes
    found = []
    for (direction, number), translations in _translations(plan, pairs["train"]).items():
        if plan.folder(direction, number) != plan.options.run:
            found.append((f"train {direction}-{number}", None if plan.has_model(direction, number) else training))
        left = min(len(translations.missing()) * SHARD, len(translations.sentences))
        what = f"translate {len(translations.sentences):,} sentences by {direction}-{number}"
        found.append((what, left * a_sentence if left else None))
    return [*found, final]


def _seconds_a_sentence(plan: ImprovementPlan, pairs: Pairs, accelerator: Accelerator) -> float:
    """Measured on a few sentences, with the run's own model."""
    folder, sample = str(plan.options.run), pairs[0][:: -(-len(pairs[0]) // _SAMPLE)]
    model, tokenizers = load_translator(folder).to(accelerator.device), load_tokenizers(folder)
    longest, limits = plan.recipe.data.max_source_tokens, plan.final.evaluation.batch_limits()
    ids = tokenize(tokenizers[0], sample, None)
    sample = [text for text, row in zip(sample, ids, strict=True) if len(row) <= longest]
    translate(model, *tokenizers, sample[:2], **limits)  # the first call is slower
    began = time.perf_counter()
    translate(model, *tokenizers, sample, **limits)
    return (time.perf_counter() - began) / max(1, len(sample))


def _pairs(plan: ImprovementPlan) -> dict[str, Pairs]:
    """The run's own pairs, each sentence on one line."""
    pairs = load_pairs(plan.recipe.data, plan.recipe.seed)
    return {
        split: tuple(list(map(one_line, side)) for side in texts(pairs[split])) for split in ("train", "validation")
    }


def _train(recipe: Recipe, accelerator: Accelerator, stop: StopRequest) -> dict[str, Any]:
    """Train a model, continuing if it was begun."""
    folder = Path(recipe.output_dir)
    logger.info(f"training {folder}")
    with _stage(f"training {folder}"):
        run = TrainingRun.begin_or_resume(recipe, accelerator, stop)
        train(run)
        result = finish(run)
    accelerator.free_memory()
    return result


def _translations(plan: ImprovementPlan, pairs: Pairs) -> dict[tuple[str, int], ShardedTranslation]:
    """What each model translates: its side of the training pairs, then monolingual text."""
    more = {FORWARD: plan.options.source_text, BACKWARD: plan.options.target_text}
    sentences = {
        direction: [*side, *(line.strip() for path in more[direction] for line in read_lines(path))]
        for direction, side in zip((FORWARD, BACKWARD), pairs, strict=True)
    }
    found = {}
    for direction, number in plan.models():
        name = f"{direction}-{number}"
        folder = plan.work / "translations" / name
        found[direction, number] = ShardedTranslation(folder, sentences[direction], f"translating by {name}")
    return found


def _merge(plan: ImprovementPlan, pairs: Pairs, translations: dict[tuple[str, int], ShardedTranslation]) -> None:
    """Write the pairs that were made, each once, without those that the data already has."""
    known = set(zip(*pairs, strict=True))
    synthetic: dict[tuple[str, str], None] = {}
    tagged: dict[tuple[str, str], None] = {}
    for (direction, _), by_model in translations.items():
        for index, (text, made) in enumerate(zip(by_model.sentences, by_model.read(), strict=True)):
            pair = (text, made) if direction == FORWARD else (made, text)
            into = tagged if direction == BACKWARD and index >= len(pairs[0]) else synthetic
            if text and made and pair not in known:
                into[pair] = None
    if not synthetic or (plan.options.target_text and not tagged):
        raise UserError("the models have made no pair that the data does not have: there is nothing more to learn")
    plan.write_pairs("synthetic", list(synthetic))
    if plan.options.target_text:
        plan.write_pairs("back-translated", list(tagged))
    logger.info(f"made {len(synthetic) + len(tagged):,} pairs beside the {len(pairs[0]):,} there are")


@contextmanager
def _stage(what: str) -> Iterator[None]:
    """Say how to continue an interrupted stage."""
    try:
        yield
    except Stopped:
        raise Stopped(f"stopped while {what}; the same command continues") from None
    except UserError as error:
        if "--resume" not in str(error):
            raise
        raise type(error)(f"{error} (in scratch improve, the same command takes the place of --resume)") from error

"""
Score the model that a run starts from, and say what fine-tuning has gained and lost.

Finish a run: choose its final weights and score them.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from ..apps.experiments.compare import bleu_significance
from ..data.sources import source_of
from ..data.tokenizer import texts
from ..errors import Stopped, UserError
from ..files import read_json
from ..hub.allowed_files import code_files
from ..inference.alignments import Aligner, choose_heads
from ..loading import load_tokenizers, load_translator
from ..metrics import describe_heads
from ..recipe.reading import ALIKE, differing_keys, load_recipe
from ..recipe.schema import Recipe
from .alignment_scores import gold_links_of
from .checkpoints import stored_weights
from .compilation import not_compiled
from .evaluation import evaluating, final_scores, translate_split, validation_loss
from .folder import RECIPE, WEIGHTS, RunFolder, finally_scored, read_metrics, read_translations
from .processes import on_main
from .run import TrainingRun
from .sharding import load_whole_weights

logger = logging.getLogger(__name__)

BEFORE = "before"  # the split of these records, and the folder of these translations
_WORSE = 0.05  # the p-value below which a lower BLEU is not put down to chance


def score_start(run: TrainingRun) -> None:
    """Score the model as it is before its first update, on the same test sets as at the end."""
    for split in run.final_splits():
        logger.info(f"translating the {len(run.pairs[split]):,} sentences of the {split} split before fine-tuning")
        translations, scores = translate_split(run, split)
        run.log.translations(f"{BEFORE}/{split}", translations)
        run.record({"split": BEFORE, "name": split, "num_beams": run.recipe.evaluation.num_beams, **scores})


def changes(run: TrainingRun, translations: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """
    The scores before fine-tuning, by test set. A significant drop in BLEU is logged as a warning.

    Args:
        translations: of the final weights, by test set.
    """
    before = {
        record["name"]: record
        for record in read_metrics(run.folder.path)
        if record["split"] == BEFORE
        and record["name"] in translations
        and record["num_beams"] == run.recipe.evaluation.num_beams  # which may have changed when the run was resumed
    }
    for split in before:
        references = texts(run.pairs[split])[1]
        try:
            earlier = read_translations(run.folder.path, f"{BEFORE}/{split}")
            language = run.recipe.data.target_language
            recorded = (before[split].get("bleu"), None)
            difference, p_value, _ = bleu_significance(earlier, translations[split], references, language, recorded)
        except UserError as error:
            logger.warning(f"{split}: not compared with the model before fine-tuning: {error}")
            continue
        if difference < 0 and p_value < _WORSE:
            logger.warning(
                f"{split}: BLEU has fallen by {-difference:.2f} in fine-tuning (p = {p_value:.3f}). To forget less, "
                "mix in such pairs with a greater weight (data.mix), or lower optimization.learning_rate"
            )
    return before


_SAMPLES = 5


def is_finished(recipe: Recipe) -> bool:
    """Whether the recipe's folder holds the results of a run, by a recipe that gives the same ones."""
    folder = Path(recipe.output_dir)
    if not RunFolder(folder).is_run() or {*differing_keys(load_recipe(folder / RECIPE), recipe)} - ALIKE:
        return False
    splits = [split for split in ("test", *recipe.data.test_sets) if source_of(split, recipe.data, recipe.seed)]
    return has_results(folder, splits or ["validation"])


def has_results(folder: Path, splits: Iterable[str] = ()) -> bool:
    """
    Whether a run has scored its final weights, on these splits if any are named, and all that it left then is still
    there: a model that can be loaded, with its search and its code, and the translations that were scored. If something
    is missing, says what.
    """
    scored = finally_scored(folder)
    if not scored or not scored.keys() >= set(splits):
        return False
    try:
        load_tokenizers(str(folder))
        load_translator(str(folder))
        read_json(folder / GENERATION_CONFIG_NAME)  # without it, the model loads, but searches in another way
        code_files(folder, read_json(folder / CONFIG_NAME))
        for name, record in scored.items():
            if (found := len(read_translations(folder, name))) != (count := record.get("sentences", found)):
                raise UserError(f"{found:,} translations of the {count:,} sentences of {name}")
    except UserError as error:
        logger.warning(f"the run in {folder} was finished, but not all that it left is there: {error}")
        return False
    return True


def finish(run: TrainingRun) -> dict[str, Any]:
    """
    Write the final weights to the folder's root: the average of the last checkpoints, or the best by the recipe's
    metric; with their alignment heads if the recipe asks for alignments. Then score them on the test sets, or on
    validation if there are none, and an average on validation too, and keep their translations in the folder.

    Returns:
        The scores by split, those before fine-tuning, some samples, the folder, and the progress.

    Raises:
        Stopped: the run was asked to stop. Its training is complete; --resume scores it.
    """
    with run.stoppable():
        try:
            loss = _choose_weights(run)
            if run.recipe.evaluation.alignments:
                _choose_alignment_heads(run)
            return _score(run, loss)
        except Stopped:
            raise Stopped("stopped while the final model was scored; --resume scores it") from None


def _choose_alignment_heads(run: TrainingRun) -> None:
    """Choose the heads that best align the validation split, and write them to the generation config."""
    gold, config = gold_links_of(run.recipe, "validation"), run.unwrapped.generation_config
    with not_compiled(), evaluating(run.unwrapped, run.accelerator):
        weights = Aligner(run.unwrapped, *run.tokenizers).weights_by_head(*texts(run.pairs["validation"]))
        config.alignment_heads, rate = choose_heads(weights, gold)
    (described,) = describe_heads({"alignment_heads": config.alignment_heads})
    logger.info(f"{described}; their alignment error rate on the validation split is {rate:.2f}")
    run.log.write(GENERATION_CONFIG_NAME, lambda: config.save_pretrained(run.folder.path))


def _score(run: TrainingRun, loss: float | None) -> dict[str, Any]:
    splits = run.final_splits()
    translations, scores, samples = {}, {}, []
    for split in splits if loss is None else dict.fromkeys(["validation", *splits]):
        translations[split], record = final_scores(run, split)
        if split == "validation" and loss is not None:
            record["loss"] = loss
        if split == splits[0]:
            samples = record["samples"] = _samples(run, split, translations[split])
        scores[split] = record
        run.log.translations(split, translations[split])  # before the record, which is thus never without them
        run.record(record)
    before = on_main(run.accelerator, lambda: changes(run, translations))
    run.log.curves()
    run.log.close()
    run.accelerator.wait_for_everyone()
    return {
        "scores": scores,
        "before": before,
        "samples": samples,
        "folder": str(run.folder.path),
        **asdict(run.progress),
    }


def _samples(run: TrainingRun, split: str, translations: list[str]) -> list[dict[str, str]]:
    """The translations of the split's first sentences, for its record."""
    pairs = run.pairs[split]
    sources, references = texts(pairs.select(range(min(_SAMPLES, len(pairs)))))
    return [
        {"source": source, "reference": reference, "translation": translation}
        for source, reference, translation in zip(sources, references, translations[:_SAMPLES], strict=True)
    ]


def _choose_weights(run: TrainingRun) -> float | None:
    """
    Write the final weights to the folder's root and load them into the model. Returns the validation loss of averaged
    weights, which nothing has evaluated before; None for others.
    """
    accelerator, last = run.accelerator, run.recipe.checkpoints.average_last
    if last > 1:
        average = run.progress.averaging
        run.log.write(WEIGHTS, lambda: run.folder.write_weights(run.folder.snapshots.average(average)))
    elif run.progress.best is None:  # there never were best weights, or they are lost
        _check_loss(run)
        weights = stored_weights(run.unwrapped, accelerator.get_state_dict(run.model))
        run.log.write(WEIGHTS, lambda: run.folder.write_weights(weights))
    load_whole_weights(accelerator, run.unwrapped, load_file(run.folder.path / WEIGHTS))
    if last > 1:
        logger.info(f"the final weights are the average of the last {len(average)} checkpoints")
    return _check_loss(run) if last > 1 else None


def _check_loss(run: TrainingRun) -> float:
    """The validation loss. UserError if it is not finite: such weights are useless."""
    if not math.isfinite(loss := validation_loss(run)):
        # Weights that a checkpoint or the average left at the root are useless too.
        on_main(run.accelerator, lambda: (run.folder.path / WEIGHTS).unlink(missing_ok=True))
        raise UserError(
            "training has diverged: the loss on the validation split is not finite, so there is no final model; "
            "lower optimization.learning_rate or lengthen optimization.warmup_steps, and begin anew"
        )
    return loss

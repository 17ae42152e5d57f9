"""Finish a run: choose its final weights and score them; and score the model that a fine-tuning starts from."""

import logging
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset
from safetensors.torch import load_file
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from ..data.sources import source_of, sources_of
from ..data.tokenizer import texts
from ..errors import Stopped, UserError
from ..files import remove, write_whole
from ..inference.alignments import Aligner, choose_heads
from ..inference.translate import Translator
from ..metrics import bleu_significance, describe_heads
from ..model.confidence import FILE as CONFIDENCE
from ..model.confidence import Confidence
from ..recipe.reading import MAY_DIFFER_WITHIN_RUN, differing_keys, load_recipe
from ..recipe.schema import FEATURES, SOURCE, TARGET, Recipe
from ..run.checkpoints import stored_weights
from ..run.folder import WEIGHTS, RunFolder
from ..run.processes import on_main, write_on_main
from ..run.records import BEFORE, RECIPE, TRANSLATIONS, finally_scored, read_metrics, read_translations
from ..run.run import Run
from ..run.sharding import load_whole_weights
from .calibration import calibrate
from .evaluation import translate_pairs, translate_split, validation_loss
from .preparation import gold_links_of
from .scoring import alignment_scores, evaluating, noise_scores

logger = logging.getLogger(__name__)

_WORSE = 0.05  # the p-value below which a lower BLEU is not put down to chance
_SAMPLES = 5
# What every finished run leaves, besides its translations.
_RESULTS = (WEIGHTS, CONFIG_NAME, GENERATION_CONFIG_NAME, "tokenizer_config.json", "modeling_scratch.py")


def finish(run: Run) -> dict[str, Any]:
    """
    Write the final weights to the folder's root: the average of the last checkpoints, or the best by the recipe's
    metric; with their alignment heads if the recipe asks for alignments, and confidence.json. Then score them on the
    test sets, or on validation if there are none, and an average on validation too, and keep their translations in the
    folder.

    Returns:
        The scores by split, those before fine-tuning, some samples, the folder, and the progress.

    Raises:
        Stopped: the run was asked to stop. Its training is complete; --resume scores it.
    """
    splits = final_splits(run)
    translations, scores, samples = {}, {}, []
    try:
        loss = _choose_weights(run)
        if run.recipe.evaluation.alignments:
            _choose_alignment_heads(run)
        confidence = _calibrate(run)
        for split in splits if loss is None else dict.fromkeys(["validation", *splits]):
            translations[split], record = final_scores(run, split, confidence)
            if split == "validation" and loss is not None:
                record["loss"] = loss
            if split == splits[0]:
                samples = record["samples"] = _samples(run.data.pairs[split], translations[split])
            scores[split] = record
            run.log.translations(split, translations[split])  # before the record, which is thus never without them
            run.log.record(record)
    except Stopped:
        raise Stopped("stopped while the final model was scored; --resume scores it") from None
    before = on_main(run.accelerator, lambda: scores_before(run.recipe, run.folder.path, run.data.pairs, translations))
    run.log.curves()
    run.accelerator.wait_for_everyone()
    folder = str(run.folder.path)
    return {"scores": scores, "before": before, "samples": samples, "folder": folder, **asdict(run.progress)}


def _choose_weights(run: Run) -> float | None:
    """
    Write the final weights to the folder's root and load them into the model. Returns the validation loss of averaged
    weights, which have not been evaluated yet; None for others.
    """
    accelerator, folder, kept = run.accelerator, run.folder, run.progress.averaging
    averages = run.recipe.checkpoints.average_last > 1

    def checked_loss() -> float:
        if math.isfinite(loss := validation_loss(run)):
            return loss
        # Weights that a checkpoint or the average left at the root are useless too.
        on_main(accelerator, lambda: (folder.path / WEIGHTS).unlink(missing_ok=True))
        raise UserError(
            "training has diverged: the loss on the validation split is not finite, so there is no final model; "
            "lower optimization.learning_rate or lengthen optimization.warmup_steps, and start a new run"
        )

    if averages:
        write_on_main(accelerator, WEIGHTS, folder.path, lambda: folder.write_weights(folder.average(kept)))
    elif run.progress.best is None:  # there never were best weights, or they are lost
        checked_loss()
        weights = stored_weights(run.model, accelerator.get_state_dict(run.wrapped))
        write_on_main(accelerator, WEIGHTS, folder.path, lambda: folder.write_weights(weights))
    load_whole_weights(accelerator, run.model, load_file(folder.path / WEIGHTS))
    if not averages:
        return None
    logger.info(f"the final weights are the average of the last {len(kept)} checkpoints")
    return checked_loss()


def _choose_alignment_heads(run: Run) -> None:
    """Choose the heads that best align the validation split, and write them to the generation config."""
    folder, config = run.folder.path, run.model.generation_config
    with evaluating(run.model, run.accelerator):
        aligner = Aligner(run.model, *run.data.tokenizers)
        weights = aligner.weights_by_head(*texts(run.data.pairs["validation"]))
        heads, rate = choose_heads(weights, gold_links_of(run.recipe, "validation"))
        config.alignment_heads = heads  # type: ignore[attr-defined]  # one of Whisper's
    (described,) = describe_heads({"alignment_heads": heads})
    logger.info(f"{described}; their alignment error rate on the validation split is {rate:.2f}")
    write_on_main(run.accelerator, GENERATION_CONFIG_NAME, folder, lambda: config.save_pretrained(folder))


def _calibrate(run: Run) -> Confidence | None:
    """Write confidence.json and return its content; None, and no file, if it cannot be calibrated."""
    confidence, path = calibrate(run), run.folder.path / CONFIDENCE
    if confidence is None:
        on_main(run.accelerator, lambda: remove(path))
    else:
        write_on_main(run.accelerator, CONFIDENCE, path.parent, lambda: write_whole(path, confidence.text()))
    return confidence


def final_splits(run: Run) -> list[str]:
    """What final weights are scored on: the test split and further test sets, or validation if there are none."""
    splits = ("test", *run.recipe.data.test_sets)
    return [split for split in splits if split in run.data.pairs] or ["validation"]


def final_scores(run: Run, split: str, confidence: Confidence | None) -> tuple[list[str], dict[str, Any]]:
    """Translations of a split or further test set with the recipe's beams, and the record of their scores."""
    recipe, pairs = run.recipe, run.data.pairs[split]
    logger.info(f"scoring the final weights on the {len(pairs):,} pairs of the {split} split")
    translations, scores = translate_split(run, split, confidence)
    with evaluating(run.model, run.accelerator):
        translator = Translator(run.model, *run.data.tokenizers)
        scores |= alignment_scores(recipe, translator, split, pairs)
    if recipe.evaluation.noise:
        logger.info(f"scoring them on the {split} split with noise")

        def scores_of(noisy: Dataset) -> dict[str, Any]:
            return translate_pairs(run, noisy, split, final=False)[1]

        scores |= noise_scores(recipe, translator, pairs, translations, run.accelerator, scores_of)
    named = {"split": "test", "name": split} if split in recipe.data.test_sets else {"split": split}
    return translations, {**named, "final": True, "num_beams": recipe.evaluation.num_beams, **scores}


def _samples(pairs: Dataset, translations: list[str]) -> list[dict[str, str]]:
    """The translations of a split's first sentences, for its record."""
    first = pairs.select(range(min(_SAMPLES, len(pairs))))
    return [
        {"source": pair[SOURCE], "reference": pair[TARGET], "translation": translation}
        | {name: pair[name] for name in (FEATURES,) if name in pair}
        for pair, translation in zip(first, translations[:_SAMPLES], strict=True)
    ]


# -- fine-tuning -------------------------------------------------------------------------------------------------------


def score_start(run: Run) -> None:
    """Score the model as it is before its first update, on the same test sets as at the end."""
    for split in final_splits(run):
        count = len(run.data.pairs[split])
        logger.info(f"scoring the model on the {count:,} pairs of the {split} split before fine-tuning")
        translations, scores = translate_split(run, split)
        run.log.translations(f"{BEFORE}/{split}", translations)
        run.log.record({"split": BEFORE, "name": split, "num_beams": run.recipe.evaluation.num_beams, **scores})


def scores_before(
    recipe: Recipe, folder: Path, pairs: dict[str, Dataset], translations: dict[str, list[str]]
) -> dict[str, dict[str, Any]]:
    """
    The scores before fine-tuning, by test set. A significant drop in BLEU is logged as a warning.

    Args:
        translations: of the final weights, by test set.
    """
    before = {
        record["name"]: record
        for record in read_metrics(folder)
        if record["split"] == BEFORE
        and record["name"] in translations
        and "bleu" in record
        and record["num_beams"] == recipe.evaluation.num_beams  # which may have changed when the run was resumed
    }
    for split, record in before.items():
        try:
            difference, p_value, _ = bleu_significance(
                read_translations(folder, f"{BEFORE}/{split}"),
                translations[split],
                texts(pairs[split])[1],
                recipe.data.names[1],
                (record.get("bleu"), None),
                None if recipe.data.languages else sources_of(pairs[split]),
            )
        except UserError as error:
            logger.warning(f"{split}: not compared with the model before fine-tuning: {error}")
            continue
        if difference < 0 and p_value < _WORSE:
            logger.warning(
                f"{split}: BLEU has fallen by {-difference:.2f} in fine-tuning (p = {p_value:.3f}). To forget less, "
                "mix in such pairs with a greater weight (data.mix), or lower optimization.learning_rate"
            )
    return before


# -- finished runs -----------------------------------------------------------------------------------------------------


def is_finished(recipe: Recipe) -> bool:
    """Whether the recipe's folder holds the results of a run, by a recipe that gives the same ones."""
    folder = Path(recipe.output_dir)
    if not RunFolder(folder).is_run():
        return False
    if {*differing_keys(load_recipe(folder / RECIPE), recipe)} - MAY_DIFFER_WITHIN_RUN:
        return False
    splits = [split for split in ("test", *recipe.data.test_sets) if source_of(split, recipe.data, recipe.seed)]
    return has_results(folder, splits or ["validation"])


def has_results(folder: Path, splits: Iterable[str] = ()) -> bool:
    """
    Whether a run has scored its final weights, on these splits if any are named, and the files of its model and the
    translations that were scored are there. If some are missing, a warning names them.
    """
    scored = finally_scored(folder)
    if not scored or not scored.keys() >= set(splits):
        return False
    expected = [*_RESULTS, *(f"{TRANSLATIONS}/{name}.txt" for name in scored)]
    if missing := [name for name in expected if not (folder / name).is_file()]:
        logger.warning(f"the run in {folder} was finished, but lacks {', '.join(missing)}")
    return not missing

"""Score the model that a run starts from, and say what fine-tuning has gained and lost."""

import logging
from typing import Any

from ..data.tokenization import texts
from ..errors import UserError
from ..runs.metrics_file import read_metrics
from ..runs.translations import read_translations
from .comparison import bleu_significance
from .run import TrainingRun
from .validation import translate_split

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

"""Score a model's word alignments if the recipe asks for it and the data has gold links."""

import logging
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..alignments import Aligner, Links, alignment_error_rate, alignment_heads, choose_heads
from ..data.sources import source_of
from ..data.tokenization import texts
from ..errors import UserError, as_user_error
from ..metrics import describe_heads
from ..recipe.schema import Recipe

logger = logging.getLogger(__name__)


def check_alignments(recipe: Recipe) -> None:
    """UserError if the recipe asks for alignments of data without gold links."""
    if recipe.evaluation.alignments and _gold_links(recipe, "validation") is None:
        source = source_of("validation", recipe.data, recipe.seed)
        raise UserError(
            f"evaluation.alignments: {source.name if source else 'held-out validation pairs'}: no gold links say which "
            "words translate each other, as in the embedded corpus; set evaluation.alignments=false"
        )


def _gold_links(recipe: Recipe, split: str) -> list[Links] | None:
    source = source_of(split, recipe.data, recipe.seed)
    return None if source is None else source.gold_links()


def choose_alignment_heads(
    recipe: Recipe,
    model: PreTrainedModel,
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
    validation: Dataset,
) -> None:
    """Choose the heads that best align the validation pairs (`choose_heads`), and set them in the generation config."""
    heads, rate = choose_heads(
        Aligner(model, *tokenizers).weights_by_head(*texts(validation)), _gold_links(recipe, "validation")
    )
    model.generation_config.alignment_heads = heads
    (described,) = describe_heads({"alignment_heads": heads})
    logger.info(f"{described}; their alignment error rate on the validation split is {rate:.2f}")


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
    gold = _gold_links(recipe, split) if recipe.evaluation.alignments else None
    if gold is None:
        return {}
    with as_user_error():
        heads = alignment_heads(model)
    rate = alignment_error_rate(Aligner(model, *tokenizers).align(*texts(pairs)), gold)
    signature = "attention:cross|step:predicting|links:argmax of rows and columns|gold:sure"
    return {"aer": rate, "aer_signature": signature, "alignment_heads": heads}

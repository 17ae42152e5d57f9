"""Score a model's word alignments if the recipe asks for it and the data has gold links."""

from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.corpus import Links
from ..data.sources import source_of
from ..data.tokenizer import texts
from ..errors import UserError, as_user_error
from ..inference.alignments import Aligner, alignment_error_rate
from ..recipe.schema import Recipe


def check_alignments(recipe: Recipe) -> None:
    """UserError if the recipe asks for alignments of data without gold links."""
    if recipe.evaluation.alignments and gold_links_of(recipe, "validation") is None:
        source = source_of("validation", recipe.data, recipe.seed)
        raise UserError(
            f"evaluation.alignments: {source.name if source else 'held-out validation pairs'}: no gold links say which "
            "words translate each other, as in the embedded corpus; set evaluation.alignments=false"
        )


def gold_links_of(recipe: Recipe, split: str) -> list[Links] | None:
    """The links of a split's pairs that the data know; None if they know none."""
    source = source_of(split, recipe.data, recipe.seed)
    return None if source is None else source.gold_links()


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
        aligner = Aligner(model, *tokenizers)
    rate = alignment_error_rate(aligner.align(*texts(pairs)), gold)
    signature = "attention:cross|step:predicting|links:argmax of rows and columns|gold:sure"
    return {"aer": rate, "aer_signature": signature, "alignment_heads": aligner.heads}

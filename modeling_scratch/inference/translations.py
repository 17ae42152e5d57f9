"""What translators return."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Batch = tuple[list[str], list[list[int]]]  # texts, and the token ids of each
Translations = list[list["Translation"]]  # of each text, best first


@dataclass(frozen=True)
class Translation:
    """
    A translation of a text.

    Args:
        score: the natural logarithm of its probability under the model, including the end token; 0 if not asked for.
        is_cut: it reached the maximum length before it ended.
        length: the number of its tokens, including the end token.
        confidence: how far to trust it; see `model.confidence`. None if scores were not asked for, or the model has no
            confidence.json.
        is_short: it is doubtful since it is short for its source: a part may be missing. False without a confidence.
        weights: how much each target word attends to each source word, (target words, source words), as
            `alignments.average_heads` returns them; None if not asked for.
    """

    text: str
    score: float = 0.0
    is_cut: bool = False
    weights: "torch.Tensor | None" = None
    length: int = 0
    confidence: float | None = None
    is_short: bool = False


def distinct(translations: Sequence[Translation]) -> list[Translation]:
    """The first translation with each text: different tokens may spell the same one."""
    first: dict[str, Translation] = {}
    for each in translations:
        first.setdefault(each.text, each)
    return list(first.values())


def best_texts(translations: Translations) -> list[str]:
    """The best translation of each text."""
    return [row[0].text for row in translations]

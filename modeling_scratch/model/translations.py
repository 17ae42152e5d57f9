"""What translators return. This file needs no PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
            `alignments.average_heads` returns them; None if not asked for, or unknown.
        lost_words: the model left out a kept word, whose place is guessed, or wrote one too many.
    """

    text: str
    score: float = 0.0
    is_cut: bool = False
    weights: "torch.Tensor | None" = None
    length: int = 0
    confidence: float | None = None
    is_short: bool = False
    lost_words: bool = False


def distinct(translations: Sequence[Translation]) -> list[Translation]:
    """The first translation with each text: different tokens may spell the same one."""
    first: dict[str, Translation] = {}
    for each in translations:
        first.setdefault(each.text, each)
    return list(first.values())


def best_texts(translations: Translations) -> list[str]:
    """The best translation of each text."""
    return [row[0].text for row in translations]


def spread(translation: Translation, targets: Sequence[int], sources: Sequence[int]) -> Translation:
    """A translation, each of whose words, and of the source's, becomes as many words as are given; with weights."""
    if translation.weights is None:
        return translation
    rows, columns = ([word for word, count in enumerate(counts) for _ in range(count)] for counts in (targets, sources))
    shares = translation.weights.new_tensor([sources[word] for word in columns])
    return replace(translation, weights=translation.weights[rows][:, columns] / shares)


def joined(parts: Sequence[Translation], sources: Sequence[str], text: str, space: str) -> Translation:
    """
    The translation of a text, given those of its sentences: with the sum of their scores, and the lowest confidence.

    Args:
        sources: the sentences.
        text: what they are the sentences of.
        space: what stands between the translations.
    """
    sure = [part.confidence for part in parts if part.confidence is not None]
    whole = Translation(
        space.join(part.text for part in parts if part.text),
        sum(part.score for part in parts),
        any(part.is_cut for part in parts),
        length=sum(part.length for part in parts),
        confidence=min(sure, default=None),
        is_short=any(part.is_short for part in parts),
        lost_words=any(part.lost_words for part in parts),
    )
    known = next((part.weights for part in parts if part.weights is not None), None)
    counts = [(len(part.text.split()), len(source.split())) for part, source in zip(parts, sources, strict=True)]
    if known is None or not space or sum(columns for _, columns in counts) != len(text.split()):
        return whole  # a word may be in two sentences
    weights, row, column = known.new_zeros(*map(sum, zip(*counts, strict=True))), 0, 0
    for part, (rows, columns) in zip(parts, counts, strict=True):
        block = weights[row : row + rows, column : column + columns]
        # What is not translated is linked to itself.
        block += known.new_ones(min(rows, columns)).diag() if part.weights is None else part.weights
        row, column = row + rows, column + columns
    return replace(whole, weights=weights)

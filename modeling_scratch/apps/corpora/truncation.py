"""Sides that lack the end of the other: what such pairs look like is learned by cutting sides of the corpus."""

import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .word_translations import Evidence, WordTranslations, tokens

_SAMPLE = 5000  # pairs
_CUT = 0.2, 0.8  # the share of a target that is left, at least and at most
_SHORTEST = 12  # characters of a text to cut
_FEWEST = 4  # words of a source whose end can be missed
_STEPS, _ROUNDS = 15, 4
_CLEAR = 5.0  # in a corpus, pairs that are so much likelier cut than whole are not whole ones to learn from
_FARTHEST = 8.0  # standard deviations of lengths
_RARER = 1.0  # as a logarithm: cut sources beside cut targets, and those that end in their mark beside others

_ENDINGS = {"。": ".", "।": ".", "…": "...", "？": "?", "؟": "?", "！": "!", "：": ":", "؛": ";", "；": ";", "．": "."}  # noqa: RUF001
_CLOSING = re.compile(r"""[\s"'”’»«“„)\]）】」』]+$""")  # noqa: RUF001


def end_mark(text: str) -> str:
    """The punctuation that ends a text, as English writes it; empty if none does."""
    last = _CLOSING.sub("", text)[-3:]
    last = last if last == "..." else last[-1:]
    last = _ENDINGS.get(last, last)
    return last if last in {".", "...", "?", "!", ":", ";"} else ""


class Truncation:
    """
    Tells cut sides from whole ones, by logistic regression: are the last words of the other side translated, is the
    side short, has it lost the mark at its end?

    Args:
        pairs: pairs of the corpus, from which `words` was learned; most are whole.
        lengths: of the corpus, for `deviation`.
        of_sources: tell cut sources; otherwise, targets.
        with_mark: those that end in their mark nonetheless, as where one of two sentences is missing.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        words: WordTranslations,
        lengths: Any,
        of_sources: bool = False,
        with_mark: bool = False,
    ):
        draw = random.Random(0)
        self._side, self._handicap = 0 if of_sources else 1, (of_sources + with_mark) * _RARER
        sample = list(pairs)[:: max(len(pairs) // _SAMPLE, 1)]
        cut = [
            (_cut(pair[0], draw, with_mark), pair[1]) if of_sources else (pair[0], _cut(pair[1], draw, with_mark))
            for pair in sample
            if len(pair[self._side]) >= _SHORTEST and len(tokens(pair[1 - self._side])) >= _FEWEST
        ]
        self._weights = np.zeros(0)
        if not cut:
            return
        features = [self._features(some, words.evidence(some, True), lengths.deviation(some)) for some in (cut, sample)]
        both = np.concatenate(features)
        self._mean, self._scale = both.mean(axis=0), both.std(axis=0) + 1e-9
        positive, negative = map(self._scaled, features)
        whole = np.ones(len(negative), dtype=bool)
        for _ in range(_ROUNDS):
            self._weights = _logistic_regression(positive, negative[whole])
            whole = negative @ self._weights < np.log(_CLEAR)

    def _scaled(self, features: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(features)), (features - self._mean) / self._scale])

    def __call__(self, pairs: Sequence[tuple[str, str]], evidence: Evidence, deviation: np.ndarray) -> np.ndarray:
        """How much likelier each side is cut than whole, as a logarithm, (pairs,); 0 if it is not short."""
        if not len(self._weights):
            return np.zeros(len(pairs))
        found = self._scaled(self._features(pairs, evidence, deviation)) @ self._weights - self._handicap
        words = np.bincount(evidence.of_pair[1 - self._side], minlength=evidence.pairs)
        is_short = deviation < 0 if self._side else deviation > 0
        return np.where(is_short & (words >= _FEWEST), np.maximum(found, 0.0), 0.0)

    def _features(self, pairs: Sequence[tuple[str, str]], evidence: Evidence, deviation: np.ndarray) -> np.ndarray:
        """(pairs, features)."""
        cut, other = self._side, 1 - self._side
        against, words = evidence.against_tail(other), np.bincount(evidence.of_pair[other], minlength=evidence.pairs)
        marks = [(bool(end_mark(pair[other])), bool(end_mark(pair[cut]))) for pair in pairs]
        near = np.clip(deviation if cut else -deviation, -_FARTHEST, _FARTHEST)
        return np.column_stack(
            [
                against,
                np.sqrt(against),
                against / np.maximum(words, 1),
                np.log1p(words),
                near,
                np.minimum(near, 0) ** 2,
                [ends and not is_ended for ends, is_ended in marks],
                [ends for ends, _ in marks],
                evidence.means(other),
                evidence.means(cut),
            ]
        ).astype(float)


def _cut(text: str, draw: random.Random, with_mark: bool) -> str:
    """The beginning of a text, up to a space if it has any, and perhaps the mark at its end."""
    beginning = text[: round(len(text) * draw.uniform(*_CUT))]
    beginning = beginning.rsplit(" ", 1)[0] if " " in beginning else beginning
    return beginning + end_mark(text) if with_mark else beginning


def _logistic_regression(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """The weights of features, the first of which is constant, by Newton's method; both kinds weigh the same."""
    features = np.concatenate([positive, negative])
    is_positive = np.arange(len(features)) < len(positive)
    weight = len(features) / 2 / np.where(is_positive, len(positive), max(len(negative), 1))
    decay = np.append(1e-6, np.ones(features.shape[1] - 1))
    weights = np.zeros(features.shape[1])
    for _ in range(_STEPS):
        probability = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        gradient = features.T @ (weight * (is_positive - probability)) - decay * weights
        curvature = (features * (weight * probability * (1 - probability))[:, None]).T @ features
        weights = weights + np.linalg.solve(curvature + np.diag(decay), gradient)
    return weights

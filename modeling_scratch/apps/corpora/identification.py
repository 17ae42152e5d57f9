"""Which language texts are in: py3langid's model, for many texts at once."""

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from ...languages import is_same_language

_MOST = 400  # bytes of a text that are looked at
_BATCH = 2000
_OWN = 0.8  # how common the language of a side is taken to be at first
_ITERATIONS = 10


class _Identifier:
    """
    The naive Bayes model of py3langid (https://pypi.org/project/py3langid). Its own methods read a text byte by byte in
    Python, 3,000 texts a second; here the texts of a batch are read side by side.
    """

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # from an extra of this package

        model = LanguageIdentifier.from_model_file(MODEL_FILE)
        self.next = np.asarray(model.tk_nextmove)
        self.row = np.asarray(model.tk_row).astype(np.int64) << 8
        self.feature = np.asarray(model.tk_output).astype(np.int64)  # -1: none ends in this state
        self.languages: list[str] = list(model.labels)
        # A language in two scripts has two columns.
        columns = [self.languages.index(code) for code in model.nb_classes]
        self.merged = np.eye(len(self.languages), dtype=np.float32)[columns]  # (columns, languages)
        self.weights = np.asarray(model.nb_ptc).astype(np.float32)  # (features, columns)
        self.prior = np.asarray(model.nb_pc).astype(np.float32)

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """How probable each language is, (texts, languages); equal for texts in which the model finds nothing."""
        encoded = [_encoded(text) for text in texts]
        sizes = np.array([len(text) for text in encoded])
        order = np.argsort(-sizes, kind="stable")  # the longest first, so that those still read are the first ones
        letters = np.zeros((len(texts), max(sizes.max(initial=0), 1)), dtype=np.uint8)
        for place, text in enumerate(order.tolist()):
            letters[place, : sizes[text]] = np.frombuffer(encoded[text], dtype=np.uint8)
        state, keys = np.zeros(len(texts), dtype=np.int64), []
        for column, reading in enumerate(np.searchsorted(-sizes[order], -np.arange(letters.shape[1]), "left").tolist()):
            state[:reading] = self.next[self.row[state[:reading]] + letters[:reading, column]]
            found = self.feature[state[:reading]]
            places = np.flatnonzero(found >= 0)
            keys.append(order[places] * len(self.weights) + found[places])
        kinds, counts = np.unique(np.concatenate(keys), return_counts=True)
        of_text, feature = np.divmod(kinds, len(self.weights))
        begins = np.searchsorted(of_text, np.arange(len(texts)))
        scores = torch.nn.functional.embedding_bag(
            torch.from_numpy(feature),
            torch.from_numpy(self.weights),
            torch.from_numpy(begins),
            mode="sum",
            per_sample_weights=torch.from_numpy(np.log1p(counts.astype(np.float32))),
        ).numpy()
        scores[np.bincount(of_text, minlength=len(texts)) > 0] += self.prior
        scores /= np.sqrt(np.maximum(sizes, 1), dtype=np.float32)[:, None]  # as py3langid calibrates them
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        return scores @ self.merged


def _encoded(text: str) -> bytes:
    text = unicodedata.normalize("NFC", text.lower() if text.isupper() else text)
    return text.encode("utf-8", errors="surrogatepass")[:_MOST]


@cache
def _identifier() -> _Identifier:
    return _Identifier()


def can_identify(language: str) -> bool:
    """Whether the model knows a language."""
    return bool(_own_columns(language))


def _own_columns(language: str) -> list[int]:
    return [place for place, code in enumerate(_identifier().languages) if is_same_language(code, language)]


class Foreignness:
    """
    How probable it is that texts of one side of a corpus are in another language than this side.

    How common each language is, is learned from a sample: a name looks like any of 140 languages, but sentences that
    strayed into a corpus are mostly in a few. Without this, a tenth of good short messages would count as foreign.

    Args:
        sample: texts of this side.
        language: what they should be in; 0 is found for all texts if the model does not know it.
    """

    def __init__(self, sample: Sequence[str], language: str):
        self._own = _own_columns(language)
        if not self._own:
            return
        count = len(_identifier().languages)
        self._common = np.full(count, (1 - _OWN) / count)
        self._common[self._own] += _OWN / len(self._own)
        if not sample:
            return
        found = np.concatenate(
            [_identifier().probabilities(sample[start : start + _BATCH]) for start in range(0, len(sample), _BATCH)]
        )
        for _ in range(_ITERATIONS):  # expectation maximisation
            self._common = _weighted(found, self._common).mean(axis=0)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """The probability of other languages, (texts,)."""
        if not self._own:
            return np.zeros(len(texts))
        found = _weighted(_identifier().probabilities(texts), self._common)
        return np.clip(1 - found[:, self._own].sum(axis=1), 0, 1)


def _weighted(probabilities: np.ndarray, common: np.ndarray) -> np.ndarray:
    found = probabilities * common
    return found / np.maximum(found.sum(axis=1, keepdims=True), 1e-30)

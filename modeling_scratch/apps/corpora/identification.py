"""Which language texts are in: py3langid's model, for many texts at once."""

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np

from ...languages import base_language

_MOST = 400  # bytes of a text that are looked at
_ROWS = 1 << 16  # features whose weights are in memory at once


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
        self.columns = np.array([self.languages.index(code) for code in model.nb_classes])
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
        scores = np.tile(self.prior, (len(texts), 1))
        scores[np.bincount(of_text, minlength=len(texts)) == 0] = 0
        amounts = np.log1p(counts.astype(np.float32))
        for start in range(0, len(kinds), _ROWS):
            part = slice(start, start + _ROWS)
            begins = np.flatnonzero(np.diff(of_text[part], prepend=-1))
            scores[of_text[part][begins]] += np.add.reduceat(
                amounts[part, None] * self.weights[feature[part]], begins, axis=0
            )
        scores /= np.sqrt(np.maximum(sizes, 1), dtype=np.float32)[:, None]  # as py3langid calibrates them
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        by_language = np.zeros((len(texts), len(self.languages)), dtype=np.float32)
        np.add.at(by_language, (slice(None), self.columns), scores)
        return by_language


def _encoded(text: str) -> bytes:
    text = unicodedata.normalize("NFC", text.lower() if text.isupper() else text)
    return text.encode("utf-8", errors="surrogatepass")[:_MOST]


@cache
def _identifier() -> _Identifier:
    return _Identifier()


def can_identify(language: str) -> bool:
    """Whether the model knows a language."""
    return base_language(language) in _identifier().languages


def foreignness(texts: Sequence[str], language: str) -> np.ndarray:
    """
    For each text, how probable another language is than this one, (texts,): above 0.5 if one is more probable, 1 if one
    is certain; 0 if the model does not know this language.
    """
    if not can_identify(language):
        return np.zeros(len(texts))
    probabilities = _identifier().probabilities(texts)
    own = probabilities[:, (place := _identifier().languages.index(base_language(language)))].copy()
    probabilities[:, place] = 0
    other = probabilities.max(axis=1)
    return other / np.maximum(own + other, 1e-12)

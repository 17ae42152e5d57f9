"""
A small table for the page, by which it tells whether a sentence is clearly in another language than the model's: the
sequences of bytes in py3langid's model that tell common languages apart best.
"""

import base64
from functools import cache
from typing import Any

import numpy as np

from ...languages import base_language

_LANGUAGES = (
    "ar bg bn ca cs da de el en es et fa fi fr he hi hr hu hy id it ja ka ko lt lv nl no pl pt ro ru sk sl sr sv th tr "
    "uk ur vi zh"
)
_SEQUENCES = 7_000
_LONGEST = 4  # bytes
_MOST_LANGUAGES = 8  # for which a sequence has a weight; the other languages have none
_STEP, _LEVELS = 1.5, 4  # weights are 0, 1.5, 3, 4.5 or 6, in logarithms of ratios of probabilities
_LEAST = 2e-7  # probability


@cache
def language_table(tag: str) -> dict[str, Any] | None:
    """
    The table for a source language, as JSON.

    Its "sequences", in base64, are of the form: length, bytes, number of weights, weights. A weight is a byte: 4 times
    the index of its language, plus its level from 0; level 0 is one "step".

    Returns:
        None if py3langid is not installed or does not know the language.
    """
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # from an extra of this package
    except ModuleNotFoundError:
        return None
    model, source = LanguageIdentifier.from_model_file(MODEL_FILE), base_language(tag)
    if source not in model.nb_classes:
        return None
    languages = sorted({*_LANGUAGES.split(), source})
    sequences = _sequences(model)
    columns = [[place for place, known in enumerate(model.nb_classes) if known == language] for language in languages]
    logs = np.stack([model.nb_ptc[:, column].max(axis=1) for column in columns], axis=1).astype(np.float64)
    shares = np.exp(logs) / np.exp(logs).sum(axis=0)  # (sequences, languages)
    chosen = _most_telling(shares, [len(sequence) for sequence in sequences])
    of_chosen = np.log(_added_up(shares, sequences, chosen) + _LEAST)
    base = np.sort(of_chosen, axis=1)[:, -1 - _MOST_LANGUAGES, None]
    levels = np.clip(np.round((of_chosen - base) / _STEP), 0, _LEVELS).astype(int)
    content = bytearray()
    for place, row in zip(chosen, levels, strict=True):
        weights = [4 * language + level - 1 for language, level in enumerate(row.tolist()) if level]
        content += bytes([len(sequences[place]), *sequences[place], len(weights), *weights])
    return {
        "source": source,
        "languages": languages,
        "step": _STEP,
        "sequences": base64.b64encode(content).decode(),
    }


def _sequences(model) -> list[bytes]:
    """
    The sequence of each feature of py3langid's model. Its automaton reads a text byte by byte; each state stands for
    the longest feature that ends there. The shortest way to a state with a feature spells that feature.
    """
    moves = np.frombuffer(model.tk_nextmove, dtype=model.tk_nextmove.typecode).reshape(-1, 256)
    row_of, features = np.frombuffer(model.tk_row, dtype=model.tk_row.typecode), model.tk_output
    words, seen = [b""] * len(features), np.zeros(len(features), dtype=bool)
    found: dict[int, bytes] = {}
    seen[0], level = True, np.array([0])
    while len(level):
        after, ways = np.unique(moves[row_of[level]].ravel(), return_index=True)
        after, ways = after[~seen[after]], ways[~seen[after]]
        seen[after] = True
        for state, way in zip(after.tolist(), ways.tolist(), strict=True):
            words[state] = words[level[way >> 8]] + bytes([way & 255])
            if features[state] >= 0:
                found.setdefault(features[state], words[state])
        level = after
    return [found[feature] for feature in range(len(found))]


def _most_telling(shares: np.ndarray, lengths: list[int]) -> list[int]:
    """The short sequences that tell most about one language or another, equally many for each language."""
    gains = shares * np.log(shares / shares.mean(axis=1, keepdims=True))
    gains[np.array(lengths) > _LONGEST] = -1
    ranks = np.argsort(np.argsort(-gains, axis=0), axis=0).min(axis=1)
    return np.argsort(ranks, kind="stable")[:_SEQUENCES].tolist()


def _added_up(shares: np.ndarray, sequences: list[bytes], chosen: list[int]) -> np.ndarray:
    """The shares of the chosen sequences. Another sequence counts for the longest chosen one with which it ends."""
    places = {sequences[number]: place for place, number in enumerate(chosen)}
    found = np.zeros((len(chosen), shares.shape[1]))
    for sequence, row in zip(sequences, shares, strict=True):
        ends = (sequence[start:] for start in range(len(sequence)))
        if (place := next((places[end] for end in ends if end in places), None)) is not None:
            found[place] += row
    return found

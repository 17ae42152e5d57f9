"""
How far to trust an output: a number from 0 to 1, which training calibrates. Below 0.5, the output is doubtful: the
input is unlike what the model has learnt, or the output is too short or too long for it.
"""

import base64
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

FILE = "confidence.json"
DOUBTFUL = 0.5  # below this

_HASHES = 4
_MASK = 2**32 - 1
_START = -1  # stands before the first token
_LOWEST = -1e6  # log-probability, in place of minus infinity
_MORE = 3  # tokens that are as usual are added to each text, since a share of few says little
_FARTHEST = 30.0  # from the threshold, in scales


def ngrams_of(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The two and the three tokens that end in each token of a sentence."""
    padded = [_START, _START, *ids]
    return [*zip(padded[1:], ids, strict=False), *zip(padded, padded[1:], ids, strict=False)]


class NgramSet:
    """
    A set of n-grams of tokens as a Bloom filter (Bloom 1970, https://doi.org/10.1145/362686.362692): it contains all
    n-grams that it was made of, and a few others. JavaScript computes the same hashes, with Math.imul.
    """

    def __init__(self, bits: bytes):
        self.bits = bits

    def __contains__(self, ngram: tuple[int, ...]) -> bool:
        return all(self.bits[place >> 3] >> (place & 7) & 1 for place in places_of(ngram, 8 * len(self.bits)))


def _mixed(number: int) -> int:
    """A hash of a 32-bit number: the finalizer of MurmurHash3."""
    number = (number ^ number >> 16) * 0x85EBCA6B & _MASK
    number = (number ^ number >> 13) * 0xC2B2AE35 & _MASK
    return number ^ number >> 16


def places_of(ngram: tuple[int, ...], count: int) -> list[int]:
    """The bits that an n-gram sets, of `count`. For arrays in place of its tokens, those of many n-grams."""
    first = 0
    for token in ngram:
        first = _mixed(first ^ token + 2)
    step = _mixed(first ^ 0x9E3779B9) | 1
    return [(first + number * step) % count for number in range(_HASHES)]


def _target_ratio(ids: Sequence[int], length: int) -> float:
    return (length + _MORE) / (len(ids) + _MORE)


@dataclass(frozen=True, eq=False)
class Confidence:
    """
    What the confidence.json of a model contains.

    Each signal finds what the others miss: a low probability finds text from elsewhere; unknown n-grams find other
    languages, other orders of words and misspellings; a target that is too long for its source finds endless
    repetition; and one that is too short, a part that was left out.

    Args:
        signals: for each signal, the value below which an output is doubtful, and a scale, in `signals_of`'s units.
        longest_source: the most tokens of a source in training; None: unknown.
        known: the pairs and triples of adjacent source tokens in training, or the most frequent ones of very many.
        reserved: the tokens that stand for kept words. What has one of them counts as known.
        measured: how well it told sentences apart when it was calibrated, for people.
    """

    signals: dict[str, tuple[float, float]]
    longest_source: int | None
    known: NgramSet
    reserved: Collection[int] = ()
    measured: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str, subfolder: str = "", **options) -> "Confidence | None":
        """
        The one of a model; None if it has none.

        Args:
            name: a model folder or Hub name; "" for a model in memory.
            options: for the Hub: revision, cache_dir, token, local_files_only.

        Raises:
            ValueError: the file is not what training writes.
        """
        if not name:
            return None
        path = Path(name, subfolder, FILE)
        if not Path(name).is_dir():
            try:
                path = Path(hf_hub_download(name, f"{subfolder}/{FILE}" if subfolder else FILE, **options))
            except (EntryNotFoundError, LocalEntryNotFoundError):  # the latter: offline, and never loaded
                return None
        return cls.from_text(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else None

    @classmethod
    def from_text(cls, text: str, name: str = FILE) -> "Confidence":
        """What `text` returned. Raises ValueError, which begins with the name, for anything else."""
        try:
            content = json.loads(text)
            made = cls(**content | {"known": NgramSet(base64.b64decode(content["known"]))})
            made(ids=[0], length=1, log_probability=0.0)
        except (TypeError, KeyError, ValueError, ArithmeticError) as error:
            raise ValueError(f"{name} is not a file of confidences: {error!r}") from error
        return made

    def text(self) -> str:
        """The content of its file."""
        content = vars(self) | {"known": base64.b64encode(self.known.bits).decode()}
        return json.dumps(content, indent=1) + "\n"

    def signals_of(self, ids: Sequence[int], length: int, log_probability: float) -> dict[str, float]:
        """
        The mean log-probability of the target's tokens, the share of the source's pairs and triples of adjacent tokens
        that occur in training, the number of source tokens for each target token, and the reverse. (Of few tokens,
        the last says little. Files of earlier versions do not use it.)

        Args:
            ids: the source's token ids, with the end token.
            length: the number of target tokens, with the end token.
            log_probability: of the whole target: its score.
        """
        ngrams, reserved = ngrams_of(ids), set(self.reserved)
        if not reserved.isdisjoint(ids):
            ngrams = [ngram for ngram in ngrams if reserved.isdisjoint(ngram)]
        known = len(ids) - sum(ngram not in self.known for ngram in ngrams) / 2
        return {
            "mean_log_probability": max(log_probability, _LOWEST) / length,
            "known_ngrams": (known + _MORE) / (len(ids) + _MORE),
            "length_ratio": len(ids) / length,
            "target_ratio": _target_ratio(ids, length),
        }

    def _distances(self, *translation) -> dict[str, float]:
        """How far each signal is above its threshold, in scales. The arguments are those of `signals_of`."""
        found = self.signals_of(*translation)
        return {name: (found[name] - least) / scale for name, (least, scale) in self.signals.items()}

    def is_short(self, ids: Sequence[int], length: int) -> bool:
        """Whether an output is doubtful since it is short for its source. The arguments are those of `signals_of`."""
        return "target_ratio" in self.signals and _target_ratio(ids, length) < self.signals["target_ratio"][0]

    def __call__(self, ids: Sequence[int], length: int, log_probability: float, says_nothing: bool = False) -> float:
        """
        The confidence in an output: that of the signal with the lowest one, by a logistic function; at most a half for
        a source that is longer than any in training. The arguments are those of `signals_of`, and whether the
        output says nothing, for which it is 0.
        """
        if says_nothing:
            return 0.0
        lowest = min(self._distances(ids, length, log_probability).values())
        number = 1 / (1 + math.exp(-max(lowest, -_FARTHEST)))
        if self.longest_source is None or len(ids) <= self.longest_source:
            return number
        return min(number, DOUBTFUL * self.longest_source / len(ids))

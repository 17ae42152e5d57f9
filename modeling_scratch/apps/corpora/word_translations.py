"""Which words of a corpus translate each other, learned from its own pairs: what tells misaligned and cut pairs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import regex

from ...data.copied_words import translation_counts

_LINKS = 4_000_000  # possible links between words that are learned from: 33,000 pairs of 11 words each
_LONGEST = 60  # words of a text that are looked at
_PREFIX = 5  # letters that stand for a word, so that its endings count as one: no dictionary or stemmer is needed
_LEAST, _MOST = -4.0, 8.0  # of a word's evidence
_CHANCE = 0.02  # of a word's probability is left if nothing translates it: exp(-4)
_SURE = 4.0  # evidence of a word that is the same on both sides
_UNSEEN = 0.5  # added to the count of a word, so that one other pair proves little
_TO_KNOW_TYPICAL = 2000  # pairs
_LEAST_TYPICAL = 1.0  # evidence of an ordinary word, in the 2.0 of long sentences and the 4.0 of short messages
_FREQUENT = 3  # pairs with a word, to know whether it is translated
_SENTENCE = 3  # words at least
_PRIOR_WORDS = 4  # short pairs are taken for ordinary ones until as many words say otherwise

# Thai, Khmer, ideographs, kana: no spaces between words, so that two letters stand for one. Words from other languages,
# in katakana, are words.
SPACELESS = r"\p{LB=SA}\p{LB=ID}\p{LB=CJ}"
_TOKEN = regex.compile(
    rf"(?V1)[[\p{{L}}\p{{M}}]--[{SPACELESS}]]+|[\p{{Katakana}}ー]+|[[\p{{L}}\p{{M}}]&&[{SPACELESS}]--\p{{Katakana}}]+|\p{{Nd}}+"
)
_ASCII_TOKEN = re.compile("[a-z]+|[0-9]+")
_SPACELESS_LETTER = regex.compile(rf"[{SPACELESS}]")
_KATAKANA = regex.compile(r"\p{Katakana}")


def tokens(text: str) -> list[str]:
    """What stands for the words of a text, without repeats, in order. Marks of keyboard shortcuts are left out."""
    text = text.lower().replace("_", "").replace("&", "")
    if text.isascii():
        words = [word[:_PREFIX] for word in _ASCII_TOKEN.findall(text)]
    elif not _SPACELESS_LETTER.search(text):
        words = [word[:_PREFIX] for word in _TOKEN.findall(text)]
    else:
        words = []
        for word in _TOKEN.findall(text):
            if _SPACELESS_LETTER.match(word) and not _KATAKANA.match(word):
                words += [word[place : place + 2] for place in range(max(len(word) - 1, 1))]
            else:
                words.append(word[:_PREFIX])
    return list(dict.fromkeys(words))[:_LONGEST]


def _is_mostly_lower_case(text: str) -> bool:
    words = [word for word in text.split() if word[0].isalpha()]
    return 2 * sum(word[0].islower() for word in words) >= len(words) > 0


@dataclass
class _Grid:
    """
    All links between words of pairs, source by source: link i joins source word `first[i]` and target word `second[i]`,
    both places among all words of their side. `transposed` orders links target by target. `begins` and
    `transposed_begins` are the first link of each word there; only words of pairs with words on both sides have links.
    """

    first: np.ndarray
    second: np.ndarray
    transposed: np.ndarray
    begins: tuple[np.ndarray, np.ndarray]
    linked: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, sizes: tuple[np.ndarray, np.ndarray]) -> "_Grid":
        """Args: how many words each pair has on its sides."""
        places, starts = [], [np.cumsum(side) - side for side in sizes]
        linked = []
        for side in (0, 1):
            others = np.repeat(sizes[1 - side], sizes[side])  # of each word, how many words it may be linked with
            own = np.repeat(np.arange(sizes[side].sum()), others)
            begin = np.cumsum(others) - others
            other = np.arange(len(own)) - np.repeat(begin, others)
            other += np.repeat(np.repeat(starts[1 - side], sizes[side]), others)
            places.append((own, other, begin[others > 0]))
            linked.append(np.flatnonzero(others))
        (first, second, begins), (second_again, first_again, transposed_begins) = places
        links = sizes[0] * sizes[1]  # of each pair
        block = np.repeat(np.arange(len(links)), links)
        start = (np.cumsum(links) - links)[block]
        transposed = start + (first_again - starts[0][block]) * sizes[1][block] + (second_again - starts[1][block])
        return cls(first, second, transposed, (begins, transposed_begins), (linked[0], linked[1]))


class WordTranslations:
    """
    The probabilities of IBM model 1 (Brown et al. 1993, https://aclanthology.org/J93-2003) in both directions, and how
    well they explain a pair.

    Args:
        pairs: a sample of the corpus. If they have more than four million possible links, some are left out.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        sides = [[tokens(pair[side]) for pair in pairs] for side in (0, 1)]
        links = sum(len(one) * len(other) for one, other in zip(*sides, strict=True))
        step = max(-(-links // _LINKS), 1)
        self.learned = np.arange(0, len(pairs), step)  # the places of the pairs that were learned from
        self.pairs = len(self.learned)
        self._known: tuple[dict[str, int], dict[str, int]] = {}, {}
        numbers, sizes = [], []
        for known, side in zip(self._known, sides, strict=True):
            numbers.append([known.setdefault(word, len(known)) for words in side[::step] for word in words])
            sizes.append(np.array([len(words) for words in side[::step]], dtype=np.int64))
        words = [np.array(side, dtype=np.int64) for side in numbers]
        self._seen = [np.bincount(side, minlength=1) for side in words]  # in how many pairs each word is
        self._width = len(self._seen[1])
        # A word of one pair alone teaches nothing: what a pair itself has taught does not count for it.
        several = [seen[side] > 1 for seen, side in zip(self._seen, words, strict=True)]
        of_pair = [np.repeat(np.arange(self.pairs), size) for size in sizes]
        kept = [side[keep] for side, keep in zip(words, several, strict=True)]
        counts = [np.bincount(pair[keep], minlength=self.pairs) for pair, keep in zip(of_pair, several, strict=True)]
        grid = _Grid.of((counts[0], counts[1]))
        keys = kept[0][grid.first] * self._width + kept[1][grid.second]
        self._kinds, links = np.unique(keys, return_inverse=True)
        ends = np.divmod(self._kinds, self._width)
        self._counts, self._totals, self._of_nothing = [], [], []
        for given, other, places in ((0, 1, grid.second), (1, 0, grid.first)):
            found, of_nothing = translation_counts(links, ends[given], kept[other], places)
            self._counts.append(found)
            self._totals.append(np.bincount(ends[given], found, len(self._seen[given])))
            nothing = np.zeros(len(self._seen[other]))
            nothing[: len(of_nothing)] = of_nothing
            self._of_nothing.append(nothing)
        if not len(self._kinds):  # no word is in several pairs, as in a list of terms: one that is never found
            self._kinds, self._counts = np.array([-1]), [np.zeros(1), np.zeros(1)]
        self.typical = 0.0
        # Of ordinary pairs, so that short ones count as such until their own words say otherwise.
        sample = [pairs[place] for place in self.learned[:: max(self.pairs // _TO_KNOW_TYPICAL, 1)].tolist()]
        found = np.concatenate(self.evidence(sample, True).log_odds) if sample else np.zeros(0)
        self.typical = float(np.nanmedian(found)) if np.isfinite(found).any() else 0.0

    @property
    def are_known(self) -> bool:
        """Whether ordinary pairs are told from others: not if the corpus is small, or its pairs are no translations."""
        return self.typical >= _LEAST_TYPICAL

    def say_the_same(self, text: str, other: str) -> bool:
        """
        Whether two similar texts of one side differ in typing alone: not those with other numbers, and not "Export the
        key" and "Import the key", whose words are in other pairs too, as typing errors are not.
        """
        words, others = set(tokens(text)), set(tokens(other))
        less, more = words - others, others - words
        if any(word.isdigit() for word in less | more):
            return False
        known_less, known_more = (any(map(self._is_frequent, side)) for side in (less, more))
        return not ((known_less and (known_more or not more)) or (known_more and not less))

    def _is_frequent(self, word: str) -> bool:
        sides = zip(self._known, self._seen, strict=True)
        return any(word in known and seen[known[word]] >= _FREQUENT for known, seen in sides)

    def translated_share(self, texts: Sequence[str]) -> np.ndarray:
        """
        The share of the words of each text that this corpus translates by other words, (texts,). Words that it has
        seldom do not count; if it has no others, capitals tell sentences from names. A text of one or two words has a
        share of 0, since it may be a name or a term.
        """
        kept = self._kept_as_they_are()
        shares = np.zeros(len(texts))
        for place, text in enumerate(texts):
            words = tokens(text)
            known = [kept[word] for word in words if word in kept]
            if len(words) >= _SENTENCE:
                shares[place] = known.count(False) / len(known) if known else float(_is_mostly_lower_case(text))
        return shares

    @cache  # noqa: B019
    def _kept_as_they_are(self) -> dict[str, bool]:
        """Of words that are not rare, whether they usually are their own translations."""
        kept = {}
        for word, number in self._known[0].items():
            seen = self._seen[0][number]
            if seen < _FREQUENT or word.isdigit():
                continue
            key = number * self._width + self._known[1].get(word, -1)
            place = min(np.searchsorted(self._kinds, key), len(self._kinds) - 1)
            is_there = word in self._known[1] and self._kinds[place] == key
            # Less one: what the pair at hand may have taught.
            count = max(self._counts[0][place] - 1, 0.0) if is_there else 0.0
            kept[word] = bool(2 * count >= self._totals[0][number] - 1)
        return kept

    def evidence(self, pairs: Sequence[tuple[str, str]], learned_from: bool | np.ndarray) -> "Evidence":
        """
        How well the two sides of each pair explain each other.

        Args:
            learned_from: whether each pair is one of those learned from. Then, what it taught itself does not count.
        """
        sides = [[tokens(pair[side]) for pair in pairs] for side in (0, 1)]
        sizes = tuple(np.array([len(words) for words in side], dtype=np.int64) for side in sides)
        numbers = [
            np.array([known.get(word, -1) for words in side for word in words], dtype=np.int64)
            for known, side in zip(self._known, sides, strict=True)
        ]
        own = np.broadcast_to(learned_from, len(pairs))
        of_pair = [np.repeat(np.arange(len(pairs)), size) for size in sizes]
        same = [
            np.fromiter((word in other for words, other in zip(*order, strict=True) for word in words), dtype=bool)
            for order in ([sides[0], list(map(set, sides[1]))], [sides[1], list(map(set, sides[0]))])
        ]
        grid = _Grid.of((sizes[0], sizes[1]))
        keys = numbers[0][grid.first] * self._width + numbers[1][grid.second]
        places = np.minimum(np.searchsorted(self._kinds, keys), len(self._kinds) - 1)
        is_known = (numbers[0][grid.first] >= 0) & (numbers[1][grid.second] >= 0)
        is_known &= self._kinds[places] == keys
        log_odds = [self._explained(side, numbers, of_pair, own, grid, places, is_known) for side in (0, 1)]
        evidence = []
        for side in (0, 1):
            seen = np.where(numbers[side] >= 0, self._seen[side][numbers[side]], 0) - own[of_pair[side]]
            counts = (seen > 0) | same[side]
            found = np.where(same[side], np.maximum(log_odds[side], _SURE), log_odds[side])
            evidence.append(np.where(counts, found, np.nan))
        return Evidence((of_pair[0], of_pair[1]), (evidence[0], evidence[1]), len(pairs), self.typical)

    def _explained(self, side, numbers, of_pair, own, grid, places, is_known) -> np.ndarray:
        """The evidence for each word of a side: the log of how much likelier the other side makes it than chance."""
        other = 1 - side
        given, written = (grid.second, grid.first) if side == 0 else (grid.first, grid.second)
        direction = other  # probabilities of the words of `side`, given those of the other
        counts = np.where(is_known, self._counts[direction][places], 0.0)
        totals = np.where(numbers[other] >= 0, self._totals[direction][numbers[other]], 0.0)
        probability = counts / np.maximum(totals[given], 1e-9)
        nothing = np.where(numbers[side] >= 0, self._of_nothing[direction][numbers[side]], 0.0)
        total = np.bincount(written, probability, len(numbers[side])) + nothing
        taught = np.where(own[of_pair[side]][written], probability / np.maximum(total[written], 1e-30), 0.0)
        without = np.maximum(totals - np.bincount(given, taught, len(totals)), 0.0)
        probability = np.maximum(counts - taught, 0.0) / (without[given] + _UNSEEN)
        if side == 1:
            probability = probability[grid.transposed]
        best = np.zeros(len(numbers[side]))
        if len(probability):
            best[grid.linked[side]] = np.maximum.reduceat(probability, grid.begins[side])
        seen = np.where(numbers[side] >= 0, self._seen[side][numbers[side]], 0) - own[of_pair[side]]
        chance = np.maximum(seen, 0.5) / max(self.pairs, 1)
        return np.clip(np.log(best / chance + _CHANCE), _LEAST, _MOST)


@dataclass
class Evidence:
    """
    How well the sides of pairs explain each other, word by word.

    Args:
        of_pair: for each side, the pair of each word, ascending, (words,).
        log_odds: for each side, the evidence of each word, (words,): how much likelier the other side makes it than
            chance, as a logarithm; NaN for words that nothing is known of.
        pairs: how many.
        typical: the evidence of an ordinary word of this corpus.
    """

    of_pair: tuple[np.ndarray, np.ndarray]
    log_odds: tuple[np.ndarray, np.ndarray]
    pairs: int
    typical: float

    def missing(self) -> np.ndarray:
        """
        The share of the evidence of ordinary pairs that each pair lacks, (pairs,): 0 for an ordinary one, 1 if its
        words explain each other no better than chance. Some ordinary words are added to those of each pair.
        """
        if self.typical < _LEAST_TYPICAL:
            return np.zeros(self.pairs)
        total, count = np.full(self.pairs, _PRIOR_WORDS * self.typical), np.full(self.pairs, float(_PRIOR_WORDS))
        for of_pair, found in zip(self.of_pair, self.log_odds, strict=True):
            is_known = ~np.isnan(found)
            total += np.bincount(of_pair[is_known], found[is_known], self.pairs)
            count += np.bincount(of_pair[is_known], minlength=self.pairs)
        return np.maximum(1 - total / count / self.typical, 0)

    def means(self, side: int) -> np.ndarray:
        """The mean evidence of the words of a side of each pair, (pairs,); 0 if nothing is known of them."""
        is_known = ~np.isnan(self.log_odds[side])
        of_pair = self.of_pair[side][is_known]
        total = np.bincount(of_pair, self.log_odds[side][is_known], self.pairs)
        return total / np.maximum(np.bincount(of_pair, minlength=self.pairs), 1)

    def against_tail(self, side: int) -> np.ndarray:
        """
        For each pair, the evidence that the other side lacks what this one ends with, (pairs,): the largest sum of
        evidence against words up to the last one.
        """
        against = -np.nan_to_num(self.log_odds[side])
        backwards, of_pair = np.cumsum(against[::-1])[::-1], self.of_pair[side]
        begins = np.flatnonzero(np.diff(of_pair, prepend=-1))
        found = np.zeros(self.pairs)
        if len(begins):
            ends = np.append(begins[1:], len(of_pair))
            after = np.append(backwards, 0.0)[ends]
            found[of_pair[begins]] = np.maximum(np.maximum.reduceat(backwards, begins) - after, 0)
        return found

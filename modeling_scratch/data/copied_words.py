"""
Reserved characters in training pairs, from which models learn to copy them: in place of the kept words that stand on
both sides and, where these are rare, in place of some words that translate each other, and beside some.
"""

import hashlib
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.kept_words import KEPT, RESERVED, hide
from ..recipe.schema import SOURCE, TARGET

COPIED = 0.25  # the share of pairs without kept words that get characters
_MOST_COPIED = 4  # in such a pair
_BESIDE = 0.5  # how often one stands beside a word, as addresses and tags do, instead of replacing a word
_PHRASES = 0.5  # how often a word is replaced together with the words before it that are linked, too
_LINKED = 0.1  # the least probability, in both directions, of linked words
# Translating numbers from 0, so most pairs have some of the first characters, and models learn these soonest.
_FIRST, _AMONG_FIRST = 4, 0.75
_SURE = 0.5  # the least probability, in both directions, of words that translate each other
_SEEN = 3  # in how many pairs they must stand on both sides, if they are not identical
_ITERATIONS = 5
_LINKS = 2_000_000  # possible links between words that are looked at, which takes seconds and some 150 MB

Span = tuple[int, int]


@dataclass(frozen=True)
class Copies:
    """
    Puts reserved characters in place of words of pairs and beside them, the same on both sides, numbered at random.

    Args:
        seed: determines, with the place of a pair, what becomes of it.
        words: source words and their translations, some of which are replaced in a share `COPIED` of the pairs.
        linked: source and target words that may translate each other, such as articles: characters stand beside some,
            and they are replaced before other words.
    """

    seed: int
    words: Mapping[str, str]
    linked: frozenset[tuple[str, str]] = frozenset()

    def __call__(self, pairs: Mapping[str, Sequence[str]], places: Sequence[Sequence[int]]) -> dict[str, Sequence[str]]:
        """
        The changed pairs, of the columns `source` and `target`; other columns stay.

        Args:
            places: for each pair the numbers, such as epoch and row, that together with the seed determine its changes.
        """
        sources, targets = list(pairs[SOURCE]), list(pairs[TARGET])
        for row, place in enumerate(places):
            source, target = sources[row], targets[row]
            links, _ = kept_on_both_sides(source, target)
            if not (links or self.words):
                continue
            drawn = random.Random(",".join(map(str, (self.seed, *place))))
            if not links and drawn.random() < COPIED:
                links = self._chosen(source, target, drawn)
            if links:
                sources[row], targets[row] = _replaced(source, target, links, drawn)
        return {**pairs, SOURCE: sources, TARGET: targets}

    def _chosen(self, source: str, target: str, drawn: random.Random) -> list[tuple[Span, Span]]:
        """Some words of a pair that each stand once on their side, with their translations; of some, one edge."""
        links, beside = self.possible(source, target), self._linked(source, target)
        links = drawn.sample(links, min(len(links), drawn.randint(1, _MOST_COPIED)))
        chosen: list[tuple[Span, Span]] = []
        for link in links:
            if beside and drawn.random() < _BESIDE:
                edge, (span, other) = drawn.randrange(2), drawn.choice(beside)
                link = (span[edge], span[edge]), (other[edge], other[edge])
            elif drawn.random() < _PHRASES:
                link = self.phrase(source, target, link)
            if not any(_overlap(*spans) for other in chosen for spans in zip(link, other, strict=True)):
                chosen.append(link)
        return chosen

    def phrase(self, source: str, target: str, link: tuple[Span, Span]) -> tuple[Span, Span]:
        """A link of two words, together with the words before them on both sides while these are linked, one by one."""
        (start, end), (target_start, target_end) = link
        before = (word_spans(text[:place]) for text, place in ((source, start), (target, target_start)))
        for one, other in zip(*map(reversed, before), strict=False):
            is_linked = (source[slice(*one)], target[slice(*other)]) in self.linked
            if not is_linked or source[one[1] : start].strip() or target[other[1] : target_start].strip():
                break
            start, target_start = one[0], other[0]
        return (start, end), (target_start, target_end)

    def possible(self, source: str, target: str) -> list[tuple[Span, Span]]:
        """Where the words stand that can be replaced, and their translations."""
        once, other = _once(source), _once(target)
        return [(span, other[self.words[word]]) for word, span in once.items() if self.words.get(word) in other]

    def _linked(self, source: str, target: str) -> list[tuple[Span, Span]]:
        """Where linked words stand."""
        words, others = _once(source).items(), _once(target).items()
        return [(span, place) for word, span in words for other, place in others if (word, other) in self.linked]

    def key(self) -> str:
        """The same for the same changes, in any process."""
        words = sorted(self.words.items()), sorted(self.linked)
        constants = COPIED, _MOST_COPIED, _BESIDE, _PHRASES, _FIRST, _AMONG_FIRST, KEPT.known.pattern
        content = repr((self.seed, constants, words))
        return hashlib.sha256(content.encode()).hexdigest()


def kept_on_both_sides(source: str, target: str) -> tuple[list[tuple[Span, Span]], bool]:
    """
    Where the kept words of a source stand that its target has too, as often as both have them, and where there; and
    whether these are all the kept words of both sides.
    """
    spans, others = KEPT.spans(source), KEPT.spans(target)
    waiting = _by_word(target, others)
    links = [(span, waiting[word].pop(0)) for span in spans if waiting.get(word := source[slice(*span)])]
    return links, len(links) == len(spans) == len(others)


def _by_word(text: str, spans: list[Span]) -> dict[str, list[Span]]:
    """Where each word stands that spans of a text contain."""
    places: dict[str, list[Span]] = {}
    for start, end in spans:
        places.setdefault(text[start:end], []).append((start, end))
    return places


def _once(text: str) -> dict[str, Span]:
    """Where the words stand that a text has once."""
    return {word: spans[0] for word, spans in _by_word(text, word_spans(text)).items() if len(spans) == 1}


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _replaced(source: str, target: str, links: list[tuple[Span, Span]], drawn: random.Random) -> tuple[str, str]:
    """A pair with reserved characters in place of linked spans, if there are enough; further spans stay as text."""
    links = links[: len(RESERVED)]
    first = _FIRST if drawn.random() < _AMONG_FIRST else len(RESERVED)
    numbers = drawn.sample(range(max(first, len(links))), len(links))
    sides = []
    for side, text in enumerate((source, target)):
        numbered = sorted((link[side], number) for link, number in zip(links, numbers, strict=True))
        spans = [span for span, _ in numbered]
        sides.append(hide(text, spans, [_written(text, span, RESERVED[number]) for span, number in numbered]))
    return sides[0], sides[1]


def _written(text: str, span: Span, character: str) -> str:
    """A character in place of a span; with a space, if it stands beside a word."""
    start, end = span
    if start < end:
        return character
    return f" {character}" if start and _is_of_words(text[start - 1]) else f"{character} "


# -- words that translate each other -----------------------------------------------------------------------------------


def word_spans(text: str) -> list[Span]:
    """Where the words of a text start and end: what is between white space, without punctuation at its edges."""
    spans = []
    for match in re.finditer(r"\S+", text):
        start, end = match.span()
        while start < end and not _is_of_words(text[start]):
            start += 1
        while start < end and not _is_of_words(text[end - 1]):
            end -= 1
        if start < end:
            spans.append((start, end))
    return spans


def _is_of_words(character: str) -> bool:
    """Letters, digits, and the marks that many scripts write after a letter."""
    return character.isalnum() or unicodedata.category(character).startswith("M")


def find_copied_words(pairs: Sequence[tuple[str, str]]) -> tuple[dict[str, str], frozenset[tuple[str, str]]]:
    """
    The `words` and `linked` words of `Copies`, from pairs. Words translate each other with confidence, one for one, if
    they are identical and seldom without each other, or each other's most probable translation by IBM model 1 (Brown et
    al. 1993, https://aclanthology.org/J93-2003) in both directions. The same pairs have the same words on any machine.
    """
    # A link is a word of a source with one of its target. Its places are those of the two among the words of all
    # sources and of all targets; its kind is which words they are.
    known: tuple[dict[str, int], dict[str, int]] = {}, {}
    words: tuple[list[int], list[int]] = [], []
    places, count = list[np.ndarray](), 0
    for pair in pairs:
        begins = [[len(side)] for side in words]
        found = [list(dict.fromkeys(text[start:end] for start, end in word_spans(text))) for text in pair]
        for side, numbers, own in zip(words, known, found, strict=True):
            side += [numbers.setdefault(word, len(numbers)) for word in own]
        places.append(np.indices(tuple(map(len, found))).reshape(2, -1) + begins)
        count += places[-1].shape[1]
        if count >= _LINKS:
            break
    if not count:
        return {}, frozenset()
    first_places, second_places = np.concatenate(places, axis=1)
    firsts, seconds = map(np.array, words)
    keys = firsts[first_places] * len(known[1]) + seconds[second_places]
    kinds, links, together = np.unique(keys, return_inverse=True, return_counts=True)
    first, second = kinds // len(known[1]), kinds % len(known[1])
    probability = np.minimum(
        _probabilities(links, first, seconds, second_places), _probabilities(links, second, firsts, first_places)
    )
    names = [list(numbers) for numbers in known]
    alone = np.maximum(np.bincount(firsts)[first], np.bincount(seconds)[second])
    same = np.array([known[1].get(name, -1) for name in names[0]])
    identical = same[first] == second
    confidence = np.where(identical, 1 + together / alone, np.where(together >= _SEEN, probability, 0))
    sure = np.flatnonzero(confidence - identical >= _SURE)
    # Two words may both have a probability of one half: the first is taken, and identical words before all others.
    copied: dict[str, str] = {}
    for place in sure[np.argsort(-confidence[sure], kind="stable")].tolist():
        copied.setdefault(names[0][first[place]], names[1][second[place]])
    counts = Counter(copied.values())
    linked = np.flatnonzero((probability >= _LINKED) & (together >= _SEEN)).tolist()
    return (
        {word: translation for word, translation in copied.items() if counts[translation] == 1},
        frozenset((names[0][first[place]], names[1][second[place]]) for place in linked),
    )


def _probabilities(links: np.ndarray, given: np.ndarray, words: np.ndarray, places: np.ndarray) -> np.ndarray:
    """How probable the other word of each kind of link is, given one of the two; see `translation_counts`."""
    counts, _ = translation_counts(links, given, words, places)
    return counts / np.bincount(given, counts)[given]


def translation_counts(
    links: np.ndarray, given: np.ndarray, words: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """
    How often each kind of link is expected to join a word with what translates it, (kinds,), and how probable each of
    the other words is to translate nothing: IBM model 1, with an empty word.

    Args:
        links: the kind of each link, of shape (links,).
        given: the word of each kind that is given, of shape (kinds,).
        words: the other words, of shape (places,), where they occur.
        places: of each link, the place of its other word, of shape (links,).
    """
    probability, of_nothing = np.ones(len(given)), np.ones(words.max(initial=-1) + 1)
    counts: np.ndarray = probability
    for _ in range(_ITERATIONS):
        shares, from_nothing = probability[links], of_nothing[words]
        total = np.bincount(places, shares, len(words)) + from_nothing
        counts = np.bincount(links, shares / total[places], len(given))
        probability = counts / np.bincount(given, counts)[given]
        shares_of_nothing = np.bincount(words, from_nothing / total)
        of_nothing = shares_of_nothing / shares_of_nothing.sum()
    return counts, of_nothing

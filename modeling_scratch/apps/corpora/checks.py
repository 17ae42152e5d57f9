"""
What is wrong with training pairs: a check for each fault, which gives every pair a score. A pair whose score reaches
the threshold of a check has its fault. `scratch corpus report` counts these pairs, `scratch corpus clean` drops them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import islice, product

import numpy as np
import regex
from rapidfuzz import fuzz

from ...languages import is_same_language, letters_of_script, script_of
from ...model.kept_words import KEPT
from ...model.text import clean, is_translatable
from .duplicates import Duplicates, TestSources
from .identification import Foreignness
from .truncation import Truncation, end_mark
from .word_translations import SPACELESS, WordTranslations

Pair = tuple[str, str]

# What each check finds, in a few words for reports, in the order in which one reason is given for a pair with several.
CHECKS = {
    "empty": "a side is empty, or one side alone has letters and digits",
    "encoding": "characters that a wrong encoding made",
    "script": "a side in another script than its language",
    "copy": "the target is a copy of the source",
    "untranslated": "a part of the source stands in the target",
    "language": "a side in another language",
    "length": "a very long side",
    "repetition": "a side that repeats itself",
    "duplicate": "a copy of an earlier pair",
    "near_duplicate": "nearly a copy of an earlier pair",
    "test_overlap": "the source is in a test set",
    "near_test_overlap": "the source is nearly in a test set",
    "misaligned": "sides whose words do not translate each other",
    "truncated": "a side that lacks the end of the other",
    "length_ratio": "sides of very different lengths",
    "placeholders": "placeholders, addresses or tags on one side alone",
    "numbers": "numbers on one side alone",
    "punctuation": "sides that end in different punctuation",
    "several_targets": "the source has had another target before",
}
# For pairs that are in languages.
_OF_LANGUAGES = {"script", "copy", "untranslated", "language", "numbers", "punctuation"}
_BATCH = 2000
_TO_KNOW_LANGUAGES = 10_000  # pairs
_TRANSLATED = 0.5  # the share of words that a copy would leave untranslated
_LEAST_SPREAD = 0.5  # of lengths: in a few pairs, or in pairs of equal lengths, any difference would be large
_LONGEST_PHRASE = 8  # words that may be repeated
_CLEARLY_REPEATED = 4  # words: twice in a row is enough; shorter ones are repeated for emphasis
_FEWEST_COPIED = 4  # words in a row that are not by chance in both sides
_ALIKE = 0.95  # the likeness of copies
_SAMPLE = 100_000  # pairs, spread over the corpus, from which its words and lengths are learned


@dataclass(frozen=True)
class Finding:
    """
    A fault of a pair.

    Args:
        line: the place of the pair in the corpus, from 1.
        check: one of `CHECKS`.
        score: at least the threshold of the check.
    """

    line: int
    check: str
    score: float


@dataclass(frozen=True)
class CheckedPairs:
    """
    Some successive pairs and their scores.

    Args:
        first: the place of the first of them in the corpus, from 0.
        pairs: source and target of each, as models read them.
        scores: by the name of the check, (pairs,). Higher is worse; 0 where nothing is wrong.
        earlier: the place of the pair that each repeats, from 0; -1 where there is none, (pairs,).
    """

    first: int
    pairs: list[Pair]
    scores: dict[str, np.ndarray]
    earlier: np.ndarray

    def findings(self, thresholds: Mapping[str, float]) -> Iterator[Finding]:
        """The faults of these pairs, pair by pair, in the order of `CHECKS`."""
        names = [name for name in CHECKS if name in thresholds and name in self.scores]
        if not names:
            return
        found = np.array([self.scores[name] >= thresholds[name] for name in names])  # (checks, pairs)
        for place, check in np.argwhere(found.T).tolist():
            yield Finding(self.first + place + 1, names[check], float(self.scores[names[check]][place]))


def check_pairs(
    pairs: Callable[[], Iterable[Pair]],
    languages: tuple[str, str] | None,
    test_sources: Iterable[str] = (),
    names: Iterable[str] = CHECKS,
) -> Iterator[CheckedPairs]:
    """
    Check all pairs of a corpus, in two passes over it.

    Args:
        pairs: a function that reads the corpus from its beginning; it is called twice.
        languages: of source and target; None: the pairs are not in languages, and only some checks apply.
        test_sources: sources of test sets that must not be in the corpus.
        names: the checks to run.
    """
    checker = PairChecker(languages, test_sources, names)
    for batch in _batches(pairs()):
        checker.learn(batch)
    checker.close()
    first = 0
    for batch in _batches(pairs()):
        yield checker.check(first, batch)
        first += len(batch)


def _batches(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    read = ((clean(source), clean(target)) for source, target in pairs)
    while batch := list(islice(read, _BATCH)):
        yield batch


class PairChecker:
    """
    The state of `check_pairs`: `learn` from all pairs, `close`, then `check` the same pairs in the same order.

    Args:
        languages, test_sources, names: see `check_pairs`.
    """

    def __init__(
        self,
        languages: tuple[str, str] | None,
        test_sources: Iterable[str] = (),
        names: Iterable[str] = CHECKS,
    ):
        self.languages = languages
        self.names = set(names)
        if languages is None:
            self.names -= _OF_LANGUAGES
        elif is_same_language(*languages):
            self.names -= {"copy", "untranslated"}
        self._tests = TestSources(map(clean, test_sources)) if self._runs("test_overlap", "near_test_overlap") else None
        self._duplicates = Duplicates() if self._runs("duplicate", "near_duplicate", "several_targets") else None
        self._sample: list[Pair] = []
        self._step = 1  # every so many pairs, one is in the sample
        self._count = 0
        self._words: WordTranslations | None = None
        self._lengths: Lengths | None = None
        self._truncation: list[Truncation] = []
        self._foreign: list[Foreignness] = []

    def _runs(self, *names: str) -> bool:
        return not self.names.isdisjoint(names)

    def learn(self, pairs: Sequence[Pair]) -> None:
        sources, targets = zip(*pairs, strict=True)
        if self._duplicates:
            self._duplicates.add(sources, targets)
        for pair in pairs:
            if self._count % self._step == 0:
                self._sample.append(pair)
                if len(self._sample) == _SAMPLE:
                    self._sample, self._step = self._sample[::2], self._step * 2
            self._count += 1

    def close(self) -> None:
        """Must be called once all pairs were learned."""
        if self._duplicates:
            self._duplicates.close()
        if self._runs("length_ratio", "truncated"):
            self._lengths = Lengths(self._sample)
        if self._runs("copy", "untranslated", "misaligned", "truncated", "near_duplicate"):
            self._words = WordTranslations(self._sample)
        if self._runs("truncated") and self._words.are_known:
            learned = [self._sample[place] for place in self._words.learned.tolist()]
            learn = partial(Truncation, learned, self._words, self._lengths)
            self._truncation = [learn(*kind) for kind in product((False, True), repeat=2)]
        if self.languages and "language" in self.names:
            told = [pair for pair in self._sample if not _are_alike(*pair)]
            sides = zip(*told[:: -(-len(told) // _TO_KNOW_LANGUAGES) or 1], strict=True) if told else ([], [])
            self._foreign = list(map(Foreignness, map(list, sides), self.languages))
        self._sample = []

    def check(self, first: int, pairs: list[Pair]) -> CheckedPairs:
        """
        The scores of pairs.

        Args:
            first: the place of the first of these pairs in the corpus, from 0.
        """
        sources, targets = map(list, zip(*pairs, strict=True))
        found = {
            name: np.fromiter(map(score, sources, targets), dtype=float, count=len(pairs))
            for name, score in _OF_PAIRS.items()
            if name in self.names
        }
        if self.languages:
            if "script" in self.names:
                source_script, target_script = map(script_of, self.languages)
                found["script"] = np.maximum(
                    in_other_scripts(sources, targets, source_script), in_other_scripts(targets, sources, target_script)
                )
            if self._foreign:
                source_score, target_score = self._foreign
                found["language"] = np.maximum(source_score(sources), target_score(targets))
                # Names are the same in many languages; copies of sentences have a check of their own.
                found["language"][[_are_alike(*pair) for pair in pairs]] = 0
        if self._lengths is not None:
            deviation = self._lengths.deviation(pairs)
            found["length_ratio"] = np.abs(deviation)
        if self._words is not None:
            places = np.arange(first, first + len(pairs))
            learned = (places % self._step == 0) & np.isin(places // self._step, self._words.learned)
            evidence = self._words.evidence(pairs, learned)
            found["misaligned"] = evidence.missing()
            if self._truncation:
                found["truncated"] = np.max([cut(pairs, evidence, deviation) for cut in self._truncation], axis=0)
            if "copy" in self.names:
                alike = np.flatnonzero(found["copy"])
                shares = self._words.translated_share([sources[place] for place in alike])
                found["copy"][alike[shares < _TRANSLATED]] = 0
            if "untranslated" in self.names:
                found["untranslated"] = self._untranslated(sources, targets)
        if self._duplicates:
            found |= self._duplicates.find(first, sources, targets, self._words.say_the_same if self._words else None)
        if self._tests:
            found |= self._tests.find(sources)
        earlier = found.get("earlier", np.full(len(pairs), -1))
        nothing = np.zeros(len(pairs))  # for what the corpus is too small to learn
        scores = {name: found.get(name, nothing) for name in CHECKS if name in self.names}
        return CheckedPairs(first, pairs, scores, earlier)

    def _untranslated(self, sources: list[str], targets: list[str]) -> np.ndarray:
        """The share of each target that is words of its source in a row, if this corpus translates such words."""
        found = [copied_words(*sides) for sides in zip(sources, targets, strict=True)]
        shares = np.zeros(len(found))
        places = [place for place, words in enumerate(found) if words]
        translated = self._words.translated_share([" ".join(found[place]) for place in places])
        for place, share in zip(places, translated, strict=True):
            if share >= _TRANSLATED:
                shares[place] = len(found[place]) / len(targets[place].split())
        return shares


# -- checks of a single pair -------------------------------------------------------------------------------------------


def _emptiness(source: str, target: str) -> float:
    return float(not source or not target or is_translatable(source) != is_translatable(target))


def _longest(source: str, target: str) -> float:
    """Characters of the longer side."""
    return float(max(len(source), len(target)))


def _likeness(source: str, target: str) -> float:
    """The share of characters that the sides have in common."""
    return fuzz.ratio(source.lower(), target.lower(), score_cutoff=80) / 100


def _are_alike(source: str, target: str) -> bool:
    return _likeness(source, target) >= _ALIKE


# What stands where a decoder found nothing, and the controls that Latin-1 has where Windows has letters.
_UNDECODED = re.compile("[\ufffd\x80-\x84\x86-\x9f]")
_LOST = regex.compile(
    r"\w\?\p{Ll}|(?<![\w\\%&-])\?\p{Ll}|\w\? \p{Ll}"
)  # "f?r", "?ber": a letter that an encoding lacked
_QUESTION = re.compile("[?;\u061f\u037e\uff1f]")  # the second one in Greek
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#[0-9]{2,5}|#x[0-9a-fA-F]{2,4});")


def broken_characters(source: str, target: str) -> float:
    """How many places of a pair a wrong encoding has damaged, and the entities of HTML that one side alone has."""
    both = source + target
    found = _broken(source) + _broken(target)
    if "?" in both and "/" not in both:
        # Where both sides ask as often, small letters after a question are no damage: "Ready? let's go".
        marks = abs(len(_QUESTION.findall(source)) - len(_QUESTION.findall(target)))
        found += min(abs(len(_LOST.findall(source)) - len(_LOST.findall(target))), marks)
    if "&" in both:
        found += abs(len(_ENTITY.findall(source)) - len(_ENTITY.findall(target)))
    return float(found)


def _broken(text: str) -> int:
    if text.isascii():
        return 0
    from ftfy import fix_encoding  # from an extra of this package
    from ftfy.badness import badness

    # ftfy 6.3.1 also counts what nothing can repair, as in »Übung« (findings/ftfy-badness-of-german-quotes.sh).
    bad = badness(text)
    return len(_UNDECODED.findall(text)) + (bad if bad and fix_encoding(text) != text else 0)


_NUMBER = re.compile(r"\d+")


def differing_numbers(source: str, target: str) -> float:
    """
    How many numbers of two digits or more one side alone has. Smaller ones are often words in the other language.
    Separators and digits of other scripts make no difference.
    """
    sides = [
        [str(int(number)) if number.strip("0") else number for number in _NUMBER.findall(text)]
        for text in (source, target)
    ]
    if sides[0] == sides[1] or "".join(sides[0]) == "".join(sides[1]):
        return 0.0
    one, other = (Counter(number for number in side if len(number) > 1) for side in sides)
    return float((one - other).total() + (other - one).total())


_POSITION = re.compile(r"(?<=%)[0-9]+\$")
_ARGUMENT = re.compile(r"\{\s*(\w+)\s*,\s*(\w+)")  # of ICU; what follows, such as the texts of a plural, is translated
_NAME = re.compile(r"[#@](?![{:])|`|:.+:$")  # what people translate, too: tags, mentions, code
# Where words are joined to placeholders without a space.
_JOINT = regex.compile(rf"(?<=[{SPACELESS}])(?=[!-~])|(?<=[!-~])(?=[{SPACELESS}])")


def differing_placeholders(source: str, target: str) -> float:
    """How many placeholders, addresses and the like one side alone has."""
    one, other = map(_placeholders, (source, target))
    return float((one - other).total() + (other - one).total())


def _placeholders(text: str) -> Counter[str]:
    if not text.isascii():
        text = _JOINT.sub(" ", text)
    found = (_POSITION.sub("", text[slice(*span)]) for span in KEPT.spans(text))
    named = (f"{{{argument[1]}, {argument[2]}}}" if (argument := _ARGUMENT.match(word)) else word for word in found)
    return Counter(word for word in named if not _NAME.match(word))


def repetition(source: str, target: str) -> float:
    """
    The share of a side that is one phrase three times or more in a row, or twice if it has four words, beyond that of
    the other.
    """
    sides = (source, target), (target, source)
    return max(_repeated(side, _CLEARLY_REPEATED) - _repeated(other, 2) for side, other in sides)


def _repeated(text: str, fewest: int) -> float:
    """Args: how many words of a phrase that is there twice, at least; placeholders do not count."""
    words = text.split()
    if len(words) - len(set(words)) < 2:
        return 0.0
    is_word = [word[0].isalpha() for word in words]
    half, is_odd = divmod(len(words), 2)
    if not is_odd and sum(is_word[:half]) >= fewest and words[:half] == words[half:]:
        return 1.0
    longest = 0
    for size in range(1, min(len(words) // 2, _LONGEST_PHRASE) + 1):
        run = 0
        for place, (one, other) in enumerate(zip(words, words[size:], strict=False), start=1):
            run = run + 1 if one == other else 0
            if run >= size and sum(is_word[place - size : place]) >= (1 if run >= 2 * size else fewest):
                longest = max(longest, run + size)
    return longest / len(words)


def copied_words(source: str, target: str) -> list[str]:
    """
    The longest row of words that both sides have; empty if fewer than four of them are in small letters, or of a script
    without any, as in names, commands and placeholders.
    """
    words, others = target.split(), source.split()
    if len(set(words).intersection(others)) < _FEWEST_COPIED:
        return []
    match = SequenceMatcher(None, others, words, autojunk=False).find_longest_match()
    row = words[match.b : match.b + match.size]
    ordinary = sum(word.strip(",;.!?").isalpha() and word == word.lower() for word in row)
    return row if ordinary >= _FEWEST_COPIED else []


def _differing_ends(source: str, target: str) -> float:
    return float(end_mark(source) != end_mark(target))


# These need nothing but a pair.
_OF_PAIRS: dict[str, Callable[[str, str], float]] = {
    "empty": _emptiness,
    "encoding": broken_characters,
    "copy": _likeness,
    "length": _longest,
    "repetition": repetition,
    "placeholders": differing_placeholders,
    "numbers": differing_numbers,
    "punctuation": _differing_ends,
}


# -- checks that compare with the language or the corpus ---------------------------------------------------------------

_LETTER, _LETTERS = regex.compile(r"\p{L}"), regex.compile(r"\p{L}+")
_FEW_LETTERS = 4  # other than these may be a name or an abbreviation


def in_other_scripts(texts: Sequence[str], others: Sequence[str], script: str) -> np.ndarray:
    """
    The share of the letters of each text that are not in its script, (texts,). Words that the other side has too may be
    names.
    """
    if not script:
        return np.zeros(len(texts))
    is_ordinary = str.isascii if script == "Latn" else lambda text: False  # most texts have nothing else
    return np.array(
        [
            0.0 if is_ordinary(text) else _other_letters(text, other, script)
            for text, other in zip(texts, others, strict=True)
        ]
    )


def _other_letters(text: str, other_side: str, script: str) -> float:
    letters = len(_LETTER.findall(text))
    words = _LETTERS.findall(letters_of_script(script).sub(" ", text))
    other = sum(len(word) for word in words if word.lower() not in other_side.lower())
    return other / letters if other >= _FEW_LETTERS else 0.0


class Lengths:
    """
    How long targets are beside their sources, after Gale and Church (1993, https://aclanthology.org/J93-1004).

    Args:
        pairs: a sample of the corpus.
    """

    def __init__(self, pairs: Sequence[Pair]):
        sizes = _sizes(pairs)
        sizes = sizes[(sizes > 1).all(axis=1)]
        self.ratio = float(np.exp(np.median(np.log(sizes[:, 1] / sizes[:, 0])))) if len(sizes) else 1.0
        self.spread = _LEAST_SPREAD
        if len(sizes):
            # The median of the absolute deviations, as wide as a standard deviation: faults do not change it.
            self.spread = max(1.4826 * float(np.median(np.abs(self._raw(sizes)))), _LEAST_SPREAD)

    def _raw(self, sizes: np.ndarray) -> np.ndarray:
        expected = self.ratio * sizes[:, 0]
        return (sizes[:, 1] - expected) / np.sqrt((sizes[:, 1] + expected) / 2)

    def deviation(self, pairs: Sequence[Pair]) -> np.ndarray:
        """By how many standard deviations each target is too long, or too short (negative), (pairs,)."""
        return self._raw(_sizes(pairs)) / self.spread


def _sizes(pairs: Sequence[Pair]) -> np.ndarray:
    """Characters of both sides, and one more, so that a short word is no multiple of a shorter one, (pairs, 2)."""
    return np.array([(len(source) + 1, len(target) + 1) for source, target in pairs], dtype=float)

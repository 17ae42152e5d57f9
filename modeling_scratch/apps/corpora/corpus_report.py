"""What is in a corpus of pairs, and what is wrong with it: counts, lengths and the worst examples of each fault."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from tqdm.auto import tqdm

from ...data.sources import PairSource, mixed_sources, side_of, source_of
from ...errors import UserError
from ...languages import language_name, mostly_without_spaces
from ...model.text import clean
from ...recipe.schema import SOURCE, TARGET, Recipe
from .checks import CHECKS, CheckedPairs, Pair, check_pairs
from .identification import can_identify
from .pair_files import PairFiles
from .rules import Rules

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXAMPLES = 5  # of each fault
ORIGIN = "origin"  # the column that says where a pair is from
_ROWS = 10_000
_LONGEST = 10_000  # characters; longer texts are counted as having so many
_RATIO_BINS = 24  # from an eighth to eight times
_TO_TOKENIZE = 20_000  # pairs, spread over the corpus
MANY_TOKENS = 256  # the default of data.max_source_tokens and data.max_target_tokens


@dataclass(frozen=True)
class CorpusPairs:
    """
    Pairs to look at, which are read again for each pass, and never all in memory.

    Args:
        name: of their files or data set, for people.
        languages: of source and target; None: they are in none.
        pairs: reads source and target of all pairs.
        origins: reads where each pair is from; None: nobody knows.
        test_sources: the sources of test sets.
    """

    name: str
    languages: tuple[str, str] | None
    pairs: Callable[[], Iterator[Pair]]
    origins: Callable[[], Iterator[str]] | None
    test_sources: list[str]


def pairs_of_files(names: Sequence[str], files: PairFiles, test_sources: Iterable[str]) -> CorpusPairs:
    """
    The pairs of files, and where they are from if a column says so, as `scratch corpus from` writes it.

    Args:
        names: of the files, for people.
        test_sources: of test sets.
    """
    _, first = next(files.rows())
    return CorpusPairs(
        ", ".join(names),
        files.data.languages,
        files.pairs,
        (lambda: (str(row.get(ORIGIN)) for _, row in files.rows())) if ORIGIN in first else None,
        list(test_sources),
    )


def pairs_of_recipe(recipe: Recipe) -> CorpusPairs:
    """The training pairs of a recipe, before any are held out, and the sources of its validation and test sets."""
    data, seed = recipe.data, recipe.seed
    sources = [source_of("train", data, seed), *mixed_sources(data, seed)]
    found = [source for source in sources if source is not None]
    if not found:
        raise UserError("data.train_files must be set if the other splits are local files")
    tests = [source_of(split, data, seed) for split in ("validation", "test", *data.test_sets)]
    return CorpusPairs(
        ", ".join(source.name for source in found),
        data.languages,
        lambda: _pairs_of(found, data.streaming),
        (lambda: (source.name for source in found for _ in _pairs_of([source]))) if len(found) > 1 else None,
        [pair[0] for pair in _pairs_of([source for source in tests if source is not None])],
    )


def _pairs_of(sources: list[PairSource], streams: bool = False) -> Iterator[Pair]:
    for source in sources:
        for batch in (source.stream() if streams else source.load()).iter(_ROWS):
            yield from zip(side_of(batch, SOURCE), batch[TARGET], strict=True)


@dataclass(frozen=True, order=True)
class Example:
    """
    A pair with a fault. The largest are those without an earlier fault in the order of `CHECKS`, which show what this
    one is; of them the worst, and of equal ones the first.
    """

    is_first_fault: bool
    score: float
    minus_line: int
    source: str = field(compare=False)
    target: str = field(compare=False)
    origin: str = field(compare=False)
    repeated: int | None = field(compare=False)  # the place of the pair that this one repeats

    @property
    def line(self) -> int:
        """The place of the pair in the corpus, from 1."""
        return -self.minus_line


@dataclass
class Fault:
    """
    What a check found.

    Args:
        threshold: the score from which on a pair has the fault.
        drops: whether `scratch corpus clean` drops such pairs.
        examples: the worst pairs, in order.
    """

    check: str
    threshold: float
    drops: bool
    count: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def meaning(self) -> str:
        return CHECKS[self.check]

    def add(self, checked: CheckedPairs, has_others: np.ndarray, origins: Sequence[str]) -> np.ndarray:
        """
        Count the pairs with this fault. Returns which have it, (pairs,).

        Args:
            has_others: which pairs have faults of earlier checks, (pairs,).
            origins: where each pair is from; empty: nobody knows.
        """
        scores = checked.scores[self.check]
        found = scores >= self.threshold
        self.count += int(found.sum())
        places = np.flatnonzero(found)
        worst = places[np.lexsort((places, -scores[places], has_others[places]))]
        for place in worst[:EXAMPLES].tolist():
            repeated = int(checked.earlier[place]) + 1 if "duplicate" in self.check else None
            origin, minus_line = origins[place] if origins else "", -(checked.first + place + 1)
            order = not has_others[place], float(scores[place]), minus_line
            self.examples.append(Example(*order, *checked.pairs[place], origin, repeated))
        self.examples = heapq.nlargest(EXAMPLES, self.examples)
        return found


@dataclass
class Side:
    """
    How long the texts of one side are.

    Args:
        lengths: how many texts have so many characters, (characters,); the last: so many or more.
        has_spaces: whether words can be counted.
    """

    name: str
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(_LONGEST + 1, dtype=np.int64))
    characters: int = 0
    words: int = 0
    longest: int = 0
    has_spaces: bool = True
    tokens: "Tokens | None" = None

    def add(self, texts: Sequence[str]) -> None:
        if not self.characters:
            self.has_spaces = mostly_without_spaces(texts) is None
        sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        self.lengths += np.bincount(np.minimum(sizes, _LONGEST), minlength=_LONGEST + 1)
        self.characters += int(sizes.sum())
        self.longest = max(self.longest, int(sizes.max(initial=0)))
        self.words += sum(len(text.split()) for text in texts)

    def quantile(self, share: float) -> int:
        """The length that this share of the texts does not exceed."""
        return int(np.searchsorted(np.cumsum(self.lengths), share * self.lengths.sum()))


@dataclass(frozen=True)
class Tokens:
    """What a tokenizer makes of the texts of a side, in a sample: tokens a word, the median a text, and two shares."""

    a_word: float
    a_text: float
    too_long: float
    unknown: float


@dataclass
class CorpusReport:
    """
    What `scratch corpus report` tells.

    Args:
        pairs: how many there are.
        dropped: how many `scratch corpus clean` would drop.
        ratios: how many pairs have such a ratio of lengths, target to source, from an eighth to eight times, (bins,).
        faults: of all checks that apply, in the order of `CHECKS`.
        tests: how many sources the test sets have; `found` of them are in the corpus.
        origins: by file, how many pairs are from it, and how many of these would be dropped.
        unidentified: languages that the model for identifying languages does not know.
    """

    name: str
    languages: tuple[str, str] | None
    sides: tuple[Side, Side]
    faults: list[Fault]
    tests: int
    unidentified: list[str]
    found: int = 0
    pairs: int = 0
    dropped: int = 0
    ratios: np.ndarray = field(default_factory=lambda: np.zeros(_RATIO_BINS, dtype=np.int64))
    origins: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, check: str) -> int:
        return next((fault.count for fault in self.faults if fault.check == check), 0)


def report_on(
    corpus: CorpusPairs,
    rules: Rules,
    tokenizers: "tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase] | None" = None,
) -> CorpusReport:
    """
    Check all pairs of a corpus, in two passes over it.

    Args:
        tokenizers: for source and target, to count tokens.

    Raises:
        UserError: there are no pairs, or they cannot be read.
    """
    names = [name for name in CHECKS if corpus.test_sources or "test_overlap" not in name]
    passes = iter(("reading", "checking"))

    def read() -> Iterator[Pair]:
        return tqdm(corpus.pairs(), desc=next(passes), unit=" pairs", disable=None)

    names_of_sides = map(language_name, corpus.languages) if corpus.languages else (SOURCE, TARGET)
    one, other = map(Side, names_of_sides)
    unidentified = [language for language in corpus.languages or () if not can_identify(language)]
    report = CorpusReport(corpus.name, corpus.languages, (one, other), [], len(corpus.test_sources), unidentified)
    tests, found_tests = set(map(clean, corpus.test_sources)), set[str]()
    dropped_lines: set[int] = set()  # for other reasons than that they are copies
    files, dropped_files, sample = Counter[str](), Counter[str](), _Sample(_TO_TOKENIZE)
    origins = corpus.origins() if corpus.origins else iter(())
    for checked in check_pairs(read, corpus.languages, corpus.test_sources, names):
        if not report.faults:
            report.faults = [
                Fault(name, threshold, name in rules.drop)
                for name, threshold in rules.thresholds.items()
                if name in checked.scores
            ]
        of_pairs = list(islice(origins, len(checked.pairs)))
        is_dropped, is_copy, has_others = np.zeros((3, len(checked.pairs)), dtype=bool)
        for fault in report.faults:
            found = fault.add(checked, has_others, of_pairs)
            has_others |= found
            if fault.drops:
                (is_copy if "duplicate" in fault.check else is_dropped)[found] = True
        dropped_lines.update((checked.first + np.flatnonzero(is_dropped)).tolist())
        # As in cleaning: a copy stays if the pair that it repeats does not.
        for place in np.flatnonzero(is_copy).tolist():
            is_dropped[place] |= int(checked.earlier[place]) not in dropped_lines
        report.pairs += len(checked.pairs)
        report.dropped += int(is_dropped.sum())
        for side, texts in zip(report.sides, zip(*checked.pairs, strict=True), strict=True):
            side.add(texts)
        report.ratios += _ratios(checked.pairs)
        found_tests.update(tests.intersection(source for source, _ in checked.pairs))
        if of_pairs:
            names_of_files = [origin.partition("#")[0] for origin in of_pairs]
            files.update(names_of_files)
            dropped_files.update(name for name, drops in zip(names_of_files, is_dropped, strict=True) if drops)
        if tokenizers:
            sample.add(checked.pairs)
    if not report.pairs:
        raise UserError(f"{corpus.name}: there are no pairs")
    report.found = len(found_tests)
    report.origins = {name: (count, dropped_files[name]) for name, count in files.most_common()}
    if tokenizers:
        for side, texts, tokenizer in zip(report.sides, zip(*sample.pairs, strict=True), tokenizers, strict=True):
            side.tokens = _tokens(texts, tokenizer)
    return report


def _ratios(pairs: Sequence[Pair]) -> np.ndarray:
    """How many pairs with two sides have such a ratio of lengths."""
    sizes = np.array([(len(source), len(target)) for source, target in pairs if source and target]).reshape(-1, 2)
    # Three doublings on either side; what is beyond is at the edge.
    places = np.floor((np.log2(sizes[:, 1] / sizes[:, 0]) + 3) / 6 * _RATIO_BINS + 1e-9).astype(int)
    return np.bincount(np.clip(places, 0, _RATIO_BINS - 1), minlength=_RATIO_BINS)


class _Sample:
    """Every n-th pair, so that at most so many are kept."""

    def __init__(self, most: int):
        self.pairs: list[Pair] = []
        self._most, self._step, self._count = most, 1, 0

    def add(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            if self._count % self._step == 0:
                self.pairs.append(pair)
                if len(self.pairs) == self._most:
                    self.pairs, self._step = self.pairs[::2], self._step * 2
            self._count += 1


def _tokens(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> Tokens:
    ids = tokenizer(list(texts), add_special_tokens=False).input_ids
    sizes = np.array([len(row) for row in ids])
    words = sum(len(text.split()) for text in texts)
    unknown = sum(row.count(tokenizer.unk_token_id) for row in ids)
    total = max(int(sizes.sum()), 1)
    # One more, since the end of a text is a token too.
    return Tokens(
        total / max(words, 1), float(np.median(sizes)), float(np.mean(sizes + 1 > MANY_TOKENS)), unknown / total
    )


# -- in plain words ----------------------------------------------------------------------------------------------------

# What pairs with each fault do to a model, and what else they may be.
MEANINGS = {
    "empty": "There is nothing to translate: training drops empty sides, and the others teach to add or lose text.",
    "encoding": "A model writes such characters too, and does not know the letters that they stand for.",
    "script": "Most of these targets or sources are not translated, or belong to another pair.",
    "copy": "A model that sees many of them copies its input instead of translating it.",
    "untranslated": "A model leaves parts of its input as they are. Titles and quotations may be right.",
    "language": "A model answers in that language at times. Short texts and names may be taken for another language.",
    "length": "Training drops pairs that are longer than data.max_source_tokens and data.max_target_tokens.",
    "repetition": "A model learns to repeat itself.",
    "duplicate": "They count several times in training, and teach nothing more.",
    "near_duplicate": "They differ by a few characters, often numbers or punctuation, and teach little more.",
    "test_overlap": "Scores on this test set are better than on new texts.",
    "near_test_overlap": "Scores on this test set are better than on new texts.",
    "misaligned": "They teach wrong words. Many of them: perhaps a line is missing on one side, which shifts the rest.",
    "truncated": "A model learns to stop early, or to add what is not there.",
    "length_ratio": "One side has more than the other; most are cut, or belong to other pairs.",
    "placeholders": "A model learns to lose placeholders, and programs that show its output then fail.",
    "numbers": "Some are errors; dates, units and times may be written differently in the other language.",
    "punctuation": "A model learns to change it. That may be the style of the target language.",
    "several_targets": "Words and short texts often have several translations; a model writes the likeliest.",
}
_MANY = 0.01  # of the pairs: what a summary names
_MOST = 0.5


def summary(report: CorpusReport) -> list[str]:
    """What the figures mean, a sentence or two each."""
    kept = report.pairs - report.dropped
    told = [
        f"scratch corpus clean would drop {report.dropped:,} of {report.pairs:,} pairs "
        f"({percent(report.dropped / report.pairs)}) and keep {kept:,}."
    ]
    largest = sorted((fault for fault in report.faults if fault.drops), key=lambda fault: -fault.count)
    told += [
        f"{percent(fault.count / report.pairs)} of the pairs: {fault.meaning}. {MEANINGS[fault.check]}"
        for fault in largest[:3]
        if fault.count >= _MANY * report.pairs
    ]
    if report.tests:
        told.append(
            f"{report.found:,} of the {report.tests:,} sources of the test sets are in this corpus"
            + (": scores on them are better than on new texts." if report.found else ".")
        )
    else:
        told.append("No test set is named; --test FILES shows whether its sources are in this corpus.")
    if not report.languages:
        told.append(
            "No languages are named, so that copies, languages, scripts, numbers and punctuation are not checked. If "
            "the pairs are translations, add --source-language and --target-language."
        )
    elif report.count("language") + report.count("script") > _MOST * report.pairs:
        told.append(
            f"Most pairs are in other languages than {report.sides[0].name} and {report.sides[1].name}; are these the "
            "other way round?"
        )
    if report.unidentified:
        names = " and ".join(map(language_name, report.unidentified))
        told.append(f"Texts in {names} cannot be told from other languages; only their script is checked.")
    return told


def percent(share: float) -> str:
    """A share as people read it: 12 %, 1.2 %, 0.05 %."""
    if share < 1e-5:
        return "< 0.001 %" if share else "0 %"
    if 0.995 <= share < 1:
        return "> 99 %"
    digits = max(0, 1 - math.floor(math.log10(100 * share)))
    return f"{100 * share:.{min(digits, 3)}f} %"

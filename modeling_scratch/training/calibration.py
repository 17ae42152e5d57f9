"""Calibrate a model's confidence when a run ends, on its validation sentences."""

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from datasets import Dataset

from ..data.streaming import columns_of, open_stream
from ..data.tokenizer import features_of, texts
from ..inference.translate import Translator
from ..languages import base_language
from ..metrics import describe_calibration
from ..model.batched_generation import tokenize
from ..model.confidence import DOUBTFUL, Confidence, NgramSet, ngrams_of, places_of
from ..model.kept_words import RESERVED
from ..model.sentences import space_between
from ..model.text import Reading
from ..model.translations import best_texts
from ..recipe.schema import FEATURES, SOURCE, Recipe
from ..run.run import Run, RunData
from .scoring import translate_on_processes

logger = logging.getLogger(__name__)

_FEWEST = 100  # validation sentences, with fewer of which nothing is calibrated
_MOST = 500  # validation sentences that are translated
_OTHERS = 100  # sentences of every other kind
_READ = 200_000  # training sources whose n-grams are counted
_AT_ONCE = 10_000
_BITS = 21  # of a token in an n-gram's code
_DOUBTFUL = 0.01  # the most validation sentences that each signal makes doubtful, as a share
_SHARES = {"length_ratio": 0.25}  # of the above, for signals that seldom help
_LOST = 0.75  # an output for two sentences that has a smaller share of the tokens of their own outputs lost one
_AS_MANY = 0.01  # a difference in recall that does not count
_LEAST_SCALE = 1e-3
_LITTLE = 0.15  # of the way from the chrF of guesses to that of references
_MOSTLY = 0.5  # share of translations that are guesses, from which on all are doubtful
_NEVER = 1.0  # a threshold above any log-probability
LIMIT_BITS = 2**21  # of a set of n-grams: 256 KiB
_BITS_EACH = 8  # with `_HASHES` of confidence.py, 2.4 % of the n-grams that are not in the set seem to be


def calibrate(run: Run) -> Confidence | None:
    """
    Choose the thresholds of a model's confidence such that each signal makes 1 % of the validation sentences doubtful,
    translated with the model's own settings (a long output, 0.25 %); or less if lower thresholds find as
    many sentences of other kinds: validation sentences whose words are in random order, or half of them replaced or
    misspelled, and, if the languages differ, references in place of sources; and, of translators, pairs of sentences in
    one source, whose output translates only one. Of a model that guesses, a low probability makes as many doubtful as
    are guesses, or all. All processes call this together.

    Returns:
        None if there are fewer than 100 validation sentences, or the search gives no scores, as that of sharded models.
    """
    recipe = run.recipe
    pairs = run.data.pairs["validation"].shuffle(seed=recipe.seed)
    pairs = pairs.select(range(min(_MOST, len(pairs))))
    translator, limits = Translator(run.model, *run.data.tokenizers), recipe.evaluation.batch_limits()
    found = {}
    for kind, (sources, features) in _kinds(recipe, pairs).items():
        reading = Reading(sources, translator.rules, sentences="line")
        tokens = translator.tokenize(reading.inputs, features=features)
        tokens = [row if len(row) <= translator.limit else [] for row in tokens]
        if kind == "validation" and sum(map(bool, tokens)) < _FEWEST:
            logger.info(f"confidence: not calibrated, since {len(pairs)} validation sentences are too few")
            return None
        rows = translate_on_processes(
            translator, reading.inputs, run.accelerator, run.stop, tokens=tokens, scores=None, **limits
        )
        if kind == "validation":
            read, outputs = [place for place, ids in enumerate(tokens) if ids], rows
            targets = texts(pairs)[1]
            translated = best_texts(reading.restored(rows))
            guesses = guessed([translated[place] for place in read], [targets[place] for place in read])
        if kind == "glued":
            whole = [row[0].length for row in outputs]
            both = [sum(whole[2 * place : 2 * place + 2]) for place in range(len(rows))]
            lost = [row[0].length < _LOST * most for row, most in zip(rows, both, strict=True)]
            tokens = [ids if is_lost else [] for ids, is_lost in zip(tokens, lost, strict=True)]
        found[kind] = [(ids, best.length, best.score) for ids, (best, *_) in zip(tokens, rows, strict=True) if ids]
        if kind == "validation" and not any(score for _, _, score in found[kind]):
            logger.info("confidence: not calibrated, since Transformers' own search, which gives no scores, was used")
            return None
    known = ngram_set(_frequent_ngrams(recipe, run.data))
    longest = getattr(run.model.generation_config, "longest_training_source", None)
    source = translator.source_tokenizer
    count = translator.rules.reserved
    reserved = source(list(RESERVED[:count]), add_special_tokens=False).input_ids if count else []
    made = Confidence({}, longest, known, sorted({row[-1] for row in reserved}))
    values = [made.signals_of(*translation) for translation in found["validation"]]
    columns = {name: np.array([signals[name] for signals in values]) for name in values[0]}
    measured: dict[float, dict] = {}
    for doubtful in (_DOUBTFUL, _DOUBTFUL / 2, _DOUBTFUL / 4):
        for name, column in columns.items():
            share, scale = doubtful * _SHARES.get(name, 1), float(max(column.std(), _LEAST_SCALE))
            least = float(np.quantile(column, max(share, guesses if name == "mean_log_probability" else 0)))
            made.signals[name] = (_NEVER if guesses > _MOSTLY and name == "mean_log_probability" else least, scale)
        shares = {kind: sum(made(*row) < DOUBTFUL for row in rows) / len(rows) for kind, rows in found.items() if rows}
        measured[doubtful] = _measured(shares, len(pairs)) | {"signals": dict(made.signals)}
    enough = measured[_DOUBTFUL]["recall"] - _AS_MANY
    chosen = measured[min(share for share in measured if measured[share]["recall"] >= enough)]
    made.signals.update(chosen.pop("signals"))
    made.measured.update(chosen)
    logger.info(f"confidence: {describe_calibration(made.measured)}")
    if guesses > _MOSTLY:
        logger.warning(
            "the model's outputs have little to do with the sources: its confidence means nothing, and all are doubtful"
        )
    return made


def guessed(translations: Sequence[str], references: Sequence[str]) -> float:
    """
    The share of translations that have nothing to do with their sources, estimated: chance makes half of such guesses
    no more like their own reference than like that of another source, and hardly any true translation. It is 1 if all
    in all they are little more like their own references.
    """
    from sacrebleu.metrics import CHRF  # slow to import

    chrf, found = CHRF(), []
    for place, (translation, own) in enumerate(zip(translations, references, strict=True)):
        others = (other for other in (*references[place + 1 :], *references[:place]) if other != own)
        if (other := next(others, None)) is not None:
            found.append([chrf.sentence_score(translation, [reference]).score for reference in (own, other)])
    own_mean, other_mean = np.mean(found, axis=0) if found else (100.0, 0.0)
    if own_mean - other_mean < _LITTLE * (100 - other_mean):
        return 1.0
    return min(1.0, 2 * sum(own <= other for own, other in found) / max(1, len(found)))


def ngram_set(ngrams: Iterable[tuple[int, ...]]) -> NgramSet:
    """The set of these n-grams, of which the first `LIMIT_BITS / 8` are taken."""
    taken = list(islice(ngrams, LIMIT_BITS // _BITS_EACH))
    bits = bytearray(max(1, len(taken) * _BITS_EACH // 8))
    for ngram in taken:
        for place in places_of(ngram, 8 * len(bits)):
            bits[place >> 3] |= 1 << (place & 7)
    return NgramSet(bytes(bits))


def _measured(shares: dict[str, float], sentences: int) -> dict:
    """Precision and recall for as many sentences to doubt as validation sentences, equally many of each kind."""
    wrongly = shares["validation"]
    recall = sum(share for kind, share in shares.items() if kind != "validation") / (len(shares) - 1)
    precision = recall / (recall + wrongly) if recall else 0.0
    return {"sentences": sentences, "doubtful": shares, "precision": precision, "recall": recall}


def _frequent_ngrams(recipe: Recipe, data: RunData) -> Iterator[tuple[int, ...]]:
    """The pairs and triples of adjacent source tokens in training data, the most frequent first."""
    codes, numbers = np.empty(0, np.int64), np.empty(0, np.int64)
    for sources, features in _training_sources(recipe, data):
        rows = tokenize(data.tokenizers[0], sources, None, features=features)
        new = np.array([_code(ngram) for row in rows for ngram in ngrams_of(row)], np.int64)
        codes, where = np.unique(np.concatenate([codes, new]), return_inverse=True)
        weights = np.concatenate([numbers, np.ones(len(new), np.int64)])
        numbers = np.bincount(where, weights, len(codes)).astype(np.int64)
    for code in codes[np.argsort(-numbers, kind="stable")].tolist():
        parts = code >> 2 * _BITS, code >> _BITS, code
        yield tuple((part & 2**_BITS - 1) - 2 for part in parts)[not code >> 2 * _BITS :]


def _code(ngram: tuple[int, ...]) -> int:
    """An n-gram as one number. Tokens are at least -1, so a pair differs from every triple."""
    code = 0
    for token in ngram:
        code = code << _BITS | token + 2
    return code


def _training_sources(recipe: Recipe, data: RunData) -> Iterator[tuple[list[str], list[str] | None]]:
    """The sources of the training data, or of a sample of them, and their features, in batches."""
    if "train" in data.pairs:
        train = data.pairs["train"]
        if len(train) > _READ:
            train = train.select(sorted(random.Random(recipe.seed).sample(range(len(train)), _READ)))
        batches = train.iter(_AT_ONCE)
    else:
        rows = islice(open_stream(recipe.data, recipe.seed).part(0, 1, [recipe.seed, 0]), _READ)
        batches = (columns_of(batch) for batch in iter(lambda: list(islice(rows, _AT_ONCE)), []))
    for batch in batches:
        yield batch[SOURCE], batch.get(FEATURES)


def _kinds(recipe: Recipe, pairs: Dataset) -> dict[str, tuple[list[str], list[str] | None]]:
    """The sources of each kind, with their features."""
    sources, targets = texts(pairs)
    features, chance = features_of(pairs), random.Random(recipe.seed)
    units = [text.split() if len(text.split()) > 2 else list(text) for text in sources]
    gaps = [" " if len(text.split()) > 2 else "" for text in sources]
    shuffled = [gap.join(chance.sample(row, len(row))) for row, gap in zip(units, gaps, strict=True)]
    others, letters = [unit for row in units for unit in row], sorted(set("".join(sources)) - {" "})

    def spoiled(unit: str) -> str:
        if chance.random() < 0.5:
            return unit
        if chance.random() < 0.5 or len(unit) < 2:
            return chance.choice(others)
        place = chance.randrange(len(unit))
        return unit[:place] + chance.choice(letters) + unit[place + 1 :]

    corrupted = [gap.join(map(spoiled, row)) for row, gap in zip(units, gaps, strict=True)]
    found = {"validation": sources, "shuffled": shuffled, "corrupted": corrupted}
    languages = recipe.data.languages
    if languages and base_language(languages[0]) != base_language(languages[1]):
        found["foreign"] = targets
    if languages:
        space = space_between(languages[0])
        found["glued"] = list(map(space.join, zip(sources[::2], sources[1::2], strict=False)))
    most = {kind: len(side) if kind == "validation" else _OTHERS for kind, side in found.items()}
    own = {kind: features and features[:: 2 if kind == "glued" else 1] for kind in found}
    return {kind: (side[: most[kind]], own[kind] and own[kind][: most[kind]]) for kind, side in found.items()}

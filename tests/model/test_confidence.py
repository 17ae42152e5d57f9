"""Confidence: its set of n-grams, the number against the formula by hand, and its file."""

import math
import random

import pytest

from modeling_scratch.model.confidence import Confidence, _mixed, ngrams_of
from modeling_scratch.training.calibration import LIMIT_BITS, ngram_set

NGRAMS = [(first, second) for first in range(-1, 60) for second in range(50)]
NGRAMS += [(first, second, 7) for first in range(-1, 50) for second in range(50)]


@pytest.fixture
def confidence():
    signals = {"mean_log_probability": (-0.5, 0.25), "known_ngrams": (0.8, 0.1)}
    return Confidence(signals, longest_source=6, known=ngram_set(ngrams_of([5, 6, 7, 2])))


def test_the_hash_is_murmurhash3s():
    """MurmurHash3_x86_32 of no bytes is the finalizer of its seed; the values are those of the reference's tests."""
    assert [_mixed(seed) for seed in (0, 1, 0xFFFFFFFF)] == [0, 0x514E28B7, 0x81F16F39]


def test_a_set_contains_its_ngrams_and_about_one_in_forty_others():
    chosen = ngram_set(NGRAMS)
    assert all(ngram in chosen for ngram in NGRAMS)
    chance = random.Random(0)
    others = {tuple(chance.randrange(100, 9999) for _ in range(2 + index % 2)) for index in range(20_000)}
    assert sum(ngram in chosen for ngram in others) / len(others) == pytest.approx((1 - math.exp(-4 / 8)) ** 4, rel=0.2)
    assert ngram_set([]).bits == b"\0"
    assert (1, 2) not in ngram_set([])


def test_a_set_takes_the_first_of_too_many():
    many = [(number // 1000, number % 1000) for number in range(LIMIT_BITS // 8 + 1000)]
    chosen = ngram_set(many)
    assert len(chosen.bits) * 8 == LIMIT_BITS
    assert all(ngram in chosen for ngram in many[: LIMIT_BITS // 8 : 97])


def test_ngrams_are_pairs_and_triples_from_the_start():
    assert sorted(ngrams_of([5, 6, 2])) == sorted([(-1, 5), (5, 6), (6, 2), (-1, -1, 5), (-1, 5, 6), (5, 6, 2)])


def test_the_number_is_that_of_the_worst_signal(confidence):
    def logistic(value):
        return 1 / (1 + math.exp(-value))

    known = [5, 6, 7, 2]
    assert confidence(known, 4, -2.0) == 0.5  # a mean of -0.5
    assert confidence(known, 4, -4.0) == pytest.approx(logistic(-2))
    assert confidence(known, 4, 0.0) == pytest.approx(logistic(2))  # of both signals
    assert confidence([5, 6, 7, 7], 4, 0.0) == pytest.approx(logistic((6 / 7 - 0.8) / 0.1))  # 3 of 4 are
    assert confidence([5, 6, 7, 7], 4, -4.0) == pytest.approx(logistic(-2))
    assert 0 <= confidence(known, 4, -math.inf) < 1e-9


def test_a_target_that_is_too_long_is_doubtful(confidence):
    ratios = Confidence({"length_ratio": (0.5, 0.1)}, None, confidence.known)
    assert [ratios([5, 6, 7, 2], length, 0.0) < 0.5 for length in (1, 7, 9, 40)] == [False, False, True, True]


def test_a_target_that_is_too_short_is_doubtful_for_that_reason(confidence):
    """Three tokens are added to both sides, since a ratio of few tokens says little."""
    short = Confidence(confidence.signals | {"target_ratio": (0.7, 0.1)}, None, confidence.known)
    ids = [5, 6, 7] * 5 + [2]
    assert [(length + 3) / 19 < 0.7 for length in (4, 10, 11, 16)] == [True, True, False, False]
    assert [short.is_short(ids, length) for length in (4, 10, 11, 16)] == [True, True, False, False]
    unlike = confidence(ids, 4, -0.4)
    number = 1 / (1 + math.exp(-(7 / 19 - 0.7) / 0.1))
    assert short(ids, 4, -0.4) == pytest.approx(min(number, unlike))
    assert not confidence.is_short(ids, 1)  # a file of an earlier version has no such signal
    (only,) = [Confidence({"target_ratio": (0.7, 0.1)}, None, confidence.known)]
    assert only(ids, 4, -100.0) == pytest.approx(number)
    assert not only.is_short([2], 1)


def test_a_source_that_is_longer_than_any_in_training_is_doubtful(confidence):
    long = Confidence(confidence.signals, 3, confidence.known)
    assert long([5, 6, 7, 2], 4, 0.0) == 0.5 * 3 / 4
    assert long([5, 6, 7], 4, 0.0) > 0.5
    assert Confidence(confidence.signals, None, confidence.known)([5, 6, 7, 2], 4, 0.0) > 0.5


def test_its_file_is_read_back(confidence):
    again = Confidence.from_text(confidence.text())
    assert again.text() == confidence.text()
    assert again([5, 6, 7, 7], 4, -1.5) == confidence([5, 6, 7, 7], 4, -1.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"known": "AA=="}',
        '{"signals": {"x": [1, 2]}, "longest_source": null, "known": "AA=="}',
        '{"signals": {"known_ngrams": [1, 0]}, "longest_source": null, "known": "AA=="}',
        '{"signals": {"known_ngrams": [1, 1]}, "longest_source": "x", "known": "AA=="}',
        '{"signals": {"known_ngrams": [1, 1]}, "longest_source": null, "known": ""}',
    ],
)
def test_a_damaged_file_is_named(text):
    with pytest.raises(ValueError, match=r"there/confidence\.json is not a file of confidences"):
        Confidence.from_text(text, "there/confidence.json")

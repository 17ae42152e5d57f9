"""Where sentences begin, and kept words behind reserved characters; test_export_web.py has the page do the same."""

import time
from itertools import pairwise

import pytest
from texts import PUT_BACK, SENTENCES_OF

from modeling_scratch.model.kept_words import KEPT, hide, restore_words
from modeling_scratch.model.sentences import beginnings


@pytest.mark.parametrize(("text", "language", "sentences"), SENTENCES_OF)
def test_where_sentences_begin(text, language, sentences):
    places = [0, *beginnings(text, language, KEPT.spans(text)), len(text)]
    assert [text[start:end].strip() for start, end in pairwise(places)] == sentences


@pytest.mark.parametrize(("text", "output", "expected", "is_whole"), PUT_BACK)
def test_kept_words_are_put_back(text, output, expected, is_whole):
    spans = KEPT.spans(text)
    words = [text[start:end] for start, end in spans]
    assert restore_words(output, hide(text, spans), words)[:2] == (text if expected is None else expected, is_whole)


HOSTILE = [
    "!",
    ".",
    '?"',
    "...",
    "A. ",
    "a. ",
    ". ",
    "? ",
    "\n",
    "\n ",
    " ",
    "\u3002",
    "aa.",
    "aa.Bb ",
    "1. ",
    '"',
    "am 3. ",
]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_text_takes_linear_time(pattern):
    """Eight times the text takes at most 24 times the time of this thread; quadratic time would be 64 times."""

    def seconds(size: int) -> float:
        text = f"a {pattern * (size // len(pattern))}b"
        began = time.thread_time()
        beginnings(text, "de")
        return time.thread_time() - began

    tries = [[seconds(size) for size in (2_000, 16_000)] for _ in range(4)]
    short, long = map(min, zip(*tries, strict=True))
    assert long <= 24 * short + 0.01

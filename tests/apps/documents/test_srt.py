"""SRT: the cues stay, as the standard's grammar of blocks says; sentences over several cues are translated whole."""

import re
import time

import pytest
from stand_ins import Shouting, backwards

from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.apps.documents.paragraphs import Translated

SUBTITLES = """1
00:00:01,000 --> 00:00:02,000
{\\an8}<i>This is a sentence</i>

2
00:00:02,100 --> 00:00:04,000 X1:40
<i>that goes on here
and ends.</i>

7
00:00:03,500 --> 00:00:05,000

8
00:00:05,000 --> 00:00:06,000
- Hello <b>there</b>.
- Who are you?

9
00:00:06,000 --> 00:00:07,000
12

10
00:00:06,500 --> 00:00:08,000
An overlapping one

11
00:01:00,000 --> 00:01:01,000
after a pause
"""


TIMES = "00:00:01,000 --> 00:00:02,000\n"


def cues(text: str) -> list[tuple[str, int]]:
    """The number and times of each cue, and how many lines it has."""
    blocks = re.split(r"\n\n(?=\d+\n\d\d:)", text.strip("\n"))
    return [("\n".join(block.split("\n")[:2]), len(block.strip("\n").split("\n"))) for block in blocks]


@pytest.mark.parametrize("translate", [Shouting(), backwards])
def test_the_cues_stay(translate):
    assert cues(translate_document(SUBTITLES, "srt", translate)) == cues(SUBTITLES)


def test_sentences_are_translated_whole():
    translate = Shouting()
    found = translate_document(SUBTITLES, "srt", translate)
    assert translate.given == [
        "This is a sentence that goes on here and ends.",
        "Hello there.",
        "Who are you?",
        "12",
        "An overlapping one",
        "after a pause",
    ]
    assert found == re.sub(r"(?<![<{/\\])\b[a-zA-Z]+\b(?![\d>:])", lambda word: word.group().upper(), SUBTITLES)


def test_a_sentence_is_spread_over_its_cues_in_proportion():
    text = (
        "1\n00:00:01,000 --> 00:00:02,000\n<i>One two three four</i>\n\n2\n00:00:02,000 --> 00:00:03,000\nfive six.\n"
    )
    found = translate_document(text, "srt", lambda given: [Translated("a b c d e f g h i")])
    lines = found.split("\n")
    assert (lines[2], lines[6]) == ("<i>a b c d e f</i>", "g h i")
    assert translate_document(text, "srt", lambda given: [Translated("a")]).split("\n")[2] == "<i>a</i>"


@pytest.mark.parametrize(("begins", "goes_on"), [("<", " "), ("<", "a"), ("", "< ")])
def test_what_is_no_tag_takes_time_in_proportion(begins, goes_on):
    """Eight times the text about eight times the time, where looking for a tag's end from every place takes 64."""

    def seconds(count: int) -> float:
        began, text = time.process_time(), f"1\n{TIMES}{begins}{goes_on * count}x\n"
        translate_document(text, "srt", lambda given: [Translated("b")] * len(given))
        return time.process_time() - began

    assert min(seconds(160_000) for _ in range(3)) < 24 * min(seconds(20_000) for _ in range(5))


def test_it_must_be_srt():
    with pytest.raises(ValueError, match="no subtitles"):
        translate_document("Some text.\n", "srt", Shouting())


def test_what_looks_like_markup_of_other_formats_stays_in_its_cue():
    """A cue with `\\N`, the same text again, and no empty lines; the last number is text."""
    text = f"{TIMES}One\\Ntwo.\n2\n{TIMES}One\ntwo.\n3\n{TIMES}{TIMES}42\n\n{TIMES}Number\n7"
    translate = Shouting()
    found = translate_document(text, "srt", translate)
    assert found == text.replace("One", "ONE").replace("two", "TWO").replace("Number", "NUMBER")
    assert translate.given == ["One two.", "One two.", "42", "Number 7"]


def test_a_closing_quotation_mark_ends_a_cue():
    cues = "1\n00:00:01,000 --> 00:00:02,000\n\u201eKomm!\u201c\n\n2\n00:00:02,500 --> 00:00:04,000\nIch warte.\n"
    seen = []

    def translate(sentences: list[str]) -> list[Translated]:
        seen.extend(sentences)
        return [Translated(text) for text in sentences]

    assert translate_document(cues, "srt", translate) == cues
    assert seen == ["\u201eKomm!\u201c", "Ich warte."]

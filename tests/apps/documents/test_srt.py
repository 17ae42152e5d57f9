"""SRT: cues stay, and sentences that span several cues are translated whole."""

import itertools
import re

import pytest
from stand_ins import always, backwards, changed

from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.errors import UserError

TIMES = "00:00:01,000 --> 00:00:02,000\n"
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


def cues(text: str) -> list[tuple[str, int]]:
    """The number and times of each cue, and how many lines it has."""
    blocks = re.split(r"\n\n(?=\d+\n\d\d:)", text.strip("\n"))
    return [("\n".join(block.split("\n")[:2]), len(block.strip("\n").split("\n"))) for block in blocks]


def test_cues_stay_and_sentences_are_translated_whole():
    found, read = changed(SUBTITLES, "srt", str.upper)
    assert read == [
        "This is a sentence that goes on here and ends.",
        "Hello there.",
        "Who are you?",
        "12",
        "An overlapping one",
        "after a pause",
    ]
    assert found == re.sub(r"(?<![<{/\\])\b[a-zA-Z]+\b(?![\d>:])", lambda word: word.group().upper(), SUBTITLES)
    assert cues(translate_document(SUBTITLES, "srt", backwards)) == cues(SUBTITLES)


def test_a_sentence_is_spread_over_its_cues_in_proportion():
    text = f"1\n{TIMES}<i>One two three four</i>\n\n2\n00:00:02,000 --> 00:00:03,000\nfive six.\n"
    lines = translate_document(text, "srt", always("a b c d e f g h i")).split("\n")
    assert (lines[2], lines[6]) == ("<i>a b c d e f</i>", "g h i")
    assert translate_document(text, "srt", always("a")).split("\n")[2] == "<i>a</i>"


def test_text_without_cues_is_refused():
    with pytest.raises(UserError, match="SRT"):
        translate_document("Some text.\n", "srt", always("a"))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        # A line break of another format, repeated text, no empty lines, and a number as text.
        (
            f"{TIMES}One\\Ntwo.\n2\n{TIMES}One\ntwo.\n3\n{TIMES}{TIMES}42\n\n{TIMES}Number\n7",
            ["One two.", "One two.", "42", "Number 7"],
        ),
        # A sentence that ends with a quotation mark.
        (f"1\n{TIMES}„Komm!“\n\n2\n00:00:02,500 --> 00:00:04,000\nIch warte.\n", ["„Komm!“", "Ich warte."]),
    ],
)
def test_where_sentences_end(text, read):
    assert changed(text, "srt") == (text, read)


@pytest.mark.parametrize(
    ("lines", "read"),
    [
        # Marks of speakers: at the beginning of a line, within it and within tags.
        ([">> The cat sleeps and", ">> No, the dog"], ["The cat sleeps and", "No, the dog"]),
        ([">>> The cat. >> No,", "the dog"], ["The cat.", "No, the dog"]),
        (["&gt;&gt; The cat", "&gt;&gt;BOB: the dog"], ["The cat", "the dog"]),
        (["<i>>> The cat", ">> ANN: THE DOG</i>"], ["The cat", "THE DOG"]),
        # Names in capitals.
        (["BOB: The cat", "sleeps", "DR. O'NEIL 2: <i>the dog</i>"], ["The cat sleeps", "the dog"]),
        (["- BOB: The cat", "- ÄNNE: the dog"], ["The cat", "the dog"]),
        # Other colons and signs.
        (["HE SAID: THE CAT", "Note: the dog"], ["HE SAID: THE CAT Note: the dog"]),
        (["12:30 comes", "and 3 > 2"], ["12:30 comes and 3 > 2"]),
    ],
)
def test_marks_and_names_of_speakers_stay_and_begin_a_sentence(lines, read):
    text = f"1\n{TIMES}" + "\n".join(lines) + "\n"
    assert changed(text, "srt") == (text, read)


def test_captions_that_roll_up_are_read_once():
    """Each cue repeats lines of the one before, as the converters of yt-dlp and CCExtractor write captions."""
    rows = [
        "<i>the cat</i>",
        "<i>the cat</i>\nsleeps in",
        "the cat\nsleeps in\nthe kiln.",
        "the kiln.\n>> No!",
        ">> No!",
    ]
    text = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n + 1},000\n{row}\n\n" for n, row in enumerate(rows, 1))
    assert changed(text, "srt") == (text, ["the cat sleeps in the kiln.", "No!"])
    short = changed(text, "srt", lambda read: "Ja!" if read == "No!" else "Die Katze")[0]
    cues = ["<i>Die</i>", "<i>Die</i>\nKatze", "Die\nKatze\n ", " \n>> Ja!", ">> Ja!"]
    assert short.split("\n\n")[:-1] == [
        f"{n}\n00:00:0{n},000 --> 00:00:0{n + 1},000\n{cue}" for n, cue in enumerate(cues, 1)
    ]


def test_captions_that_roll_up_without_punctuation_have_sentences_of_some_lines():
    rows = [f"line number {n} of the talk" for n in range(60)]
    cues = [f"{rows[0]}", *(f"{a}\n{b}" for a, b in itertools.pairwise(rows))]
    text = "".join(f"{n}\n00:00:{n:02},000 --> 00:00:{n + 1:02},000\n{cue}\n\n" for n, cue in enumerate(cues))
    read = changed(text, "srt")[1]
    assert " ".join(read) == " ".join(rows)
    assert max(map(len, read)) < 400

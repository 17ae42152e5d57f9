"""WebVTT: cues, settings, notes and styles stay; sentences are read as in SRT, whose tests have their rules."""

import io
import re
from html import unescape

import pytest
import webvtt
from stand_ins import always, backwards, changed

from modeling_scratch.apps.documents.document import read_document, translate_document
from modeling_scratch.errors import UserError

SUBTITLES = """WEBVTT - Some title
Kind: captions

STYLE
::cue(.red) { color: red }

REGION
id:fred
width:40%

NOTE Not translated
nor this -- line

intro
00:01.000 --> 00:02.000 line:0 position:20% align:start
<v Bob>This is a <i>sentence</i></v>

00:02.100 --> 00:04.000
<v Bob>that goes &amp; on here
and <c.red.big>ends</c>.</v>

3
01:00:00.000 --> 01:00:05.500
<v Bob>Hello <b>there</b> &lt;all&gt; for 10&nbsp;km
<v.loud Mary Ann>Who are <lang fr>you</lang>?
- and <ruby>me<rt>X</rt></ruby>

01:00:06.000 --> 01:00:08.000
so <01:00:06.500>it <01:00:07.000><c>goes</c>
"""
READ = [
    "This is a sentence that goes & on here and ends.",
    "Hello there <all> for 10 km",
    "Who are you?",
    "and me",
    "so it goes",
]


def frame(text: str) -> str:
    """Everything but the texts of cues."""
    return re.sub(r"(-->.*\n)(?:.+\n)*", r"\1", text)


def test_everything_but_the_text_of_cues_stays():
    found, read = changed(SUBTITLES, "vtt")
    assert (found, read) == (SUBTITLES, READ)
    reversed = translate_document(SUBTITLES, "vtt", backwards)
    assert frame(reversed) == frame(SUBTITLES)
    tags, expected = (sorted(re.findall(r"<[^<>]*>|&\w+;", version)) for version in (reversed, SUBTITLES))
    assert tags == expected


def test_its_own_library_reads_the_translation():
    versions = SUBTITLES, changed(SUBTITLES, "vtt", str.upper)[0]
    before, after = (webvtt.from_buffer(io.StringIO(version)) for version in versions)
    for one, other in zip(before, after, strict=True):
        assert (one.start, one.end, one.identifier) == (other.start, other.end, other.identifier)
        assert (one.voice, unescape(one.text).upper()) == (other.voice, unescape(other.text))
    assert [style.text for style in before.styles] == [style.text for style in after.styles]


def test_times_of_words_stay_in_order():
    text = (
        "WEBVTT\n\n00:00.000 --> 00:05.000\nOne<00:01.000><c> two</c><00:02.000><c> three</c><00:03.000><c> four</c>\n"
    )
    links = [(0, 3), (1, 2), (2, 1), (3, 0)]
    line = translate_document(text, "vtt", always("d c b a", links)).split("\n")[3]
    assert re.findall(r"<([\d:.]+)>", line) == ["00:01.000", "00:02.000", "00:03.000"]
    assert re.sub(r"<[^<>]*>", "", line).split() == ["d", "c", "b", "a"]


@pytest.mark.parametrize(
    ("cues", "read"),
    [
        (["<v Bob>One", "<v Bob>two"], ["One two"]),
        (["<v Bob>One", "<v Mary>two"], ["One", "two"]),
        (["<v Bob>One</v>", "two"], ["One", "two"]),
        (["<v Bob>One\ntwo", "<v Bob>three"], ["One two three"]),
        (["<v Bob>One</v> <v Mary>two</v>"], ["One", "two"]),
        (["One.", "two"], ["One.", "two"]),
    ],
)
def test_a_sentence_ends_where_someone_else_speaks(cues, read):
    times = [f"00:0{number}.000 --> 00:0{number + 1}.000\n" for number in range(len(cues))]
    text = "WEBVTT\n\n" + "\n\n".join(map("".join, zip(times, cues, strict=True))) + "\n"
    assert changed(text, "vtt") == (text, read)


def test_a_translation_cannot_end_a_cue():
    text = "WEBVTT\n\n00:00.000 --> 00:05.000\nOne\n"
    assert translate_document(text, "vtt", always("<a> --> &")).endswith("\n&lt;a> --&gt; &amp;\n")


def test_text_without_a_header_is_refused():
    with pytest.raises(UserError, match="WEBVTT"):
        read_document("00:00.000 --> 00:05.000\nOne\n", "vtt")


def test_wrong_times_are_an_error_with_their_line():
    with pytest.raises(UserError, match=r"line 4: not the times of a cue: :00:01\.000"):
        translate_document("WEBVTT\n\na\n:00:01.000 --> 00:02.000\nA cat.\n", "vtt", always("a"))


# As YouTube writes automatic captions: each line is first shown word by word, then for 10 ms, then above the next one.
ROLLING = """WEBVTT
Kind: captions
Language: en

00:00:00.000 --> 00:00:02.000 align:start position:0%
 
a<00:00:00.400><c> child</c><00:00:00.800><c> runs &amp;</c>

00:00:02.000 --> 00:00:02.010 align:start position:0%
a child runs &amp;
 

00:00:02.010 --> 00:00:04.000 align:start position:0%
a child runs &amp;
sees<00:00:02.400><c> a</c><00:00:02.800><c> dog</c>

00:00:04.000 --> 00:00:04.010 align:start position:0%
sees a dog
 

00:00:09.000 --> 00:00:10.000 align:start position:0%
 
&gt;&gt;<00:00:09.400><c> no</c>
"""


def test_rolling_captions_are_read_once():
    found, read = changed(ROLLING, "vtt", str.upper)
    assert read == ["a child runs & sees a dog", "no"]
    blocks = [block.split("\n")[1:] for block in found.split("\n\n")[1:]]
    lines = [[re.sub("<[^<>]*>", "", line) for line in block] for block in blocks]
    assert lines[:4] == [
        [" ", "A CHILD RUNS &amp;"],
        ["A CHILD RUNS &amp;", " "],
        ["A CHILD RUNS &amp;", "SEES A DOG"],
        ["SEES A DOG", " "],
    ]
    assert lines[4][1].split() == ["&gt;&gt;", "NO"]
    times = re.findall(r"<([\d:.]+)>", ROLLING)
    assert (re.findall(r"<([\d:.]+)>", found), found.count("<c>")) == (times, ROLLING.count("<c>"))
    assert frame(found) == frame(ROLLING)


def test_lines_of_rolling_captions_without_words_do_not_end_their_cues():
    found = translate_document(ROLLING, "vtt", always("Hund"))
    assert [cue.text.strip() for cue in webvtt.from_buffer(io.StringIO(found))][:4] == ["Hund", "Hund", "Hund", ""]
    assert [cue.start for cue in webvtt.from_buffer(io.StringIO(found))] == [
        cue.start for cue in webvtt.from_buffer(io.StringIO(ROLLING))
    ]


def test_marks_of_speakers_stay():
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\n&gt;&gt; The cat. &gt;&gt; No\n<v Ann>MAN: or <i>yes</i>\n>> BOB: OK\n"
    assert changed(text, "vtt") == (text, ["The cat.", "No", "or yes", "OK"])

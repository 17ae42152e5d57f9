"""What documents of all kinds have in common; paragraphs of many sentences; the command."""

import io
import random
import re
import sys

import pytest
from conftest import ROOT
from stand_ins import Shouting, backwards
from translators import SENTENCES, by_hand, one_vocabulary

from modeling_scratch.apps.documents import FORMATS, translation
from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.apps.documents.paragraphs import Translated, translate_paragraphs
from modeling_scratch.commands import translate

sys.path.insert(0, str(ROOT / "benchmarks"))
from readers import HOSTILE, READERS, hostile, seconds

CUE = "1\n00:00:01,000 --> 00:00:02,000\n"


@pytest.mark.parametrize("format", FORMATS)
def test_a_mark_and_line_ends_stay(format):
    text = f"\ufeff{CUE * (format == 'srt')}One line\nand more.\n\n".replace("\n", "\r\n")
    found = translate_document(text, format, Shouting())
    assert found == text.upper()
    assert translate_document("", format, Shouting()) == ""


def test_lines_of_plain_text_are_paragraphs():
    given, translate = "  One. Two.\t\n\n \n- Three\r\nFour\rFive\u2028Six\fSeven\x85Eight", Shouting()
    assert translate_document(given, "text", translate) == given.upper()
    assert translate.given == ["One. Two.", "- Three", "Four", "Five", "Six", "Seven", "Eight"]


def test_links_count_the_words_of_a_paragraph():
    words = "One two. Three?  Four five six!"
    (found,) = translate_paragraphs([words], backwards, "en", None)
    assert found.text == "TWO. ONE THREE?  SIX! FIVE FOUR"
    source, target = words.upper().split(), found.text.split()
    assert [source[first] for first, _ in found.links] == [target[second] for _, second in found.links]
    assert len(found.links) == 6


def test_links_where_sentences_have_no_space_between():
    (found,) = translate_paragraphs(["一。二。"], lambda given: [Translated("a b", [(0, 1)])] * 2, "zh", "en")
    assert (found.text, found.links) == ("a b a b", [(0, 1), (0, 3)])


@pytest.mark.parametrize("reader", READERS)
def test_reading_takes_time_in_proportion_to_the_text(reader):
    """
    Of the process alone: at most 24 times as long for eight times the text, where the square would be 64. Each is the
    shortest of up to six tries, since other processes slow this one down too.
    """

    def grows(pattern: str) -> bool:
        tries = []
        for _ in range(6):
            tries.append([seconds(reader, hostile(reader, pattern, size)) for size in (2_000, 16_000)])
            short, long = map(min, zip(*tries, strict=True))
            if long <= 24 * short + 0.02:
                return False
        return True

    assert not [pattern for pattern in HOSTILE if grows(pattern)]


@pytest.mark.parametrize("format", FORMATS)
def test_line_ends_of_several_kinds_stay(format):
    text = f"{CUE * (format == 'srt')}One line\nand more.\n\n".replace("\n", "\r\n").replace("more.\r", "more.")
    for given in (text, text.replace("\r\n", "\r")):
        assert translate_document(given, format, Shouting()) == given.upper()


def test_front_matter_and_hard_breaks_with_line_ends_of_several_kinds():
    text = "---\r\ntitle: a b\r\n---\r\n\r\n# Some\r\n\r\nWe run\\\r\nhere.\n"
    assert translate_document(text, "markdown", Shouting()) == text.upper().replace("TITLE: A B", "title: a b")


def test_lines_that_are_more_or_fewer_have_the_most_frequent_end():
    text = f"{CUE}<i>One\nline</i>\nand more.\n\n".replace("\n", "\r\n").replace("line</i>\r", "line</i>")
    found = translate_document(text, "srt", lambda given: [Translated("a")] * len(given))
    assert found.count("\n") == found.count("\r\n") < text.count("\n")


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("markdown", "**1.** The cat sleeps."),
        ("markdown", "The cat sleeps. `Ctrl`+`S`"),
        ("markdown", "Take the child. `x` sleeps in the house."),
        ("markdown", "The child.[^2] The cat sleeps."),
        ("markdown", "The child ![x](y). ![x](y) The cat `a`! Yes."),
        ("markdown", "Call dog(`x` and y) now. See cat(http://x.org/a or b) and dog(<img src=x> old)."),
        ("markdown", "- **Does it sleep?**: The cat sleeps."),
        ("html", "<p><b>1.</b> The cat sleeps.</p>"),
        ("html", "<p>We run. <kbd>Ctrl</kbd>+<kbd>S</kbd></p>"),
        ("html", "The cat sleeps. <a href=x>2020</a>."),
        ("html", "The old cat sleeps. <b>100 %</b>"),
        ("html", '<span class="n">2.1.</span> The cat sleeps.'),
        ("html", "<b>A shirt</b><sup>1</sup> is red.<sup>2</sup> Two dogs play."),
        ("html", "The cat sleeps. <sup>1</sup><sup>2</sup> The dog runs.<sup>[3]</sup><sup>*</sup>"),
        ("markdown", "The cat sleeps.[^1][^2] ![a](b)![c](d) The dog runs."),
        ("html", 'A book<sup><a href=x title="One">[1]</a></sup> is<a href=y>*</a> here.'),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_marks_stay_with_their_sentence(format, text, turned):
    """Where the words of each sentence stay as they are, and where their order is reversed."""

    def translate(sentences: list[str]) -> list[Translated]:
        found = []
        for sentence in sentences:
            words, end = sentence.rstrip(".!?").split(), sentence[len(sentence.rstrip(".!?")) :]
            places = list(range(len(words)))[:: -1 if turned else 1]
            found.append(
                Translated(" ".join(words[place] for place in places) + end, list(zip(places, range(99), strict=False)))
            )
        return found

    def as_paragraphs(given: list[str]) -> list[Translated]:
        return translate_paragraphs(given, translate, "en", "en")

    written = translate_document(text, format, as_paragraphs)
    if not turned:
        assert written == text
        return
    # Each mark is between the same sentences' ends as before.
    atoms = re.compile(r"`[^`]*`|!\[x\]\(y\)|\[\^2\]|<kbd>.*?</kbd>|<sup>.*?</sup>|\d")
    shown = [re.sub(r"[^.!?@]", "", atoms.sub("@", each).replace("http://x.org/a", "@")) for each in (text, written)]
    assert shown[0] == shown[1]


def test_an_address_is_not_joined_to_words():
    found = translate_document(
        "A dog(http://x.org/a and cat) runs.", "markdown", lambda given: [Translated("Hund und")]
    )
    assert re.search(r"(?<!\w)http://x\.org/a(?!\w)", found)


def test_all_sentences_are_translated_together():
    calls = []

    def record(sentences):
        calls.append(sentences)
        return [Translated("x") for _ in sentences]

    found = translate_paragraphs(["One cat. Two cats.", "", "Three."], record, None, None)
    assert calls == [["One cat.", "Two cats.", "Three."]]
    assert [each.text for each in found] == ["x x", "", "x"]


@pytest.mark.parametrize("seed", range(10))
def test_markup_is_well_formed_with_any_links(seed):
    """Random tags, and random links; lxml would have to move tags that cross."""
    from lxml import etree

    choose = random.Random(seed)

    def inline(depth: int) -> str:
        parts = [
            choose.choice(["a", "b,", "(c)", "<code>x</code>", "d.", "<img/>"]) for _ in range(choose.randint(1, 5))
        ]
        if depth:
            name = choose.choice("abiu")
            parts.insert(choose.randint(0, len(parts)), f"<{name} n='{choose.random()}'>{inline(depth - 1)}</{name}>")
        return choose.choice([" ", " ", ""]).join(parts)

    page = f"<p>{inline(2)} w {inline(3)} {inline(1)}</p>"

    def translate(paragraphs):
        size = choose.randint(1, 12)
        words = [f"x{place}{choose.choice([',', '', ')'])}" for place in range(size)]
        pairs = [(choose.randrange(4), choose.randrange(size)) for _ in range(choose.randint(0, 9))]
        return [Translated(" ".join(words), pairs) for _ in paragraphs]

    found, given = etree.fromstring(translate_document(page, "html", translate)), etree.fromstring(page)
    assert sorted((each.tag, each.get("n", "")) for each in found.iter()) == sorted(
        (each.tag, each.get("n", "")) for each in given.iter()
    )
    for code in found.iter("code"):
        code.text = ""
    numbers = [int(number) for number in re.findall(r"x(\d+)", "".join(found.itertext()))]
    assert numbers == list(range(len(numbers)))


@pytest.fixture(scope="module")
def folder():
    return one_vocabulary()


def run(folder, text: str, monkeypatch, capsys, **options) -> tuple[str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    capsys.readouterr()
    translate.main(str(folder), **options)
    return capsys.readouterr()


def test_the_command(folder, tmp_path, monkeypatch, capsys):
    first, second, third = SENTENCES[:3]
    heading, *rest = by_hand(folder, SENTENCES[:3])
    heading, body = heading.strip(), " ".join(rest).strip()  # this model has drawn weights, and may end with a space
    page = "<h1>{}</h1>\n<p>{}</p>\n"
    given = page.format(first, f"{second} {third}")
    assert run(folder, given, monkeypatch, capsys, format="html")[0] == page.format(heading, body)
    (tmp_path / "x.srt").write_text(f"{CUE}{first}\n")
    run(folder, "", monkeypatch, capsys, format="srt", input=str(tmp_path / "x.srt"), output=str(tmp_path / "y.srt"))
    assert (tmp_path / "y.srt").read_text() == f"{CUE}{heading}\n"


def test_a_document_without_its_format_is_lines(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "x.md").write_text(SENTENCES[0])
    found, stderr = run(folder, "", monkeypatch, capsys, input=str(tmp_path / "x.md"))
    assert found == f"{by_hand(folder, SENTENCES[:1])[0]}\n"
    assert re.match(r"warning: \S+x\.md is translated line by line; .* --format markdown\n", stderr)
    assert "--format" not in run(folder, "", monkeypatch, capsys, input=str(tmp_path / "x.md"), format="lines")[1]


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        ("html", b"<p>\xff", "error: standard input: not valid UTF-8 (invalid start byte at byte 3)\n"),
        ("srt", b"text", "error: standard input: no subtitles in SRT format\n"),
    ],
)
def test_input_that_is_not_a_document_is_refused(format, text, message, folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    with pytest.raises(SystemExit):
        translate.main(str(folder), format=format)
    assert capsys.readouterr().err == message


def test_our_own_errors_are_not_blamed_on_the_user(folder, monkeypatch, capsys):
    def fail(*_):
        raise ValueError("a fault")

    monkeypatch.setattr(translation, "translate_document", fail)
    with pytest.raises(SystemExit) as ended:
        run(folder, "x", monkeypatch, capsys, format="text")
    assert ended.value.code == 1

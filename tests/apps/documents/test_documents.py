"""What all formats share: line ends, places of marks and tags, time, and the command."""

import random
import re
import sys
from collections.abc import Callable
from functools import partial

import pytest
from conftest import ROOT
from lxml import etree
from stand_ins import always, backwards, changed
from translators import SENTENCES, by_hand, lines, one_vocabulary, run_translate

from modeling_scratch.apps.documents import FORMATS, format_of, translation
from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.apps.translate.paragraphs import Translated, translate_paragraphs
from modeling_scratch.errors import UserError

sys.path.insert(0, str(ROOT / "benchmarks"))
from readers import (
    CATALOGS,
    CUES,
    HOSTILE,
    HOSTILE_MARKUP,
    READERS,
    catalog,
    document_of,
    hostile,
    hostile_files,
    seconds,
    text_of,
)

CUE = CUES["srt"]


@pytest.mark.parametrize(
    "format", [name for name, format in FORMATS.items() if not (format.is_binary or name in CATALOGS)]
)
def test_byte_order_mark_and_line_ends_stay(format):
    unix = document_of(format, "One line\nand more.\n\n")
    windows, old = unix.replace("\n", "\r\n"), unix.replace("\n", "\r")
    for text in ("", f"\ufeff{windows}", windows.replace("more.\r", "more."), old.replace("more.\r", "more.\n")):
        assert changed(text, format, str.upper)[0] == text.upper()


@pytest.mark.parametrize("format", CATALOGS)
def test_byte_order_mark_and_line_ends_stay_in_catalogs(format):
    texts = ["One line", "and more."]
    files = [catalog(format, texts), catalog(format, texts, ["ONE LINE", "AND MORE."])]
    text, expected = (f"{content}\n" for content in files)
    for ends in (
        lambda content: "\ufeff" + content.replace("\n", "\r\n"),
        lambda content: content.replace("\n", "\r\n").replace("\r\n", "\n", 1),
        lambda content: content.replace("\n", "\r").replace("\r", "\n", 1),
    ):
        assert changed(ends(text), format, str.upper)[0] == ends(expected)


@pytest.mark.parametrize("format", sorted(set(FORMATS) - set(CATALOGS)))
def test_a_translation_may_have_any_characters(format):
    words = "\u00c4 \U00010348 \u2026 \u201cx\u201d 1 > 2"
    found = translate_document(document_of(format, "One line"), format, always(words))
    assert text_of(format, found).replace("&gt;", ">") == words


def test_line_ends_of_several_kinds_stay_around_front_matter_and_hard_breaks():
    text = "---\r\ntitle: a b\r\n---\r\n\r\n# Some\r\n\r\nWe run\\\r\nhere.\n"
    assert changed(text, "markdown", str.upper)[0] == text.upper().replace("TITLE: A B", "title: a b")


def test_all_line_ends_become_the_most_frequent_kind_if_lines_are_lost():
    text = f"{CUE}<i>One\nline</i>\nand more.\n\n".replace("\n", "\r\n").replace("line</i>\r", "line</i>")
    found = translate_document(text, "srt", always("a"))
    assert found.count("\n") == found.count("\r\n") < text.count("\n")


def test_each_line_of_plain_text_is_a_paragraph():
    text = "  One. Two.\t\n\n \n- Three\r\nFour\rFive\u2028Six\fSeven\x85Eight"
    read = ["One. Two.", "- Three", "Four", "Five", "Six", "Seven", "Eight"]
    assert changed(text, "text", str.upper) == (text.upper(), read)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("html", "<p>A &#{};</p>"),
        ("html", "<p>A &#{} b</p>"),
        ("html", '<p title="A &#{};">A</p>'),
        ("markdown", 'A <b title="A &#{};">b</b>'),
        ("vtt", f"{CUES['vtt']}A &#{{}};"),
        ("po", 'msgid "A &#{};"\nmsgstr ""\n'),
        ("json", '{{"a": "A &#{};"}}'),
    ],
)
def test_references_may_have_more_digits_than_python_reads(format, text):
    """int() refuses more than 4,300 digits since Python 3.11. In HTML, a number of no character stands for U+FFFD."""
    assert "A A" in changed(text.format("0" * 4300 + "65"), format)[1][-1]
    assert "A \N{REPLACEMENT CHARACTER}" in changed(text.format("1" * 4301), format)[1][-1]


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_reading_takes_time_in_proportion_to_the_text(reader):
    """
    Eight times the text takes at most 24 times the process time; quadratic time would be 64 times. The shortest of up
    to six tries counts, since other processes slow this one down too.
    """

    def is_slow(text: Callable[[int], str]) -> bool:
        tries = []
        for _ in range(6):
            tries.append([seconds(reader, text(size)) for size in (1_000, 8_000)])
            short, long = map(min, zip(*tries, strict=True))
            if long <= 24 * short + 0.01:
                return False
        return True

    patterns = HOSTILE + HOSTILE_MARKUP.get(reader, [])
    texts = {pattern: lambda size, pattern=pattern: hostile(reader, pattern, size) for pattern in patterns}
    texts |= hostile_files(reader)
    if reader in CUES:  # a tag may begin anywhere and end far away
        begins = CUES[reader]
        texts |= {f"<{part}": lambda size, part=part: f"{begins}<{part * (10 * size)}x\n" for part in (" ", "a", " <")}
    assert not [pattern for pattern, text in texts.items() if is_slow(text)]


# -- marks and tags ----------------------------------------------------------------------------------------------------


def test_links_of_a_paragraph_count_its_words():
    words = "One two. Three?  Four five six!"
    (found,) = translate_paragraphs([words], backwards, "en", None)
    assert found.text == "TWO. ONE THREE?  SIX! FIVE FOUR"
    source, target = words.upper().split(), found.text.split()
    assert [source[first] for first, _ in found.links] == [target[second] for _, second in found.links]
    assert len(found.links) == 6
    # Two sentences in one word.
    (found,) = translate_paragraphs(["一。二。"], lambda given: [Translated("a b", [(0, 1)])] * 2, "zh", "en")
    assert (found.text, found.links) == ("a b a b", [(0, 1), (0, 3)])


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
        ("markdown", "The cat sleeps.[^1][^2] ![a](b)![c](d) The dog runs."),
        ("html", "<p><b>1.</b> The cat sleeps.</p>"),
        ("html", "<p>We run. <kbd>Ctrl</kbd>+<kbd>S</kbd></p>"),
        ("html", "The cat sleeps. <a href=x>2020</a>."),
        ("html", "The old cat sleeps. <b>100 %</b>"),
        ("html", '<span class="n">2.1.</span> The cat sleeps.'),
        ("html", "<b>A shirt</b><sup>1</sup> is red.<sup>2</sup> Two dogs play."),
        ("html", "The cat sleeps. <sup>1</sup><sup>2</sup> The dog runs.<sup>[3]</sup><sup>*</sup>"),
        ("html", 'A book<sup><a href=x title="One">[1]</a></sup> is<a href=y>*</a> here.'),
    ],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_marks_stay_with_their_sentence(format, text, is_reversed):
    """If words keep their order, everything stays; if it is reversed, marks stay between the same sentence ends."""

    def translate(sentences: list[str]) -> list[Translated]:
        found = []
        for sentence in sentences:
            words, end = sentence.rstrip(".!?").split(), sentence[len(sentence.rstrip(".!?")) :]
            order = list(range(len(words)))[:: -1 if is_reversed else 1]
            links = [(source, target) for target, source in enumerate(order)]
            found.append(Translated(" ".join(words[source] for source in order) + end, links))
        return found

    written = translate_document(text, format, lambda given: translate_paragraphs(given, translate, "en", "en"))
    if is_reversed:
        marks = re.compile(r"`[^`]*`|!\[x\]\(y\)|\[\^2\]|<kbd>.*?</kbd>|<sup>.*?</sup>|\d|http://x\.org/a")
        text, written = (re.sub(r"[^.!?@]", "", marks.sub("@", version)) for version in (text, written))
    assert written == text


@pytest.mark.parametrize("seed", range(6))
def test_markup_is_well_formed_with_any_links(seed):
    """Random tags and links: no tag is lost or crosses another, and words keep their order."""
    choose = random.Random(seed)

    def inline(depth: int) -> str:
        choices = ["a", "b,", "(c)", "<code>x</code>", "d.", "<img/>"]
        parts = [choose.choice(choices) for _ in range(choose.randint(1, 5))]
        if depth:
            name = choose.choice("abiu")
            parts.insert(choose.randint(0, len(parts)), f"<{name} n='{choose.random()}'>{inline(depth - 1)}</{name}>")
        return choose.choice([" ", " ", ""]).join(parts)

    def translate(paragraphs: list[str]) -> list[Translated]:
        size = choose.randint(1, 12)
        words = [f"x{number}{choose.choice([',', '', ')'])}" for number in range(size)]
        links = [(choose.randrange(4), choose.randrange(size)) for _ in range(choose.randint(0, 9))]
        return [Translated(" ".join(words), links) for _ in paragraphs]

    page = f"<p>{inline(2)} w {inline(3)} {inline(1)}</p>"
    found = etree.fromstring(translate_document(page, "html", translate))
    tags = [sorted((node.tag, node.get("n", "")) for node in tree.iter()) for tree in (found, etree.fromstring(page))]
    assert tags[0] == tags[1]
    etree.strip_elements(found, "code", with_tail=False)
    numbers = [int(number) for number in re.findall(r"x(\d+)", "".join(found.itertext()))]
    assert numbers == list(range(len(numbers)))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch):
    return partial(run_translate, monkeypatch, one_vocabulary())


def test_command_translates_a_document_from_stdin_and_from_a_file(run, tmp_path):
    first, second, third = SENTENCES[:3]
    heading, *rest = by_hand(one_vocabulary(), SENTENCES[:3])
    heading, body = heading.strip(), " ".join(rest).strip()  # the model may end a translation with a space
    page = "<h1>{}</h1>\n<p>{}</p>\n"
    _, output, _ = run(page.format(first, f"{second} {third}").encode(), format="html")
    assert output.decode() == page.format(heading, body)
    (tmp_path / "x.srt").write_text(f"{CUE}{first}\n")
    run(format="srt", input=str(tmp_path / "x.srt"), output=str(tmp_path / "y.srt"))
    assert (tmp_path / "y.srt").read_text() == f"{CUE}{heading}\n"


def test_the_name_of_a_file_gives_its_format(run, tmp_path):
    (tmp_path / "X.HTML").write_text(f"<p>{SENTENCES[0]}</p>")
    (tmp_path / "x.pdf").write_text(SENTENCES[0])
    translation = by_hand(one_vocabulary(), SENTENCES[:1])[0]
    assert run(input=str(tmp_path / "X.HTML"))[1].decode() == f"<p>{translation.strip()}</p>"
    code, output, stderr = run(input=str(tmp_path / "x.pdf"))
    assert (code, output, stderr.count("\n")) == (2, b"", 1)
    assert "x.pdf" in stderr
    assert ".html" in stderr
    assert "--format lines" in stderr
    assert run(input=str(tmp_path / "x.pdf"), format="lines")[1] == lines(translation)


CORPORA = (
    "train.de newstest2014-deen-src.en test.spm.de train.tok.bpe.32000.en test.bpe32k deu_Latn.devtest x.zh-CN x.pt_BR "
    "europarl-v7.de-en x.eng x.yue x.nds x.tl x.src x.ref0 x.hyp x.tok file.v1 x.2026-01-31 book.TXT part-00000 .de 63 "
    "x.ps x.ml x.mk x.pan"
)


@pytest.mark.parametrize("name", [*CORPORA.split(), "A talk by Dr. Smith"])
def test_names_of_corpora_are_those_of_text(name):
    assert format_of(name) is None


OTHERS = (
    "lrc asciidoc adoc rest rst typ textile docbook jats mhtml ics csv doc tex bin ksh lua h5 mp3 ts sh c 7z po.bak "
    "de~ xml opml vcf ass ini hbs rkt mak cps geo prg swg wls run"
)


@pytest.mark.parametrize("ending", OTHERS.split())
def test_files_that_are_not_known_to_be_text_are_refused(ending):
    """Among them are endings that are also codes of languages in ISO 639-3, such as .doc, .lrc, .tex and .typ."""
    with pytest.raises(UserError, match=rf"x\.{ending}: files of this kind .* \.txt.* \.html, "):
        format_of(f"x.{ending}")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("x.ps", "%!PS-Adobe-3.0"),
        ("x.pl", "#!/usr/bin/perl"),
        ("configure", "#!/bin/sh"),
        ("x.1", ".TH X 1"),
        ("x.1", ".Dd May 1"),
        ("x.8", '.\\" A comment'),
        ("x.1", "'\\\" t"),
    ],
)
def test_a_program_or_manual_page_is_not_read_as_lines_of_text(name, begins, run, tmp_path):
    """Their endings are also codes of languages (Pashto, Polish) and numbers of parts of a corpus."""
    path = tmp_path / name
    path.write_text(f"{begins}\nA cat\n")
    code, output, stderr = run(input=str(path))
    assert (code, output, stderr.count("\n")) == (2, b"", 1)
    assert "are not translated" in stderr
    path.write_text("A cat.\n")
    assert format_of(name, begins=path.read_bytes()) is None
    assert format_of(f"{name}.txt", begins=begins.encode()) is None


def test_a_language_may_follow_the_ending_of_a_document():
    """Apache's content negotiation (mod_negotiation) has such names."""
    assert [format_of(name) for name in ("index.html.de", "a.srt.pt-BR", "page.html.txt")] == ["html", "srt", None]


@pytest.mark.parametrize("ending", ["sdlxliff", "mqxliff", "txlf", "mxliff"])
def test_xliff_of_translation_programs_is_not_to_be_read_as_lines(ending, run, tmp_path):
    (tmp_path / f"x.{ending}").write_text('<xliff version="1.2"></xliff>')
    code, output, stderr = run(input=str(tmp_path / f"x.{ending}"))
    assert (code, output, stderr.count("\n")) == (2, b"", 1)
    assert "export XLIFF (.xlf)" in stderr
    assert "lines" not in stderr
    assert ("--format xliff" in stderr) == (ending != "mxliff")


def test_a_file_in_utf_16_stays_in_utf_16():
    text = "A line.\r\n"
    assert translate_document(text.encode("utf-16"), "text", always("Ä b.")).decode("utf-16") == "Ä b.\r\n"


@pytest.mark.parametrize(("format", "text", "message"), [("html", b"<p>\xff", "UTF-8"), ("srt", b"text", "SRT")])
def test_input_in_another_format_is_refused(format, text, message, run):
    code, output, stderr = run(text, format=format)
    assert (code, output, stderr.count("\n")) == (2, b"", 1)
    assert message in stderr


def test_a_text_is_not_a_document_in_a_binary_format():
    with pytest.raises(UserError, match="docx is a file"):
        translate_document("A text", "docx", always("a"))


def test_our_own_errors_are_not_reported_as_errors_of_the_user(run, monkeypatch):
    def fail(*_):
        raise ValueError("a fault")

    monkeypatch.setattr(translation, "translate_document", fail)
    assert run(b"x", format="text")[0] == 1

"""Paragraphs: every sentence translated in its place, all white space kept."""

import io
import re
import shutil
import sys
from pathlib import Path

import pytest
from sentencex import segment
from translators import SENTENCES, by_hand, two_vocabularies

from modeling_scratch.apps.documents.paragraphs import Translated, cut, translate_paragraphs
from modeling_scratch.commands import translate
from modeling_scratch.loading import load_tokenizers, save_tokenizers

ENGLISH = "Dr. Smith came at 5 p.m. on Monday.  He left.\tWhy? Nobody knows (e.g. I don't)."


@pytest.mark.parametrize(
    ("text", "language", "sentences"),
    [
        (ENGLISH, "en", ["Dr. Smith came at 5 p.m. on Monday.", "He left.", "Why?", "Nobody knows (e.g. I don't)."]),
        ("Am 3. Mai kam er, z.B. heute. Gut!", "de", ["Am 3. Mai kam er, z.B. heute.", "Gut!"]),
        ("你好。今天天气很好。", "zh", ["你好。", "今天天气很好。"]),
        ("  One.\n\n- Two.  ", "en", ["One.", "", "- Two."]),
        ("See figure B\u00a0.", "en", ["See figure B\u00a0."]),
        ("One.\u2028Two.\x85 \x0bThree\u3000.", "en", ["One.", "Two.", "Three\u3000."]),
        ("Am 3. Mai kam er.", "de_AT", ["Am 3. Mai kam er."]),
        ("Am 3. Mai kam er.", "DE-at", ["Am 3. Mai kam er."]),
        (" \t ", "en", [""]),
        ("", "en", []),
    ],
)
def test_sentences_and_the_white_space_around_them(text, language, sentences):
    pieces = cut(text, language)
    assert [piece.sentence for piece in pieces] == sentences
    assert "".join(piece.before + piece.sentence + piece.after for piece in pieces) == text


def test_a_long_paragraph_is_cut_as_a_short_one():
    """Though sentencex sees it in blocks."""
    sentences = ["The old cat sleeps.", "Dr. Smith stderr: “He is here. Look!”", "Where?", "It costs 3.5 kg."]
    text = " ".join(sentences * 250)
    assert [piece.sentence for piece in cut(text, "en")] == [each.strip() for each in segment("en", text)]
    assert len(cut(text, "en")) == 1000


@pytest.mark.parametrize(
    ("text", "languages", "expected"),
    [
        ("One. Two.  Three.", ("en", "de"), "<One.> <Two.>  <Three.>"),
        ("One. Two.  Three.", ("en", "zh-Hant"), "<One.><Two.>  <Three.>"),
        ("一。二。", ("zh", "en"), "<一。> <二。>"),
        ("一。二。", ("zh", "ja"), "<一。><二。>"),
        ("One.\n\nTwo.", ("en", "ja"), "<One.>\n\n<Two.>"),
        ("One. Two.", ("en", "zh_TW"), "<One.><Two.>"),
    ],
)
def test_spaces_between_sentences_are_the_target_s(text, languages, expected):
    def quoted(sentences: list[str]) -> list[Translated]:
        return [Translated(f"<{sentence}>") for sentence in sentences]

    assert translate_paragraphs([text], quoted, *languages)[0].text == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """From English to German, as its tokenizers say."""
    folder = Path(shutil.copytree(two_vocabularies(), tmp_path_factory.mktemp("models") / "model"))
    save_tokenizers(*load_tokenizers(str(folder)), folder, 60, ("en", "de"))
    return folder


def translated(text: str, folder, monkeypatch, capsys, **options) -> tuple[str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    capsys.readouterr()
    translate.main(str(folder), **options)
    return capsys.readouterr()


def test_a_paragraph_of_many_sentences(folder, monkeypatch, capsys):
    """More words than the 60 tokens that the model takes at once."""
    sentences = SENTENCES[:6] * 3
    text = "  ".join(sentences[:10]) + "\r\n\n \n" + " ".join(sentences[10:]) + "\n"
    assert all(len(paragraph.split()) > 60 for paragraph in text.split("\r\n\n"))
    expected = by_hand(folder, SENTENCES[:6]) * 3
    found, _ = translated(text, folder, monkeypatch, capsys, format="text")
    assert found == "  ".join(expected[:10]) + "\r\n\n \n" + " ".join(expected[10:]) + "\n"


def test_one_sentence_per_line_is_translated_as_without_a_format(folder, monkeypatch, capsys):
    text = "".join(f"{sentence}\n" for sentence in SENTENCES)
    plain, _ = translated(text, folder, monkeypatch, capsys)
    assert translated(text, folder, monkeypatch, capsys, format="text")[0] == plain


@pytest.mark.parametrize(
    ("format", "page"), [(None, "{}\n"), ("text", "{}\n"), ("markdown", "{}\n\n"), ("html", "<p>{}</p>\n")]
)
def test_the_same_text_is_translated_in_every_format(folder, monkeypatch, capsys, format, page):
    given = ["12:30", "2024", "3,5", SENTENCES[0], "?!", "...", "\N{GRINNING FACE}", "\N{EM DASH}"]
    expected = [*by_hand(folder, given[:4]), *given[4:]]
    text = "".join(map(page.format, given))
    found, _ = translated(text, folder, monkeypatch, capsys, format=format)
    assert found == "".join(map(page.format, expected))
    assert len({*given, *expected}) == 12


def test_a_long_sentence_stays_as_it_is(folder, monkeypatch, capsys):
    long = "b " * 60 + "."
    text = f"{SENTENCES[0]}  {long}\n{SENTENCES[1]}\n"
    with pytest.raises(SystemExit):
        translated(text, folder, monkeypatch, capsys, format="text")
    assert re.match(
        r"error: standard input: sentence 2: \d+ tokens, but the model takes 60 \('b b", capsys.readouterr().err
    )
    found, stderr = translated(text, folder, monkeypatch, capsys, format="text", keep_going=True)
    first, second = by_hand(folder, SENTENCES[:2])
    assert found == f"{first}  {long}\n{second}\n"
    assert "sentence 2: " in stderr


def test_the_language_of_paragraphs_must_be_known(monkeypatch, capsys):
    unnamed = two_vocabularies()
    with pytest.raises(SystemExit):
        translated("A.\n", unnamed, monkeypatch, capsys, format="text")
    assert "--language" in capsys.readouterr().err
    translated("A. B.\n", unnamed, monkeypatch, capsys, format="text", language="en", max_new_tokens=2)


def test_one_language_may_be_named_alone():
    named = {"source_lang": "ROMANCE", "target_lang": "zh"}
    assert translate._languages(named, "text", None) == ("ROMANCE", "zh")
    assert translate._languages(named, "text", "fr") == ("fr", "zh")
    assert translate._languages({"source_lang": "en"}, "text", None) == ("en", None)


@pytest.mark.parametrize(
    ("text", "language", "sentences"),
    [
        ("Install the .NET 8 SDK. Then ASP.NET Core.", "en", ["Install the .NET 8 SDK.", "Then ASP.NET Core."]),
        ("See https://x.com/page.aspx?ID=5 now.", "en", ["See https://x.com/page.aspx?ID=5 now."]),
        ("Im 19. Jahrhundert lebte er. Er ging.", "de", ["Im 19. Jahrhundert lebte er.", "Er ging."]),
        ("It was in 1987. They won.Then they left.", "en", ["It was in 1987.", "They won.", "Then they left."]),
        ("Er kam mit 12. Dann ging er.", "de", ["Er kam mit 12.", "Dann ging er."]),
        ("你好!我是学生。", "zh", ["你好!", "我是学生。"]),
        ("1. Buy milk.", "en", ["Buy milk."]),
        ("2.1.\u00a0Milk. 3. Bread.", "en", ["Milk.", "3.", "Bread."]),
        ("Is it?: Yes. No!, they stderr.", "en", ["Is it?", "Yes.", "No!, they stderr."]),
        ("It is 12:30. 3,5? * * *", "en", ["It is 12:30.", "3,5?"]),
    ],
)
def test_where_sentences_end(text, language, sentences):
    pieces = cut(text, language)
    assert [piece.sentence for piece in pieces if piece.sentence] == sentences
    assert "".join(piece.before + piece.sentence + piece.after for piece in pieces) == text

"""Paragraphs: where sentences end, the white space around them, and paragraphs in the command."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from translators import SENTENCES, by_hand, calibrate, lines, load, run_translate, two_vocabularies

from modeling_scratch.apps.translate.paragraphs import Translated, cut, translate_paragraphs
from modeling_scratch.commands import translate
from modeling_scratch.loading import load_tokenizers, save_tokenizers
from modeling_scratch.model.text import TextRules

# By CLDR's likely scripts: Chinese languages, Japanese, Thai, Northern Thai, Lao, Khmer, Burmese, Shan, Mon, Lü, Tai
# Nüa, Tibetan, Dzongkha and Yi.
WITHOUT_SPACES = "zh cmn yue wuu lzh hak gan nan ja th nod lo km my shn mnw khb tdd bo dz ii"
ENGLISH = "Dr. Smith came at 5 p.m. on Monday.  He left.\tWhy? Nobody knows (e.g. I don't)."


@pytest.mark.parametrize(
    ("text", "language", "sentences"),
    [
        (ENGLISH, "en", ["Dr. Smith came at 5 p.m. on Monday.", "He left.", "Why?", "Nobody knows (e.g. I don't)."]),
        ("Am 3. Mai kam er, z.B. heute. Gut!", "de", ["Am 3. Mai kam er, z.B. heute.", "Gut!"]),
        ("Am 3. Mai kam er.", "de_AT", ["Am 3. Mai kam er."]),
        ("Am 3. Mai kam er.", "DE-at", ["Am 3. Mai kam er."]),
        ("Im 19. Jahrhundert lebte er. Er ging.", "de", ["Im 19. Jahrhundert lebte er.", "Er ging."]),
        ("Er kam mit 12. Dann ging er.", "de", ["Er kam mit 12.", "Dann ging er."]),
        ("It was in 1987. They won.Then they left.", "en", ["It was in 1987.", "They won.", "Then they left."]),
        ("你好!我是学生。", "zh", ["你好!", "我是学生。"]),
        ("Install the .NET 8 SDK. Then ASP.NET Core.", "en", ["Install the .NET 8 SDK.", "Then ASP.NET Core."]),
        ("See https://x.com/page.aspx?ID=5 now.", "en", ["See https://x.com/page.aspx?ID=5 now."]),
        ("Is it?: Yes. No!, they stderr.", "en", ["Is it?: Yes.", "No!, they stderr."]),
        # Numbers of headings and list items are no sentences; other numbers are.
        ("1. Buy milk.", "en", ["Buy milk."]),
        ("2.1.\u00a0Milk. 3. Bread.", "en", ["Milk.", "3. Bread."]),
        ("It is 12:30. 3,5? * * *", "en", ["It is 12:30.", "3,5?"]),
        # White space.
        ("  One.\n\n- Two.  ", "en", ["One.", "- Two."]),
        ("One.\u2028Two.\x85 \x0bThree\u3000.", "en", ["One.", "Two.", "Three\u3000."]),
        ("See figure B\u00a0.", "en", ["See figure B\u00a0."]),
        (" \t ", "en", []),
        ("", "en", []),
    ],
)
def test_where_sentences_end(text, language, sentences):
    pieces = cut(text, language)
    assert [piece.sentence for piece in pieces if piece.sentence] == sentences
    assert "".join(piece.before + piece.sentence + piece.after for piece in pieces) == text


def test_a_long_paragraph_has_the_sentences_of_its_parts():
    sentences = ["The old cat sleeps.", "Dr. Smith stderr: “He is here.", "Look!”", "Where?", "It costs 3.5 kg."]
    assert [piece.sentence for piece in cut(" ".join(sentences * 250), "en")] == sentences * 250


@pytest.mark.parametrize(
    ("text", "languages", "expected"),
    [
        ("One. Two.  Three.", ("en", "de"), "<One.> <Two.>  <Three.>"),
        ("One. Two.  Three.", ("en", "zh-Hant"), "<One.><Two.>  <Three.>"),
        ("One. Two.", ("en", "zh_TW"), "<One.><Two.>"),
        ("One.\n\nTwo.", ("en", "ja"), "<One.>\n\n<Two.>"),
        ("一。二。", ("zh", "en"), "<一。> <二。>"),
        ("一。二。", ("zh", "ja"), "<一。><二。>"),
        *(("One. Two.", ("en", tag), "<One.><Two.>") for tag in WITHOUT_SPACES.split()),
        *(("One. Two.", ("en", tag), "<One.> <Two.>") for tag in ("ko", "vi", "nan-Latn", "jv", "ROMANCE")),
    ],
)
def test_spaces_between_sentences_are_those_of_the_target_language(text, languages, expected):
    found = translate_paragraphs([text], lambda given: [Translated(f"<{sentence}>") for sentence in given], *languages)
    assert found[0].text == expected


def test_all_sentences_are_translated_in_one_call():
    calls = []

    def record(sentences):
        calls.append(sentences)
        return [Translated("x") for _ in sentences]

    found = translate_paragraphs(["One cat. Two cats.", "", "Three."], record, "", None)
    assert calls == [["One cat.", "Two cats.", "Three."]]
    assert [translation.text for translation in found] == ["x x", "", "x"]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose tokenizers name its languages, English and German."""
    folder = Path(shutil.copytree(two_vocabularies(), tmp_path_factory.mktemp("models") / "model"))
    save_tokenizers(*load_tokenizers(str(folder)), folder, 60, ("en", "de"))
    return folder


@pytest.fixture
def run(folder, monkeypatch):
    return partial(run_translate, monkeypatch, folder)


def test_a_paragraph_may_be_longer_than_the_model_takes(folder, run):
    sentences = SENTENCES[:6] * 3
    text = "  ".join(sentences[:10]) + "\r\n\n \n" + " ".join(sentences[10:]) + "\n"
    assert all(len(paragraph.split()) > 60 for paragraph in text.split("\r\n\n"))  # the model takes 60 tokens
    expected = by_hand(folder, SENTENCES[:6]) * 3
    found = run(text.encode(), format="text")[1].decode()
    assert found == "  ".join(expected[:10]) + "\r\n\n \n" + " ".join(expected[10:]) + "\n"


@pytest.mark.parametrize(
    ("format", "page"), [(None, "{}\n"), ("text", "{}\n"), ("markdown", "{}\n\n"), ("html", "<p>{}</p>\n")]
)
def test_the_same_text_is_translated_in_every_format(folder, run, format, page):
    given = ["12:30", "2024", "3,5", SENTENCES[0], "?!", "...", "\N{GRINNING FACE}", "\N{EM DASH}"]
    expected = [*by_hand(folder, given[:4]), *given[4:]]
    assert len({*given, *expected}) == 12
    found = run("".join(map(page.format, given)).encode(), format=format)[1].decode()
    assert found == "".join(map(page.format, expected))


def test_a_line_of_text_has_the_confidence_of_its_least_sure_sentence(folder, tmp_path, monkeypatch):
    folder = calibrate(Path(shutil.copytree(folder, tmp_path / "model")))
    sentences = [SENTENCES[0], "How could anybody ever have known?", SENTENCES[1]]
    made = load(folder)(sentences, return_confidence=True)
    outputs, (first, doubtful, last) = ([each[key] for each in made] for key in ("translation_text", "confidence"))
    assert doubtful < 0.5 < first
    text = f"{sentences[0]} {sentences[1]}\r\n\n  {sentences[2]}\n?!"
    found = run_translate(monkeypatch, folder, text.encode(), format="text", confidence=True)[1].decode()
    numbers = [f"{number:.4f}" for number in (doubtful, 1, last, 1)]
    written = [f"{outputs[0]} {outputs[1]}\r\n", "\n", f"  {outputs[2]}\n", "?!"]
    assert found == "".join(f"{number}\t{line}" for number, line in zip(numbers, written, strict=True))
    code, _, stderr = run_translate(monkeypatch, folder, b"<p>a</p>", format="html", confidence=True)
    assert (code, "--confidence is for lines and text" in stderr) == (2, True)


def test_a_sentence_that_is_too_long_is_an_error_or_stays(folder, run):
    long = "B" + " b" * 60 + "."
    text = lines(f"{SENTENCES[0]}  {long}", SENTENCES[1])
    code, output, stderr = run(text, format="text")
    assert (code, output) == (2, b"")
    assert "sentence 2: " in stderr
    first, second = by_hand(folder, SENTENCES[:2])
    code, output, stderr = run(text, format="text", keep_going=True)
    assert (code, output) == (0, lines(f"{first}  {long}", second))
    assert "sentence 2: " in stderr


def test_the_source_language_of_paragraphs_must_be_known(monkeypatch):
    run = partial(run_translate, monkeypatch, two_vocabularies(), b"A. B.\n", format="text")
    code, _, stderr = run()
    assert code == 2
    assert "--language" in stderr
    assert run(language="en", max_new_tokens=2)[0] == 0
    named = TextRules(source_language="ROMANCE", target_language="zh")
    assert translate._languages(named, "text", None) == ("ROMANCE", "zh")
    assert translate._languages(named, "text", "fr") == ("fr", "zh")
    assert translate._languages(TextRules(source_language="en"), "text", None) == ("en", None)

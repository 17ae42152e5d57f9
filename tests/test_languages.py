"""Language tags as recipes, tokenizers and the Hub write them."""

import pytest
import regex

from modeling_scratch.languages import (
    base_language,
    is_same_language,
    language_code,
    language_codes,
    language_name,
    mostly_without_spaces,
)


@pytest.mark.parametrize(
    ("tag", "code", "name"),
    [
        ("en", "en", "English"),
        ("pt-BR", "pt", "Portuguese (pt-BR)"),
        ("de_AT", "de", "German (de_AT)"),
        ("nb", "nb", "Norwegian Bokmål"),
        ("deu", "de", "German"),
        ("xx", None, "xx"),
        ("my text", None, "my text"),
    ],
)
def test_a_tag_has_an_iso_639_code_and_a_name(tag, code, name):
    assert language_code(tag) == code
    assert language_name(tag) == name


def test_several_tags_have_codes_or_none_has():
    assert language_codes(["en", "pt-BR", "en"]) == ["en", "pt"]
    assert language_codes(["en", "xx"]) == []


@pytest.mark.parametrize("script", ["Thai", "Laoo", "Khmr", "Mymr", "Tibt", "Lana", "Tale", "Hani", "Hira", "Yiii"])
def test_letters_of_scripts_without_spaces_may_be_broken_apart(script):
    """By Unicode's Line_Break, in regex 2026.11."""
    letters = "".join(regex.findall(rf"(?=\p{{L}})\p{{Script={script}}}", "".join(map(chr, range(0x20, 0x20000)))))
    assert mostly_without_spaces(letters)


def test_all_tags_of_a_language_have_the_same_base():
    assert {base_language(tag) for tag in ("zh", "zho", "chi", "cmn", "zh-Hant", "zh_TW")} == {"zh"}
    assert [base_language(tag) for tag in ("yue", "tib", "xx-YY")] == ["yue", "bo", "xx"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("de-AT", "deu_Latn", True),
        ("zh-Hant-TW", "cmn", True),
        ("zh-TW", "zh_Hant", True),
        ("zh-TW", "zh-CN", False),
        ("iw", "he", True),
        ("nb", "no", True),
        ("ms", "zsm", True),
        ("German", "german", True),
        ("de", "nl", False),
        ("nn", "nb", False),
        ("sr-Latn", "hr", False),
        ("yue", "zh", False),
        ("german", "de", False),
    ],
)
def test_tags_of_one_language_in_any_region(first, second, expected):
    assert is_same_language(first, second) == is_same_language(second, first) == expected


def test_the_first_of_many_texts_tell_their_script():
    texts = iter(["狗看见了猫。"] * 5000)
    assert mostly_without_spaces(texts) == "Han"
    assert len(list(texts)) == 3000

"""Language tags in the forms that recipes, tokenizers and the Hub use."""

import pytest

from modeling_scratch.languages import base_language, language_code, language_codes, language_name


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
def test_codes_and_names(tag, code, name):
    assert language_code(tag) == code
    assert language_name(tag) == name


def test_codes_of_several_tags_are_all_or_none():
    assert language_codes(["en", "pt-BR", "en"]) == ["en", "pt"]
    assert language_codes(["en", "xx"]) == []


def test_codes_of_one_language_are_the_same():
    assert {base_language(tag) for tag in ("zh", "zho", "chi", "cmn", "zh-Hant", "zh_TW")} == {"zh"}
    assert [base_language(tag) for tag in ("yue", "tib", "xx-YY")] == ["yue", "bo", "xx"]

"""Language tags: their ISO 639 codes and English names, and which languages put no spaces between sentences."""

import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import regex
    from langcodes import Language

# Languages that are always scored as ones without spaces between words. For other languages, the text decides.
WITHOUT_SPACES = {"bo", "ja", "km", "lo", "my", "th", "yue", "zh"}


@cache
def _parsed(tag: str) -> "Language | None":
    """A tag such as pt-BR, pt_BR or por; None if it names no language."""
    import langcodes  # here, since commands that need no language should not wait for it

    try:
        language = langcodes.Language.get(tag.strip())
    except ValueError:
        return None
    return language if language.is_valid() and language.language is not None and language.language.isalpha() else None


def language_code(tag: str) -> str | None:
    """The ISO 639 code of a language tag (pt for pt-BR), the shortest there is; None if it is not a language."""
    language = _parsed(tag)
    return None if language is None else language.language


def language_codes(tags: Iterable[str]) -> list[str]:
    """The ISO 639 codes of language tags, without repeats; empty if any of them is not a language."""
    codes = [language_code(tag) for tag in tags]
    return list(dict.fromkeys(code for code in codes if code)) if all(codes) else []


def language_name(tag: str) -> str:
    """The English name: English for en, Portuguese (pt-BR) for pt-BR. A tag that is not a language is returned."""
    language = _parsed(tag)
    if language is None:
        return tag
    name = language.language_name()
    return f"{name} ({tag})" if "-" in tag or "_" in tag else name


def likely_locale(tag: str) -> tuple[str, str, str] | None:
    """
    The codes of a tag's language, script and country (de, Latn, DE for de): the most likely ones where the tag names
    none, empty where there are none. None: it is not a language.
    """
    language = _parsed(tag)
    if language is None:
        return None
    likely = language.maximize()
    return likely.language or "", likely.script or "", likely.territory or ""


def is_written_language(tag: str) -> bool:
    """
    Whether a text is the tag of a language in which people write, according to CLDR. ISO 639 has codes for so many
    languages that most words of three letters are one. A code of two letters, or a tag with a script or a region, is no
    coincidence, and is believed.
    """
    language = _parsed(tag)
    return language is not None and (len(tag) == 2 or len(tag) > 3 or language.writing_population() > 0)


def base_language(tag: str) -> str:
    """The language without region or script: de for de-AT, de_AT and deu."""
    code = language_code(tag) or tag.replace("_", "-").split("-")[0].lower()
    return "zh" if code == "cmn" else code  # Mandarin, the standard language of zh


# Letters between which lines may break, since no spaces are between words, by Unicode's property Line_Break (UAX #14):
# Thai, Lao, Khmer, Burmese and others (SA), ideographs and kana (ID, CJ), Balinese, Javanese and others (AK, AS). For
# Tibetan, the class of the mark after each syllable says so, not that of the letters.
_WITHOUT_SPACES = r"(?=\p{L})[\p{LB=SA}\p{LB=ID}\p{LB=CJ}\p{LB=AK}\p{LB=AS}\p{Script=Tibetan}]"

_ENOUGH = 2000  # texts that tell the scripts of all


def mostly_without_spaces(texts: Iterable[str]) -> Literal["Han", "other"] | None:
    """
    In what scripts without spaces between words most letters of the first 2,000 texts are; None: most are in scripts
    with spaces.
    """
    import regex  # it knows the property; Transformers and sacreBLEU depend on it

    text = "".join(islice(texts, _ENOUGH))
    letters, spaceless, han = (
        len(regex.findall(pattern, text)) for pattern in (r"\p{L}", _WITHOUT_SPACES, r"(?=\p{L})\p{Script=Han}")
    )
    if 2 * spaceless <= letters:
        return None
    return "Han" if 2 * han > letters else "other"


_SCRIPTS = {"Jpan": ("Han", "Hiragana", "Katakana"), "Kore": ("Hangul", "Han"), "Hans": ("Han",), "Hant": ("Han",)}
_FEW_LETTERS = 4  # in another script may be a name or an abbreviation


def script_of(language: str) -> str:
    """The code of the script that a language is written in; empty if it is not known."""
    return (likely_locale(language) or ("", "", ""))[1]


@cache
def letters_of_script(script: str) -> "regex.Pattern[str]":
    """The pattern of a letter of a script, or of one that scripts share."""
    import regex  # here: see `mostly_without_spaces`

    names = "".join(rf"\p{{Script={name}}}" for name in _SCRIPTS.get(script, (script,)))
    return regex.compile(rf"(?V1)[\p{{L}}&&[{names}\p{{Script=Common}}\p{{Script=Inherited}}]]")


def is_in_another_script(text: str, script: str) -> bool:
    """Whether a text has some letters, but none of a script; never if the script is not known."""
    if not script or (script == "Latn" and text.isascii()):
        return False
    return sum(map(str.isalpha, text)) >= _FEW_LETTERS and letters_of_script(script).search(text) is None


def is_same_language(first: str, second: str) -> bool:
    """
    Whether two tags name one language, in any region: de-AT and de, nb and no (which CLDR's table for matching
    languages, in langcodes 3.5, puts at a distance of 1). Regions and scripts count only where both tags have some, and
    then by the script: zh-TW is zh and zh-Hant, but not zh-CN.
    """
    import langcodes

    one, other = _parsed(first), _parsed(second)
    if one is None or other is None:
        return base_language(first) == base_language(second)
    scripts = {likely_locale(tag)[1] for tag in (first, second) if re.search("[-_]", tag)}  # type: ignore[index]
    codes = [language.prefer_macrolanguage().language or "" for language in (one, other)]
    return langcodes.tag_distance(codes[0], codes[1]) <= 1 and len(scripts) < 2


@cache
def preference(asked: str, found: str) -> int | None:
    """
    How well texts of one language tag serve where another is asked for, best first: 0, the same tag; 1, the language
    without a region; 2, its most likely region; 3, another region. None: not at all, since it is another language,
    script or region: en-GB serves for en, and en for en-GB, but not en-US for en-GB.
    """
    one, other = _parsed(asked), _parsed(found)
    if one is None or other is None:
        return 0 if asked.lower() == found.lower() else None
    if one == other:
        return 0
    wanted, likely = likely_locale(asked), likely_locale(found)
    is_other_region = None not in (one.territory, other.territory) and one.territory != other.territory
    if not is_same_language(asked, found) or wanted[1:2] != likely[1:2] or is_other_region:  # type: ignore[index]
        return None
    if other.territory is None:
        return 1
    return 2 if wanted == likely else 3


def is_tag(code: str) -> bool:
    """Whether a text has the form of a language tag, such as en or pt-BR."""
    return re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*", code) is not None

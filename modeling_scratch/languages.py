"""Languages: their ISO 639 codes and English names, which of them put no space between sentences, what is text."""

import re
from collections.abc import Iterable

# ISO 639-1. The nearly 8,000 three-letter codes of ISO 639-3 are recognized by their form alone.
_LANGUAGES = """\
aa Afar; ab Abkhazian; ae Avestan; af Afrikaans; ak Akan; am Amharic; an Aragonese; ar Arabic; as Assamese; av Avaric;
ay Aymara; az Azerbaijani; ba Bashkir; be Belarusian; bg Bulgarian; bi Bislama; bm Bambara; bn Bengali; bo Tibetan;
br Breton; bs Bosnian; ca Catalan; ce Chechen; ch Chamorro; co Corsican; cr Cree; cs Czech; cu Church Slavic;
cv Chuvash; cy Welsh; da Danish; de German; dv Divehi; dz Dzongkha; ee Ewe; el Greek; en English; eo Esperanto;
es Spanish; et Estonian; eu Basque; fa Persian; ff Fulah; fi Finnish; fj Fijian; fo Faroese; fr French;
fy Western Frisian; ga Irish; gd Scottish Gaelic; gl Galician; gn Guarani; gu Gujarati; gv Manx; ha Hausa; he Hebrew;
hi Hindi; ho Hiri Motu; hr Croatian; ht Haitian; hu Hungarian; hy Armenian; hz Herero; ia Interlingua; id Indonesian;
ie Interlingue; ig Igbo; ii Sichuan Yi; ik Inupiaq; io Ido; is Icelandic; it Italian; iu Inuktitut; ja Japanese;
jv Javanese; ka Georgian; kg Kongo; ki Kikuyu; kj Kuanyama; kk Kazakh; kl Kalaallisut; km Khmer; kn Kannada;
ko Korean; kr Kanuri; ks Kashmiri; ku Kurdish; kv Komi; kw Cornish; ky Kyrgyz; la Latin; lb Luxembourgish; lg Luganda;
li Limburgish; ln Lingala; lo Lao; lt Lithuanian; lu Luba-Katanga; lv Latvian; mg Malagasy; mh Marshallese; mi Māori;
mk Macedonian; ml Malayalam; mn Mongolian; mr Marathi; ms Malay; mt Maltese; my Burmese; na Nauru;
nb Norwegian Bokmål; nd North Ndebele; ne Nepali; ng Ndonga; nl Dutch; nn Norwegian Nynorsk; no Norwegian;
nr South Ndebele; nv Navajo; ny Chichewa; oc Occitan; oj Ojibwa; om Oromo; or Odia; os Ossetian; pa Punjabi; pi Pali;
pl Polish; ps Pashto; pt Portuguese; qu Quechua; rm Romansh; rn Rundi; ro Romanian; ru Russian; rw Kinyarwanda;
sa Sanskrit; sc Sardinian; sd Sindhi; se Northern Sami; sg Sango; sh Serbo-Croatian; si Sinhala; sk Slovak;
sl Slovenian; sm Samoan; sn Shona; so Somali; sq Albanian; sr Serbian; ss Swati; st Southern Sotho; su Sundanese;
sv Swedish; sw Swahili; ta Tamil; te Telugu; tg Tajik; th Thai; ti Tigrinya; tk Turkmen; tl Tagalog; tn Tswana;
to Tongan; tr Turkish; ts Tsonga; tt Tatar; tw Twi; ty Tahitian; ug Uyghur; uk Ukrainian; ur Urdu; uz Uzbek; ve Venda;
vi Vietnamese; vo Volapük; wa Walloon; wo Wolof; xh Xhosa; yi Yiddish; yo Yoruba; za Zhuang; zh Chinese; zu Zulu"""
LANGUAGES = dict(entry.split(" ", 1) for entry in " ".join(_LANGUAGES.split("\n")).split("; "))


def language_code(tag: str) -> str | None:
    """The ISO 639 code in a language tag (pt of pt-BR), or None."""
    code = re.split(r"[-_]", tag.strip())[0].lower()
    return code if code in LANGUAGES or re.fullmatch(r"[a-z]{3}", code) else None


def language_codes(tags: Iterable[str]) -> list[str]:
    """The ISO 639 codes of language tags, without repeats; empty if any tag has none."""
    codes = [language_code(tag) for tag in tags]
    return list(dict.fromkeys(codes)) if all(codes) else []


def language_name(tag: str) -> str:
    """English for en, Portuguese (pt-BR) for pt-BR; a tag without a known name stays as it is."""
    name = LANGUAGES.get(language_code(tag) or "")
    if name is None:
        return tag
    return name if len(tag) == 2 else f"{name} ({tag})"


def says_something(text: str) -> bool:
    """
    Whether a text goes to the model: if it has a letter or a digit, as in 12:30, which other languages may write in
    another way. White space, punctuation and symbols alone stay as they are.
    """
    return any(map(str.isalnum, text))


# Languages, by ISO 639, that put no space between sentences.
WITHOUT_SPACES = {"bo", "ja", "km", "lo", "my", "th", "yue", "zh"}
_OTHER_CODES = {"bod": "bo", "tib": "bo", "jpn": "ja", "khm": "km", "lao": "lo", "bur": "my", "mya": "my", "tha": "th"}
_OTHER_CODES |= {"chi": "zh", "cmn": "zh", "zho": "zh"}


def base_language(language: str) -> str:
    """
    The language without its region: `de` for `de-AT` and `de_DE`. Those of `WITHOUT_SPACES` have one code of several.
    """
    base = re.split("[-_]", language)[0].lower()
    return _OTHER_CODES.get(base, base)

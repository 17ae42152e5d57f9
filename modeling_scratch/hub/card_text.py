"""
A model card as text: its metadata and sections; what was edited by hand merged with what is generated anew; the check
that nothing is missing. All offline.
"""

import math
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import validate_repo_id, yaml_dump

from ..errors import UserError
from ..redaction import TOKEN

# What a card must have. The other sections may be taken out by hand.
REQUIRED_METADATA = ("language", "license", "library_name", "pipeline_tag", "tags", "metrics", "model-index")
REQUIRED_SECTIONS = ("How to use", "Results", "Architecture", "Training", "Limits and intended use")

# ISO 639-1. Codes of three letters (ISO 639-3) are nearly 8,000: they are recognised by their form.
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
NO_LANGUAGES = {"code", "multilingual"}  # which the Hub takes for one

_HEADING = re.compile(r" {0,3}(#{1,2})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
PLACEHOLDER = re.compile(r"\[more information needed\]|\{\{[^{}\n]*\}\}|\{%[^{}\n]*%\}", re.IGNORECASE)
_LINKS = (
    re.compile(r"\]\(\s*(?:(?=[^<])([^)\s]+)|<([^>\n]+)>)"),  # [text](target "title"), ![text](<a target>)
    re.compile(r"^ {0,3}\[[^\]]+\]:\s*(?:(?=[^<])(\S+)|<([^>\n]+)>)", re.MULTILINE),
    re.compile(r"<[^>]*\b(?:src|href)\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE),
)

Sections = dict[tuple[str, int], str]


def language_code(tag: str) -> str | None:
    """The ISO 639 code in a language tag (pt of pt-BR), None if there is none."""
    code = re.split(r"[-_]", tag.strip())[0].lower()
    return code if code in LANGUAGES or re.fullmatch(r"[a-z]{3}", code) else None


# -- taking a card apart -----------------------------------------------------------------------------------------------


def _lines(body: str) -> Iterator[tuple[str, bool]]:
    """The lines of a Markdown text, and whether each is part of a block of code."""
    fence = ""
    for line in body.split("\n"):
        found = _FENCE.fullmatch(line)
        if fence:
            yield line, True
            if found and found[1].startswith(fence) and not found[2].strip():
                fence = ""
        else:
            fence = found[1] if found and not (found[1][0] == "`" and "`" in found[2]) else ""
            yield line, bool(fence)


def _sections(body: str) -> Sections:
    """{(title, how many of that title came before): text}. What stands before the first has the title ''."""
    sections: Sections = {}
    key = ("", 0)
    for line, code in _lines(body):
        heading = None if code else _HEADING.fullmatch(line)
        if heading and heading[1] == "##":
            title = heading[2]
            key = (title, sum(title == other for other, _ in sections))
        sections[key] = f"{sections[key]}\n{line}" if key in sections else line
    sections = {key: text.strip("\n") for key, text in sections.items()}
    if not sections.get(("", 0), "").strip():
        sections.pop(("", 0), None)
    return sections


class _Card:
    """
    A card's metadata, the YAML of each of its keys as it was written, with the comments above it, and its sections.
    """

    def __init__(self, text: str, what: str):
        text = text.removeprefix("\ufeff")
        self.newline = "\r\n" if text.count("\r\n") > text.count("\n") / 2 else "\n"
        text = re.sub(r"\r\n?", "\n", text)
        found = REGEX_YAML_BLOCK.search(text)
        if found is None and re.match(r"\s*---[ \t]*\n", text):
            line = text[: text.index("---")].count("\n") + 1
            raise UserError(f"{what}, line {line}: the metadata that starts here has no line --- at its end")
        self.data: dict[str, Any] = {}
        self.yaml: dict[str, str] = {}
        if found:
            self._read_metadata(found[2], f"{what}, line ", text[: found.start(2)].count("\n") + 1)
        self.body = text[found.end() :] if found else text
        self.sections = _sections(self.body)

    def _read_metadata(self, block: str, where: str, first: int) -> None:
        try:
            node, data = yaml.compose(block, Loader=yaml.SafeLoader), yaml.safe_load(block)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f"{first + mark.line}, column {mark.column + 1}" if mark else first
            problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
            raise UserError(f"{where}{place}: the metadata is not valid YAML: {problem}") from None
        except RecursionError:
            raise UserError(f"{where}{first} and after: the metadata is nested too deeply to be read") from None
        except ValueError as error:  # as of the date 2026-13-01
            raise UserError(f"{where}{first} and after: the metadata is not valid YAML: {error}") from None
        if data is None:
            return
        if not isinstance(data, dict):
            raise UserError(f"{where}{first}: the metadata must be keys with values, not a {type(data).__name__}")
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise UserError(f"{where}{first + key.start_mark.line}: the key {key.value!r} is there twice")
            seen.add(key.value)
        self.data = data
        if node.flow_style or len(data) != len(node.value):  # {on: one line}, or merged from another mapping
            self.yaml = {key: _dump({key: value}) for key, value in data.items()}
            return
        lines, starts = block.split("\n"), [0]
        for key, _ in node.value[1:]:
            start = key.start_mark.line
            while lines[start - 1].startswith("#") or not lines[start - 1].strip():
                start -= 1  # comments belong to the key below them
            starts.append(start)
        ends = [*starts[1:], len(lines)]
        for key, start, end in zip(data, starts, ends, strict=True):
            self.yaml[key] = "\n".join(lines[start:end]).strip("\n")


def _dump(data: dict[str, Any]) -> str:
    return yaml_dump(data, sort_keys=False, width=math.inf).strip("\n")


def join_card(metadata: str, sections: list[str]) -> str:
    """A card of metadata as YAML and sections as Markdown."""
    front = f"---\n{metadata}\n---\n\n" if metadata else ""
    return front + "\n\n".join(section.strip("\n") for section in sections) + "\n"


# -- merging -----------------------------------------------------------------------------------------------------------


def _three_way(generated: dict, edited: dict, base: dict | None) -> dict[Any, bool]:
    """The keys of the merged mapping, in order, and whether each comes from `edited`."""
    merged = {}
    for key, value in edited.items():
        by_hand = base is None or key not in base or base[key] != value
        if by_hand or key in generated:
            merged[key] = by_hand or generated[key] == value
    order, before = list(merged), 0
    for key in generated:
        if key in merged:
            before = order.index(key) + 1
        elif key not in edited and (base is None or key not in base):
            order.insert(before, key)
            before += 1
    return {key: merged.get(key, False) for key in order}


def merge_card(generated: str, edited: str, base: str | None) -> str:
    """
    A card generated anew, with what was edited by hand since the last one was: each key of the metadata, and each
    section (`## Title` and all below it; what stands above the first is one too). What was changed stays as it was
    changed, what was added stays in its place, what was removed stays away; all else is as generated.

    Args:
        generated: the new card.
        edited: the card as it is now, in the folder or in the repository. Its line ends are kept.
        base: the card as it was generated last. None: not known; then all that differs from `generated` was edited,
            and nothing was removed.

    Raises:
        UserError: a card's metadata is not YAML; the message says where.
    """
    new, now = _Card(generated, "the generated card"), _Card(edited, "the card")
    old = _Card(base, "the card as generated last") if base is not None else None
    metadata = _three_way(new.data, now.data, old and old.data)
    data = {key: (now if by_hand else new).data[key] for key, by_hand in metadata.items()}
    text = "\n".join((now if by_hand else new).yaml[key] for key, by_hand in metadata.items())
    try:
        same = (yaml.safe_load(text) or {}) == data
    except yaml.YAMLError:  # an alias whose anchor went away
        same = False
    sections = _three_way(new.sections, now.sections, old and old.sections)
    texts = [(now if by_hand else new).sections[key] for key, by_hand in sections.items()]
    return join_card(text if same else _dump(data), texts).replace("\n", now.newline)


# -- checking ----------------------------------------------------------------------------------------------------------


def check_card(text: str, folder: Path | None = None, required: Iterable[str] = REQUIRED_METADATA) -> None:
    """
    Raise UserError that names all that is missing or wrong in a card.

    Args:
        text: the card.
        folder: where the files are that the card shows or links to. None: they are not looked for.
        required: the metadata that must be there.
    """
    card = _Card(text, "the card")
    problems = [*_check_metadata(card.data, required), *_check_round_trip(text, card.data), *_check_body(card, folder)]
    if TOKEN.search(text):
        problems.append("it holds what looks like a token (hf_...): take it out, and revoke it if it is one")
    if problems:
        raise UserError(f"the model card is not complete: {'; '.join(problems)}")


def _strings(value: Any) -> list[str] | None:
    """A string, or a list of strings, as a list; None for anything else, or if any is empty."""
    values = value if isinstance(value, list) else [value]
    return values if values and all(isinstance(each, str) and each.strip() for each in values) else None


def _check_metadata(data: dict[str, Any], required: Iterable[str]) -> Iterator[str]:
    for key in required:
        if data.get(key) in (None, "", [], {}):
            how = ", as [en, de]: the recipe's languages are no ISO 639 codes" if key == "language" else ""
            yield f"metadata: {key} is missing{how}"
    for key in ("license", "license_name", "license_link", "library_name", "pipeline_tag"):
        value = data.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            yield f"metadata: {key} is {value!r}; it must be text"
    if data.get("license") == "other" and not (data.get("license_name") and data.get("license_link")):
        yield "metadata: the license 'other' needs license_name and license_link"
    for key in ("language", "tags", "metrics", "datasets", "base_model"):
        value = data.get(key)
        values = _strings(value) if value not in (None, "", [], {}) else []
        if values is None:
            hint = "; a code that YAML reads otherwise, as no, needs quotes" if key == "language" else ""
            yield f"metadata: {key} is {value!r}; it must be text, or a list of texts{hint}"
            continue
        for each in values:
            if key == "language" and language_code(each) != each and each not in NO_LANGUAGES:
                yield f"metadata: language {each!r} is no ISO 639 code, as en or deu (pt-BR goes into language_bcp47)"
            if key in ("datasets", "base_model"):
                try:
                    validate_repo_id(each)
                except HFValidationError:
                    yield f"metadata: {key} {each!r} is no name on the Hub"


def _check_round_trip(text: str, data: dict[str, Any]) -> Iterator[str]:
    """What huggingface_hub reads in the metadata, and writes again, must be what it says."""
    try:
        card = ModelCard(text.removeprefix("\ufeff"))
        read, again = card.data.to_dict(), ModelCard(str(card)).data.to_dict()
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        yield f"metadata: huggingface_hub cannot read it: {' '.join(str(error).split())}"
        return
    for key, value in data.items():
        if value is not None and not read.get(key) == again.get(key) == value:
            yield f"metadata: {key} is read by huggingface_hub as {read.get(key)!r}"
    for result in card.data.eval_results or []:
        value = result.metric_value
        if isinstance(value, bool) or not isinstance(value, int | float | str) or value in ("", math.inf, -math.inf):
            yield f"metadata: model-index: {result.metric_type} is {value!r}; it must be a number"
        elif value != value:
            yield f"metadata: model-index: {result.metric_type} is not a number"


def _check_body(card: _Card, folder: Path | None) -> Iterator[str]:
    lines = [line for line, code in _lines(card.body) if not code]
    headings = [heading for line in lines if (heading := _HEADING.fullmatch(line))]
    if not any(level == "#" and title for level, title in (heading.groups() for heading in headings)):
        yield "there is no title (# ...)"
    titles = {heading[2] for heading in headings if heading[1] == "##"}
    for title in REQUIRED_SECTIONS:
        if title not in titles:
            yield f"there is no section '## {title}'"
    for (title, _), section in card.sections.items():
        if title and not "\n".join(section.split("\n")[1:]).strip():
            yield f"the section '## {title}' is empty"
    prose = re.sub(r"(`+)(?!`)((?!\n\n).)*?(?<!`)\1(?!`)", "", "\n".join(lines), flags=re.DOTALL)
    for text in dict.fromkeys(PLACEHOLDER.findall("\n".join([prose, *card.yaml.values()]))):
        yield f"{text!r} is a placeholder: fill it in"
    links = (link for pattern in _LINKS for link in pattern.finditer(prose))
    for target in dict.fromkeys(next(filter(None, link.groups())) for link in links):
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:|//|#", target):  # of another site, or a place on this page
            continue
        path = posixpath.normpath(unquote(re.split(r"[?#]", target)[0]))
        if path.startswith(("/", "..")):
            yield f"the link to {target!r} leads out of the repository: give a whole address, or a file in it"
        elif folder is not None and not (folder / path).exists():
            yield f"the link to {target!r}: there is no such file in {folder}"

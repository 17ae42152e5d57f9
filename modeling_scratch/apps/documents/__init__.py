"""Documents: their text is translated, and their structure stays. Each format of `FORMATS` has a module."""

import re
from dataclasses import dataclass
from mimetypes import MimeTypes
from pathlib import PurePath

from ...errors import UserError
from ...languages import is_written_language


@dataclass(frozen=True)
class Format:
    """
    A format of documents.

    Args:
        module: has a function `read_MODULE`, which takes the document and the kept words. Some need an extra.
        endings: of the names of files in this format, in lower case.
        has_markup: whether it has tags within sentences, which are placed by word alignments.
        is_binary: whether it is read from bytes; otherwise from text.
        names_target: whether documents name their language, so that the reader also takes the target language.
    """

    module: str
    endings: tuple[str, ...] = ()
    has_markup: bool = False
    is_binary: bool = False
    names_target: bool = False


FORMATS = {
    "text": Format("plain"),
    "markdown": Format("markdown", (".md", ".markdown", ".mdown", ".mdx", ".mkd", ".qmd", ".rmd"), has_markup=True),
    "html": Format("html", (".html", ".htm", ".shtml", ".xht", ".xhtml"), has_markup=True),
    "srt": Format("srt", (".srt",)),
    "po": Format("po", (".po", ".pot"), has_markup=True, names_target=True),
    "json": Format("json_values", (".json", ".arb"), has_markup=True, names_target=True),
    "xliff": Format("xliff", (".xliff", ".xlf"), has_markup=True, names_target=True),
    "properties": Format("properties", (".properties",), has_markup=True),
    "android": Format("android", ("strings.xml", "arrays.xml", "plurals.xml"), has_markup=True),
    "apple": Format("apple", (".strings",), has_markup=True),
    "vtt": Format("vtt", (".vtt",)),
    "docx": Format("docx", (".docx",), has_markup=True, is_binary=True, names_target=True),
    "odt": Format("odt", (".odt",), has_markup=True, is_binary=True, names_target=True),
    "epub": Format("epub", (".epub",), has_markup=True, is_binary=True, names_target=True),
}
WITH_INLINE_MARKUP = {name for name, format in FORMATS.items() if format.has_markup}
# Endings of plain text: what the conventions of Moses, Subword-NMT, SentencePiece, fairseq, OpenNMT and sacreBLEU call
# files with a sentence on each line. A number may follow, as in .ref0 and .bpe32k.
_TEXT = (
    "bpe clean corpus cor dec detok dev devtest hyp hypo hyps in input inp lc line lines mono mt norm orig out output "
    "piece pieces pred predictions raw ref refa refb refc refd refs sent sents sentences snt source sp spm src sys "
    "target tc test text tgt tok train trans translation translations trg true truecased txt utf v val valid"
)
_NUMBERED = re.compile(r"([a-z]*)[-_]?(?:\d[\d_-]*[km]?)?")
# Codes of languages that are also endings of programs, translations of Qt, lyrics and copies. Those of three letters
# are all that are in the table of Pygments 2.21, without .pan (Punjabi); those that Python knows a type of files for
# are no languages either, such as .bin. Other codes of two letters are endings of programs, too, but text in the
# language is as likely: .gv, .mk, .ml, .pl, .ps, .st, .tt and more. Of these, only what begins as a program is refused.
_NO_LANGUAGES = (
    "ada asm bak bas bbc bug cps fan geo hbs kal ksh lrc lua mac mak man mao mos prg rkt run sas sco sh swg ts wls"
)
# How scripts, PostScript and manual pages (such as .1) begin.
_PROGRAM = re.compile(rb"""#!|%!PS|\.(?:TH|Dd)\s|[.']\\\"""")
# XLIFF of Trados, memoQ, Phrase and Wordfast.
_XLIFF_OF_PROGRAMS = (".sdlxliff", ".mqxliff", ".mxliff", ".txlf")


def format_of(name: str, advice: str = "", begins: bytes = b"") -> str | None:
    """
    The format of a file, by the ending of its name. A language may follow the ending or precede it, as in page.html.de.
    None: lines of text, since the name has no ending or one of plain text, which may be a language or a number.

    Args:
        advice: the end of the message about a format that is not read at all.
        begins: the first bytes of the file, which tell programs from text if the ending is a language or a number.

    Raises:
        UserError: the ending is unknown, or the file is a program. A file with structure would be ruined if its lines
            were translated.
    """
    lower = PurePath(name).name.lower()
    stem, _, ending = lower.rpartition(".")
    is_language = all(map(_is_language, [ending] if _is_language(ending) else ending.split("-")))  # or a pair
    for format, described in FORMATS.items():
        if lower.endswith(described.endings) or (is_language and stem.endswith(described.endings)):
            return format
    if lower.endswith(_XLIFF_OF_PROGRAMS):
        problem = "an XLIFF file of a translation program, which keeps the states of segments in a way of its own"
        how = "export XLIFF (.xlf) there"
        if not lower.endswith(".mxliff"):  # its tags are text, such as {1>
            how += ", or add --format xliff, which fills empty targets and leaves everything else"
        raise UserError(f"{name}: {problem}; {how}")
    is_text = (match := _NUMBERED.fullmatch(ending)) is not None and match[1] in ("", *_TEXT.split())
    is_program = _PROGRAM.match(begins) is not None and not (is_text and match and match[1])
    if (not stem or " " in ending or is_text or is_language) and not is_program:
        return None
    known = ", ".join(ending for described in FORMATS.values() for ending in described.endings)
    raise UserError(
        f"{name}: files of this kind are not translated, only text (such as .txt, .de, .src or no ending) and {known}"
        f"{advice}"
    )


def _is_language(ending: str) -> bool:
    types = MimeTypes(filenames=())  # only what Python knows itself, the same on every machine
    has_type = len(ending) == 3 and types.guess_type(f"a.{ending}", strict=False)[0] is not None
    return is_written_language(ending) and ending not in _NO_LANGUAGES.split() and not has_type

"""Documents: their text is translated, and their structure stays. Each format of `FORMATS` has a module."""

from dataclasses import dataclass
from pathlib import PurePath

from ...errors import UserError


@dataclass(frozen=True)
class Format:
    """
    A format of documents.

    Args:
        module: has a function `read_MODULE`, which takes the document and the kept words. Some need an extra.
        endings: of the names of files in this format, in lower case.
        has_markup: whether it has tags within sentences, which are placed by word alignments.
        is_binary: whether it is read from bytes; otherwise from text.
        names_target: whether the document names its language: the reader takes that of the translation, too.
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
# Endings of files that are not lines of text, and that nothing here reads.
_UNKNOWN = (
    ".7z .adoc .ass .azw3 .csv .dfxp .doc .docm .dot .dotm .dotx .dtd .eml .fb2 .fodt .ftl .gz .ini .ipynb .js .json5 "
    ".jsonc .jsonl .key .mobi .mqxliff .mxliff .numbers .odp .ods .org .ott .pages .pdf .php .plist .png .ppt .pptx "
    ".pub .py .resx .rst .rtf .sbv .sdlxliff .smi .ssa .stringsdict .sub .svg .tex .tmx .toml .ts .tsv .ttml .vue "
    ".wiki .xcstrings .xls .xlsx .xml .yaml .yml .zip"
)


def format_of(name: str) -> str | None:
    """
    The format of a file, by the end of its name; None: unknown, so it may be lines of text.

    Raises:
        UserError: it is in a format with structure that is not in `FORMATS`.
    """
    lower = PurePath(name).name.lower()
    for format, described in FORMATS.items():
        if lower.endswith(described.endings):
            return format
    if lower.endswith(tuple(_UNKNOWN.split())):
        known = ", ".join(ending for described in FORMATS.values() for ending in described.endings)
        raise UserError(f"{name}: files of this kind are not translated, only text and {known}")
    return None

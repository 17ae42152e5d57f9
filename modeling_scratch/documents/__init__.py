"""Translates a document's text and keeps its structure; `FORMATS` has a function for each format."""

from collections.abc import Callable

from ..paragraphs import TranslateParagraphs
from .html import translate_html
from .plain import translate_plain

Format = Callable[[str, TranslateParagraphs], str]


def _markdown(text: str, translate: TranslateParagraphs) -> str:
    from .markdown import translate_markdown  # needs a package from an extra, as the next does

    return translate_markdown(text, translate)


def _srt(text: str, translate: TranslateParagraphs) -> str:
    from .srt import translate_srt

    return translate_srt(text, translate)


FORMATS: dict[str, Format] = {"text": translate_plain, "markdown": _markdown, "html": translate_html, "srt": _srt}
# Keys of FORMATS by file name suffix.
ENDINGS = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".srt": "srt"}
WITH_INLINE_MARKUP = {"markdown", "html"}  # formats whose tags are placed by word alignments


def translate_document(text: str, format: str, translate: TranslateParagraphs) -> str:
    """
    Translate a document's text. A byte order mark and the kind of line breaks are kept.

    Args:
        format: a key of FORMATS.
        translate: called once with all paragraphs of the document, as plain text without markup.

    Raises:
        UserError: the document is not in this format, or too damaged to read.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    has_crlf = "\n" in text and text.count("\n") == text.count("\r\n")
    found = FORMATS[format](text.replace("\r\n", "\n") if has_crlf else text, translate)
    return mark + (found.replace("\n", "\r\n") if has_crlf else found)

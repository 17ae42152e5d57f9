"""Documents whose text is translated and whose structure stays: `FORMATS` has a function for each kind."""

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
# The keys of FORMATS by the ends of files' names.
ENDINGS = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".srt": "srt"}
WITH_INLINE_MARKUP = {"markdown", "html"}  # whose tags go where the links of a translation say


def translate_document(text: str, format: str, translate: TranslateParagraphs) -> str:
    """
    A document with its text translated. A byte order mark and the kind of line ends are kept.

    Args:
        format: a key of FORMATS.
        translate: called with all paragraphs of the document at once: plain text, without markup.

    Raises:
        UserError: the document is of another format, or broken beyond a limit.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    has_crlf = "\n" in text and text.count("\n") == text.count("\r\n")
    found = FORMATS[format](text.replace("\r\n", "\n") if has_crlf else text, translate)
    return mark + (found.replace("\n", "\r\n") if has_crlf else found)

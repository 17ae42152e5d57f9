"""WebVTT subtitles: sentences are translated as in SRT; the header, notes, styles and settings stay."""

import re
from collections.abc import Iterator

from pysubs2.formats.webvtt import WebVTTFormat

from ...errors import UserError
from ...model.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .document import Document
from .html import unescape, write_html
from .srt import SPEAKER, Cue, read_cues

_BLOCK = re.compile(r"(?:[^\n]+(?:\n|\Z))+")  # lines up to an empty one
_TAG = re.compile(r"<[^<>\n]*>?")
_VOICE = r"<v(?:\.[^\s<>]*)?(?:[ \t]+(?P<voice>[^<>\n]*))?>"
_MARKS = re.compile(rf"(?:{_VOICE}|\s|[-–—♪]+|{SPEAKER})*")  # noqa: RUF001
# Of a line: the time of a word, with the white space beside it; the reading of ruby; other tags; and references.
_WITHIN_LINE = re.compile(
    r"(?P<time>(?<![^\S\n])[^\S\n]*+<[\d:.]+>\s*)|(?P<reading><rt\b[^<>]*>[^<>]*(?:</rt>)?)"
    r"|<(?P<close>/?)(?P<name>[A-Za-z]*)[^<>]*>?|(?P<reference>&#?\w+;)"
)


def read_vtt(text: str, kept: KeptWords) -> Document:
    """
    Read WebVTT subtitles. Cues, with their names, times and settings, stay, as do the header, notes, styles and
    regions. Sentences are those of `read_cues`.

    Raises:
        UserError: the text does not begin with "WEBVTT".
    """
    if text.strip() and not text.startswith("WEBVTT"):
        raise UserError('no WebVTT subtitles: these begin with "WEBVTT"')
    return read_cues(text, vtt_cues(text), kept, _write, _TAG, _line, _MARKS, "</v>")


def _write(text: str, written: dict[str, str]) -> str:
    return write_html(text, written).replace("-->", "--&gt;")


def vtt_cues(text: str) -> Iterator[Cue]:
    """The cues with text. UserError: the times of one cannot be read."""
    for block in _BLOCK.finditer(text):
        first = block.start()
        for line in block.group().splitlines(keepends=True)[:2]:  # the second if the cue has a name
            first += len(line)
            stamps = WebVTTFormat.TIMESTAMP.findall(line)[:2] if "-->" in line else []
            if len(stamps) == 2:
                shown = text[first : block.end()]
                first += len(shown) - len(shown.lstrip())
                if shown.strip():
                    try:
                        times = list(map(WebVTTFormat.timestamp_to_ms, stamps))
                    except ValueError:
                        number = text.count("\n", 0, text.index(line, block.start())) + 1
                        raise UserError(f"line {number:,}: not the times of a cue: {line.strip()[:60]}") from None
                    yield Cue(*times, first, first + len(shown.strip()))
                break


def _line(line: str) -> Iterator[Token]:
    done = 0
    for match in _WITHIN_LINE.finditer(line):
        raw = match[0]
        yield Text(line[done : match.start()], line[done : match.start()])
        done = match.end()
        if match["time"]:
            yield Markup("fold", raw if raw.strip() != raw else f"{raw} ", stays=True)
        elif match["reference"]:
            yield Text(raw, unescape(raw))
        elif match["reading"] or not match["name"]:
            yield Markup("atom", raw)
        elif match["name"] == "v":  # someone else speaks
            yield Markup("break", raw)
        else:
            yield Markup("close" if match["close"] else "open", raw, match["name"])
    yield Text(line[done:], line[done:])

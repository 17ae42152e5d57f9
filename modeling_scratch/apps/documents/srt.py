"""SRT subtitles: a sentence is translated as a whole, then spread over the cues and lines that it came from."""

import re
from collections.abc import Iterator

from pysubs2.formats.subrip import SubripFormat

from ...errors import UserError
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .document import Document
from .regions import Region, read_regions

_NEXT_NUMBER = re.compile(r"\n[ \t]*\d+[ \t]*\r?\n\Z")
_TAG = re.compile(r"<\s*+(/?)\s*+([A-Za-z]++)[^<>]*+>|\{\\[^{}]*\}|\\[Nnh]")
_LINE_BEGINS = re.compile(r"(?:\{\\[^{}]*\}|\s|[-–—♪]+)+")  # noqa: RUF001
_SENTENCE_END = re.compile(r"""[.!?…。！？؟۔।॥։♪:\])]["'”“’‘»«›‹」』)]*$""")  # noqa: RUF001
_SPEAKER_BEGINS = re.compile(r"[-–—♪#\[(]")  # noqa: RUF001
_LONGEST_PAUSE = 3000  # milliseconds within a sentence


def read_srt(text: str, kept: KeptWords) -> Document:
    """
    Read subtitles. Cues and their times stay.

    A sentence continues across lines and cues until a cue ends with sentence-final punctuation, someone else begins to
    speak (a line that begins with a dash, a bracket or a note), there is a pause of more than three seconds, or cues
    overlap. Its translation is spread over its lines in proportion to their lengths.

    Raises:
        UserError: the text has no cues.
    """
    return read_regions([Region(list(_tokens(text)), lambda words, _: words)], "".join, kept)


def _cues(text: str) -> list[tuple[int, int, int, int]]:
    """When each cue starts and ends, in milliseconds, and where its text starts and ends."""
    lines, position = [], 0  # of each line with times: its start and end in the text, and the times
    for line in text.split("\n"):
        stamps = SubripFormat.TIMESTAMP.findall(line)
        if len(stamps) == 2:
            lines.append((position, position + len(line), *map(SubripFormat.timestamp_to_ms, stamps)))
        position += len(line) + 1
    if not lines and text.strip():
        raise UserError("no subtitles in SRT format")
    cues = []
    for number, (_, start, begin, end) in enumerate(lines, start=1):
        shown = _NEXT_NUMBER.sub("", text[start : lines[number][0]]) if number < len(lines) else text[start:]
        if shown.strip():
            start += len(shown) - len(shown.lstrip())
            cues.append((begin, end, start, start + len(shown.strip())))
    return cues


def _tokens(text: str) -> Iterator[Token]:
    done, ended, last_line = 0, 0, ""
    for begin, end, first, last in _cues(text):
        between = text[done:first]
        for number, match in enumerate(re.finditer(r"[^\n]*(?:\n|\Z)", text[first:last])):
            line = match.group()
            if not line:
                continue
            beginning = _LINE_BEGINS.match(line)
            shown = _TAG.sub("", line).strip()
            marks, line = (beginning.group(), line[beginning.end() :]) if beginning else ("", line)
            is_cue = number == 0  # the first line of one
            is_new = not last_line or not shown or _SPEAKER_BEGINS.match(shown)
            if is_cue:
                is_new = is_new or begin - ended > _LONGEST_PAUSE or begin < ended or _SENTENCE_END.search(last_line)
            if between + marks:
                kind = "break" if is_new else "fold"
                yield Markup(kind, between + marks, ends_elements=is_cue, stays=is_cue or bool(marks))
            kept = line.rstrip("\n")
            yield from _line(kept)
            between, last_line = line[len(kept) :], shown
        done, ended = last, end
    yield Markup("break", text[done:])


def _line(line: str) -> Iterator[Token]:
    done = 0
    for match in _TAG.finditer(line):
        yield Text(line[done : match.start()], line[done : match.start()])
        kind = "fold" if match.group()[0] == "\\" else "atom" if match[2] is None else "close" if match[1] else "open"
        yield Markup(kind, match.group(), (match[2] or "").lower())
        done = match.end()
    yield Text(line[done:], line[done:])

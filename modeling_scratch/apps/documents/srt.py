"""SRT subtitles: a sentence is translated as a whole, then spread over the cues and lines that it came from."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pysubs2.formats.subrip import SubripFormat

from ...errors import UserError
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .document import Document
from .regions import Region, read_regions

_NEXT_NUMBER = re.compile(r"\n[ \t]*\d+[ \t]*\r?\n\Z")
_TAG = re.compile(r"<\s*+(/?)\s*+([A-Za-z]++)[^<>]*+>|\{\\[^{}]*\}|\\[Nnh]")
_MARKS = re.compile(r"(?:\{\\[^{}]*\}|\s|[-–—♪]+)*")  # noqa: RUF001
_SENTENCE_END = re.compile(r"""[.!?…。！？؟۔।॥։♪:\])]["'”“’‘»«›‹」』)]*$""")  # noqa: RUF001
_SPEAKER_BEGINS = re.compile(r"[-–—♪#\[(]")  # noqa: RUF001
_LONGEST_PAUSE = 3000  # milliseconds within a sentence


class Cue(NamedTuple):
    """When a cue starts and ends, in milliseconds, and where its text starts and ends."""

    begin: int
    end: int
    first: int
    last: int


def read_srt(text: str, kept: KeptWords) -> Document:
    """
    Read subtitles. Cues and their times stay. Sentences are those of `cue_tokens`.

    Raises:
        UserError: the text has no cues.
    """
    tokens = cue_tokens(text, _cues(text), _TAG, _line)
    return read_regions([Region(list(tokens), lambda words, _: words)], "".join, kept)


def cue_tokens(
    text: str,
    cues: Iterable[Cue],
    tag: re.Pattern[str],
    line_tokens: Callable[[str], Iterable[Token]],
    marks: re.Pattern[str] = _MARKS,
    end: str = "",
) -> Iterator[Token]:
    """
    The tokens of subtitles. A sentence continues across lines and cues until a cue ends with sentence-final
    punctuation, someone else begins to speak (a line that begins with a dash, a bracket, a note or another voice),
    there is a pause of more than three seconds, or cues overlap. Its translation is spread over its lines in proportion
    to their lengths.

    Args:
        tag: matches tags.
        line_tokens: returns the tokens of a line.
        marks: matches what stays at the beginning of a line. A group "voice" names who speaks.
        end: what stays at the end of a line.
    """
    done, ended, last_line, last_voice, rest = 0, 0, "", None, ""  # rest: the end of the last line
    for cue in cues:
        between, voice = rest + text[done : cue.first], None
        for number, match in enumerate(re.finditer(r"[^\n]*(?:\n|\Z)", text[cue.first : cue.last])):
            if not (line := match.group()):
                continue
            shown, beginning = tag.sub("", line).strip(), marks.match(line)
            voice = beginning.groupdict().get("voice") or voice
            is_cue = number == 0  # the first line of one
            is_new = not last_line or not shown or _SPEAKER_BEGINS.match(shown) or voice != last_voice
            if is_cue:
                is_new = is_new or cue.begin - ended > _LONGEST_PAUSE or cue.begin < ended
                is_new = is_new or _SENTENCE_END.search(last_line)
            if between or beginning[0]:
                kind = "break" if is_new else "fold"
                stays = is_cue or bool(beginning[0])
                yield Markup(kind, between + beginning[0], ends_elements=is_cue, stays=stays)
            line = line[beginning.end() :]
            kept = line.rstrip("\n").removesuffix(end)
            yield from line_tokens(kept)
            between = rest = line[len(kept) :]
            last_line, last_voice = shown, voice
        done, ended = cue.last, cue.end
    yield Markup("break", rest + text[done:])


def _cues(text: str) -> list[Cue]:
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
            cues.append(Cue(begin, end, start, start + len(shown.strip())))
    return cues


def _line(line: str) -> Iterator[Token]:
    done = 0
    for match in _TAG.finditer(line):
        yield Text(line[done : match.start()], line[done : match.start()])
        kind = "fold" if match.group()[0] == "\\" else "atom" if match[2] is None else "close" if match[1] else "open"
        yield Markup(kind, match.group(), (match[2] or "").lower())
        done = match.end()
    yield Text(line[done:], line[done:])

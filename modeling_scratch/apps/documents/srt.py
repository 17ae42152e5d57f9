"""SRT subtitles: a sentence is translated as a whole, then spread over the cues and lines that it came from."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import count, pairwise
from typing import NamedTuple

from pysubs2.formats.subrip import SubripFormat

from ...errors import UserError
from ...model.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from ..translate.placement import Write
from .document import Document
from .regions import Region, read_regions

_NEXT_NUMBER = re.compile(r"\n[ \t]*\d+[ \t]*\r?\n\Z")
_TAG = re.compile(r"<\s*+(/?)\s*+([A-Za-z]++)[^<>]*+>|\{\\[^{}]*\}|\\[Nnh]")
SPEAKER = r"(?:>|&gt;){2,}"  # ">>" where someone else begins to speak, as captions of television have it
_MARKS = re.compile(rf"(?:\{{\\[^{{}}]*\}}|\s|[-–—♪]+|{SPEAKER})*")  # noqa: RUF001
_NAME = re.compile(r"([^\W\d_][\w.'’ \t-]{0,30}):\s+")  # noqa: RUF001
_SPEAKER_WITHIN = re.compile(rf"((?<![^\s>]){SPEAKER}(?=\s)\s*)")
_SENTENCE_END = re.compile(r"""[.!?…。！？؟۔।॥։♪:\])]["'”“’‘»«›‹」』)]*$""")  # noqa: RUF001
_SPEAKER_BEGINS = re.compile(rf"[-–—♪#\[(]|{SPEAKER}")  # noqa: RUF001
_LONGEST_PAUSE = 3000  # milliseconds within a sentence
_MOST_LINES = 4  # that captions show
_LONGEST = 300  # characters of a sentence of captions that roll up, which often have no punctuation
# In captions that roll up, these enclose the number of a line: before the line; and in place of a line that repeats it
# with its tags, or without them.
_FIRST, _SAME, _PLAIN = "\0\1\2"


class Cue(NamedTuple):
    """When a cue starts and ends, in milliseconds, and where its text starts and ends."""

    begin: int
    end: int
    first: int
    last: int


def read_srt(text: str, kept: KeptWords) -> Document:
    """
    Read subtitles. Cues and their times stay. Sentences are those of `read_cues`.

    Raises:
        UserError: the text has no cues.
    """
    return read_cues(text, srt_cues(text), kept, lambda words, _: words, _TAG, _line)


def read_cues(
    text: str,
    cues: Iterable[Cue],
    kept: KeptWords,
    write: Write,
    tag: re.Pattern[str],
    line_tokens: Callable[[str], Iterable[Token]],
    marks: re.Pattern[str] = _MARKS,
    end: str = "",
) -> Document:
    """
    Read subtitles. A sentence continues across lines and cues until a cue ends with sentence-final punctuation, someone
    else begins to speak (a line that begins with a dash, a bracket, a note, ">>", a name in capitals or another voice),
    there is a pause of more than three seconds, or cues overlap. Its translation is spread over its lines in proportion
    to their lengths.

    Where captions roll up, so that most cues begin with the last lines of the one before, these are read once, and
    written as they are translated.

    Args:
        write: escapes text.
        tag: matches tags.
        line_tokens: returns the tokens of a line.
        marks: matches what stays at the beginning of a line. A group "voice" names who speaks.
        end: what stays at the end of a line.
    """
    cues = list(cues)
    repeated = [0] * len(cues) if re.search(f"[{_FIRST}{_SAME}{_PLAIN}]", text) else _repeated(text, cues, tag)
    tokens = list(_tokens(text, cues, repeated, tag, line_tokens, marks, end))

    def joined(parts: list[str]) -> str:
        return _rolled("".join(parts), tag) if any(repeated) else "".join(parts)

    return read_regions([Region(tokens, write)], joined, kept)


def _repeated(text: str, cues: list[Cue], tag: re.Pattern[str]) -> list[int]:
    """How many lines of each cue repeat the last ones of the cue before; zeros unless most cues have such lines."""
    rows = [[tag.sub("", line).strip() for line in text[cue.first : cue.last].split("\n")] for cue in cues]
    rows = [[line for line in row if line] for row in rows]
    counts = []
    for before, lines in pairwise([[], *rows]):
        possible = range(min(len(before), len(lines), _MOST_LINES), 0, -1)
        counts.append(next((number for number in possible if before[-number:] == lines[:number]), 0))
    return counts if len(cues) < 2 * sum(map(bool, counts)) + 2 else [0] * len(cues)


def _rolled(text: str, tag: re.Pattern[str]) -> str:
    """A translation in which lines that repeat others are filled in. They are not empty, since this would end a cue."""
    lines = dict(re.findall(rf"{_FIRST}(\d+){_FIRST}([^\n]*)", text))

    def line(match: re.Match[str]) -> str:
        found = lines[match[2]] if match[1] == _SAME else " ".join(tag.sub("", lines[match[2]]).split())
        return found or " "

    text = re.sub(rf"([{_SAME}{_PLAIN}])(\d+)\1", line, text)
    return re.sub(rf"{_FIRST}\d+{_FIRST}", "", re.sub(rf"{_FIRST}\d+{_FIRST}(?=\n|\Z)", " ", text))


def _tokens(
    text: str,
    cues: list[Cue],
    repeated: list[int],
    tag: re.Pattern[str],
    line_tokens: Callable[[str], Iterable[Token]],
    marks: re.Pattern[str],
    end: str,
) -> Iterator[Token]:
    done, ended, last_line, last_voice, rest = 0, 0, "", None, ""  # rest: the end of the last line
    is_rolling, length = any(repeated), 0  # length: of the sentence
    numbers, lines = count(), dict[str, tuple[int, str]]()  # lines: the number of the last one, and how it is written
    for cue, left in zip(cues, repeated, strict=True):
        between, voice, is_cue = rest + text[done : cue.first], None, True  # is_cue: at the first line that is read
        for match in re.finditer(r"[^\n]*(?:\n|\Z)", text[cue.first : cue.last]):
            if not (line := match.group()):
                continue
            shown = tag.sub("", line).strip()
            if left and shown:
                number, written = lines[shown]
                mark = _SAME if line.rstrip("\n") == written else _PLAIN
                between = rest = f"{between}{mark}{number}{mark}{line[len(line.rstrip()) :]}"
                left -= 1
                continue
            beginning = marks.match(line)
            voice = beginning.groupdict().get("voice") or voice
            first = _after_name(line, beginning.end(), tag)
            is_new = not last_line or not shown or _SPEAKER_BEGINS.match(shown) or voice != last_voice
            is_new = is_new or first > beginning.end()
            if is_cue:
                is_new = is_new or cue.begin - ended > _LONGEST_PAUSE or (cue.begin < ended and not is_rolling)
                is_new = is_new or _SENTENCE_END.search(last_line) or (is_rolling and length > _LONGEST)
            length = len(shown) if is_new else length + len(shown)
            if is_rolling:
                lines[shown] = next(numbers), line.rstrip("\n")
                between += f"{_FIRST}{lines[shown][0]}{_FIRST}"
            if between or first:
                kind = "break" if is_new else "fold"
                stays = is_cue or is_rolling or first > 0
                yield Markup(kind, between + line[:first], ends_elements=is_cue, stays=stays)
            line, is_cue = line[first:], False
            kept = line.rstrip("\n").removesuffix(end)
            for index, part in enumerate(_SPEAKER_WITHIN.split(kept)):
                yield from [Markup("break", part)] if index % 2 else line_tokens(part)
            between = rest = line[len(kept) :]
            last_line, last_voice = shown, voice
        done, ended = cue.last, cue.end
    yield Markup("break", rest + text[done:])


def _after_name(line: str, start: int, tag: re.Pattern[str]) -> int:
    """
    Where a line begins after the name of who speaks: in capitals, before a colon, and not in a text all in capitals.
    """
    name = _NAME.match(line, start)
    if name is None or not name[1].isupper():
        return start
    is_marked = re.search(SPEAKER, line[:start]) is not None
    return name.end() if is_marked or any(map(str.islower, tag.sub("", line[name.end() :]))) else start


def srt_cues(text: str) -> list[Cue]:
    """The cues with text. UserError: there is none."""
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

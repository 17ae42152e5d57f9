"""
The parts of a text that translators keep as they are: placeholders, addresses, mentions, tags, versions, code. Models
read and write reserved characters in their place, which training teaches them to copy. This file needs no PyTorch.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# The last characters of Unicode but two blocks, for private use: no text has them, and no font. Each is one token.
RESERVED = "".join(map(chr, range(0x10FF00, 0x10FF10)))

# The patterns mean the same to Python and, after `in_javascript`, to the exported page. For this, "\w" and "\s" stand
# only in sets. They take linear time: none can begin twice in what another attempt has read without ending there.
_LETTER = r"[^\W\d_]"
_WHITE_SPACE = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # what Python's "\s" matches
# Thai, Lao, Burmese, Khmer, kana, ideographs, Hangul: words stand beside placeholders without a space.
_SPACELESS = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u9fff"
    r"\uac00-\ud7af\uf900-\ufaff]"
)
_BEGIN = rf"(?:(?<![\w])|(?<={_SPACELESS}))"  # no letter, digit or underscore of other scripts is before it
_END = rf"(?:(?![\w])|(?={_SPACELESS}))"
_BRACES = r"\{\{\{?[^{}]*\}?\}\}|\{[^\s{}]*\}"  # placeholders in addresses
_GROUP = rf"""\([^\s<>"()]*\)|{_BRACES}"""
_ADDRESSES = (
    rf"""(?:(?:https?|ftp)://|www\.)(?:{_GROUP}|[^\s<>"(){{}}\u3000-\u303f\uff00-\uff0f\uff1a-\uff20])*"""
    rf"""(?:{_GROUP}|[\w/])""",
    r"(?<![\w.+-])[\w.+-]+@(?:[\w-]|\{[^\s{}]*\})+\.[\w.-]*[\w]",
    r"\[\^[^\[\]\s]+\]:?",  # references to footnotes
    r"\[[ xX]\](?=[\s])",  # checkboxes of task lists
)


def _nested(depth: int) -> str:
    """Text with pairs of braces, up to `depth` within each other."""
    return rf"(?:[^{{}}]|\{{{_nested(depth - 1)}\}})*" if depth else "[^{}]*"


# What stands in C between "%" and the letter: flags (with all first zeros), width, precision, length. The flags "," and
# "(" are those of java.util.Formatter; "(" is one only before another flag or a width, since "%(" may be a percentage
# and a bracket.
_SIZE = (
    r"(?:[-+0#,]|\((?=[-+0-9#,.]))*(?:[1-9][0-9]*|\*(?:[0-9]+\$)?)?(?:\.(?:[0-9]+|\*(?:[0-9]+\$)?))?"
    r"(?:hh|ll|[hlLqjzt])?"
)
_DATE = r"[tT][HIklMSLNpzZsQBbhAaCYyjmdeRTrDFc]"  # of java.util.Formatter (Java 21)
_PLACEHOLDERS = (
    r"\$?\{\{\{?[^{}]*\}?\}\}|\{%[^{}]*%\}",  # {{ name }} ${{ name }} {% tag %}
    r"[$#%@]\{[^{}]*\}",  # ${name} #{name} %{name} @{name}
    r"""\{ ?[^\s{},:;|"]*(?::[^\s{};|"]*)? ?\}""",  # {name} { name } {0:,.2f} {}
    r"\{[\s]*[\w.]+[\s]*,[\s]*(?:date|duration|number|ordinal|spellout|time)(?:[\s]*,[^{}]*)?[\s]*\}",  # {n, number}
    rf"\{{[\s]*[\w.]+[\s]*,[\s]*(?:plural|select|selectordinal)[\s]*,{_nested(4)}\}}",  # {n, plural, one {# file}}
    rf"%%|%[0-9]+\$(?:-?[0-9]*{_DATE}|[(]?{_SIZE}[A-Za-z@])",  # %1$s
    rf"(?:(?<![0-9%])|(?<=%%))%(?:-?[0-9]*{_DATE}|<-?[0-9]*{_DATE}|<{_SIZE}[bBhHsScCdoxXeEfgGaA])"
    rf"{_END}(?!>)",  # %tB %<te
    rf"%(?:[0-9]+\$)?{_SIZE}<PRI[diouxX][A-Z0-9]+>",  # %<PRIu64>
    rf"%\((?:{_LETTER}|_)[\w.]*\)[-+0#]*(?:[1-9][0-9]*)?(?:\.[0-9]+)?[A-Za-z]",  # %(name)s
    rf"(?:(?<![0-9%])|(?<=%%))%{_SIZE}[aAbBdhHiouxXeEfFgGcCsSp@]{_END}",  # %s %.2f %.*s %@
    rf"(?<=[0-9])%[dfs@]{_END}",  # 100%s
    rf"(?<!%){_BEGIN}%L?[0-9]{{1,2}}{_END}(?![$%])|%(?:[0-9]+\$)?#@[\w]+@",  # %1 %L1 %#@files@
    rf"(?<!%){_BEGIN}%(?:{_LETTER}|_)[\w.-]*%{_END}(?!%)",  # %name%
    r"(?<![\w$])\$[A-Za-z_@][A-Za-z0-9_@]*\$(?![\w$])",  # $NAME$
    r"(?<![\w:)\]}]):[a-z][a-z_]+(?![\w:-])",  # :name
    r"@(?:\.[A-Za-z]+)?:(?:\([^()]*\)|\{[^{}]*\}|[A-Za-z_](?:[\w./-]*[\w])?)",  # @:key @.lower:{'key'}
    r"\$t\([^()]*\)",  # $t(key)
    r"\[X[0-9]+X\]",  # [X4X], by which clients such as Weblate replace their own
    r"<[A-Za-z0-9][^<>]*/>",  # <x id="1"/>
)
_NAMES = (
    rf"(?<![\w@./+-])@_*{_LETTER}[\w]*(?:[./-][\w]+)*(?:@[\w-]+(?:\.[\w-]+)+)?",  # @name @name@example.org
    rf"(?<![\w&#/])#{_LETTER}[\w]*(?:[/-][\w]+)*",  # #tag #tag/nested
    r"(?<![\w:])(?::(?:[a-z][a-z0-9_+-]+|[+-]1|100):)+(?![\w:])",  # :smile:
    rf"(?<!\.){_BEGIN}[vV][0-9]+(?:\.[0-9]+)+(?:[-.]?(?:alpha|beta|dev|rc)\.?[0-9]*)?{_END}",  # v1.2.3
    r"(?<![\w`])`[^\s`](?:[^`\n]*[^\s`])?`(?![\w`])|(?<![\w`])``[^\s`](?:[^`\n]*[^\s`])?``(?![\w`])",  # `code`
    f"[{RESERVED}]",
)
_CUE = re.compile(
    rf"[{{}}%$\[\]<>@#:`{RESERVED}]|[vV][0-9]|www\."
)  # in every match of the above, to skip other texts quickly


@dataclass(frozen=True)
class KeptWords:
    """
    What stays as it is in texts.

    Args:
        known: one of the two sets of patterns in this module.
        patterns: further patterns.
        literals: further strings. A letter or digit at their edge is also at the edge of a word.
        are_read: in documents, they are words of a sentence, since the model has learned to copy them; otherwise, they
            are markup, which it does not read.
    """

    known: re.Pattern[str]
    patterns: tuple[re.Pattern[str], ...] = ()
    literals: tuple[str, ...] = ()
    are_read: bool = False

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the kept parts of a text start and end, in order. Parts that overlap are one."""
        patterns = (self.known, *self.patterns) if _CUE.search(text) else self.patterns
        found = [match.span() for pattern in patterns for match in pattern.finditer(text)]
        found += [span for literal in self.literals for span in _occurrences(literal, text)]
        spans: list[tuple[int, int]] = []
        for start, end in sorted(span for span in found if span[0] < span[1]):
            if spans and start < spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            else:
                spans.append((start, end))
        return spans


ADDRESSES = KeptWords(re.compile("|".join(_ADDRESSES)))  # what stays in documents of every model
KEPT = KeptWords(re.compile("|".join((*_ADDRESSES, *_PLACEHOLDERS, *_NAMES))))  # what stays in translations


def in_javascript(pattern: re.Pattern[str] = KEPT.known) -> str:
    """The source of one of these patterns, or of those in sentences.py, for `RegExp` with the flag u."""
    source = pattern.pattern.replace(_LETTER, r"[\p{L}\p{Nl}\p{No}]").replace(r"\w", r"\p{L}\p{N}_")
    return source.replace(r"\s", _WHITE_SPACE).replace(r"\d", r"\p{Nd}").replace(r"\Z", "$")


def _occurrences(literal: str, text: str) -> Iterator[tuple[int, int]]:
    """Where a string occurs, except within longer words of scripts that separate words."""
    start = text.find(literal)
    while literal and start >= 0:
        end = start + len(literal)
        if not (_is_joined(text[start - 1 : start + 1]) or _is_joined(text[end - 1 : end + 1])):
            yield start, end
        start = text.find(literal, end)


def _is_joined(pair: str) -> bool:
    """Whether two characters are within a word of a script with capitals, such as Latin, or of a number."""
    return len(pair) == 2 and all(character.isdigit() or character.lower() != character.upper() for character in pair)


def hide(text: str, spans: Sequence[tuple[int, int]], characters: Sequence[str] = RESERVED) -> str:
    """A text with the first character in place of the first span, and so on; they repeat if there are too few."""
    parts, done = [], 0
    for place, (start, end) in enumerate(spans):
        parts += [text[done:start], characters[place % len(characters)]]
        done = end
    return "".join(parts) + text[done:]


def restore_words(output: str, read: str, words: Sequence[str]) -> tuple[str, bool, list[int]]:
    """
    An output with the kept words of its source in place of reserved characters, each once; whether the model wrote each
    character as often as it stands in the source; and if so, how many words each word of the output became. Characters
    too many are dropped. Words whose characters are missing are put between the words of the output, as far from its
    beginning as in the source.

    Args:
        read: the source as the model read it, with reserved characters.
        words: what these stand for, in order.
    """
    waiting: dict[str, list[tuple[int, str]]] = {}  # for each character the words that it stands for, with its places
    for match, word in zip(re.finditer(f"[{RESERVED}]", read), words, strict=True):
        waiting.setdefault(match.group(), []).append((match.start(), word))
    parts, shown, is_whole = list[str](), list[str](), True
    for part in _RESERVED.split(output):
        if not _RESERVED.fullmatch(part):
            parts.append(part)
            shown.append(part)
        elif waiting.get(part[-1]):
            word = waiting[part[-1]].pop(0)[1]
            parts.append(part[:-1] + word)
            shown.append(part[:-1] + "x" * len(word))
        else:
            is_whole = False
    made, spans = "".join(parts), [match.span() for match in re.finditer(r"\S+", "".join(shown))]
    missing = sorted(pair for queue in waiting.values() for pair in queue)
    if is_whole and not missing:
        return made, True, [len(made[start:end].split()) for start, end in spans]
    ends = [0, *(end for _, end in spans)]  # none is within a kept word
    for place, word in reversed(missing):
        end = ends[int(place / len(read) * (len(ends) - 1) + 0.5)]
        made = f"{made[:end]} {word} {made[end:].lstrip()}"
    return made.strip(), False, []


def has_reserved(text: str) -> bool:
    """Whether a text has reserved characters."""
    return bool(_RESERVED.search(text))


def writes_all(output: str, read: str) -> bool:
    """Whether an output has the reserved characters of its source, each as often, and no others."""
    return sorted(_RESERVED.findall(output.replace(" ", ""))) == sorted(_RESERVED.findall(read.replace(" ", "")))


_RESERVED = re.compile(f"( ?[{RESERVED}])")

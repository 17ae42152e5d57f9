"""Where the sentences of a text begin. This file needs no PyTorch, and apps/web/page/text.js follows the same rules."""

import re
from collections.abc import Sequence

# The patterns mean the same to Python and, after `kept_words.in_javascript`, to the exported page: "\s" and "\w" stand
# only in sets.
# What ends a sentence, with closing quotes and brackets and the white space after it; that of Chinese and Japanese
# needs no white space. Without it, a full stop between a whole word and one that begins with a capital ends one too.
_CLOSING = "\"'\u201d\u2019\u201c\u00ab\u00bb\u2039\u203a)\\]}"
_MARKS = ".!?\u2026\u061f\u06d4\u0964\u0965\u1362\u1367\u0589\u104b\u17d4\u17d5"
_WIDE_MARKS = "\u3002\uff01\uff1f\uff61"
END = re.compile(
    rf"(?<![{_MARKS}])([{_MARKS}]+)[{_CLOSING}]*[\s]+"
    rf"|(?<![{_WIDE_MARKS}])[{_WIDE_MARKS}]+[\u300d\u300f\uff09\u300b\u3011\u201d\u2019]*[\s]*"
    r"|(?<![!?])[!?]+(?=[\u3040-\u30ff\u3400-\u9fff])"
    r"|(?<![^\s])([^\W\d_]{2,})[.!?](?=[^\W\d_]{2,}(?![^\s]))"
    r"|\n[\s]*\n[\s]*"
)
LAST_WORD = re.compile(r"""[^\s"'\u201c\u201e\u2018\u00ab\u2039(\[{]*\Z""")
DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]{1,2}")  # e.g, z.B, U.S
NUMBER = re.compile(r"[\s]*\d+(?:\.\d+)*[\s]*")  # of a heading, or of an item of a list
_NEAR = 60  # characters beside a full stop that are looked at

# Words, in lower case, whose full stop ends no sentence: before names; and, if a number follows, before numbers.
BEFORE_NAMES = re.compile(
    r"mrs?|ms|mx|messrs|dr|prof|ste?|sr|jr|hon|rev|gen|col|lt|sgt|ca?pt|maj|gov|sen|rep|pres|fr|hr|frl|hrn|mme|mlle"
    r"|mgr|sra|srta|dra|ing|dipl|vs|cf|bzw|vgl|evtl|ggf|inkl|exkl|zzgl|bspw|sog|gem|geb|gest|ca|approx|resp|incl|excl"
    r"|bd|hrsg|str"
)
BEFORE_NUMBERS = re.compile(
    r"nos?|nrn?|num|figs?|abb|tab|vols?|pp?|s|sect?|chap|ch|kap|art|abs|ziff|eq|ref|ed|tel"
    r"|jan|feb|m\u00e4r|mar|apr|jun|jul|aug|sept?|o[ck]t|nov|de[cz]"
)
BEFORE_ORDINALS = re.compile(  # in German, whose nouns have capitals: "am 3. Mai", "im 19. Jahrhundert"
    r"(?<![\w])(?:am|beim|das|dem|den|der|des|die|ihr[\w]*|im|ins|sein[\w]*|vom|zum|zur)[\s]+\d{1,2}\Z"
)
_WITHOUT_SPACES = re.compile(  # languages; of CLDR's likely scripts
    r"bod?|bur|chi|cmn|dz|gan|hak|ii|jpn|ja|khb|khm|km|lao|lo|lzh|mnw|mya|my|nan|nod|shn|tdd|tha|tib|th|wuu|yue|zho|zh"
)


def base_of(tag: str) -> str:
    """A language tag without script and region: de for de-AT and de_AT."""
    return re.split("[-_]", tag.lower())[0]


def space_between(tag: str) -> str:
    """What stands between sentences of a language: nothing or, also if it is unknown, a space."""
    return "" if _WITHOUT_SPACES.fullmatch(base_of(tag)) and "latn" not in tag.lower() else " "


def beginnings(text: str, language: str = "", kept: Sequence[tuple[int, int]] = ()) -> list[int]:
    """
    Where the sentences of a text begin, but for the first one.

    Args:
        language: its tag; "": unknown.
        kept: where the kept words start and end; none ends within one, and each may begin one.
    """
    masked = list(text)  # with a word that ends no sentence in place of each of them
    for start, end in kept:
        masked[start:end] = "I" * (end - start)
    text, found = "".join(masked), [0]
    for match in END.finditer(text):
        if match.end() < len(text) and _is_end(match, found[-1], base_of(language)):
            found.append(match.end())
    return found[1:]


def _is_end(match: re.Match[str], begin: int, language: str) -> bool:
    """Whether a match of `END` ends the sentence that begins there."""
    text, (marks, joined) = match.string, match.groups()
    after = text[match.end() : match.end() + _NEAR]
    following = next(filter(str.isalnum, after), "")
    if joined:
        return joined.islower() and following.isupper()
    if marks and following.islower():
        return False
    if marks != ".":
        return True
    before = text[max(begin, match.start() - _NEAR) : match.start()]
    word = LAST_WORD.search(before)[0]  # it matches any text
    lower = word.lower()
    is_short = len(word) == 1 and word.isalpha() and word != "I"
    if not word or is_short or BEFORE_NAMES.fullmatch(lower) or DOTTED.fullmatch(word):
        return False
    if following.isdecimal() and BEFORE_NUMBERS.fullmatch(lower):
        return False
    if NUMBER.fullmatch(before):
        return False
    return not (language in ("de", "deu", "ger") and BEFORE_ORDINALS.search(before.lower()))

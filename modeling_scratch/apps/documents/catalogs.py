"""
Catalogs: files with the messages of a program. A message may have placeholders, tags, entities and ICU's branches, such
as {n, plural, one {# file} other {# files}}; these stay, as does everything that is in no message.
"""

import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import UserError
from ...languages import is_same_language, language_code, likely_locale
from ...model.kept_words import ADDRESSES, KeptWords
from ..translate.marked_text import BEFORE_WORD, KEPT_WORD, Markup, Text, Token
from .document import Document
from .html import BLOCKS, PROTECTED, unescape
from .regions import Region, read_regions

SOFT = "\v"  # the plain text of a line end that only wraps a long line

# A name in a program rather than text: btn-primary, #ff0000, 2026-01-31, icon.png, fooBar.
_NAME = re.compile(r"(?=\S*[a-z][A-Z]|\S*\d|\S*\w[.:=_\\]\w|\S*\\|[#$]|[a-z\d]+(?:-[a-z\d]+)+\Z)[!-~]+")

_TAG = re.compile(
    r"<!--(?:(?!--)(?s:.))*-->|(?<!(?<![0-9])%)<(?!PRI[diouxX])(?P<slash>/?)(?P<name>[A-Za-z0-9][\w.:-]*+)[^<>]*+>"
)
# A placeholder such as %s, after its percent sign. Several without numbers stand for arguments in their order, so each
# gets a number, marked by a character for private use, which is removed if it was not needed.
CONVERSION = (
    r"[-+ 0#'I,(]*+(?:[0-9]++|\*(?:[0-9]++\$)?)?(?:\.(?:\*(?:[0-9]++\$)?|[0-9]*+))?"
    r"(?:hh|ll|I64|[hlLqjzt])?(?:[diouxXeEfFgGaAbBcChHsSpr@]|[tT][A-Za-z]|<PRI[diouxX][A-Z0-9]+>)"
)
JAVA_LINE_END = re.compile(r"(?:(?<![0-9%])|(?<=%%))(?P<break>%n)(?![a-z0-9_])")  # but "20%n" may be a percentage
_NUMBERED = re.compile(rf"\ue000([0-9]+)\$({CONVERSION})")
# The next letter is the key of a menu item, as in "_Open" or "E&xit", but not in "AT&T" or "file_name".
_KEY = re.compile(r"(?:(?<![\w&])_|(?:(?<![\w&])|(?<=[^\W\d_])(?=&[a-z]))&)(?![A-Za-z][A-Za-z0-9]*;)(?=[^\W\d_])")
_QUOTE = re.compile(r"''|'[{}](?:[^']|'')*+'")  # an apostrophe, or text in which braces are text
_PARTS = re.compile(
    rf"{_TAG.pattern}|(?P<entity>&(?:\#[0-9]+|\#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);)"
    r"|(?P<space>[ \t\n\r\f\v]{2,}|[\t\n\r\f\v])|(?P<bar>\|)|(?P<number>\#)"
    rf"|(?P<quote>{_QUOTE.pattern})|(?P<key>{_KEY.pattern})"
    r"|(?P<option>(?<![\w-])(?:--[A-Za-z][\w-]*+|-[A-Za-z](?![\w-])))"
)
_QUOTE_OR_TAG = re.compile(f"{_QUOTE.pattern}|{_TAG.pattern}")
_SENTENCE_END = re.compile(r"""[.!?:;…。！？；：؟۔।॥։]["'”’»)]*\s*\Z""")  # noqa: RUF001

# Blocks that need no end tag (HTML standard, "Optional tags"). The name of another block without an end tag is a
# placeholder, such as <dir> in "Copy it to <dir> first".
_ALONE = {"br", "dd", "dt", "hr", "li", "optgroup", "option", "p", "tbody", "td", "tfoot", "th", "thead", "tr"}

# Angular's names for the tags of spans, and for those of blocks and line ends (TAG_TO_PLACEHOLDER_NAMES in
# @angular/compiler 21.2).
ANGULAR_SPAN = r"START_(?P<open>\w+?)(?:_\d+)?|CLOSE_(?P<close>\w+?)(?:_\d+)?"
ANGULAR_BREAK = (
    r"(?:START_|CLOSE_)?(?:HEADING_LEVEL[1-6]|HORIZONTAL_RULE|LINE_BREAK|LIST_ITEM|ORDERED_LIST|PARAGRAPH|TABLE_\w+?"
    rf"|UNORDERED_LIST|TAG_(?:{'|'.join(sorted(BLOCKS)).upper()}))(?:_\d+)?"
)

# ICU's and Java's MessageFormat: an argument with branches, what precedes a branch, and text in which braces are text.
_ARGUMENT = re.compile(r"\{\s*[\w.-]+\s*,\s*(plural|selectordinal|select|choice)\s*,(?:\s*offset\s*:\s*[0-9]+)?")
_BRANCH = re.compile(r"\s*(?:=[0-9]+|[\w-]+)\s*\{")
_CHOICE = re.compile(r"\s*-?[0-9.∞]+\s*[#<≤]")
_CLOSING = re.compile(r"\s*\}")
_TYPED = re.compile(r"\{\s*[\w.-]+\s*,\s*(?:date|duration|number|ordinal|spellout|time)\b")  # {n, number}
_NO_BRANCH = re.compile(r"''|'[{}|#][^']*'?|\{\{\{?[^{}]*\}\}\}?|\{[^{}]*\}|[^{}|']+")


# Stands for an apostrophe in ICU's format, which is written twice beside what it would quote.
_APOSTROPHE = "\ufdd0"
_QUOTES = re.compile(rf"(?<='){_APOSTROPHE}|{_APOSTROPHE}(?=[{{}}<#|'{_APOSTROPHE}])")

_NOTHING = Region((), lambda text, _: text)


@dataclass(frozen=True)
class Entry:
    """
    A part of a catalog that is written anew.

    Args:
        start, end: its place in the file.
        write: makes what is written there of the written region.
        region: what is translated.
        can_number: whether placeholders such as %s may become %2$s to stand in another order.
    """

    start: int
    end: int
    write: Callable[[str], str] = str
    region: Region = _NOTHING
    can_number: bool = True


def read_entries(text: str, entries: Sequence[Entry], kept: KeptWords) -> Document:
    """Make a document of the text of a file and its entries, which are in order."""

    def joined(regions: list[str]) -> str:
        parts, done = [], 0
        for entry, written in zip(entries, regions, strict=True):
            written = _QUOTES.sub("''", _ordered(written, entry.can_number)).replace(_APOSTROPHE, "'")
            parts += [text[done : entry.start], entry.write(written)]
            done = entry.end
        return "".join(parts) + text[done:]

    return read_regions([entry.region for entry in entries], joined, kept)


def _ordered(written: str, can_number: bool) -> str:
    """Take the numbers out of placeholders that are in order; let others have theirs or, if they can't, order them."""
    found = [(int(number), conversion) for number, conversion in _NUMBERED.findall(written)]
    if found != sorted(found) and can_number and not any("*" in conversion for _, conversion in found):
        return written.replace("\ue000", "")
    in_order = iter(sorted(found))
    return _NUMBERED.sub(lambda _: next(in_order)[1], written)


def is_program_name(text: str) -> bool:
    """Whether a text is a name in a program, such as btn-primary or fooBar, and not a placeholder."""
    return _NAME.fullmatch(text) is not None


def error_at(text: str, position: int, problem: str) -> UserError:
    """An error with the number of the line."""
    line = text.count("\n", 0, position) + 1
    return UserError(f"line {line:,}: {problem}")


def check_language(text: str, position: int, stated: str | None, target: str | None) -> None:
    """
    Raise UserError, with the number of the line, if a file is for translations into another language.

    Args:
        stated: the language that the file states; None, empty, or no language: it states none.
        target: the language of the translation; None: unknown.
    """
    if not stated or not target or language_code(stated) is None or (likely := likely_locale(target)) is None:
        return
    # A model for sr writes Cyrillic letters, though its tag does not say so: sr-Latn is not for it.
    if not is_same_language(stated, f"{likely[0]}-{likely[1]}" if re.search("-(?:Latn|Cyrl)\\b", stated) else target):
        problem = f"the file is for translations into {stated}, but the model translates into {target}"
        raise error_at(text, position, f"{problem}; use a model for {stated}, or a file for {target}")


def unescaped(raw: str, escapes: re.Pattern[str], read: Callable[[str], str]) -> list[Text]:
    """
    Split a value as it is written into escapes and the text between them.

    Args:
        read: what an escape stands for.

    Raises:
        UserError: without a line, that an escape stands for half a character.
    """
    texts, done = [], 0
    for match in escapes.finditer(raw):
        texts += [_as_it_is(raw[done : match.start()]), Text(match.group(), read(match.group()))]
        done = match.end()
    texts.append(_as_it_is(raw[done:]))
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text.plain):
        raise UserError("half of a surrogate pair, which is not a character")
    return texts


def _as_it_is(raw: str) -> Text:
    return Text(raw, raw)


def utf_16(escape: str) -> str:
    r"""What escapes of UTF-16 such as \u00e4 or \ud83d\ude00 stand for."""
    digits = re.findall(r"[0-9a-fA-F]{4}", escape)
    return bytes.fromhex("".join(digits)).decode("utf-16-be", "surrogatepass")


def read_message(
    tokens: Iterable[Token],
    kept: KeptWords,
    escape: Callable[[str], str],
    is_java: bool = False,
    is_icu: bool = False,
    quotes: bool = False,
    placeholders: re.Pattern[str] | None = None,
    begin: Callable[[str, str], str] = lambda source, written: written,
) -> Region:
    """
    Read a message.

    Args:
        tokens: its text, and markup of the file's format.
        escape: writes a character of the translation as the file's format requires.
        is_java: whether placeholders such as {0} are those of Java, where an apostrophe beside them is written twice.
        is_icu: whether it is in ICU's format, even without branches.
        quotes: whether an apostrophe beside markup begins a quotation in ICU's format, as it does for ICU.
        placeholders: matches what stays besides the kept words. A match is an atom, unless a group matches: then the
            group's name is the kind of the token, and its content the token's name (of "text": its plain text).
        begin: see `Region`.
    """
    found = _Message(tokens, kept, is_java, is_icu, placeholders)
    own: dict[str, str] = {}
    if found.doubles_quotes:
        own["'"] = 2 * escape("'")
    elif found.is_format and quotes:
        own["'"] = _APOSTROPHE

    def write(text: str, written: dict[str, str]) -> str:
        return "".join(own.get(character) or written.get(character) or escape(character) for character in text)

    return Region(found.tokens, write, begin)


class _Message:
    """
    Cuts a message into text and markup.

    Attributes:
        tokens: all of it.
        doubles_quotes: whether an apostrophe is written twice.
    """

    def __init__(
        self,
        given: Iterable[Token],
        kept: KeptWords,
        is_java: bool,
        is_icu: bool,
        placeholders: re.Pattern[str] | None,
    ):
        self.kept, self.tokens = kept, list[Token]()
        self.plain = ""  # the message, in which each markup is one character
        self.raws: list[str | Markup] = []  # each of its characters as it is written
        plains = []
        for token in given:
            plains.append(token.plain if isinstance(token, Text) else "\ufffc")
            if plains[-1]:
                self.raws += _raws(token)
            elif token.raw:  # an escape for nothing
                self.raws[-1] += token.raw
        self.plain = "".join(plains)
        if placeholders:
            self._read_placeholders(placeholders)
            quotes = ("'{'", "'}'")  # of ICU
            is_icu |= any(isinstance(raw, Markup) and raw.raw.startswith(quotes) for raw in self.raws)
        marks = list(_branches(self.plain))
        is_java = is_java and re.search(r"\{\d|'[{}]", self.plain) is not None
        self.is_format = is_java or is_icu or bool(marks) or _TYPED.search(self.plain) is not None
        self.doubles_quotes = is_java or (self.is_format and "''" in self.plain)
        if _NAME.fullmatch(self.plain) and not kept.spans(self.plain):
            self._add_markup("break", 0, len(self.plain))
            return
        self._number_placeholders()
        self.paired = _paired(self.plain)
        self.keys = Counter(_KEY.findall(self.plain))
        done, is_plural = 0, False
        for start, end, is_next_plural in marks:
            self._add_parts(done, start, is_plural)
            self._add_markup("break", start, end)
            done, is_plural = end, is_next_plural
        self._add_parts(done, len(self.plain), is_plural)

    def _read_placeholders(self, placeholders: re.Pattern[str]) -> None:
        """Make tokens of the placeholders that are not within a longer kept word."""
        plain, raws, done = list[str](), list[str | Markup](), 0
        # An argument with branches is a kept word as a whole.
        spans = (ADDRESSES if _ARGUMENT.search(self.plain) else self.kept).spans(self.plain)
        for match in placeholders.finditer(self.plain):
            start, end = match.span()
            before = bisect_right(spans, start, key=lambda span: span[0]) - 1
            if before >= 0 and end <= spans[before][1] and match.span() != spans[before]:
                continue
            kind, raw = match.lastgroup or "atom", self._raw(start, end)
            text = match[kind] if kind == "text" else "\ufffc"
            token = (
                Text(raw, text) if kind == "text" else Markup(kind, raw, match[kind] if match.lastgroup else KEPT_WORD)
            )
            plain += [self.plain[done:start], text]
            raws += [*self.raws[done:start], *_raws(token)]
            done = end
        self.plain, self.raws = "".join([*plain, self.plain[done:]]), raws + self.raws[done:]

    def _add_parts(self, start: int, end: int, is_plural: bool) -> None:
        """Add the text of a branch or between arguments. Kept words are left to what reads paragraphs."""
        spans = deque(self._kept_spans(start, end))
        done, code = start, ""  # `code` is the element that began at `done`, if its content is not text
        for match in _PARTS.finditer(self.plain, start, end):
            while spans and spans[0][1] <= match.start():
                spans.popleft()
            if spans and spans[0][0] < match.end():
                continue
            name = (match["name"] or "").lower()
            if code:
                if code == name and match["slash"]:
                    self._add_markup("atom", done, match.end())
                    done, code = match.end(), ""
                continue
            kind = self._kind(match, name, is_plural)
            if kind is None:
                continue
            self._add_text(done, match.start())
            done = match.start()
            if kind == "code":
                code = name
                continue
            if kind == "text":
                plain = "'" if match["quote"] else unescape(match.group())
                self.tokens.append(Text(self._raw(done, match.end()), plain))
            else:
                self._add_markup(kind, done, match.end(), BEFORE_WORD if match["key"] else name)
            done = match.end()
        self._add_text(done, end)

    def _kept_spans(self, start: int, end: int) -> list[tuple[int, int]]:
        others = _QUOTE_OR_TAG if self.is_format else _TAG
        without_others = others.sub(lambda other: "\ufffc" * len(other.group()), self.plain[start:end])
        return [(start + first, start + last) for first, last in self.kept.spans(without_others)]

    def _number_placeholders(self) -> None:
        spans = self._kept_spans(0, len(self.plain))
        found = {first: self.plain[first:last] for first, last in spans}
        found |= {at: raw.raw for at, raw in enumerate(self.raws) if isinstance(raw, Markup)}
        firsts = [first for first in sorted(found) if re.fullmatch(f"%{CONVERSION}", found[first])]
        if len(firsts) > 1 and not any(re.match(r"%[0-9]+\$", word) for word in found.values()):
            for number, first in enumerate(firsts, start=1):
                raw, numbered = self.raws[first], f"%\ue000{number}$"
                self.raws[first] = replace(raw, raw=numbered + raw.raw[1:]) if isinstance(raw, Markup) else numbered

    def _kind(self, match: re.Match[str], name: str, is_plural: bool) -> str | None:
        """The kind of a part: of a token, or "code"; None: it is ordinary text."""
        text = match.group()
        if match["space"]:
            return self._kind_of_space(match)
        if match["entity"]:
            return "text" if unescape(text) != text and len(unescape(text)) == 1 else None
        if match["quote"] and text != "''":
            return "atom" if self.is_format else None
        if match["quote"]:
            return "text" if self.doubles_quotes else None
        if match["number"]:
            return "atom" if is_plural else None
        if match["key"]:
            return "atom" if self.keys[text] == 1 else None
        if match["option"]:
            return "atom"
        if match["bar"] or (name in BLOCKS and (match["slash"] or name in self.paired | _ALONE)):
            return "break"
        if text.endswith("/>") or name not in self.paired:
            return "atom"
        if match["slash"]:
            return "close"
        return "code" if name in PROTECTED else "open"

    def _kind_of_space(self, match: re.Match[str]) -> str:
        """
        Text that ends a line, or that has a tab or several spaces after it, is a paragraph. A line that has no end of a
        sentence continues on the next if that begins with a small letter.
        """
        space = match.group()
        if "\n" not in space and "\r" not in space:
            return "fold" if SOFT in space else "break"
        before = self.plain[max(match.start() - 9, 0) : match.start()]
        after = self.plain[match.end() : match.end() + 1]
        is_one = space.replace("\r\n", "\n").count("\n") == 1
        return "fold" if is_one and after.islower() and not _SENTENCE_END.search(before) else "break"

    def _add_text(self, start: int, end: int) -> None:
        for index in range(start, end):
            raw, character = self.raws[index], self.plain[index]
            if raw == character:
                continue
            self._add_as_it_is(start, index)
            self.tokens.append(raw if isinstance(raw, Markup) else Text(raw, character))
            start = index + 1
        self._add_as_it_is(start, end)

    def _add_as_it_is(self, start: int, end: int) -> None:
        if start < end:
            self.tokens.append(_as_it_is(self.plain[start:end]))

    def _add_markup(self, kind: str, start: int, end: int, name: str = "") -> None:
        self.tokens.append(Markup(kind, self._raw(start, end), name))

    def _raw(self, start: int, end: int) -> str:
        return "".join(raw.raw if isinstance(raw, Markup) else raw for raw in self.raws[start:end])


def _raws(token: Token) -> list[str | Markup]:
    if isinstance(token, Markup):
        return [token]
    if token.raw == token.plain:
        return list(token.raw)
    return [token.raw, *[""] * (len(token.plain) - 1)]


def _paired(plain: str) -> set[str]:
    """The names of tags that both begin and end somewhere."""
    names: tuple[set[str], set[str]] = set(), set()
    for match in _TAG.finditer(plain):
        names[bool(match["slash"])].add((match["name"] or "").lower())
    return names[0] & names[1]


def _branches(plain: str) -> Iterator[tuple[int, int, bool]]:
    """
    The markup of arguments with branches, which is all but the text in the branches: where it starts and ends, and
    whether "#" stands for a number in the text after it. Nothing if an argument cannot be read.
    """
    marks: list[tuple[int, int, bool]] = []
    kinds: list[tuple[str, bool]] = []  # of the open arguments: the kind, and whether it is in a plural or is one
    at = 0 if _ARGUMENT.search(plain) else len(plain)
    while at < len(plain):
        if argument := _ARGUMENT.match(plain, at):
            is_plural = argument[1] in ("plural", "selectordinal") or bool(kinds and kinds[-1][1])
            kinds.append((argument[1], is_plural))
            end = argument.end()
        elif kinds and (plain[at] == "}" or (plain[at] == "|" and kinds[-1][0] == "choice")):
            end = at + 1
        elif other := _NO_BRANCH.match(plain, at):
            at = other.end()
            continue
        elif kinds and plain[at] in "{}":
            return
        else:
            at += 1
            continue
        is_choice = kinds[-1][0] == "choice"
        if is_choice and plain[at] == "}":
            kinds.pop()
        elif branch := (_CHOICE if is_choice else _BRANCH).match(plain, end):
            end = branch.end()
        elif plain[at] == "}" and (closing := _CLOSING.match(plain, end)):
            end = closing.end()
            kinds.pop()
        else:
            return
        marks.append((at, end, bool(kinds) and kinds[-1][1]))
        at = end
    if not kinds:
        yield from marks

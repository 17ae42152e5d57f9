"""HTML: translates text and human-readable attributes; everything else stays as it is, even if it is broken."""

import re
from collections import defaultdict
from collections.abc import Sequence
from html import unescape
from html.parser import HTMLParser

from ...errors import UserError
from ...languages import is_translatable
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Markup, Slot, Text, Token, has_language
from .document import Document
from .regions import Region, read_regions

# Elements that may be part of a sentence. All others end a paragraph, even <br>.
_INLINE = {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins"}
_INLINE |= {"mark", "nobr", "q", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "u"}
_ATOMS = {"img", "input", "wbr"}
_VOID = _ATOMS | {"area", "base", "br", "col", "embed", "hr", "link", "meta", "param", "source", "track"}
_FOREIGN = {"math", "svg"}
_PROTECTED_INLINE = {"code", "kbd", "samp", "tt", "var"} | _FOREIGN
PROTECTED = _PROTECTED_INLINE | {"pre", "script", "style", "textarea"}

# Text that makes an element a reference to a footnote.
_FOOTNOTE = {"sup": re.compile(r"[(\[]?\d{1,3}[)\]]?|[*†‡§¶]+"), "a": re.compile(r"\[\d{1,3}\]|[*†‡§¶]+")}
_MAX_FOOTNOTE_TOKENS = 12

_READ_ATTRIBUTES = {"alt", "aria-label", "placeholder", "title"}
_READ_META = {"description", "og:description", "og:title", "twitter:description", "twitter:title"}
_ATTRIBUTE = re.compile(r"""\s*([^\s=>/"'][^\s=>/]*)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?|[/"']""")

_REFERENCE = re.compile("&#(?:[0-9]+|[xX][0-9a-fA-F]+)")  # the semicolon is optional in browsers
_WITHIN_TEXT = re.compile(rf"((?<![^\S\n])[^\S\n]*+\n\s*|{_REFERENCE.pattern})")
# A "&#" without a number, after which Python's parser takes the rest of the page for text.
_NO_REFERENCE = re.compile(r"&#(?!(?:[0-9]+|[xX][0-9a-fA-F]+)[^0-9a-fA-F])")

_CHARSET = re.compile(r"""\b(?:charset|encoding)\s*=\s*["']?([\w-]+)""", re.IGNORECASE)
_MAX_UNCLOSED = 200


def read_html(text: str, kept: KeptWords) -> Document:
    """
    Read a page's text and human-readable attributes.

    Raises:
        UserError: more than 200 tags or comments are not closed.
    """
    document = read_regions([Region(with_protected_merged(html_tokens(text)), write_html)], "".join, kept)
    if not text.isascii():
        return document
    declared = _CHARSET.search(text)
    if declared is None or declared[1].lower() in ("utf-8", "utf8"):
        return document
    # The page would be read in another encoding. References are read alike in all.
    return Document(
        document.paragraphs, lambda found: document.write(found).encode("ascii", "xmlcharrefreplace").decode()
    )


def write_html(text: str, written: dict[str, str]) -> str:
    """Escape `&` and `<`, and write characters that were entities in the source as these entities."""
    escapes = {"&": "&amp;", "<": "&lt;"} | written
    return "".join(escapes.get(character, character) for character in text)


def html_tokens(text: str) -> list[Token]:
    """The tokens of a page or a part of one. Their raw texts, joined, are the input."""
    tokens: list[Token] = []
    is_word = False  # whether there has been a word since the last link began
    for token in (token for part in _Parser(text).parts() for token in _tokens(*part)):
        if (token.kind, token.name) == ("open", "a"):
            if is_word and tokens and (tokens[-1].kind, tokens[-1].name) == ("close", "a"):
                tokens.append(Markup("break", ""))  # adjacent links, as in menus, are not one word
            is_word = False
        is_word |= token.kind == "text" and is_translatable(token.plain) and not is_footnote("a", token.plain)
        tokens.append(token)
    return tokens


class _Parser(HTMLParser):
    """Finds where tags, text and entities begin."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=False)
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._text, self._found, self._unclosed, self._is_text = text, [], 0, False
        self.feed(_NO_REFERENCE.sub("&&", text))  # the same length: only positions are taken from the parser
        self.close()

    def parts(self) -> list[tuple[str, str, str]]:
        """Each part as it is written, with its kind and the name of its tag."""
        found = [(0, "text", ""), *self._found]
        ends = [start for start, _, _ in found[1:]] + [len(self._text)]
        return [(self._text[start:end], kind, name) for (start, kind, name), end in zip(found, ends, strict=True)]

    def _add(self, kind: str, name: str = "") -> None:
        line, column = self.getpos()
        self._found.append((self._lines[line - 1] + column, kind, name))
        self._is_text = False

    def handle_starttag(self, tag, attrs):
        self._add("start", tag)

    def handle_startendtag(self, tag, attrs):
        self._add("start" if tag in _VOID else "atom", tag)

    def handle_endtag(self, tag):
        self._add("end", tag)

    def handle_data(self, data):
        is_tag = len(data) > 1 and data.startswith("<") and not self.cdata_elem
        if is_tag or not self._is_text:  # text may come in parts
            self._add("text")
        self._is_text = not is_tag
        if is_tag:
            self._unclosed += 1  # limited, since each makes the parser read the rest of the page again
            if self._unclosed > _MAX_UNCLOSED:
                raise UserError(f"more than {_MAX_UNCLOSED:,} tags or comments are not closed")

    def handle_entityref(self, name):
        self._add("entity")

    handle_charref = handle_entityref

    def handle_comment(self, data):
        self._add("atom")

    handle_decl = handle_pi = unknown_decl = handle_comment

    def parse_marked_section(self, i, report=1):
        """`<![` begins a comment, as in browsers; the inherited method raises AssertionError before Python 3.13."""
        return self.parse_bogus_comment(i)


def _tokens(raw: str, kind: str, name: str) -> list[Token]:
    if kind == "entity":
        return [Text(raw, unescape(raw))]
    if kind == "text":
        if re.match("</?[A-Za-z]", raw):  # a tag that is not closed
            return [Markup("break", raw)]
        parts = (part for part in _WITHIN_TEXT.split(raw) if part)
        return [Markup("fold", part) if "\n" in part else Text(part, _plain(part)) for part in parts]
    if kind == "end":
        return [Markup("close" if name in _INLINE else "break", raw, name)]
    if kind == "start":
        kind = "open" if name in _INLINE else "atom" if name in _ATOMS else "break"
    return [Markup(kind, raw, name, _slots(raw, name) if name else ())]  # a comment has no attributes


def _plain(part: str) -> str:
    return unescape(part) if _REFERENCE.fullmatch(part) else part


def is_footnote(element: str, text: str) -> bool:
    """Whether an element with this text refers to a footnote."""
    return _FOOTNOTE[element].fullmatch(text.strip()) is not None


def _attributes(raw: str) -> dict[str, tuple[str, int, int]]:
    """The attributes of a start tag: the value, and where it starts and ends in the tag, with its quotes."""
    found: dict[str, tuple[str, int, int]] = {}
    if (name := re.match(r"<[^\s/>]+", raw)) is None:  # Markdown's markup
        return found
    index = name.end()
    while (match := _ATTRIBUTE.match(raw, index)) and match.end() > index:
        index = match.end()
        if match[1] and match[2]:
            value = match[2][1:-1] if match[2][0] in "\"'" else match[2]
            found.setdefault(match[1].lower(), (unescape(value), *match.span(2)))
    return found


def _slots(raw: str, name: str) -> tuple[Slot, ...]:
    """The human-readable attributes of a tag; none in scripts and style sheets."""
    attributes = {} if name in ("script", "style") else _attributes(raw)
    read = _READ_ATTRIBUTES
    if name == "meta" and {attributes.get(key, ("",))[0].lower() for key in ("name", "property")} & _READ_META:
        read = read | {"content"}
    return tuple(
        Slot(start, end, " ".join(value.split()), _quoted)
        for attribute, (value, start, end) in attributes.items()
        if attribute in read and has_language(value)
    )


def _quoted(text: str) -> str:
    return f'"{write_html(text, {chr(34): "&quot;"})}"'


def with_protected_merged(tokens: Sequence[Token]) -> list[Token]:
    """Merge each element that must not be translated, and each reference to a footnote, into one token."""
    kept: list[Token] = []
    ends = _ends(tokens)
    index = 0
    while index < len(tokens):
        token, end = tokens[index], index + 1
        is_start = bool(token.name) and not token.raw.startswith("</")
        is_excluded = is_start and _is_excluded(token)
        is_protected = is_start and (token.name in PROTECTED or _is_footnote(tokens, index, ends[index]))
        if is_excluded or is_protected:
            end = ends[index]
            within = tokens[index + 1 : end - 1]
            is_block = token.kind == "break" and token.name not in _PROTECTED_INLINE
            # Elements within formulas and pictures do not end a paragraph.
            is_block |= token.name not in _FOREIGN and any(each.kind == "break" for each in within)
            raw = "".join(each.raw for each in tokens[index:end])
            token = Markup("break" if is_block else "atom", raw, slots=() if is_excluded else token.slots)
        kept.append(token)
        index = end
    return kept


def _is_footnote(tokens: Sequence[Token], index: int, end: int) -> bool:
    """Whether the element from `index` to `end` refers to a footnote and has nothing else to translate."""
    name = tokens[index].name
    if (
        name not in _FOOTNOTE
        or end - index > _MAX_FOOTNOTE_TOKENS
        or any(each.slots for each in tokens[index + 1 : end])
    ):
        return False
    return is_footnote(name, "".join(each.plain for each in tokens[index:end] if each.kind == "text"))


def _is_excluded(token: Markup) -> bool:
    """Whether a start tag excludes its element and attributes from translation."""
    attributes = _attributes(token.raw)
    is_no = attributes.get("translate", ("",))[0].lower() == "no"
    return is_no or "notranslate" in attributes.get("class", ("",))[0].split()


def _ends(tokens: Sequence[Token]) -> dict[int, int]:
    """
    For each start tag's index, the index after its element's end tag; without an end tag, that of the next break.
    """
    ends: dict[int, int] = {}
    opened: dict[str, list[int]] = defaultdict(list)
    for index, token in enumerate(tokens):
        if not token.name:
            continue
        if token.name in _VOID or token.kind == "atom":  # such as <script src="x"/> in XHTML
            ends[index] = index + 1
        elif not token.raw.startswith("</"):
            opened[token.name].append(index)
        elif opened[token.name]:
            ends[opened[token.name].pop()] = index + 1
    next_break = len(tokens)
    for index in range(len(tokens) - 1, -1, -1):
        ends.setdefault(index, next_break)
        if tokens[index].kind == "break":
            next_break = index
    return ends

"""HTML: translates text and human-readable attributes; everything else stays as it is, even if it is broken."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import unescape as _unescape
from html.parser import HTMLParser
from itertools import groupby, takewhile

from ...errors import UserError
from ...model.kept_words import KeptWords
from ...model.text import is_translatable
from ..translate.marked_text import Markup, Slot, Text, Token, has_language, split_white_space
from .document import Document
from .regions import Region, read_regions

# Elements that end a paragraph: those that are not phrasing content of the HTML standard (as in the table of
# html-validate 10.17.0), except old ones that its style sheet does not display as blocks; and <br>. All others may be
# part of a sentence, also custom and unknown elements, which browsers display in their line.
_BLOCK_NAMES = (
    "address article aside blockquote body br caption center col colgroup dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html legend li listing main "
    "menu nav noembed noframes ol optgroup option p plaintext pre search section style summary table tbody td tfoot th "
    "thead title tr ul xmp"
)
BLOCKS = frozenset(_BLOCK_NAMES.split())
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "keygen", "link", "meta", "param", "source"}
_VOID |= {"track", "wbr"}
# Phrasing content whose own text is shown apart from the sentence around it, or only in place of the element.
_APART = {"audio", "canvas", "datalist", "iframe", "meter", "noscript", "object", "progress", "select", "template"}
_APART |= {"video"}
_OPTIONS = {"optgroup", "option"}
_CONTROLS = {"button", "label"}
_CUSTOM = re.compile(r"[a-z][\w.]*-[\w.-]*")
_RUBY, _ANNOTATIONS = {"rb", "ruby"}, {"rp", "rt", "rtc"}
_FOREIGN = {"math", "svg"}
_PROTECTED_INLINE = {"code", "kbd", "samp", "tt", "var"} | _FOREIGN
PROTECTED = _PROTECTED_INLINE | {"pre", "script", "style", "textarea"}

# Text that makes an element a reference to a footnote.
_FOOTNOTE = {
    # Also what MediaWiki puts in brackets: [a], [note 1], [citation needed].
    "sup": re.compile(r"\(?\d{1,3}(?:\s?[,;–-]\s?\d{1,3})*\)?|\[[^\[\]]{1,40}\]|[*†‡§¶]+"),  # noqa: RUF001
    "a": re.compile(r"\[\d{1,3}\]|[*†‡§¶]+"),
}
# The text of a reference to a footnote where the element declares that it is one, as EPUB 3 (epub:type) and DPUB-ARIA
# (role) define, or where it is a raised link to a place in a page.
_DECLARED_FOOTNOTE = re.compile(r"[\W_]*(?:(?:[^\W\d_]{1,20}\.?\s)?\d+[a-z]?|[a-z]|[ivxlcdm]+)?[\W_]*", re.IGNORECASE)
_DECLARATIONS = {"noteref", "doc-noteref"}
_LONGEST_MARK = 6
_MAX_FOOTNOTE_TOKENS = 30

_READ_ATTRIBUTES = {"alt", "aria-label", "placeholder", "title"}
_READ_META = {"description", "og:description", "og:title", "twitter:description", "twitter:title"}
_ATTRIBUTE = re.compile(r"""\s*([^\s=>/"'][^\s=>/]*)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?|[/"']""")

_REFERENCE = re.compile("&#(?:[0-9]+|[xX][0-9a-fA-F]+);?")  # the semicolon is optional in browsers
_WITHIN_TEXT = re.compile(rf"((?<![^\S\n])[^\S\n]*+\n\s*|{_REFERENCE.pattern})")
# A "&#" without a number, after which Python's parser takes the rest of the page for text; or with a long one.
_NO_REFERENCE = re.compile(r"&#(?!(?:[0-9]{1,9}|[xX][0-9a-fA-F]+)[^0-9a-fA-F])")
# Of a decimal reference, eight digits decide, since no character has so many. int() refuses some 4,300.
_DIGITS = re.compile("&#0*([0-9]{1,8})[0-9]*")

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


def unescape(text: str) -> str:
    """A text with the characters that its references stand for, also those with thousands of digits."""
    return _unescape(_DIGITS.sub(r"&#\1", text))


def html_tokens(text: str) -> list[Token]:
    """The tokens of a page or a part of one. Their raw texts, joined, are the input."""
    return [token for part in _Parser(text).parts() for token in _tokens(*part)]


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
        return [Markup("break" if name in BLOCKS else "atom" if name in _VOID else "close", raw, name)]
    if kind == "start":
        kind = "break" if name in BLOCKS else "atom" if name in _VOID else "open"
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
    """
    Merge each element that must not be translated, or not with its sentence, and each reference to a footnote, into one
    token. Drop the readings of ruby, since a translation is read otherwise. Separate links and controls that are not
    one sentence.
    """
    return list(_parted(_without_ruby(_merged(tokens))))


def _merged(tokens: Sequence[Token]) -> Iterator[Token]:
    ends = _ends(tokens)
    index = 0
    while index < len(tokens):
        token, end = tokens[index], index + 1
        if token.name and not token.raw.startswith("</"):
            whole = tokens[index : ends[index]]
            if _is_excluded(token) or token.name in PROTECTED:
                is_block = token.kind == "break" and token.name not in _PROTECTED_INLINE
                # Elements within formulas and pictures do not end a paragraph.
                is_block |= token.name not in _FOREIGN and any(inner.kind == "break" for inner in whole[1:-1])
                slots = () if _is_excluded(token) else token.slots
                token = Markup("break" if is_block else "atom", "".join(inner.raw for inner in whole), slots=slots)
                end = ends[index]
            elif _is_footnote(tokens, index, ends[index]):
                token, end = _atom(whole), ends[index]
            elif _is_apart(whole):
                runs = groupby(whole, lambda part: part.kind in ("text", "fold"))
                token, end = _atom(_with_slots(list(run)) for _, run in runs), ends[index]
        yield replace(token, kind="break") if token.name in _APART else token
        index = end


def _atom(tokens: Iterable[Token]) -> Markup:
    """These tokens as one, with their slots."""
    raw, slots = "", list[Slot]()
    for token in tokens:
        slots += [replace(slot, start=slot.start + len(raw), end=slot.end + len(raw)) for slot in token.slots]
        raw += token.raw
    return Markup("atom", raw, slots=tuple(slots))


def _is_apart(tokens: Sequence[Token]) -> bool:
    """Whether these are an element whose text is apart from the sentence around it, and contains no markup."""
    return tokens[0].name in _APART and all(
        token.kind in ("atom", "text", "fold") or token.name in _OPTIONS for token in tokens[1:-1]
    )


def _with_slots(tokens: Sequence[Token]) -> Markup:
    """Adjacent texts and line ends, or another token, as one token, in which the words are a slot."""
    before, words, _ = split_white_space(tokens)
    plain = " ".join("".join(word.plain if word.kind == "text" else " " for word in words).split())
    if not has_language(plain):
        return _atom(tokens)
    start = sum(len(token.raw) for token in before)
    end = start + sum(len(word.raw) for word in words)
    return Markup("atom", "".join(token.raw for token in tokens), slots=(Slot(start, end, plain, _written),))


def _written(text: str) -> str:
    return write_html(text, {})


def _without_ruby(tokens: Iterable[Token]) -> Iterator[Token]:
    """Drop the tags of ruby, and its readings, whose end tags are optional."""
    annotation = ""  # the name of the open one
    for token in tokens:
        if token.kind == "break" or token.name in _RUBY:
            annotation = ""
        elif token.kind == "open" and token.name in _ANNOTATIONS and annotation != "rtc":  # an rtc contains readings
            annotation = token.name
        is_dropped = annotation or token.name in _RUBY | _ANNOTATIONS
        yield Markup("dropped", token.raw) if is_dropped else token
        if token.kind == "close" and token.name == annotation:
            annotation = ""


def _parted(tokens: Iterable[Token]) -> Iterator[Token]:
    """Put breaks between links that touch, as in menus, and between controls with no word between them, as in forms."""
    last, is_word = "", False  # the link or control before this token; whether there has been a word since one began
    for token in tokens:
        is_link, is_control = token.name == "a", token.name in _CONTROLS or _CUSTOM.fullmatch(token.name) is not None
        if token.kind == "open" and (is_link or is_control):
            if last and (is_link if last == "a" else is_control):
                yield Markup("break", "")
            last, is_word = "", False
        elif token.kind == "close" and (is_link or is_control):
            last = token.name if is_word else ""
        elif last == "a" or token.kind == "break" or (token.kind == "text" and token.plain.strip()):
            last = ""
        is_word |= token.kind == "text" and is_translatable(token.plain)
        yield token


def _is_footnote(tokens: Sequence[Token], index: int, end: int) -> bool:
    """
    Whether the element from `index` to `end` refers to a footnote. Three kinds do: elements with the text of one;
    elements whose text may be one, if they declare it or are raised links to a place in a page; and short links to a
    place in a page, without letters, directly after a word.
    """
    token = tokens[index]
    if token.kind == "break" or end - index > _MAX_FOOTNOTE_TOKENS:
        return False
    text = "".join(part.plain for part in tokens[index:end] if part.kind == "text")
    if token.name in _FOOTNOTE and is_footnote(token.name, text):
        return True
    attributes = {name: value for name, (value, _, _) in _attributes(token.raw).items()}
    is_declared = _DECLARATIONS & {*attributes.get("epub:type", "").split(), *attributes.get("role", "").split()}
    if is_declared or (token.name in _FOOTNOTE and _is_raised_link(tokens[index:end])):
        return _DECLARED_FOOTNOTE.fullmatch(text.strip()) is not None
    if token.name != "a" or "#" not in attributes.get("href", "") or not 0 < len(text) <= _LONGEST_MARK:
        return False
    if any(character.isalpha() or character.isspace() for character in text):
        return False
    near = tokens[max(index - 5, 0) : index]
    before = next((neighbour for neighbour in reversed(near) if neighbour.kind not in ("open", "close")), token)
    last = before.plain[-1:] if before.kind == "text" else " "
    return not last.isspace() and unicodedata.category(last) not in ("Pd", "Ps")


def _is_raised_link(tokens: Sequence[Token]) -> bool:
    """Whether these are an element with a link to a place in a page, and all its text is raised."""
    before_text = takewhile(lambda token: token.kind != "text" or not token.plain.strip(), tokens)
    is_link = any("#" in _attributes(token.raw).get("href", ("",))[0] for token in tokens if token.name == "a")
    return is_link and any(token.name == "sup" for token in before_text)


def _is_excluded(token: Markup) -> bool:
    """Whether a start tag excludes its element and attributes from translation."""
    attributes = _attributes(token.raw)
    is_no = attributes.get("translate", ("",))[0].lower() == "no"
    return is_no or "notranslate" in attributes.get("class", ("",))[0].split()


def _ends(tokens: Sequence[Token]) -> dict[int, int]:
    """{index of a start tag: index after the element's end tag or, if it has none, of the next break}"""
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

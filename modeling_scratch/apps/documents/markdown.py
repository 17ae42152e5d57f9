"""Markdown: translates paragraphs, headings, lists, quotes and tables; everything else stays as it is."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token as Block

from ...model.kept_words import KeptWords
from ...model.text import is_translatable
from ..translate.marked_text import KEPT_WORD, Markup, Slot, Text, Token, has_language
from .dialects import MAX_DEPTH, PAIRS, add_dialects
from .document import Document
from .html import html_tokens, is_footnote, with_protected_merged, write_html
from .regions import Region, read_regions

_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\n(?!\s*\n)(.*?\n)??(\1|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_ESCAPED = re.compile(r"[\\`*\[\]<]|(?<![^\W_])_|_(?![^\W_])|~(?=~)|(?<=~)~|&(?=#?\w+;)")
# At the beginning of a line: text that may mark a block, up to where a backslash prevents it; and text that does.
_BEFORE_BACKSLASH = re.compile(r"\d{1,9}(?=[.)](?:\s|$))|(?=[-+>#=|])")
_BLOCK_MARKER = re.compile(r"\d{1,9}[.)](?:\s|$)|(?:[-+]|#{1,6})(?:\s|$)|>|[-=]+[ \t]*(?:\n|$)")
# At the end of a text, but not part of it: attributes and ids.
_BESIDE_TEXT = re.compile(r"(?<=\s)(?:\{:?[ \t]*[#.][^{}\n]*\}|\[#[\w-]+\]|\^[\w-]+)\Z")
_ATTRIBUTES = re.compile(r"\{[^{}]*\}")  # directly after a link, a picture, code or emphasis
_PLAIN_LABEL = re.compile(r"[^\\`*_\[\]<>&!~|]+")
_TABLES = ("layout", "table_open", "table_close")
_CAPTION = re.compile(r"[Tt]able:\s+")  # of Pandoc, before or after a table
_DELIMITERS = ("emphasis", "strikethrough")
_SPANS = ("autolink", "backticks", "emphasis", "image", "link", "strikethrough")
_READABLE = re.compile(r"""(?<=\s)(?:alt|caption|title)=("[^"\\\n]*")""")
_READABLE_OF_COMPONENTS = re.compile(r"""(?<=\s)(?:alt|caption|label|placeholder|title)=("[^"\\\n]*")""")
_TITLE = re.compile(r"""\s("[^"\\&]*"|'[^'\\&]*'|\([^()\\&]*\))\s*\)\Z""")


def read_markdown(text: str, kept: KeptWords) -> Document:
    """
    Read CommonMark with tables, strikethrough and what `dialects` adds. Titles, and descriptions of images, are
    translated too.

    Raises:
        UserError: blocks are nested more than 50 deep.
    """
    begin = match.end() if (match := _FRONT_MATTER.match(text)) else 0
    regions, joined = _Reader(text, begin).read()
    return read_regions(regions, lambda found: joined(iter(found)), kept)


def write_markdown(text: str, written: dict[str, str]) -> str:
    """Escape markup, and write characters that were entities in the source as these entities."""
    escaped = {match.start() for match in _ESCAPED.finditer(text)}
    return "".join(
        written.get(character) or "\\" * (index in escaped) + character for index, character in enumerate(text)
    )


def write_cell(text: str, written: dict[str, str]) -> str:
    """`write_markdown` for table cells."""
    return write_markdown(text, written | {"|": "\\|"})


def _begin(source: str, written: str) -> str:
    """
    Escape the beginning of a text where it would start a list, heading or quote; not if the source begins with the same
    marker, as in the heading "## 1. Begin".
    """
    before, marker, known = _BEFORE_BACKSLASH.match(written), _BLOCK_MARKER.match(written), _BLOCK_MARKER.match(source)
    is_known = known is not None and marker is not None and known.group() == marker.group()
    if before is None or is_known or (_BEFORE_BACKSLASH.match(source) and marker is None):
        return written
    return f"{written[: before.end()]}\\{written[before.end() :]}"


_Joined = Callable[[Iterator[str]], str]  # takes the next regions' translations, returns a part of the text


def _nothing(_: Iterator[str]) -> str:
    return ""


class _Reader:
    """
    Finds the regions of a text. The parser reports the lines of each block. It reports no positions within a block, so
    its rules are wrapped to note where they apply.
    """

    def __init__(self, text: str, begin: int):
        self._enter(text, begin)
        self.references: dict = {}
        options = {"strikethrough_single_tilde": True}  # which are subscripts elsewhere
        self.parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
        add_dialects(self.parser)
        # Addresses of every kind are accepted, since nothing is rendered.
        self.parser.validateLink = lambda url: True
        self.parser.normalizeLink = self.parser.normalizeLinkText = lambda url: url
        # Blocks are parsed first. Text is not joined, so that each token comes from one rule.
        self.parser.disable(["inline", "text_join", "fragments_join"])
        for rule in self.parser.inline.ruler.get_active_rules():
            if rule != "text":
                self._watch(rule)
        self.found: list[tuple[str, int, int, int, list[Block]]] = []  # rule, start, end, end of label, tokens

    def _enter(self, text: str, begin: int) -> None:
        self.text, self.begin = text, begin
        # Where each line starts.
        self.lines = [begin, *(match.end() for match in re.compile("\n").finditer(text, begin)), len(text) + 1]

    def _watch(self, name: str) -> None:
        """Note where a rule applies."""
        ruler = self.parser.inline.ruler
        rule = ruler.getRules("")[ruler.get_active_rules().index(name)]

        def watched(state: StateInline, silent: bool) -> bool:
            if silent:
                return rule(state, silent)
            start, before = state.pos, len(self.found)
            # Delimiters first turn pending text into a token.
            count = len(state.tokens) + (name in _DELIMITERS and bool(state.pending))
            label = -1
            if name == "link" and state.src[start] == "[":
                label = state.md.helpers.parseLinkLabel(state, start, True)
            applies = rule(state, silent)
            if applies:
                if name == "image":  # positions within its label are relative to the label
                    del self.found[before:]
                self.found.append((name, start, state.pos, label, state.tokens[count:]))
            return applies

        ruler.at(name, watched)

    def read(self) -> tuple[list[Region], _Joined]:
        """The regions of the text, and a function that returns the text with their translations."""
        text, parts = self.text, list(self._parts())

        def joined(found: Iterator[str]) -> str:
            pieces, done = [], 0
            for start, end, _, write in parts:
                pieces += [text[done:start], write(found)]
                done = end
            return "".join(pieces) + text[done:]

        return [region for _, _, regions, _ in parts for region in regions], joined

    def _parts(self) -> Iterator[tuple[int, int, list[Region], _Joined]]:
        """The parts of the text that are written anew: start, end, regions, and the function that writes the part."""
        for start, end, part in self._regions():
            if isinstance(part, Region):
                yield start, end, [part], next
            else:
                yield start, end, *self._cells(part, self.text[start : self.begin + part.meta["begin"]])

    def _cells(self, block: Block, before: str) -> tuple[list[Region], _Joined]:
        """A table that is laid out by its cells, and what precedes each of its lines."""
        table, outer = block.meta["table"], (self.text, self.begin)
        rows = []
        for row in table.rows:
            rows.append([])
            for cell in row:
                self._enter(cell, 0)
                rows[-1].append(self.read() if cell else ([], _nothing))
        self._enter(*outer)

        def joined(found: Iterator[str]) -> str:
            lines = table.write([[write(found) for _, write in row] for row in rows])
            return "\n".join((before + line).rstrip() for line in lines)

        return [region for row in rows for regions, _ in row for region in regions], joined

    def _regions(self) -> Iterator[tuple[int, int, Region | Block]]:
        """The start and end of each region in the text, and the region, or the token of a table, in document order."""
        blocks, env = self._blocks()
        row, column, is_cell, is_near_table = 0, 0, False, False
        for block, after in zip_longest(blocks, blocks[2:]):
            if block.type != "inline":
                is_near_table = block.type in _TABLES or (is_near_table and block.type == "paragraph_open")
            if block.type == "tr_open":
                row, column = block.map[0], 0
            elif block.type in ("td_open", "th_open", "td_close", "th_close"):
                is_cell = block.nesting > 0
            elif block.type == "html_block":
                content = block.content.rstrip("\n")
                if where := self._where(content, block.map[0]):
                    tokens = with_protected_merged(list(self._html(content, where)))
                    yield where[0], where[-1], Region(tokens, write_html)
            elif block.type == "layout":
                yield self.lines[block.map[0]], self.lines[block.map[1]] - 1, block
            elif block.type == "line":
                yield self._line(block.meta, env)
            elif block.type == "inline" and block.content:
                where = self._cell(block.content, row, column) if is_cell else self._where(block.content, block.map[0])
                if where is None:
                    continue
                column = where[-1]
                tokens = self._inline(block.content, where, env)
                is_near_table |= after is not None and after.type in _TABLES
                if is_near_table and (caption := _CAPTION.match(block.content)):
                    rest = self._inline(block.content[caption.end() :], where[caption.end() :], env)
                    tokens = [Markup("break", self.text[where[0] : where[caption.end()]]), *rest]
                is_defined = after and (after.type, after.markup) == ("item_open", ":")
                if is_defined and after.map[0] == block.map[1]:  # each line is a term
                    tokens = [replace(token, kind="break") if token.kind == "fold" else token for token in tokens]
                yield where[0], where[-1], Region(tokens, write_cell if is_cell else write_markdown, _begin)

    def _blocks(self) -> tuple[list[Block], dict]:
        """The blocks of the text, and their references. In MDX, indented text is not code."""
        env: dict = {"lines before": self.text.count("\n", 0, self.begin), "references": self.references}
        # The parser would replace these characters; spaces keep the length.
        text = self.text[self.begin :].replace("\r", " ").replace("\0", " ")
        nesting = self.parser.options["maxNesting"]
        self.parser.options["maxNesting"] = MAX_DEPTH + 1
        blocks = self.parser.parse(text, env)
        if "mdx" in env and any(block.type == "code_block" for block in blocks):
            blocks = self.parser.disable("code").parse(text, env)
        self.parser.options["maxNesting"] = nesting  # within text, where more would take more time
        return blocks, env

    def _line(self, meta: dict, env: dict) -> tuple[int, int, Region]:
        """A line that is a block: its markup, and the text within it."""
        (start, end), (first, last) = (tuple(self.begin + place for place in meta[name]) for name in ("range", "text"))
        content = self.text[first:last].strip()
        first = self.text.find(content, first)
        last = first + len(content)
        before, after = self.text[start:first], self.text[last:end]
        text = self._inline(content, list(range(first, last + 1)), env) if content else []
        tokens = [Markup("break", before, slots=_readable(before)), *text, Markup("break", after)]
        return start, end, Region(tokens, write_markdown)

    def _where(self, content: str, first: int) -> list[int] | None:
        """The position in the text of each of a block's characters, and of its end; None if unknown."""
        where: list[int] = []
        for number, line in enumerate(content.split("\n"), start=first):
            start, end = self.lines[number], self.lines[number + 1] - 1
            shown = line.lstrip()
            column = self.text[start:end].replace("\r", " ").rfind(shown)
            if column < 0:
                return None
            begin = start + column
            where += [begin] * (len(line) - len(shown)) + list(range(begin, begin + len(shown) + 1))
        return where

    def _cell(self, content: str, row: int, after: int) -> list[int] | None:
        """The same for a table cell: its first occurrence in its row after a position in the text."""
        written = content.replace("|", "\\|")
        begin = self.text.find(written, max(after, self.lines[row]), self.lines[row + 1])
        if begin < 0:
            return None
        where = [begin]
        for character in content:
            where.append(where[-1] + 1 + (character == "|"))
        return where

    # Tokens of a block

    def _inline(self, content: str, where: list[int], env: dict) -> list[Token]:
        """The tokens of a block of text. `where` has the position of each of its characters."""
        self.found = []
        self.parser.inline.parse(content, self.parser, env, [])
        return with_protected_merged(list(self._tokens(content, where)))

    def _html(self, content: str, where: list[int]) -> Iterator[Token]:
        """The tokens of an HTML block, including markers of quotes and lists between its lines."""
        start = 0
        for token in html_tokens(content):
            end = start + len(token.raw)
            first = where[start]
            if token.slots:
                moved = (
                    replace(slot, start=where[start + slot.start] - first, end=where[start + slot.end] - first)
                    for slot in token.slots
                )
                token = replace(token, slots=tuple(moved))
            yield replace(token, raw=self.text[first : where[end]])
            start = end

    def _tokens(self, content: str, where: list[int]) -> Iterator[Token]:
        """The tokens of a block of text."""

        def raw(start: int, end: int) -> str:
            return self.text[where[start] : where[end]]

        marks: list[tuple[int, int, list[Token]]] = []
        if match := _BESIDE_TEXT.search(content):
            marks.append((*match.span(), [Markup("break", raw(*match.span()))]))
        for name, start, end, label, blocks in self.found:
            text = content[start + 1 : label]
            if name == "pair":
                match = PAIRS.match(content, start, end)
                first, last = match.span(match.lastindex)
                opening = raw(start, first)
                marks.append((start, first, [Markup("open", opening, opening, is_optional=opening[0] != "[")]))
                start, tokens = last, [Markup("close", raw(last, end), opening)]
            elif name != "link":
                tokens = _tokens_of(name, raw(start, end), blocks)
            elif text[:1] == "^" or is_footnote("a", text) or not is_translatable(text):
                tokens = [Markup("atom", raw(start, end))]
            else:
                closing = raw(label, end)
                if closing in ("]", "][]"):  # the text is also the reference's label, which must stay
                    closing = f"][{' '.join(text.split())}]"
                marks.append((start, start + 1, [Markup("open", "[", "link")]))
                start, tokens = label, [Markup("close", closing, "link", _title(closing))]
            is_span = name in _SPANS and tokens[-1].kind in ("atom", "close")
            if is_span and (attributes := _ATTRIBUTES.match(content, end)):
                tokens[-1] = replace(tokens[-1], raw=tokens[-1].raw + raw(*attributes.span()))
                end = attributes.end()
            marks.append((start, end, tokens))
        done = 0
        for start, end, tokens in sorted(marks, key=lambda mark: mark[0]):
            if start >= done:
                yield from self._literal(content, where, done, start)
                yield from tokens
                done = end
        yield from self._literal(content, where, done, len(content))

    def _literal(self, content: str, where: list[int], start: int, end: int) -> Iterator[Text]:
        """Text without markup. Each | is separate, since a table cell has it as `\\|`."""
        for match in re.finditer(r"[^|]+|\|", content[start:end]):
            first, last = start + match.start(), start + match.end()
            yield Text(self.text[where[first] : where[last]], match.group())


def _tokens_of(name: str, raw: str, blocks: list[Block]) -> list[Token]:
    """The tokens of text parsed by a rule other than that for links."""
    types = {block.type for block in blocks}
    if name in _DELIMITERS:
        return _delimiters(blocks)
    if "softbreak" in types:
        return [Markup("fold", raw, is_before_letter=True)]
    if "hardbreak" in types:
        return [Markup("break", raw)]
    if "text_special" in types:
        special = next(block for block in blocks if block.type == "text_special")
        return [Text(raw, special.content)]
    if name == "html_inline":
        return html_tokens(raw)
    if name == "kept":
        return [_kept(raw)]
    if name == "image":
        return [Markup("atom", raw, slots=_description(raw, blocks[-1].content) + _title(raw))]
    return [Markup("atom", raw)] if types & {"code_inline", "link_open"} else [Text(raw, raw)]


def _kept(raw: str) -> Markup:
    """Markup that stays as it is: a component's tag or something between words."""
    if not raw.startswith("<"):
        slots = _readable(raw)
        return Markup("atom", raw, "" if slots else KEPT_WORD, slots)
    kind = "close" if raw.startswith("</") else "atom" if raw.endswith("/>") else "open"
    return Markup(kind, raw, re.match(r"</?([\w.]+)", raw)[1], _readable(raw))


def _readable(raw: str) -> tuple[Slot, ...]:
    """The slots of a template's, container's or component's readable attributes, and of a footnote in the text."""
    if raw.startswith("^["):
        return _plain_label(raw, 2, len(raw) - 1)
    if not raw.startswith(("<", "{{", "{%", ":::")):
        return ()
    tag = re.split(r"(?<=[%}]\})", raw, maxsplit=1)[0] if raw.startswith("{") else raw
    pattern = _READABLE_OF_COMPONENTS if raw.startswith("<") else _READABLE
    return tuple(_quoted(match) for match in pattern.finditer(tag) if has_language(match[1]))


def _delimiters(blocks: list[Block]) -> list[Token]:
    """The tokens of asterisks, underscores and tildes, which are delimiters or text."""
    tokens: list[Token] = []
    for block in blocks:
        if block.nesting:
            kind = "open" if block.nesting > 0 else "close"
            tokens.append(Markup(kind, block.markup, block.type.rpartition("_")[0] + block.markup, is_optional=True))
        elif block.content:
            tokens.append(Text(block.content, block.content))
    return tokens


def _description(raw: str, label: str) -> tuple[Slot, ...]:
    """The slot of an image's description, if it is plain text and not also the label of a reference."""
    end = 2 + len(label)
    is_name = raw[end + 1 :] in ("", "[]")
    return () if is_name or raw[2:end] != label else _plain_label(raw, 2, end)


def _plain_label(raw: str, start: int, end: int) -> tuple[Slot, ...]:
    """The slot of text between brackets, if it is plain text."""
    label = raw[start:end]
    if not _PLAIN_LABEL.fullmatch(label) or not has_language(label):
        return ()
    return (Slot(start, end, " ".join(label.split()), lambda text: write_markdown(text, {})),)


def _title(raw: str) -> tuple[Slot, ...]:
    """The slot of the title in `](address "title")`."""
    match = _TITLE.search(raw)
    return (_quoted(match),) if match and has_language(match[1]) else ()


def _quoted(match: re.Match) -> Slot:
    """The slot of text in quotation marks or parentheses."""

    def write(text: str) -> str:
        return '"' + re.sub(r'["\\]', r"\\\g<0>", text) + '"'

    return Slot(*match.span(1), " ".join(match[1][1:-1].split()), write)

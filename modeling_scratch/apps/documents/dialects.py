"""Markdown beyond CommonMark: what dialects put on lines of their own and into text, as rules for the parser."""

import re
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

from ...errors import UserError
from .tables import layout_table

# None of these patterns reads past the next beginning of what it matches, so that they take linear time.
_LINE_END = r"\n(?![ \t]*\n)"  # within a paragraph
_TEMPLATE = r"(?:\{\{(?:(?!\{\{|\}\})(?s:.))*\}\}+|\{%(?:(?!\{%|%\})(?s:.))*%\})"  # Hugo, Jinja, Liquid, Vue
_INNER = rf"\{{(?>[^{{}}\n]+|{_LINE_END}|\{{[^{{}}]*\}})*+\}}"
_BRACES = rf"\{{(?>[^{{}}\n]+|{_LINE_END}|{_INNER})*+\}}"  # attributes, expressions of MDX
# Elements whose content is not Markdown.
_LIQUID = (
    r"\{%-?[ \t]*(comment|highlight|raw|verbatim)\b(?:(?!\{%-?[ \t]*(?:end)?\1\b)(?s:.))*"
    r"\{%-?[ \t]*end\1[ \t]*-?%\}"
)
_HUGO = (
    r"\{\{[<%][ \t]*(highlight|katex|math|mermaid)\b(?:(?!\{\{[<%][ \t]*/?[ \t]*\2\b)(?s:.))*"
    r"\{\{[<%][ \t]*/[ \t]*\2[ \t]*[>%]\}\}"
)
# Components of MDX and Vue; names in capitals are HTML.
_VALUE = rf"\"[^\"\n]*\"|'[^'\n]*'|{_BRACES}"
_COMPONENT = rf"</?[A-Z](?=\w*[a-z])[\w.]*+(?:\s+(?:[\w:.@-]+(?:=(?:{_VALUE}))?|{_BRACES}))*+\s*+/?>"
_MARKDOWN_IN_HTML = r"<\w+(?=[^<>\n]*\smarkdown\b)[^<>\n]*>"
# LaTeX: between $ on one line without an ordinary word, which distinguishes it from sums of money; between $$ with a
# \, ^, _ or =; between \( and \) or \[ and \], which may be escaped brackets, with one of these or without a word.
_WORD = r"(?<![^\s$])[^\W\d_]{2,}(?![^\s$.,;:!?])"
_FORMULA = (
    rf"(?<![\\$\w])(?:\$(?=[^\s$])(?:(?!{_WORD})[^$`\n])*(?<![\s\\$])\$(?![\w$])|\$\$(?=[^$`]*[\\^_=])[^$`]+\$\$)"
    rf"|\\{{1,2}}\((?:(?!{_WORD}|\\[()])(?s:.))*\\{{1,2}}\)"
    r"|\\{1,2}\[(?:(?![^\W\d_]{2}|\\[\[\]])(?s:.))*\\{1,2}\]"
    r"|\\{1,2}[(\[](?=(?:(?!\\[()\[\]])(?s:.))*?(?:[\^_=]|\\[A-Za-z]))(?:(?!\\[()\[\]])(?s:.))*\\{1,2}[)\]]"
)
_ENVIRONMENTS = r"((?:align|alignat|equation|eqnarray|flalign|gather|multline)\*?)"

# In text: kept as it is.
_KEPT = re.compile(
    rf"{_LIQUID}|{_HUGO}|(?<![#$%@])(?:{_TEMPLATE}|{_BRACES})|{_COMPONENT}|{_FORMULA}"  # ${x} is a kept word
    r"|!\[\[[^\[\]\n]+\]\]|\[\[[^\[\]\n|]+\]\](?![(\[])"  # embedded pages, wiki links
    r"|\[-?@[^\[\]]+\](?![(\[])"  # citations
    r"|\^\[[^\[\]]+\]"  # footnotes
    r"|\[\s*\]\{[^{}]*\}"  # anchors of Pandoc
    r"|(?<![\w:]):(?=[\w+-]*[A-Za-z+-])[\w+-]+:(?![\w:])"  # icons
    r"|(?<![\w+])\+\+[\w-]+(?:\+[\w-]+)*\+\+(?![\w+])"  # keys
    r"|(?<![\w%])%%(?:(?!%%)(?s:.))+%%"  # comments of Obsidian
)
# In text: around words, which the group contains. These begin and end before emphasis does.
PAIRS = re.compile(
    r"(?<![A-Za-z0-9_=)\]])==(?=[^\s=])((?:(?!==)[^*]|\*+(?:(?!==)[^*])+\*+)+)(?<=[^\s=])==(?![A-Za-z0-9_=])"
    r"|\^([^\s^*\[\]]+)\^"
    r"|\[\[[^\[\]\n|]+\|([^\[\]\n]*)\]\]"
    r"|\[((?:[^\[\]]++|\[[^\[\]]*\])++)\]\{[^{}]*\}"
)
# Lines that are blocks, by their first character. "text" is translated. A "line" ends a paragraph before it; a "begin"
# does not; a "body" is followed by indented blocks; an "item" is followed by text and indented blocks.
_OPTIONS = r"(?:\n[ \t]*:[\w-]+:.*)*"
_LINES: dict[str, list[tuple[str, str]]] = {
    # Containers, of Docusaurus with a title in brackets; directives; definitions of terms.
    ":": [
        ("line", rf":{{3,}}[ \t]*[\w-]+\[(?P<text>[^\[\]\n]*)\].*{_OPTIONS}"),
        ("line", rf":{{3,}}[ \t]*(?:\{{[^{{}}\n]*\}}|[\w.-]+)?(?P<text>.*){_OPTIONS}"),
        ("line", r"::[\w-]+(?:\[[^\[\]\n]*\])?(?:\{[^{}\n]*\})?"),
        ("item", r":[ \t]+(?=\S)"),
    ],
    "/": [("line", r"/{3,}[ \t]*(?:[\w-]+[ \t]*(?:\|(?P<text>.*))?)?(?:\n {4}[ \t]*[\w-]+:.*)*")],
    # Admonitions and tabs of Python-Markdown, tabs of VitePress, definitions of Pandoc.
    "!": [("body", r'!!![ \t]*[\w-]+(?:[ \t]+[\w-]+)*(?:[ \t]+"(?P<text>.*)")?')],
    "?": [("body", r'\?\?\?\+?[ \t]*[\w-]+(?:[ \t]+[\w-]+)*(?:[ \t]+"(?P<text>.*)")?')],
    "=": [("body", r'===[+!]{0,2}[ \t]+"(?P<text>.*)"'), ("line", r"==[ \t]+(?P<text>\S.*)")],
    "~": [("item", r"~[ \t]+(?=\S)")],
    # Alerts and callouts; footnotes; tables of contents.
    "[": [
        ("begin", r"\[!\w+(?:\|[^\[\]\n]*)?\][-+]?(?![(\[])(?P<text>.*)"),
        ("item", r"\[\^[^\[\]\s]+\]:[ \t]*"),
        ("line", r"\[\[?_?(?i:toc)_?\]\]?"),
    ],
    "*": [("line", r"\*\[[^\[\]\n]+\][ \t]?:(?P<text>.*)")],
    "{": [("line", rf"(?:{_LIQUID}|{_HUGO}|(?:(?:{_TEMPLATE}|{_BRACES})[ \t]*)+)")],
    "<": [("line", rf"(?:(?:{_COMPONENT}|</?>|{_MARKDOWN_IN_HTML})[ \t]*)+"), ("line", r"<<<[ \t]*\S.*")],
    "$": [("line", rf"\$\$(?:(?!\$\$)(?:.|{_LINE_END}))+\$\$[ \t]*(?:[({{].*)?")],
    "\\": [
        ("line", rf"\\{{1,2}}\[[ \t]*\n(?:(?!\\[\[\]])(?:.|{_LINE_END}))*\\{{1,2}}\]"),
        ("line", rf"\\begin\{{{_ENVIRONMENTS}\}}(?:(?!\\(?:begin|end)\{{\1\}})(?s:.))*\\end\{{\1\}}"),
    ],
    "%": [("line", r"%%(?:(?!%%)(?s:.))+%%")],
    "-": [("line", rf"-+8<-+(?:[ \t]+.*|[ \t]*\n(?:(?!.*8<)(?:.+|{_LINE_END}))*.*8<-+)")],
    "i": [("begin", rf"import[ \t]+(?:[\"']|\{{[ \t]*$|[\w$*{{].*\bfrom[ \t]+[\"'])(?:.|{_LINE_END})*")],
    "e": [
        (
            "begin",
            r"export[ \t]+(?:default\b|[*{]|(?:async|class|const|enum|function|interface|let|type|var)\b.*[=({])"
            rf"(?:.|{_LINE_END})*",
        )
    ],
}
_COMPILED = {
    first: [(kind, re.compile(pattern + r"[ \t]*$" * (kind != "item"), re.MULTILINE)) for kind, pattern in rows]
    for first, rows in _LINES.items()
}
MAX_DEPTH = 50  # of nested blocks; a list has two blocks, itself and its item
_DESTINATION = re.compile(rf"(?:[^\s(){{}}<>]|{_TEMPLATE})+")


def add_dialects(parser: MarkdownIt) -> None:
    """
    Add rules: blocks of type "line", whose `meta` has the ranges of the line and of the text in it, and "mdx" in
    the environment if there are imports or exports; "layout" for tables; "kept" and "pair" in text; templates in
    addresses. The environment must have "lines before", the number of lines before the text, for messages.
    """
    parser.block.ruler.before(
        "table", "line", _line, {"alt": ["paragraph", "reference", "blockquote", "list", "table"]}
    )
    parser.block.ruler.before("line", "layout", layout_table)
    parser.inline.ruler.before("escape", "kept", _kept)
    parser.inline.ruler.before("escape", "pair", _pair)
    parser.block.tokenize = partial(_tokenize, parser.block.tokenize)
    default = parser.helpers.parseLinkDestination

    def destination(text: str, start: int, end: int):
        match = _DESTINATION.match(text, start, end)
        if match is None or not re.search("[{][{%]", match.group()):
            return default(text, start, end)
        return SimpleNamespace(ok=True, pos=match.end(), str=match.group())

    parser.helpers = SimpleNamespace(**{name: getattr(parser.helpers, name) for name in parser.helpers.__all__})
    parser.helpers.parseLinkDestination = destination


def _tokenize(tokenize: Callable, state: StateBlock, first: int, last: int) -> None:
    """The parser's function, which would leave out what is nested too deeply, and sometimes all that follows."""
    if state.level >= MAX_DEPTH:
        line = state.env["lines before"] + first + 1
        raise UserError(f"line {line:,}: lists, quotes and other blocks are nested more than {MAX_DEPTH} deep")
    tokenize(state, first, last)


def _line(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """A line of one of the kinds above, and what belongs to it."""
    begin = state.bMarks[first] + state.tShift[first]
    rows = _COMPILED.get(state.src[begin : begin + 1])
    if rows is None or state.is_code_block(first):
        return False
    for kind, pattern in rows:
        match = None if silent and kind == "begin" else pattern.match(state.src, begin)
        after = bisect_left(state.bMarks, match.end(), first + 1) if match else last + 1
        if after <= last or (match and kind == "item"):
            break
    else:
        return False
    if silent:
        return True
    token = state.push("item_open" if kind == "item" else "line", "", int(kind == "item"))
    token.map, token.markup = [first, after], state.src[begin]
    if kind == "item":
        _item(state, first, last, match.end())
        return True
    text = match.span("text") if match.groupdict().get("text") else (match.end(), match.end())
    token.meta = {"range": match.span(), "text": text}
    if token.markup in "ei":
        state.env["mdx"] = True
    state.line = after
    if kind == "body":
        _body(state, after, last, state.sCount[first] + 2)
    return True


def _item(state: StateBlock, first: int, last: int, begin: int) -> None:
    """The blocks of an item, from a position in its first line."""
    old = state.bMarks[first], state.tShift[first], state.sCount[first], state.blkIndent
    state.blkIndent = state.sCount[first] + 2
    state.bMarks[first], state.tShift[first], state.sCount[first] = begin, 0, state.blkIndent
    state.md.block.tokenize(state, first, last)
    state.line = min(state.line, last)  # empty lines may have been skipped
    state.bMarks[first], state.tShift[first], state.sCount[first], state.blkIndent = old
    state.push("item_close", "", -1)


def _body(state: StateBlock, first: int, last: int, indent: int) -> None:
    """The blocks that are indented at least this far. Lines that are not do not continue a paragraph of theirs."""
    after = first
    while after < last and (state.isEmpty(after) or state.sCount[after] >= indent):
        after += 1
    old = state.lineMax, state.blkIndent
    state.lineMax, state.blkIndent = after, indent
    state.push("body_open", "", 1)
    state.md.block.tokenize(state, first, after)
    state.push("body_close", "", -1)
    state.lineMax, state.blkIndent = old
    state.line = after


def _kept(state: StateInline, silent: bool) -> bool:
    match = _KEPT.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("kept", "", 0)
    state.pos = match.end()
    return True


def _pair(state: StateInline, silent: bool) -> bool:
    match = PAIRS.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        maximum = state.posMax
        state.pos, state.posMax = match.span(match.lastindex)
        state.push("pair_open", "", 1)
        state.md.inline.tokenize(state)
        state.push("pair_close", "", -1)
        state.posMax = maximum
    state.pos = match.end()
    return True

"""Inline markup of reStructuredText, in messages that Sphinx extracted. Docutils' specification has the rules."""

import re
from collections.abc import Collection, Iterable, Iterator

from ..translate.marked_text import Markup, Text, Token

# What may precede and follow it, beside the beginning and the end.
_BEFORE = r"\s'\"(\[{<\-/:\u00a1\u00ab\u00bb\u00bf\u2010-\u2015\u2018-\u201f\u3001\u3002\u3008-\u3011\uff08\uff0c\uff1a"
_AFTER = (
    r"\s'\")\]}>\-/\\:.,;!?\u00ab\u00bb\u2010-\u2015\u2018-\u201f\u2026\u3001\u3002\u3008-\u3011"
    r"\uff01\uff09\uff0c\uff1a\uff1b\uff1f"
)
# The patterns take linear time: none begins again within what another attempt has read without a match.
_ROLE = r":(?:[A-Za-z][\w.+-]{,60}:){1,3}"
_LINK = r"(?<![\w.+:-])[^\W_]++(?:[-._+:][^\W_]++)*+"
_QUOTED = r"`(?=[^\s`])(?:[^`\\]|\\.)+(?<!\s)`"
_MARKUP = re.compile(
    rf"\\(?P<escaped>.)|(?<![^{_BEFORE}])(?:"
    r"(?P<literal>``(?=\S)(?:(?!``).)+(?<=\S)``+)"
    rf"|(?P<role>{_ROLE})?(?P<quoted>{_QUOTED})(?P<suffix>__?|{_ROLE})?"
    # A target; a substitution; a reference to a footnote or a citation.
    r"|_`[^`]+`"
    r"|\|(?=[^\s|])[^|]+(?<!\s)\|_{0,2}"
    r"|\[(?:[0-9]+|\#[\w.-]*|\*|[A-Za-z][\w.-]*)\]_"
    # Emphasis; the name of a link; "::" at the end, where code follows.
    r"|(?P<stars>\*(?P<two>\*)?)(?=[^\s*])(?P<inner>(?:[^*\\]|\\.|(?(two)\*(?!\*)|(?!)))+?)(?<!\s)(?P=stars)"
    rf"|{_LINK}__?"
    rf")(?![^{_AFTER}])|(?P<colon>::)\Z"
)
_TITLE = re.compile(r"`(?P<title>.*\S)(?P<target>\s+<[^<>]+>)`", re.DOTALL)
# Roles of Sphinx without a domain whose text may be a title and a target; other roles may have "<" in their text.
_WITH_TITLE = {":any:", ":doc:", ":download:", ":numref:", ":ref:", ":term:"}
# What a translation has before and after markup, and before a character that could be markup, until it is complete.
_BEGIN, _END, _ESCAPE = "\ue001", "\ue002", "\ue003"
_SPECIAL = set("*`|_\\")
_SEPARATORS = re.compile(f"[{_BEGIN}{_END}]+")
_NAME = re.compile(rf"`([^`<>]+)`_(?!_)|({_LINK})_(?!\w)")
_BLOCK = re.compile(
    r"(?:[-+*\u2022\u2023\u2043]|\(?(?:#|[0-9]+|[A-Za-z]|[ivxlcdmIVXLCDM]+)[.)]|\.\.)(?:\s|\Z)|:[^:\s][^:]*:\s"
)


def rest_names(texts: Iterable[str]) -> set[str]:
    """The names of links to which texts refer; `text <address>`_ elsewhere defines one."""
    return {_normal(match[1] or match[2]) for text in texts for match in _NAME.finditer(text)}


def rest_tokens(text: str, names: Collection[str]) -> Iterator[Token]:
    """
    Split a message into markup and text, which includes titles of links and emphasized words.

    Args:
        names: see `rest_names`. The titles of links with these names stay.
    """
    done = 0
    for match in _MARKUP.finditer(text):
        yield from _plain(text[done : match.start()])
        done = match.end()
        kind, (start, end) = "`", _title(match, names) or (done, done)
        if match["stars"]:
            kind, (start, end) = match["stars"], match.span("inner")
        if start < end:
            yield Markup("open", _BEGIN + text[match.start() : start], kind, is_optional=kind != "`")
            # Docutils reads no emphasis within "**", but writers mean it.
            yield from rest_tokens(text[start:end], names) if kind == "**" else _plain(text[start:end])
            yield Markup("close", text[end:done] + _END, kind)
        elif match["escaped"]:
            yield from _plain(match.group())
        else:
            yield Markup("atom", match.group() if match["colon"] else _BEGIN + match.group() + _END)
    yield from _plain(text[done:])


def _title(match: re.Match[str], names: Collection[str]) -> tuple[int, int] | None:
    """Where the title of a link is that has a title and a target."""
    title = match["quoted"] and _TITLE.fullmatch(match["quoted"])
    if not title:
        return None
    suffix = match["suffix"] or ""
    role = match["role"] or (suffix if suffix.startswith(":") else "")
    if role:
        has_title = role.count(":") > 2 or role in _WITH_TITLE
    else:
        has_title = suffix == "__" or (suffix == "_" and _normal(title["title"]) not in names)
    return (match.start("quoted") + 1, match.start("quoted") + title.end("title")) if has_title else None


def _normal(name: str) -> str:
    return " ".join(name.lower().split())


def _plain(text: str) -> Iterator[Text]:
    """Text in which a backslash makes a character ordinary; a space with one is none."""
    done = 0
    for match in re.finditer(r"\\(.)", text, re.DOTALL):
        yield Text(text[done : match.start()], text[done : match.start()])
        if not match[1].isspace():
            yield Text(match.group(), match[1])
        done = match.end()
    yield Text(text[done:], text[done:])


def rest_escape(character: str) -> str:
    return _ESCAPE + character if character in _SPECIAL else character


def rest_begin(source: str, written: str) -> str:
    """A translation that does not begin as a list or a field does."""
    return f"\\{written}" if _BLOCK.match(written) and not _BLOCK.match(source) else written


def rest_written(written: str) -> str:
    """A complete translation, with backslashes where its characters and the neighbours of markup require them."""

    def escape(match: re.Match[str]) -> str:
        is_text = (match[1] == "*" and not match[2].strip()) or (match[1] == "_" and match[2].isalnum())
        return match[1] if is_text else f"\\{match[1]}"

    def separate(match: re.Match[str]) -> str:
        before, after = written[: match.start()][-1:], written[match.end() :][:1]
        is_wrong = (_BEGIN in match.group() and before and not re.match(f"[{_BEFORE}]", before)) or (
            _END in match.group() and after and not re.match(f"[{_AFTER}]", after)
        )
        return "\\ " if is_wrong else ""

    written = re.sub(rf"{_ESCAPE}(.)(?=(.?))", escape, written, flags=re.DOTALL)
    return _SEPARATORS.sub(separate, written)


def rest_references(text: str) -> tuple[list[str], list[str]]:
    """
    All markup but emphasis, in a fixed order; and, in their own order, the references to footnotes, citations and named
    links: Sphinx 9.0 warns if these come in another order in the translation.
    """
    tokens = (token for token in rest_tokens(text, ()) if isinstance(token, Markup) and token.name in ("", "`"))
    found = [_SEPARATORS.sub("", token.raw) for token in tokens if token.kind != "open"]
    return sorted(found), [reference for reference in found if reference.endswith("_") and reference[0] not in " |"]

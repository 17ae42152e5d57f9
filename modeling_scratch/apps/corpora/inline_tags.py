"""Tags within the segments of TMX and XLIFF: left out, as placeholders, or as text."""

import re
from collections.abc import Iterator, Mapping
from html import unescape
from unicodedata import east_asian_width

from ..documents.plural_forms import is_value
from ..documents.xliff import LINE_BREAK_CODE
from .streamed_xml import XmlElement, character_of

_SPANS = {"g", "pc", "hi"}  # elements around text
_TRANSPARENT = {"mrk", "sub", "sm", "em"}
_OPENING, _CLOSING = {"bpt", "bx", "sc"}, {"ept", "ex", "ec"}
# What a tag of memoQ stands for: <mq:rxt displaytext="%s" val="%s" />
_MEMOQ = re.compile("<mq:[^<>]*>")
_ATTRIBUTE = re.compile(r"""\b(val|displaytext)=(?:"([^"]*)"|'([^']*)')""")
_NUMBERS = ("x", "rid", "startRef", "i", "id")  # what the two ends of a tag, or a tag of both languages, have in common


def segment_texts(
    source: XmlElement, target: XmlElement, mode: str, data: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """
    The texts of two segments.

    Args:
        mode: "drop" leaves tags out, but for those that stand for a placeholder such as %s; a space takes the place of
            a line break, and of a tag between two words. "placeholders" writes {1}, {2}, the same for the same tag in
            both. "text" writes the code of a tag.
        data: the codes of XLIFF 2, or of Trados, by their names.
    """
    names: dict[tuple[str, str], str] = {}
    return _joined(source, mode, names, data or {}), _joined(target, mode, names, data or {})


def _joined(segment: XmlElement, mode: str, names: dict[tuple[str, str], str], data: Mapping[str, str]) -> str:
    if all(isinstance(child, str) for child in segment.children):
        return "".join(segment.children)
    numbers: dict[str, str] = {}  # of tags of TMX in both languages ("x"), by those within the segment ("i")
    text = _Text()
    for tag, kind in _parts(segment):
        if isinstance(tag, str):
            text.add(tag)
        elif mode == "placeholders":
            text.add(names.setdefault((kind, _number(tag, numbers)), f"{{{len(names) + 1}}}"))
        elif mode == "text":
            text.add(_code(tag, kind, data) or _written(tag, kind))
        elif kind == "alone":
            code = _code(tag, kind, data)
            text.add_code(" " if _is_break(tag, code) else code)
    return text.written


class _Text:
    """A text in which tags are left out: where one stood alone between two words, a space is."""

    def __init__(self) -> None:
        self.written, self._has_gap = "", False

    def add(self, text: str) -> None:
        if self._has_gap and text:
            self.written += " " * (_is_letter(self.written[-1:]) and _is_letter(text[0]))
            self._has_gap = False
        self.written += text

    def add_code(self, code: str) -> None:
        """A tag that stands alone: a placeholder or a space stays."""
        if code.isspace() or is_value(code.strip()):
            self.add(code)
        else:
            self._has_gap = True


_PHRASE_TAG = re.compile(r"\{([0-9]+)\}|\{[0-9biu^_]+>|<[0-9biu^_]+\}|\{[biu^_]+\}")  # {2} {1> <1} {b> <b}


def without_phrase_tags(text: str, codes: Mapping[str, str]) -> str:
    """
    A text of Phrase, whose tags are text such as {1>bold<1} and {2}, without them.

    Args:
        codes: what the tags that stand alone stand for.
    """
    found, done = _Text(), 0
    for match in _PHRASE_TAG.finditer(text):
        found.add(text[done : match.start()])
        if match[1]:
            code = codes.get(match[1], "")
            found.add_code(" " if LINE_BREAK_CODE.fullmatch(code.strip()) else code)
        done = match.end()
    found.add(text[done:])
    return found.written


def _parts(element: XmlElement) -> Iterator[tuple[XmlElement | str, str]]:
    """The text and the tags in an element, and of each tag whether it is "open", "close" or "alone"."""
    for child in element.children:
        if isinstance(child, str):
            yield child, ""
            continue
        name = child.name
        if name == "cp":
            yield character_of(child.get("hex")), ""
        elif name in _TRANSPARENT:
            if child.get("mtype") != "x-sdl-deleted":
                yield from _parts(child)
        elif name in _SPANS:
            yield child, "open"
            yield from _parts(child)
            yield child, "close"
        elif name in _OPENING or name in _CLOSING:
            yield child, "open" if name in _OPENING else "close"
        else:
            half = {"begin": "open", "open": "open", "end": "close", "close": "close"}
            yield child, half.get(child.get("pos"), "alone")


def _number(element: XmlElement, numbers: dict[str, str]) -> str:
    """What a tag and its translation have in common."""
    if "i" in element.attributes and "x" in element.attributes:
        numbers[element.get("i")] = element.get("x")
    number = next((element.get(name) for name in _NUMBERS if element.get(name)), "")
    return numbers.get(number, number) or element.get("type")


def _code(element: XmlElement, kind: str, data: Mapping[str, str]) -> str:
    """What a tag stands for; empty: the file does not say."""
    side = {"open": "Start", "close": "End"}.get(kind, "")
    inner = "" if element.name in _SPANS else element.text
    if _MEMOQ.fullmatch(inner):
        described = {name: unescape(one or other) for name, one, other in _ATTRIBUTE.findall(inner)}
        inner = described.get("val") or described.get("displaytext", "")
    number = element.get("id") if element.name == "x" else ""  # Trados declares these in its header
    shown = [element.get(name) for name in (f"equiv{side}", f"disp{side}", "equiv-text", "equiv", "disp")]
    # Angular writes a name of its own as `equiv`, and what stands in its template as `disp`.
    best = next(filter(is_value, shown), "") or next(filter(None, shown), "")
    return inner or data.get(element.get(f"dataRef{side}") or element.get("dataRef") or number, "") or best


def _is_break(element: XmlElement, code: str) -> bool:
    codes = (code, *(element.get(name) for name in ("id", "ctype", "type")))
    return any(LINE_BREAK_CODE.fullmatch(found) for found in codes if found)


def _written(element: XmlElement, kind: str) -> str:
    """A tag without a code, as it is written in XML."""
    if element.name in _SPANS and kind == "close":
        return f"</{element.name}>"
    number = f' id="{element.get("id")}"' if "id" in element.attributes else ""
    return f"<{element.name}{number}{'' if element.name in _SPANS else '/'}>"


def _is_letter(character: str) -> bool:
    """Whether it is a letter of a script with spaces between words."""
    return character.isalpha() and east_asian_width(character) not in "FW"

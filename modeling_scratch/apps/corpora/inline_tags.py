"""Tags within the segments of TMX and XLIFF: left out, as placeholders, or as text."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from unicodedata import east_asian_width

from ..documents.plural_forms import is_value
from ..documents.xliff import LINE_BREAK_CODE
from .streamed_xml import XmlElement

_SPANS = {"g", "pc", "hi"}  # elements around text
_TRANSPARENT = {"mrk", "sub", "sm", "em"}
_OPENING, _CLOSING = {"bpt", "bx", "sc"}, {"ept", "ex", "ec"}
_NUMBERS = ("x", "rid", "startRef", "i", "id")  # what the two ends of a tag, or a tag of both languages, have in common
_CODES = ("equiv-text", "equiv", "disp", "ctype", "type")


class InlineTag(NamedTuple):
    """
    A tag.

    Args:
        kind: "open", "close" or "alone".
        number: the same in both languages.
        code: what it stands for, or how it is written.
        is_break: whether it ends a line.
    """

    kind: str
    number: str
    code: str
    is_break: bool


def segment_texts(
    source: XmlElement, target: XmlElement, mode: str, data: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """
    The texts of two segments.

    Args:
        mode: "drop" leaves tags out, but for those that stand for a placeholder such as %s; a space takes the place of
            a line break, and of a tag between two words. "placeholders" writes {1}, {2}, the same for the same tag in
            both. "text" writes the code of a tag.
        data: the codes of XLIFF 2 by their names.
    """
    names: dict[tuple[str, str], str] = {}
    return _joined(source, mode, names, data or {}), _joined(target, mode, names, data or {})


def _joined(segment: XmlElement, mode: str, names: dict[tuple[str, str], str], data: Mapping[str, str]) -> str:
    if all(isinstance(child, str) for child in segment.children):
        return "".join(segment.children)
    text, is_gap = "", False  # is_gap: after a tag that stands alone and is left out
    for part in _parts(segment, data, {}):
        if isinstance(part, str):
            written = part
        elif mode == "text":
            written = part.code
        elif mode == "placeholders":
            written = names.setdefault((part.kind, part.number), f"{{{len(names) + 1}}}")
        elif part.is_break:
            written = " "
        elif part.kind == "alone" and is_value(part.code):
            written = part.code
        else:
            is_gap |= part.kind == "alone"
            continue
        if is_gap and written:
            text += " " * (_is_letter(text[-1:]) and _is_letter(written[0]))
            is_gap = False
        text += written
    return text


def _parts(element: XmlElement, data: Mapping[str, str], numbers: dict[str, str]) -> Iterator[str | InlineTag]:
    """
    Args:
        numbers: those of tags of TMX in both languages ("x"), by their numbers within the segment ("i").
    """
    for child in element.children:
        if isinstance(child, str):
            yield child
            continue
        name = child.name
        if name == "cp":
            yield chr(int(child.get("hex") or "20", 16))
        elif name in _TRANSPARENT and child.get("mtype") != "x-sdl-deleted":
            yield from _parts(child, data, numbers)
        elif name in _SPANS:
            yield _tag(child, "open", data, numbers)
            yield from _parts(child, data, numbers)
            yield _tag(child, "close", data, numbers)
        elif name not in _TRANSPARENT:
            half = {"begin": "open", "open": "open", "end": "close", "close": "close"}.get(child.get("pos"), "alone")
            kind = "open" if name in _OPENING else "close" if name in _CLOSING else half
            yield _tag(child, kind, data, numbers)


def _tag(element: XmlElement, kind: str, data: Mapping[str, str], numbers: dict[str, str]) -> InlineTag:
    number = next((element.get(name) for name in _NUMBERS if element.get(name)), "")
    if "x" in element.attributes and "i" in element.attributes:
        numbers[element.get("i")] = number
    number = numbers.get(number, number) if "x" not in element.attributes else number
    side = {"open": "Start", "close": "End"}.get(kind, "")
    code = "" if element.name in _SPANS else element.text
    code = code or data.get(element.get(f"dataRef{side}") or element.get("dataRef"), "")
    shown = next((element.get(name) for name in (f"equiv{side}", f"disp{side}", *_CODES[:3]) if element.get(name)), "")
    codes = [code, shown, element.get("id"), *(element.get(name) for name in _CODES)]
    is_break = any(LINE_BREAK_CODE.fullmatch(found) for found in codes if found)
    return InlineTag(kind, number or element.get("type"), code or shown or _written(element, kind), is_break)


def _written(element: XmlElement, kind: str) -> str:
    """A tag without a code, as it is written in XML."""
    if element.name in _SPANS and kind == "close":
        return f"</{element.name}>"
    number = f' id="{element.get("id")}"' if "id" in element.attributes else ""
    return f"<{element.name}{number}{'' if element.name in _SPANS else '/'}>"


def _is_letter(character: str) -> bool:
    """Whether it is a letter of a script with spaces between words."""
    return character.isalpha() and east_asian_width(character) not in "FW"

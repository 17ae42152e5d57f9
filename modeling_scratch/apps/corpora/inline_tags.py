"""Tags within the segments of TMX and XLIFF: left out, as placeholders, or as text."""

from collections.abc import Iterator, Mapping
from unicodedata import east_asian_width

from ..documents.plural_forms import is_value
from ..documents.xliff import LINE_BREAK_CODE
from .streamed_xml import XmlElement, character_of

_SPANS = {"g", "pc", "hi"}  # elements around text
_TRANSPARENT = {"mrk", "sub", "sm", "em"}
_OPENING, _CLOSING = {"bpt", "bx", "sc"}, {"ept", "ex", "ec"}
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
        data: the codes of XLIFF 2 by their names.
    """
    names: dict[tuple[str, str], str] = {}
    return _joined(source, mode, names, data or {}), _joined(target, mode, names, data or {})


def _joined(segment: XmlElement, mode: str, names: dict[tuple[str, str], str], data: Mapping[str, str]) -> str:
    if all(isinstance(child, str) for child in segment.children):
        return "".join(segment.children)
    text, is_gap = "", False  # is_gap: after a tag that stands alone and is left out
    numbers: dict[str, str] = {}  # of tags of TMX in both languages ("x"), by those within the segment ("i")
    for tag, kind in _parts(segment):
        if isinstance(tag, str):
            written = tag
        elif mode == "placeholders":
            written = names.setdefault((kind, _number(tag, numbers)), f"{{{len(names) + 1}}}")
        elif mode == "text":
            written = _code(tag, kind, data) or _written(tag, kind)
        elif kind != "alone":
            continue
        elif _is_break(tag, code := _code(tag, kind, data)):
            written = " "
        elif is_value(code):
            written = code
        else:
            is_gap = True
            continue
        if is_gap and written:
            text += " " * (_is_letter(text[-1:]) and _is_letter(written[0]))
            is_gap = False
        text += written
    return text


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
    shown = (element.get(name) for name in (f"equiv{side}", f"disp{side}", "equiv-text", "equiv", "disp"))
    return (
        inner or data.get(element.get(f"dataRef{side}") or element.get("dataRef"), "") or next(filter(None, shown), "")
    )


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

"""Files with both languages, in XML: TMX, XLIFF with that of Trados and Phrase, Qt's .ts, and WMT's test sets."""

import re
from collections.abc import Iterator, Mapping

from ...errors import UserError
from .corpus_files import CorpusFile, tag_of_path
from .inline_tags import segment_texts, without_phrase_tags
from .streamed_xml import XmlElement, character_of, stream_elements
from .units import KEPT_AS_IS, NO_TARGET, OBSOLETE, OTHER_LANGUAGES, PLURAL_FORMS, UNFINISHED, Request, Unit

# -- TMX 1.4 -----------------------------------------------------------------------------------------------------------


def read_tmx(file: CorpusFile, request: Request) -> Iterator[Unit]:
    """The units with both languages. The variant of a language that serves best is read; see `Request.best`."""
    for number, (unit, _) in enumerate(stream_elements(file, {"tu"}), start=1):
        place = unit.get("tuid") or f"{number}"
        variants = ((variant.get("lang"), variant) for variant in unit.find("tuv"))
        segments = [next(variant.find("seg"), None) for variant in request.best(variants) or ()]
        if None in segments or not segments:
            yield Unit(place, skipped=OTHER_LANGUAGES)
        else:
            yield Unit(place, *segment_texts(*segments, request.inline_tags))


# -- XLIFF 1.2 and 2 ---------------------------------------------------------------------------------------------------

# States of targets that somebody has still to work on; in XLIFF 2, "initial".
_UNFINISHED = re.compile("new|needs-.*|initial")
# States of segments of Trados: "Draft" and the rejected ones; a segment without a state has not been begun.
_MEMOQ_OPEN = {
    *("NotStarted", "PreTranslated", "Pretranslated", "PartiallyEdited", "AssembledFromFragments"),
    *("MachineTranslated", "Rejected"),
}
_TRADOS_DONE = {"Translated", "ApprovedTranslation", "ApprovedSignOff"}


def read_bilingual_xliff(file: CorpusFile, request: Request) -> Iterator[Unit]:
    """The segments whose translation is finished. The path tells a target language that the file does not name."""
    of_path, of_trados = tag_of_path(file.plain_name), dict[str, str]()
    for unit, within in stream_elements(file, {"trans-unit", "unit", "tag-defs"}):
        if unit.name == "tag-defs":
            of_trados = {tag.get("id"): "".join(code.text for code in tag.find("ph", "st")) for tag in unit.find("tag")}
            continue
        root = within[0] if within else unit
        if root.name != "xliff":
            raise UserError(f"{file.name}: not XLIFF, but <{root.name}>")
        if unit.name == "unit":
            tags = root.get("srcLang"), root.get("trgLang") or of_path
            found = list(_segments_of_2(unit))
        else:
            of_file = next((element for element in within if element.name == "file"), root)
            tags = of_file.get("source-language"), of_file.get("target-language") or of_path
            found = list(_segments_of_1(unit))
        said = (element.get("translate") for element in (unit, *reversed(within)) if "translate" in element.attributes)
        is_kept = next(said, "yes") == "no"
        order = _order(tags, request)
        for place, source, target, skipped, data in found:
            if order is None or is_kept or skipped or target is None:
                why = KEPT_AS_IS if is_kept else OTHER_LANGUAGES if order is None else skipped or NO_TARGET
                yield Unit(place, skipped=why)
                continue
            texts = segment_texts(*(source, target)[::order], request.inline_tags, data or of_trados)
            # Phrase's tags are text, which serves as placeholders as it is.
            if "confirmed" in unit.attributes and request.inline_tags == "drop":
                codes = _codes_of_phrase(unit)
                texts = [without_phrase_tags(text, side) for text, side in zip(texts, codes[::order], strict=True)]
            yield Unit(place, *texts)


def _order(tags: tuple[str, str], request: Request) -> int | None:
    """1: source and target are those of the request; -1: the other way round; None: neither. Empty tags fit."""

    def fits(*sides: int) -> bool:
        return all(not tag or request.side(tag) == side for tag, side in zip(tags, sides, strict=True))

    return 1 if fits(0, 1) else -1 if fits(1, 0) else None


def _segments_of_1(unit: XmlElement) -> Iterator[tuple[str, XmlElement, XmlElement | None, str, dict]]:
    """The segments of a unit of XLIFF 1: place, source, target, why it is no pair, and no data."""
    place = unit.get("id") or f"line {unit.line}"
    parts = {child.name: child for child in reversed(unit.children) if isinstance(child, XmlElement)}
    source, target = parts.get("seg-source", parts.get("source")), parts.get("target")
    if source is None or target is None:
        yield place, unit, None, "", {}
        return
    states = {segment.get("id"): segment.get("conf") for defs in unit.find("seg-defs") for segment in defs.find("seg")}
    is_open = _UNFINISHED.fullmatch(target.get("state")) or unit.get("confirmed") == "0"
    is_open = is_open or unit.get("status") in _MEMOQ_OPEN
    why = UNFINISHED if is_open and target.text.strip() else ""
    segments, targets = (_marked_segments(element) for element in (source, target))
    if not segments or not targets:
        yield place, parts.get("source", source), target, why, {}
        return
    for number, segment in segments.items():
        if segment.text.strip():
            is_done = not states or states.get(number) in _TRADOS_DONE
            found = targets.get(number)
            no_state = UNFINISHED if found is not None and found.text.strip() else NO_TARGET
            yield f"{place} {number}", segment, found, why or ("" if is_done else no_state), {}


def _marked_segments(element: XmlElement) -> dict[str, XmlElement]:
    found: dict[str, XmlElement] = {}
    for child in element.children:
        if isinstance(child, XmlElement):
            if child.name == "mrk" and child.get("mtype") == "seg":
                found[child.get("mid")] = child
            else:
                found |= _marked_segments(child)
    return found


def _segments_of_2(unit: XmlElement) -> Iterator[tuple[str, XmlElement, XmlElement | None, str, dict]]:
    """As `_segments_of_1`, with the codes of the unit."""
    place = unit.get("id") or f"line {unit.line}"
    data = {code.get("id"): code.text for within in unit.find("originalData") for code in within.find("data")}
    segments = list(unit.find("segment"))
    for number, segment in enumerate(segments, start=1):
        source, target = (next(segment.find(name), None) for name in ("source", "target"))
        name = segment.get("id") or (f"{number}" if len(segments) > 1 else "")
        is_open = _UNFINISHED.fullmatch(segment.get("state")) and target is not None and target.text.strip()
        if source is not None:
            yield f"{place} {name}".strip(), source, target, UNFINISHED if is_open else "", data


def _codes_of_phrase(unit: XmlElement) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What the tags of source and target stand for, by their numbers."""

    def codes(name: str) -> dict[str, str]:
        marks = (mark for metadata in unit.find(name) for mark in metadata.find("mark"))
        return {mark.get("id"): "".join(content.text for content in mark.find("content")) for mark in marks}

    source = codes("tunit-metadata")
    return source, source | codes("tunit-target-metadata")


# -- Qt's .ts ----------------------------------------------------------------------------------------------------------

_QT_STATES = {"unfinished": UNFINISHED, "vanished": OBSOLETE, "obsolete": OBSOLETE}


def read_qt(file: CorpusFile, request: Request) -> Iterator[Unit]:
    """The finished messages. Plural forms are left out, since Qt's files do not say what numbers they are for."""
    of_path = tag_of_path(file.plain_name)
    for unit, within in stream_elements(file, {"message"}):
        tags = within[0].get("sourcelanguage") or "en", within[0].get("language") or of_path
        order = _order(tags, request)
        texts = [next(unit.find(name), None) for name in ("source", "translation")]
        place = unit.get("id") or f"line {unit.line}"
        if order is None or None in texts:
            yield Unit(place, skipped=OTHER_LANGUAGES if order is None else NO_TARGET)
            continue
        state = _QT_STATES.get(texts[1].get("type"), "") if texts[1].text.strip() else NO_TARGET
        state = state or (PLURAL_FORMS if unit.get("numerus") == "yes" else "")
        yield Unit(place, *map(_qt_text, texts[::order]), state)


def _qt_text(element: XmlElement) -> str:
    """A text in its first length; characters that XML cannot contain are elements."""
    variant, parts = next(element.find("lengthvariant"), element), []
    for child in variant.children:
        if isinstance(child, str):
            parts.append(child)
        elif child.name == "byte":
            code = child.get("value")
            is_hexadecimal = code.startswith("x") or not code.isdecimal()
            parts.append(character_of(code.removeprefix("x") if is_hexadecimal else f"{int(code):x}"))
    return "".join(parts)


# -- WMT's test sets ---------------------------------------------------------------------------------------------------


def read_wmt_xml(file: CorpusFile, request: Request) -> Iterator[Unit]:
    """The segments of sources and first references, as WMT has them since 2021. Outputs of systems are left out."""
    for document, _ in stream_elements(file, {"doc"}):
        sides = [(element.get("lang"), element) for element in document.find("src", "ref")]
        if (best := request.best(sides)) is None:
            yield Unit(document.get("id"), skipped=OTHER_LANGUAGES)
            continue
        sources, targets = ({segment.get("id"): segment for segment in _all(side, "seg")} for side in best)
        for number, segment in sources.items():
            place = f"{document.get('id')} {number}"
            if number in targets:
                yield Unit(place, segment.text, targets[number].text)
            else:
                yield Unit(place, skipped=NO_TARGET)


def _all(element: XmlElement, name: str) -> Iterator[XmlElement]:
    for child in element.children:
        if isinstance(child, XmlElement):
            if child.name == name:
                yield child
            yield from _all(child, name)

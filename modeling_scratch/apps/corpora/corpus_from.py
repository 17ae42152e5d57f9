"""The files that people own, as pairs in JSONL, which training reads."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tqdm.auto import tqdm

from ...errors import UserError
from ...files import new_output
from .aligned_subtitles import read_subtitles
from .corpus_files import HOW_TO_PAIR, CorpusFile, paired_files, walk
from .gettext_catalogs import read_gettext
from .memories import read_bilingual_xliff, read_qt, read_tmx, read_wmt_xml
from .one_language import read_by_keys, read_lines_of_both
from .sheets import read_sheet
from .streamed_xml import root_of
from .units import BROKEN, NO_SOURCE, NO_TARGET, Request, Unit, tidy

Read = Callable[[CorpusFile, Request], Iterator[Unit]]
ReadBoth = Callable[[str, CorpusFile, CorpusFile, Request], Iterator[Unit]]  # also takes the kind


@dataclass(frozen=True)
class Kind:
    """
    A kind of files.

    Args:
        read: reads a file with both languages; None: files are in one language.
        read_both: reads two files in one language.
    """

    name: str
    read: Read | None = None
    read_both: ReadBoth | None = None


_TMX, _XLIFF, _QT, _WMT = (
    Kind("TMX", read_tmx),
    Kind("XLIFF", read_bilingual_xliff),
    Kind("Qt", read_qt),
    Kind("WMT", read_wmt_xml),
)
_GETTEXT, _TABLE = Kind("gettext", read_gettext, read_by_keys), Kind("table", read_sheet)
_LINES = Kind("lines", read_both=read_lines_of_both)
_ANDROID = Kind("android", read_both=read_by_keys)
KINDS = {
    **dict.fromkeys((".tmx",), _TMX),
    **dict.fromkeys((".xliff", ".xlf", ".sdlxliff", ".mqxliff", ".mxliff"), _XLIFF),
    **dict.fromkeys((".po", ".mo"), _GETTEXT),
    ".ts": _QT,
    **dict.fromkeys((".xlsx", ".ods", ".csv", ".tsv"), _TABLE),
    **dict.fromkeys((".json", ".arb"), Kind("json", read_both=read_by_keys)),
    ".properties": Kind("properties", read_both=read_by_keys),
    ".strings": Kind("apple", read_both=read_by_keys),
    **dict.fromkeys((".sgm", ".sgml"), Kind("sgm", read_both=read_by_keys)),
    **dict.fromkeys((".srt", ".vtt"), Kind("subtitles", read_both=read_subtitles)),
}
# Of files that end in .xml, by their root.
_ROOTS = {"tmx": _TMX, "xliff": _XLIFF, "ts": _QT, "dataset": _WMT, "resources": _ANDROID}


@dataclass
class Told:
    """What was found in files: the pairs, and why other units are none."""

    pairs: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        skipped = ", ".join(f"{count:,} {why}" for why, count in self.skipped.most_common())
        return f"{self.pairs:,} pairs" + (f"; skipped {skipped}" if skipped else "")


class PairWriter:
    """Writes pairs as lines of JSONL, named by their languages, each with its origin."""

    def __init__(self, file: IO[bytes], request: Request):
        self._file, self._names = file, (request.source, request.target)

    def write(self, origin: str, units: Iterable[Unit], **more: str) -> Told:
        """Write the units that are pairs. `origin` is what they are from; their places follow it. `more`: columns."""
        told, escaped = Told(), origin.replace("#", "%23")
        for unit in units:
            source, target = tidy(unit.source), tidy(unit.target)
            why = unit.skipped or (NO_SOURCE if not source else NO_TARGET if not target else "")
            if not why:
                row = {self._names[0]: source, self._names[1]: target, "origin": f"{escaped}#{unit.place}", **more}
                with suppress(UnicodeEncodeError):  # escapes of JSON may stand for half a character
                    self._file.write(f"{json.dumps(row, ensure_ascii=False)}\n".encode())
                    told.pairs += 1
                    continue
                why = BROKEN
            told.skipped[why] += 1
        return told


def corpus_from(names: list[Path], output: Path, request: Request) -> tuple[dict[str, Told], list[str]]:
    """
    Write the pairs of files to JSONL. Returns what was found by file or pair of files, and lines to tell about others.

    Raises:
        UserError: a file cannot be read or is of no known kind, a file in one language is alone, or there is no pair.
    """
    check_ending(output)
    found, others = _sorted_files(names, request)
    told: dict[str, Told] = {}
    with new_output(output) as temporary, temporary.open("wb") as file:
        writer = PairWriter(file, request)
        for name, units in tqdm(found, unit=" files", disable=None if len(found) > 1 else True):
            told[name] = writer.write(name, units)
        if not any(entry.pairs for entry in told.values()):
            raise UserError(_nothing(told, request, others))
    return told, others


def check_ending(output: Path) -> None:
    """Raise UserError for a name that does not end in .jsonl, such as that of the last of several files."""
    if output.suffix != ".jsonl":
        raise UserError(f"{output}: the last argument is the file to write, which ends in .jsonl, such as pairs.jsonl")


def _nothing(told: dict[str, Told], request: Request, others: list[str]) -> str:
    problem = f"no pairs of {request.source} and {request.target} in "
    problem += next(iter(told)) if len(told) == 1 else f"{len(told):,} files"
    if request.seen:
        problem += f"; the files have {', '.join(sorted(request.seen))}"
    skipped = sum((entry.skipped for entry in told.values()), Counter[str]())
    reasons = [f"{count:,} units {why}" for why, count in skipped.most_common()]
    return "; ".join([problem, *reasons, *others])


def _sorted_files(names: list[Path], request: Request) -> tuple[list[tuple[str, Iterator[Unit]]], list[str]]:
    """What to read, each with a name, and lines to tell about files that are not read."""
    found: list[tuple[str, Iterator[Unit]]] = []
    alone: dict[str, list[CorpusFile]] = {}  # files in one language, by kind
    kinds: dict[str, Kind] = {}
    unknown = 0
    for name in names:
        if (both := _named_pair(name)) is not None:
            found.append(_both(*both, request))
            continue
        if not name.exists():
            raise UserError(f"{name}: no such file or folder")
        for file in walk(name):
            kind = kind_of_file(file, request)
            if kind is None and file.is_named:
                raise UserError(
                    f"{file.name}: files of this kind are not read; those are {' '.join(KINDS)}, .zip, .xml of "
                    "Android, WMT, TMX and XLIFF, and text whose names end in a language (train.en); any also .gz"
                )
            if kind is None:
                unknown += 1
            elif kind.read is not None:
                found.append((file.name, kind.read(file, request)))
            else:
                kinds[kind.name] = kind
                alone.setdefault(kind.name, []).append(file)
    others = [f"{unknown:,} files of other kinds are left out"] if unknown else []
    for name, files in alone.items():
        pairs, without = paired_files(files, request)
        found += (_both(kinds[name], *pair, request) for pair in pairs)
        named = {file.name for file in files if file.is_named}
        for lonely in without:
            if lonely in named:
                raise UserError(f"{lonely} is alone; {HOW_TO_PAIR}")
        if without:
            others.append(
                f"{len(without):,} files without one in the other language are left out, such as {without[0]}"
            )
    return found, others


def _both(kind: Kind, source: CorpusFile, target: CorpusFile, request: Request) -> tuple[str, Iterator[Unit]]:
    return f"{source.name}:{target.name}", kind.read_both(kind.name, source, target, request)


def _named_pair(name: Path) -> tuple[Kind, CorpusFile, CorpusFile] | None:
    """Two files that are named as SOURCE:TARGET; None: it is no such name."""
    text = str(name)
    for match in re.finditer(":", text):
        paths = Path(text[: match.start()]), Path(text[match.end() :])
        if not name.exists() and all(path.is_file() for path in paths):
            files = [next(walk(path)) for path in paths]
            kinds = [kind_of_file(file, None) or _LINES for file in files]
            if kinds[0] != kinds[1] or kinds[0].read_both is None:
                raise UserError(
                    f"{name}: {files[0].name} and {files[1].name} are not two files in one language of one kind"
                )
            return kinds[0], *files
    return None


def kind_of_file(file: CorpusFile, request: Request | None) -> Kind | None:
    """The kind of a file, by the ending of its name or the root of its XML; None: it is not read."""
    ending = Path(file.plain_name).suffix.lower()
    if ending in (".xml", ".ts"):
        kind = _ROOTS.get(root_of(file))
        if kind is not None or ending == ".xml":
            return kind
    elif ending in KINDS:
        return KINDS[ending]
    if ending == ".txt" and "\t" in _first_line(file):
        return _TABLE
    if ending == ".txt" and not file.is_named:  # in a folder, it may be anything
        return None
    tag = ending.removeprefix(".")
    is_text = ending == ".txt" or (request is not None and any(request.rank(side, tag) is not None for side in (0, 1)))
    return _LINES if is_text and tag else None


def _first_line(file: CorpusFile) -> str:
    with suppress(UserError):  # what is not text is no table
        return next(file.lines(), "")
    return ""

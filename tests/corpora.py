"""What the tests of corpora share: pairs, files of them by other people's tools, and reading them back."""

import json
from collections.abc import Callable
from pathlib import Path

import openpyxl
import openstep_plist
import polib
import pysubs2
from odfdo import Cell, Document, Row, Table
from translate.storage import aresource, jsonl10n, mo, po, properties, tmx, ts2, xliff, xliff2

from modeling_scratch.apps.corpora.corpus_from import Told, corpus_from
from modeling_scratch.apps.corpora.units import Request

TRICKY = [
    ("Fish & chips <b>now</b>!", "Fisch & Pommes <b>jetzt</b>!"),
    ('She said "yes" twice.', "Sie sagte zweimal „ja“."),
    ("It's 5 < 6 > 4", "Es ist 5 < 6 > 4"),
    (r"C:\temp\new", r"C:\temp\neu"),
    ("%s of {total} files", "%s von {total} Dateien"),
    ("100 % of it's here", "100\xa0% davon sind hier"),
    ("Smile 😀 & wave", "Lächle 😀 & winke"),
    ("_File", "&Datei"),
    ("a = b; c: d # e", "a = b; c: d # f"),
    ("日本語", "Japanisch"),
    ("Two  spaces", "Zwei  Leerzeichen"),
    ("@string or ?attr", "@zeichen oder ?attribut"),
    ("NULL", "NULL"),
    ("1,5", "1.5"),
]
PAIRS = TRICKY + [(f"The dog number {i} sees a cat.", f"Der Hund Nummer {i} sieht eine Katze.") for i in range(186)]


def request(**options) -> Request:
    return Request("en", "de", **options)


def read(folder: Path, *names: Path | str, told: list[Told] | None = None, wanted: Request | None = None) -> list[dict]:
    """The rows that `corpus_from` writes."""
    output = folder / "read.jsonl"
    output.unlink(missing_ok=True)
    found, _ = corpus_from([folder / name for name in names], output, wanted or request())
    if told is not None:
        told += found.values()
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def pairs_of(rows: list[dict]) -> list[tuple[str, str]]:
    return [(row["en"], row["de"]) for row in rows]


# -- files of pairs, by tools that others wrote ------------------------------------------------------------------------

Pairs = list[tuple[str, str]]
Written = list[str]  # the names of files to read


def _save(store, path: Path) -> Written:
    path.write_bytes(bytes(store))
    return [path.name]


def tmx_file(folder: Path, pairs: Pairs) -> Written:
    store = tmx.tmxfile()
    for source, target in pairs:
        store.addtranslation(source, "en-US", target, "de-DE")
    return _save(store, folder / "memory.tmx")


def _units(store, pairs: Pairs):
    for number, (source, target) in enumerate(pairs):
        unit = store.addsourceunit(source)
        unit.target = target
        if hasattr(unit, "setid"):
            unit.setid(f"{number}")
    return store


def xliff_file(folder: Path, pairs: Pairs) -> Written:
    store = xliff.xlifffile()
    store.setsourcelanguage("en")
    store.settargetlanguage("de")
    return _save(_units(store, pairs), folder / "text.xlf")


def xliff2_file(folder: Path, pairs: Pairs) -> Written:
    store = xliff2.Xliff2File(sourcelanguage="en", targetlanguage="de")
    return _save(_units(store, pairs), folder / "text2.xlf")


def po_file(folder: Path, pairs: Pairs) -> Written:
    store = po.pofile()
    store.updateheader(add=True, Language="de", Content_Type="text/plain; charset=UTF-8")
    return _save(_units(store, pairs), folder / "de.po")


def polib_file(folder: Path, pairs: Pairs) -> Written:
    catalog = polib.POFile()
    catalog.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Language": "de"}
    catalog.extend(polib.POEntry(msgid=source, msgstr=target) for source, target in pairs)
    catalog.save(folder / "polib.po")
    return ["polib.po"]


def mo_file(folder: Path, pairs: Pairs) -> Written:
    store = mo.mofile()
    store.updateheader(add=True, Language="de", Content_Type="text/plain; charset=UTF-8")
    return _save(_units(store, pairs), folder / "de.mo")


def polib_mo(folder: Path, pairs: Pairs) -> Written:
    polib_file(folder, pairs)
    polib.pofile(folder / "polib.po").save_as_mofile(folder / "polib.mo")
    return ["polib.mo"]


def qt_file(folder: Path, pairs: Pairs) -> Written:
    store = ts2.tsfile()
    store.settargetlanguage("de")
    return _save(_units(store, pairs), folder / "app_de.ts")


def _in_both(folder: Path, pairs: Pairs, save: Callable[[Pairs, int], Written]) -> Written:
    keyed = [(f"key{number:03}", pair) for number, pair in enumerate(pairs)]
    return [name for side in (0, 1) for name in save([(key, pair[side]) for key, pair in keyed], side)]


def json_files(folder: Path, pairs: Pairs) -> Written:
    def save(texts: Pairs, side: int) -> Written:
        store = jsonl10n.JsonFile()
        for key, text in texts:
            unit = store.UnitClass(text)
            unit.setid(key)
            store.addunit(unit)
        return _save(store, folder / f"app_{('en', 'de')[side]}.json")

    return _in_both(folder, pairs, save)


def _property_files(folder: Path, pairs: Pairs, kind: type, ending: str, names: tuple[str, str]) -> Written:
    def save(texts: Pairs, side: int) -> Written:
        store = kind()
        for key, text in texts:
            unit = store.addsourceunit(text)
            unit.name, unit.source, unit.target = key, text, text
        path = folder / f"{names[side]}{ending}"
        path.parent.mkdir(exist_ok=True)
        _save(store, path)
        return [str(path.relative_to(folder))]

    return _in_both(folder, pairs, save)


def properties_files(folder: Path, pairs: Pairs) -> Written:
    return _property_files(folder, pairs, properties.javautf8file, ".properties", ("messages", "messages_de"))


def latin_properties_files(folder: Path, pairs: Pairs) -> Written:
    return _property_files(folder, pairs, properties.javafile, ".properties", ("old_en_US", "old_de"))


def apple_files(folder: Path, pairs: Pairs) -> Written:
    def save(texts: Pairs, side: int) -> Written:
        path = folder / ("Base.lproj", "de.lproj")[side] / "Localizable.strings"
        path.parent.mkdir(exist_ok=True)
        path.write_text(openstep_plist.dumps(dict(texts), indent=0)[1:-1], encoding="utf-16")
        return [str(path.relative_to(folder))]

    return _in_both(folder, pairs, save)


def android_files(folder: Path, pairs: Pairs) -> Written:
    def save(texts: Pairs, side: int) -> Written:
        store = aresource.AndroidResourceFile()
        for key, text in texts:
            unit = store.UnitClass(key)
            unit.setid(key)
            unit.target = text
            store.addunit(unit)
        path = folder / ("values", "values-de-rAT")[side] / "strings.xml"
        path.parent.mkdir(exist_ok=True)
        _save(store, path)
        return [str(path.relative_to(folder))]

    return _in_both(folder, pairs, save)


def xlsx_file(folder: Path, pairs: Pairs) -> Written:
    book = openpyxl.Workbook()
    book.active.append(["id", "English", "German"])
    for number, pair in enumerate(pairs):
        book.active.append([number, *pair])
    book.save(folder / "pairs.xlsx")
    return ["pairs.xlsx"]


def ods_file(folder: Path, pairs: Pairs) -> Written:
    document, table = Document("spreadsheet"), Table("Sheet")
    document.body.clear()
    for values in (("en-GB", "de"), *pairs):
        row = Row()
        for value in values:
            row.append_cell(Cell(value, cell_type="string"))
        table.append_row(row)
    document.body.append(table)
    document.save(str(folder / "pairs.ods"))
    return ["pairs.ods"]


def subtitle_files(folder: Path, pairs: Pairs, ending: str = "srt") -> Written:
    for side, name in enumerate(("en", "de")):
        subtitles = pysubs2.SSAFile()
        for number, pair in enumerate(pairs):
            start = 3000 * number + 100 * side
            subtitles.append(pysubs2.SSAEvent(start=start, end=start + 2000, text=f"{pair[side]}."))
        subtitles.save(str(folder / f"film.{name}.{ending}"))
    return [f"film.en.{ending}", f"film.de.{ending}"]


WRITERS = [
    tmx_file,
    xliff_file,
    xliff2_file,
    po_file,
    polib_file,
    mo_file,
    polib_mo,
    qt_file,
    json_files,
    properties_files,
    latin_properties_files,
    apple_files,
    android_files,
    xlsx_file,
    ods_file,
]

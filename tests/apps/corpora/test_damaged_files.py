"""Damaged and hostile files: one line that names file and place, and nothing is written."""

import gzip
import io
import struct
import zipfile

import pytest
from corpora import PAIRS, mo_file, ods_file, pairs_of, po_file, read, tmx_file, xliff_file, xlsx_file
from test_memories import XLIFF_2, tmx_of

from modeling_scratch.apps.corpora import corpus_files, streamed_xml
from modeling_scratch.errors import UserError


def refused(tmp_path, name: str, content: bytes) -> str:
    """The message about a file."""
    folder = tmp_path / "files"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        read(folder, name)
    assert [path.name for path in folder.iterdir()] == [name]
    (folder / name).unlink()
    message = str(error.value)
    assert message.startswith(str(folder / name))
    assert "\n" not in message
    return message.removeprefix(str(folder / name))


DOCUMENT = """<?xml version="1.0"?><!DOCTYPE tmx [{declared}]><tmx version="1.4"><header/><body><tu><tuv xml:lang="en">
<seg>{text}</seg></tuv><tuv xml:lang="de"><seg>{text}</seg></tuv></tu></body></tmx>"""


@pytest.mark.parametrize(
    "declared",
    [
        '<!ENTITY word "text">',
        '<!ENTITY word SYSTEM "other.txt">',
        '<!ENTITY % word SYSTEM "other.dtd"> %word;',
    ],
)
def test_declarations_of_entities_are_refused(tmp_path, declared):
    """Whatever they stand for: these stand for little."""
    (tmp_path / "other.txt").write_text("the content of another file")
    text = "&word;" if "%" not in declared else "text"
    message = refused(tmp_path, "a.tmx", DOCUMENT.format(declared=declared, text=text).encode())
    assert message == ", line 1: declarations of entities are not read; remove them"


def test_an_entity_of_a_dtd_that_is_not_read(tmp_path):
    """Those of HTML are known."""
    content = tmx_of({"en": "a&nbsp;b &other; c", "de": "ä&eacute;"})
    (tmp_path / "a.tmx").write_bytes(content)
    assert pairs_of(read(tmp_path, "a.tmx")) == [("a\xa0b &other; c", "äé")]


@pytest.mark.parametrize("write", [tmx_file, xliff_file], ids=lambda write: write.__name__)
def test_xml_that_is_cut_off(tmp_path, write):
    (name,) = write(tmp_path, PAIRS)
    content = (tmp_path / name).read_bytes()
    for size in (len(content) // 2, len(content) - 4):
        message = refused(tmp_path, name, content[:size])
        assert message.startswith(", line ")
        assert message.endswith("; is the file cut off?")


def test_xml_in_another_encoding_than_it_declares(tmp_path):
    content = tmx_of({"en": "a", "de": "b"}, {"en": "naïve", "de": "größer"})
    broken = content.decode().encode("iso-8859-1")
    assert refused(tmp_path, "a.tmx", broken) == ", line 4: not valid XML (not well-formed (invalid token))"
    assert "convert it to UTF-8" in refused(tmp_path, "a.tmx", content.replace(b'"utf-8"', b'"shift_jis"'))
    assert "unknown encoding" in refused(tmp_path, "a.tmx", content.replace(b'"utf-8"', b'"x-none"'))


def test_nested_and_large_units(tmp_path, monkeypatch):
    """Of sizes that hurt nobody: the limits are smaller here."""
    for name, value in {"_MOST_ELEMENTS": 1000, "_MOST_CHARACTERS": 2000, "_MOST_DEPTH": 30}.items():
        monkeypatch.setattr(streamed_xml, name, value)
    deep = "<sub>" * 40 + "</sub>" * 40
    assert refused(tmp_path, "a.tmx", tmx_of({"en": f"<ph>{deep}</ph>", "de": "x"})) == (
        ", line 3: elements are nested more than 30 deep"
    )
    assert refused(tmp_path, "a.tmx", tmx_of({"en": "<ph/>" * 1001, "de": "x"})) == (
        ", line 3: more than 1,000 elements in one unit"
    )
    assert refused(tmp_path, "a.tmx", tmx_of({"en": "long" * 501, "de": "x"})) == (
        ", line 3: more than 2,000 characters in one unit"
    )
    monkeypatch.setattr(streamed_xml, "_CHUNK", 500)
    endless = tmx_of({"en": "a", "de": "b"}).replace(b'<tuv xml:lang="de"', b'<tuv note="' + b"long" * 1000 + b'"')
    assert refused(tmp_path, "a.tmx", endless) == ", line 3: a tag without an end"


def test_many_inline_tags_within_the_limit(tmp_path):
    (tmp_path / "a.tmx").write_bytes(tmx_of({"en": "x<ph/>" * 20_000, "de": "y<ph/>" * 20_000}))
    ((source, target),) = pairs_of(read(tmp_path, "a.tmx"))
    assert source == " ".join("x" * 20_000)
    assert target == " ".join("y" * 20_000)


@pytest.mark.parametrize("name", ["a.tmx", "a.xlf", "a.sdlxliff", "a_de.ts"])
def test_xml_of_another_kind(tmp_path, name):
    (tmp_path / name).write_bytes(b"<html><p>x</p></html>")
    with pytest.raises(UserError):
        read(tmp_path, name)


# -- archives ----------------------------------------------------------------------------------------------------------


def test_archives_that_unpack_to_far_more(tmp_path, monkeypatch):
    """The limits are lower here, so that harmless files exceed them."""
    monkeypatch.setattr(corpus_files, "_ALWAYS_ALLOWED", 5000)
    monkeypatch.setattr(corpus_files, "_MOST_EXPANDED", 20)
    content = tmx_of(*[{"en": "a" * 100, "de": "b" * 100}] * 500)
    assert "unpacks to more than 20 times its size" in refused(tmp_path, "a.tmx.gz", gzip.compress(content))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.tmx", content)
    assert "a.tmx unpacks to more than 20 times" in refused(tmp_path, "a.zip", packed.getvalue())
    for write in (xlsx_file, ods_file):
        (name,) = write(tmp_path, [("a" * 100, "b" * 100)] * 500)
        assert "times its size" in refused(tmp_path, name, (tmp_path / name).read_bytes())


def test_archives_that_are_cut_off(tmp_path):
    (name,) = xlsx_file(tmp_path, PAIRS)
    for ending in ("xlsx", "ods", "zip"):
        half = (tmp_path / name).read_bytes()[:3000]
        assert "damaged: " in refused(tmp_path, f"half.{ending}", half)
    packed = gzip.compress(tmx_of({"en": "a", "de": "b"}))
    assert ": damaged: " in refused(tmp_path, "a.tmx.gz", packed[:-20])


def test_spreadsheets_that_declare_entities(tmp_path):
    (name,) = xlsx_file(tmp_path, PAIRS[:3])
    packed = io.BytesIO()
    with zipfile.ZipFile(tmp_path / name) as old, zipfile.ZipFile(packed, "w") as new:
        for part in old.namelist():
            content = old.read(part)
            if part == "xl/worksheets/sheet1.xml":
                content = b'<!DOCTYPE worksheet [<!ENTITY word "text">]>' + content
            new.writestr(part, content)
    assert (
        refused(tmp_path, name, packed.getvalue()) == ": xl/worksheets/sheet1.xml declares entities, as no program does"
    )


# -- others ------------------------------------------------------------------------------------------------------------


def test_mo_files_that_are_cut_off_or_lie(tmp_path):
    (name,) = mo_file(tmp_path, PAIRS)
    content = (tmp_path / name).read_bytes()
    assert refused(tmp_path, name, b"msgid") == ": not an MO file"
    assert refused(tmp_path, name, content[:15]) == ": not an MO file"
    assert "beyond the end of the file; is it cut off?" in refused(tmp_path, name, content[: len(content) // 2])
    many = content[:8] + struct.pack("<I", 2**31) + content[12:]
    assert "its 2,147,483,648 messages go beyond the end" in refused(tmp_path, name, many)
    assert "unknown version 9" in refused(tmp_path, name, content[:4] + struct.pack("<I", 9 << 16) + content[8:])
    latin = content.replace("ä".encode(), b"\xe4 ")  # of the same size, so that the tables stay right
    assert "not in the encoding UTF-8, as it declares" in refused(tmp_path, name, latin)


def test_po_files_that_are_damaged(tmp_path):
    (name,) = po_file(tmp_path, PAIRS)
    content = (tmp_path / name).read_bytes()
    assert ", line " in refused(tmp_path, name, content[:-30])
    latin = content.replace("größ".encode(), "größ".encode("latin-1")).replace("ä".encode(), b"\xe4")
    message = refused(tmp_path, name, latin)
    assert "not valid UTF-8" in message
    assert message.endswith("convert it to UTF-8, such as by: iconv -f WINDOWS-1252 -t UTF-8")
    assert "declares the unknown encoding klingon" in refused(tmp_path, name, content.replace(b"UTF-8", b"klingon"))


@pytest.mark.parametrize(
    ("name", "source", "target", "message"),
    [
        ("app_{}.json", '{"a": "b"}', '{"a": "b', r"app_de\.json: line 1: not valid JSON"),
        ("app_{}.json", '{"a": "b"}', "[" * 100_000, r"app_de\.json: .*nested too deeply"),
        ("app_{}.strings", '"a" = "b";', '"a" = "b"', r"app_de\.strings: line 1: expected a semicolon"),
        ("values-{}/strings.xml", "<resources/>", "<resources>", r"strings\.xml: line 1: not valid XML"),
        ("a_{}.properties", "a=b", "a=\\ud800", r"a_de\.properties: line 1: half of a surrogate"),
        ("x-{}.sgm", "<srcset></srcset>", "text", r"x-de\.sgm: not a test set"),
        ("film.{}.srt", "1\n00:00:01,000 --> 00:00:02,000\nHi\n", "text", r"film\.de\.srt: no subtitles in SRT format"),
        ("t.{}", "a\nb\n", "a\n", r"t\.de has 1 lines, and .*t\.en has more"),
    ],
)
def test_files_in_one_language(tmp_path, name, source, target, message):
    names = []
    for language, content in (("en", source), ("de", target)):
        path = tmp_path / name.format(language)
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        names.append(path)
    with pytest.raises(UserError, match=message):
        read(tmp_path, *names)
    assert not (tmp_path / "read.jsonl").exists()


def test_half_a_character_is_skipped(tmp_path):
    (tmp_path / "en.json").write_text('{"a": "fine", "b": "\\ud83d"}')
    (tmp_path / "de.json").write_text('{"a": "gut", "b": "\\ud83d"}')
    told = []
    assert pairs_of(read(tmp_path, "en.json", "de.json", told=told)) == [("fine", "gut")]
    assert told[0].skipped == {"with half a character": 1}


def test_xliff_2_is_not_refused_for_its_size(tmp_path):
    (tmp_path / "a.xlf").write_text(XLIFF_2)
    assert len(read(tmp_path, "a.xlf")) == 2


def test_numbers_that_are_none(tmp_path):
    """Of characters and of repeated cells."""
    unit = '<unit id="1"><segment><source>a<cp hex="{0}"/></source><target>b</target></segment></unit>'
    content = '<xliff version="2.0" srcLang="en" trgLang="de"><file>' + unit + "</file></xliff>"
    for code, character in {"0009": "", "zz": "", "": "", "FFFFFFFFF": "", "263A": "☺"}.items():
        (tmp_path / "a.xlf").write_text(content.format(code))
        assert pairs_of(read(tmp_path, "a.xlf")) == [(f"a{character}", "b")]

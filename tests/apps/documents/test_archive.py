"""Archives that are damaged, encrypted or made to exhaust a reader end with one line."""

import io
import sys
import zipfile

import pytest
from conftest import ROOT
from stand_ins import changed

from modeling_scratch.apps.documents import archive as archives
from modeling_scratch.apps.documents import xml_tree
from modeling_scratch.apps.documents.document import read_document
from modeling_scratch.errors import UserError

sys.path.insert(0, str(ROOT / "benchmarks"))
from readers import ARCHIVES, archive, document_of

DOCUMENT = document_of("docx", "Some text")
OLE = bytes.fromhex("d0cf11e0a1b11ae1")  # how compound files of Microsoft begin, such as .doc
ENTITIES = "<!DOCTYPE a [<!ENTITY a 'aaaaaaaaaa'>" + "".join(
    f"<!ENTITY {name} '{f'&{before};' * 10}'>" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def repacked(without: str = "", compression: int = zipfile.ZIP_DEFLATED, **more: bytes) -> bytes:
    """The document without one of its parts, or with others."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(DOCUMENT)) as source, zipfile.ZipFile(file, "w", compression) as target:
        for name in source.namelist():
            if name != without:
                target.writestr(name, source.read(name))
        for name, content in more.items():
            target.writestr(name, content)
    return file.getvalue()


def flagged() -> bytes:
    """The document with entries that claim to be encrypted."""
    content = bytearray(DOCUMENT)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = -1
        while (place := content.find(signature, place + 1)) >= 0:
            content[place + offset] |= 1
    return bytes(content)


def with_document(text: str | bytes) -> bytes:
    """A document with this as its only part with text."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("[Content_Types].xml", ARCHIVES["docx"][0]["[Content_Types].xml"])
        target.writestr("a", text)
    return file.getvalue()


def damaged() -> bytes:
    """A document of which a stored part has changed."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        target.writestr("b", "some text")
    return file.getvalue().replace(b"some text", b"more text")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Some text", "not a .docx file, or damaged"),
        (b"", "not a .docx file, or damaged"),
        (DOCUMENT[:200], "not a .docx file, or damaged"),
        (DOCUMENT.replace(b"PK\x03\x04", b"PK\x03\x05", 1), "damaged: the content of"),
        (damaged(), "damaged: the content of b has changed"),
        (OLE + bytes(512), "old version of Word; save it as .docx"),
        (OLE + "EncryptedPackage".encode("utf-16-le"), "encrypted with a password"),
        (flagged(), "encrypted with a password"),
        (repacked(compression=zipfile.ZIP_LZMA, b=b"b" * 99), "compressed in a way that .docx does not allow"),
        (document_of("epub", "Some text"), r"it has no \[Content_Types\].xml"),
        (repacked(without="a"), "it has no a"),
        (repacked(**{"[Content_Types].xml": b""}), "damaged: 3 parts with 2 names"),
        (with_document("<a>"), "^a: line 1: not valid XML"),
        (with_document(b"\xff"), "^a: not valid UTF-8"),
        (with_document(f"\n{ENTITIES}]><a>&i;</a>"), "line 2: declarations of entities are not read"),
        (with_document("<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>"), "declarations of entities"),
        (archive("docx", "<a>" * 100_000 + "</a>" * 100_000), "nested more than 100 deep"),
        (repacked(b=bytes(3 << 20)), "too large: its parts have 3 MiB"),
        (archive("docx", " " * (2 << 20)), "too large: its text and markup have more than 1 MiB"),
        (archive("docx", "<w:p/>" * 10_000), "too large: it has more than 10,000 elements"),
        (repacked(**{f"x{number}": b"" for number in range(101)}), "damaged: 103 parts"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_cannot_be_read_is_refused_with_one_line(content, message, monkeypatch):
    """With smaller limits, to be quick."""
    monkeypatch.setattr(archives, "_MOST_PARTS", 100)
    monkeypatch.setattr(archives, "_LARGEST", (5 << 20) // 2)
    monkeypatch.setattr(archives, "_MOST_TEXT", 1 << 20)
    monkeypatch.setattr(xml_tree, "_MOST_NODES", 10_000)
    with pytest.raises(UserError, match=message) as error:
        read_document(content, "docx")
    assert len(str(error.value).splitlines()) == 1


def test_other_parts_are_copied_as_they_are():
    """Archives within the archive, which nobody opens, and names that lead out of it, which nobody follows."""
    more = {"../outside": b"a", "/root": b"b", "inner.zip": repacked(b=bytes(1000)), "folder/": b""}
    before = repacked(**more)
    found = changed(before, "docx", str.upper)[0]
    with zipfile.ZipFile(io.BytesIO(before)) as one, zipfile.ZipFile(io.BytesIO(found)) as other:
        for first, second in zip(one.infolist(), other.infolist(), strict=True):
            assert (first.filename, first.date_time, first.compress_type) == (
                second.filename,
                second.date_time,
                second.compress_type,
            )
            assert (one.read(first) == other.read(second)) is (first.filename != "a")

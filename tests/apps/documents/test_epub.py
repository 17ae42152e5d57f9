"""EPUB: pages are read as HTML; the package, its title and language, and the table of contents follow."""

import io
import zipfile

import pytest
from lxml import etree
from stand_ins import backwards, changed

from modeling_scratch.apps.documents.document import read_document, translate_document
from modeling_scratch.errors import UserError

XHTML = 'xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"'
BOOK = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": '<?xml version="1.0"?>\n'
    '<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>',
    "OEBPS/content.opf": '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
    '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">urn:uuid:1</dc:identifier>'
    "<dc:title>The old book</dc:title><dc:creator>Ann Author</dc:creator><dc:language>en</dc:language>"
    "<dc:description>About it</dc:description><dc:description>&lt;p&gt;About it&lt;/p&gt;</dc:description>"
    '<meta property="dcterms:modified">2020-01-01T00:00:00Z</meta></metadata><manifest>'
    '<item id="a" href="text/ch%201.xhtml" media-type="application/xhtml+xml"/>'
    '<item id="b" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'
    '<item id="c" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
    '<item id="d" href="s.css" media-type="text/css"/></manifest>'
    '<spine toc="c"><itemref idref="a"/></spine></package>',
    "OEBPS/text/ch 1.xhtml": '<?xml version="1.0" encoding="utf-8"?>\r\n<!DOCTYPE html>\r\n'
    f'<html {XHTML} lang="en" xml:lang="en"><head><title>One</title><style/><link rel="stylesheet" href="../s.css"/>'
    '</head>\r\n<body><a id="p"/><h1>Chapter one</h1><p>The <i>old</i> man <span epub:type="pagebreak" id="q"/>sleeps.'
    "</p><hr/><p>A&#160;dog runs<br/>to 3 &lt; 4.</p><pre/><p>Last words</p><pre>code</pre></body></html>",
    "OEBPS/nav.xhtml": f"<?xml version='1.0'?><html {XHTML}><head><title>Contents</title></head><body>"
    '<nav epub:type="toc"><ol><li><a href="text/ch%201.xhtml">Chapter one</a></li></ol></nav></body></html>',
    "OEBPS/toc.ncx": '<?xml version="1.0"?><!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "x.dtd">'
    '<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/" version="2005-1" xml:lang="en"><head>'
    '<meta name="dtb:uid" content="urn:uuid:1"/></head><docTitle><text>The old book</text></docTitle><navMap>'
    '<navPoint id="n"><navLabel><text>Chapter one</text></navLabel><content src="text/ch%201.xhtml"/></navPoint>'
    "</navMap></ncx>",
    "OEBPS/s.css": "p { color: red }",
}
PAGE = "OEBPS/text/ch 1.xhtml"


def packed(parts: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in parts.items():
            target.writestr(name, text, zipfile.ZIP_STORED if name == "mimetype" else None)
    return file.getvalue()


def unpacked(book: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(book)) as found:
        first = found.infolist()[0]
        assert (first.filename, first.compress_type, first.extra) == ("mimetype", zipfile.ZIP_STORED, b"")
        return {entry.filename: found.read(entry) for entry in found.infolist()}


def blanked(part: bytes) -> bytes:
    tree = etree.fromstring(part, etree.XMLParser(resolve_entities=False, load_dtd=False))
    for element in tree.iter(etree.Element):
        element.text = element.tail = None
    return etree.tostring(tree, method="c14n")


def test_only_text_changes():
    before = packed(BOOK)
    found, read = changed(before, "epub", str.upper)
    assert read == [
        *("One", "Chapter one", "The old man sleeps.", "A dog runs", "to 3 < 4.", "Last words", "Contents"),
        *("Chapter one", "The old book", "Chapter one", "The old book", "About it"),
    ]
    before, after = unpacked(before), unpacked(found)
    assert list(before) == list(after)
    assert {name for name in before if before[name] != after[name]} == {
        "OEBPS/content.opf",
        PAGE,
        "OEBPS/nav.xhtml",
        "OEBPS/toc.ncx",
    }
    for name in set(before) - {"mimetype", "OEBPS/s.css"}:
        assert blanked(before[name]) == blanked(after[name])


def test_the_language_of_the_book_becomes_that_of_the_translation():
    parts = unpacked(translate_document(packed(BOOK), "epub", backwards, target="de_AT"))
    assert b"<dc:title>BOOK OLD THE</dc:title>" in parts["OEBPS/content.opf"]
    assert b"<dc:language>de-AT</dc:language>" in parts["OEBPS/content.opf"]
    assert b'lang="de-AT" xml:lang="de-AT"' in parts[PAGE]
    assert b'xml:lang="de-AT"' in parts["OEBPS/toc.ncx"]
    assert b"<p>RUNS DOG&#160;A<br/>4. &lt; 3 TO</p>" in parts[PAGE]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("META-INF/container.xml", None, "it has no META-INF/container.xml"),
        ("META-INF/container.xml", "<container/>", "names no package"),
        ("OEBPS/content.opf", None, "it has no OEBPS/content.opf"),
        ("OEBPS/content.opf", "<package/>", "names no pages"),
        (
            "META-INF/encryption.xml",
            '<encryption xmlns:enc="http://www.w3.org/2001/04/xmlenc#">'
            '<enc:CipherReference URI="OEBPS/text/ch%201.xhtml"/></encryption>',
            "encrypted",
        ),
    ],
)
def test_damaged_and_encrypted_books_are_refused(name, text, message):
    book = {**BOOK, name: text}
    with pytest.raises(UserError, match=message):
        read_document(packed({name: text for name, text in book.items() if text is not None}), "epub")


def test_pages_outside_the_book_are_not_read():
    """Whatever addresses the package names."""
    package = BOOK["OEBPS/content.opf"].replace("nav.xhtml", "../../../../etc/passwd")
    found = read_document(packed(BOOK | {"OEBPS/content.opf": package}), "epub").paragraphs
    assert "Contents" not in found
    assert "Last words" in found

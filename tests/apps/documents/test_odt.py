"""ODT: spans become tags within sentences; everything that is not text stays."""

import io
import re
import sys
import zipfile

import odfdo
import pytest
from conftest import ROOT
from lxml import etree
from stand_ins import backwards, changed

from modeling_scratch.apps.documents.document import read_document, translate_document
from modeling_scratch.errors import UserError

sys.path.insert(0, str(ROOT / "benchmarks"))
from readers import archive, body

BOLD, END = '<text:span text:style-name="Bold">', "</text:span>"
NOTE = (
    '<text:note text:id="a"><text:note-citation>1</text:note-citation><text:note-body>{}</text:note-body></text:note>'
)


@pytest.mark.parametrize(
    ("paragraph", "read", "reversed"),
    [
        (f"The {BOLD}old{END} cat sleeps.", ["The old cat sleeps."], f"SLEEPS. CAT {BOLD}OLD{END} THE"),
        (f"The {BOLD}o{END}{BOLD}ld{END} cat", ["The old cat"], f"CAT {BOLD}OLD{END} THE"),
        ("The<text:s/>old <text:s text:c='3'/>cat", ["The old cat"], "CAT OLD THE"),
        ("One two<text:tab/>three<text:line-break/>four", ["One two", "three", "four"], None),
        ("The <text:soft-page-break/>cat", ["The cat"], "CAT THE"),
        ("See <text:a>the page</text:a> now", ["See the page now"], "NOW <text:a>PAGE THE</text:a> SEE"),
        (
            f"See {BOLD}a <text:a>b</text:a>{END} now c",
            ["See a b now c"],
            f"C NOW <text:a>{BOLD}B{END}</text:a> {BOLD}A{END} SEE",
        ),
        (f"A {BOLD}<text:date>1 May</text:date>{END} b", ["A b"], f"B A {BOLD}<text:date>1 May</text:date>{END}"),
        (
            "A <text:bookmark-start text:name='x'/>cat b<text:bookmark-end text:name='x'/> c",
            ["A cat b c"],
            "C <text:bookmark-start text:name='x'/>B CAT<text:bookmark-end text:name='x'/> A",
        ),
        (
            f"The cat{NOTE.format('<text:p>A note</text:p>')} sleeps.",
            ["The cat sleeps.", "A note"],
            f"SLEEPS. CAT{NOTE.format('<text:p>NOTE A</text:p>')} THE",
        ),
        (
            "<text:ruby><text:ruby-base>cat</text:ruby-base><text:ruby-text>x</text:ruby-text></text:ruby> a",
            ["cat a"],
            "A CAT",
        ),
        ("3 &lt; 4 &amp; <!-- b --> 5", ["3 < 4 & 5"], "5 &amp; <!-- b --> 4 &lt; 3"),
    ],
)
def test_spans_of_a_paragraph(paragraph, read, reversed):
    document = archive("odt", f"<text:p>{paragraph}</text:p>")
    assert read_document(document, "odt").paragraphs == read
    found = body("odt", translate_document(document, "odt", backwards))
    etree.fromstring(found.replace("text:", ""))
    if reversed is not None:
        assert found == f"<text:p>{reversed}</text:p>"


def test_spans_that_look_like_the_text_around_them_are_joined_with_it():
    """LibreOffice makes such spans to record when text was written, and in which language."""
    styles = (
        "<office:automatic-styles xmlns:style='urn:oasis:names:tc:opendocument:xmlns:style:1.0'"
        " xmlns:fo='urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0' xmlns:officeooo='o'>"
        '<style:style style:name="T1"><style:text-properties officeooo:rsid="1" fo:language="fr"/></style:style>'
        '<style:style style:name="T2"><style:text-properties fo:color="#f00" officeooo:rsid="2"/></style:style>'
        '<style:style style:name="T3"><style:text-properties fo:color="#f00"/></style:style>'
        "</office:automatic-styles>"
    )
    span = '<text:span text:style-name="{}">{}</text:span>'
    spans = "".join(map(span.format, ("T1", "T2", "T3", "T1"), ("The c", "at ", "is", " here")))
    found = body("odt", translate_document(archive("odt", f"{styles}<text:p>{spans}</text:p>"), "odt", backwards))
    assert found.removeprefix(styles) == f"<text:p>HERE {span.format('T2', 'IS CAT')} THE</text:p>"


@pytest.fixture(scope="module")
def report() -> bytes:
    """As odfdo makes it."""
    document = odfdo.Document("text")
    document.body.clear()
    document.body.append(odfdo.Header(1, "The old cat"))
    paragraph = odfdo.Paragraph("The old man gives the child a red book.")
    paragraph.set_span("Strong_20_Emphasis", regex="gives")
    paragraph.insert_note(after="child", note_id="n", citation="1", body="A note about it")
    paragraph.insert_annotation(after="book", body="A remark", creator="Ann Author")
    document.body.append(paragraph)
    document.body.append(odfdo.List(["First point", "Second point"]))
    table = odfdo.Table("Table", width=2, height=1)
    table.set_value((0, 0), "A cell")
    document.body.append(table)
    frame = odfdo.Frame.text_frame("In a box", size=("5cm", "2cm"))
    document.body.append(odfdo.Paragraph("A frame here "))
    document.body.children[-1].append(frame)
    document.meta.title, document.meta.creator = "A short report", "Ann Author"
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def parts(document: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(document)) as found:
        assert (found.infolist()[0].filename, found.infolist()[0].compress_type) == ("mimetype", zipfile.ZIP_STORED)
        return {entry.filename: found.read(entry) for entry in found.infolist()}


def blanked(part: bytes) -> bytes:
    tree = etree.fromstring(part)
    for element in tree.iter():
        element.attrib.pop("{urn:oasis:names:tc:opendocument:xmlns:office:1.0}string-value", None)
        element.text = element.tail = None
    return etree.tostring(tree, method="c14n")


def test_only_text_changes(report):
    found, read = changed(report, "odt", str.upper)
    assert read == [
        "The old cat",
        "The old man gives the child a red book.",
        "A note about it",
        "A remark",
        "First point",
        "Second point",
        "A cell",
        "A cell",
        "A frame here",
        "In a box",
        "A short report",
    ]
    before, after = parts(report), parts(found)
    assert list(before) == list(after)
    assert {name for name in before if before[name] != after[name]} == {"content.xml", "meta.xml"}
    assert [blanked(before[name]) for name in ("content.xml", "meta.xml")] == [
        blanked(after[name]) for name in ("content.xml", "meta.xml")
    ]


def test_its_own_library_reads_the_translation(report):
    translated = translate_document(report, "odt", backwards, target="de-AT")
    found = odfdo.Document(io.BytesIO(translated))
    assert found.body.get_header(0).text == "CAT OLD THE"
    assert [span.text for span in found.body.get_paragraphs()[0].get_spans()] == ["GIVES"]
    assert [note.note_body for note in found.body.get_notes()] == ["IT ABOUT NOTE A"]
    assert [(remark.creator, remark.note_body) for remark in found.body.get_annotations()] == [
        ("Ann Author", "REMARK A")
    ]
    assert found.body.get_table(0).get_value((0, 0)) == "CELL A"
    assert (found.meta.title, found.meta.creator) == ("REPORT SHORT A", "Ann Author")
    locales = re.findall(rb'fo:(language|country)="([^"]*)"', parts(translated)["styles.xml"])
    assert set(locales) == {(b"language", b"de"), (b"country", b"AT")}


def test_encrypted_and_other_documents_are_refused():
    for content, message in (
        ({"mimetype": "application/vnd.oasis.opendocument.spreadsheet"}, "no text document"),
        (
            {
                "mimetype": "application/vnd.oasis.opendocument.text",
                "META-INF/manifest.xml": "<manifest:encryption-data/>",
            },
            "password",
        ),
    ):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as target:
            for name, text in content.items():
                target.writestr(name, text)
        with pytest.raises(UserError, match=message):
            read_document(file.getvalue(), "odt")


def test_references_in_attributes_may_have_more_digits_than_python_reads():
    """int() refuses more than 4,300 digits since Python 3.11; XML allows any number of zeros."""
    table = "urn:oasis:names:tc:opendocument:xmlns:table:1.0"
    value = f"A &#{'0' * 4300}65;"
    document = archive("odt", f'<table:table-cell xmlns:table="{table}" office:string-value="{value}"/>')
    assert read_document(document, "odt").paragraphs == ["A A"]

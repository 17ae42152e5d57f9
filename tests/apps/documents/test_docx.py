"""DOCX: runs become tags within sentences; everything that is not text stays."""

import io
import itertools
import random
import re
import sys
import zipfile
from collections import Counter

import docx
import pytest
from conftest import ROOT
from docx.enum.text import WD_BREAK
from docx.shared import RGBColor
from lxml import etree
from stand_ins import always, backwards, changed

from modeling_scratch.apps.documents.document import read_document, translate_document
from modeling_scratch.apps.translate.paragraphs import Translated

sys.path.insert(0, str(ROOT / "benchmarks"))
from readers import archive, body

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
BOLD = "<w:rPr><w:b/></w:rPr>"


def written(short: str) -> str:
    """A paragraph in XML. In short, text is a run, [text] is a bold run, and {markup} is markup."""

    def part(token: str) -> str:
        if token[0] == "{":
            return token[1:-1]
        properties, text = (BOLD, token[1:-1]) if token[0] == "[" else ("", token)
        return f'<w:r>{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'

    parts = re.split(r"(\{[^}]*\}|\[[^]]*\])", short)
    return f"<w:p>{''.join(part(token) for token in parts if token)}</w:p>"


def run(inner: str) -> str:
    return f"{{<w:r>{inner}</w:r>}}"


def field(code: str, result: str) -> str:
    begin, code = run('<w:fldChar w:fldCharType="begin"/>'), run(f"<w:instrText>{code}</w:instrText>")
    separate, end = (run(f'<w:fldChar w:fldCharType="{kind}"/>') for kind in ("separate", "end"))
    return f"{begin}{code}{separate}{result}{end}"


SPACED = '<w:t xml:space="preserve">'
NOTE, TAB = run('<w:footnoteReference w:id="1"/>'), run("<w:tab/>")
START, STOP = '{<w:bookmarkStart w:id="1" w:name="a"/>}', '{<w:bookmarkEnd w:id="1"/>}'
LINK, END_LINK = '{<w:hyperlink w:anchor="x">}', "{</w:hyperlink>}"
SDT, END_SDT = "{<w:sdt><w:sdtPr/><w:sdtContent>}", "{</w:sdtContent></w:sdt>}"


@pytest.mark.parametrize(
    ("paragraph", "read", "reversed"),
    [
        ("The [old] cat sleeps.", ["The old cat sleeps."], "SLEEPS. CAT [OLD] THE"),
        # Most of a paragraph is its main text.
        ("[The old] cat [sleeps.]", ["The old cat sleeps."], "[SLEEPS. ]CAT[ OLD THE]"),
        # Words and phrases that Word has split, with marks of the spelling checker between the parts.
        ("Th{<w:proofErr w:type='spellStart'/>}e c{<w:r w:rsidR='1'/>}at", ["The cat"], "CAT THE"),
        ("[o]{<w:proofErr w:type='a'/>}[ld] [and red] cat", ["old and red cat"], "CAT[ RED AND OLD]"),
        (
            "{<w:r><w:rPr><w:noProof/><w:lang w:val='fr'/><w:rFonts w:hint='eastAsia'/></w:rPr><w:t>The</w:t></w:r>}"
            " cat",
            ["The cat"],
            "CAT THE",
        ),
        (
            "the{<w:r><w:t>e</w:t><w:noBreakHyphen/><w:t>m</w:t><w:softHyphen/><w:t>ail</w:t></w:r>}",
            ["thee-mail"],
            f"{{<w:r>{SPACED}THEE</w:t><w:noBreakHyphen/>{SPACED}MAIL</w:t></w:r>}}{run('<w:softHyphen/>')}",
        ),
        ("x {<w:r><w:sym w:font='Symbol' w:char='F061'/></w:r>} b", ["x b"], None),
        (f"1…{run('<w:noBreakHyphen/>')} {run('<w:cr/>')}…", ["1…-"], None),
        ("The [ ]cat", ["The cat"], "CAT THE"),
        # Notes, bookmarks, pictures and formulas.
        (f"The cat{NOTE} sleeps.", ["The cat sleeps."], f"SLEEPS. CAT{NOTE} THE"),
        (f"The [cat]{NOTE}[s] run", ["The cats run"], f"RUN [CATS]{NOTE} THE"),
        (f"The {START}old cat{STOP} sleeps", ["The old cat sleeps"], f"SLEEPS {START}CAT OLD{STOP} THE"),
        (f"{STOP}The {START}old cat", ["The old cat"], None),
        (f"The c{START}{STOP}at sleeps", ["The cat sleeps"], f"SLEEPS CAT{START}{STOP} THE"),
        (
            "Let {<m:oMath xmlns:m='m'><m:t>x</m:t></m:oMath>} be",
            ["Let be"],
            "BE LET {<m:oMath xmlns:m='m'><m:t>x</m:t></m:oMath>}",
        ),
        # Links, content controls, smart tags and insertions.
        (f"See {LINK}[the] page{END_LINK} now", ["See the page now"], f"NOW {LINK}PAGE [THE]{END_LINK} SEE"),
        (f"See {SDT}the page{END_SDT} now", ["See the page now"], f"NOW {SDT}PAGE THE{END_SDT} SEE"),
        ("A {<w:smartTag>}cat{</w:smartTag>} b", ["A cat b"], "B {<w:smartTag>}CAT{</w:smartTag>} A"),
        ("A {<w:ins w:id='1'>}cat{</w:ins>} b", ["A cat b"], "B {<w:ins w:id='1'>}CAT{</w:ins>} A"),
        (
            "A {<w:del w:id='1'><w:r><w:delText>big </w:delText></w:r></w:del>}cat",
            ["A cat"],
            "{<w:del w:id='1'><w:r><w:delText>big </w:delText></w:r></w:del>}CAT A",
        ),
        # Line breaks and tabs end a sentence.
        (f"One two{TAB}three four", ["One two", "three four"], f"TWO ONE{TAB}FOUR THREE"),
        (f"{LINK}One two{TAB}three{END_LINK}", ["One two", "three"], f"{LINK}TWO ONE{TAB}THREE{END_LINK}"),
        # Fields.
        (f"Page {field('PAGE', '3')} of it", ["Page of it"], f"IT OF PAGE {field('PAGE', '3')}"),
        (f"a b {field('HYPERLINK x', '[c d]')} e", ["a b c d e"], f"E {field('HYPERLINK x', '[D C]')} B A"),
        (f"a {field('IF {x}', 'b')} c".replace("{x}", "x"), ["a c"], f"C A {field('IF x', 'b')}"),
        # Of ruby, the base is read.
        (
            "{<w:r><w:ruby><w:rt><w:r><w:t>x</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>cat</w:t></w:r></w:rubyBase>"
            "</w:ruby></w:r>} a",
            ["cat a"],
            "A CAT",
        ),
        # References to notes that are text.
        (
            'The cat{<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>2</w:t></w:r>} sleeps',
            ["The cat sleeps"],
            'SLEEPS CAT{<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>2</w:t></w:r>} THE',
        ),
    ],
)
def test_runs_of_a_paragraph(paragraph, read, reversed):
    document = archive("docx", written(paragraph))
    assert read_document(document, "docx").paragraphs == read
    found = body("docx", translate_document(document, "docx", backwards))
    etree.fromstring(re.sub(r"\b[a-z]:", "", found))
    if reversed is not None:
        assert found == written(reversed)


def test_a_table_of_contents_stays_a_field_over_several_paragraphs():
    first, *rest, last = re.split("(?<=})(?={)", field("TOC", ""))
    entries = [
        f"{first}{''.join(rest)}{LINK}One two{TAB}{field('PAGEREF a', '1')}{END_LINK}",
        f"three four{TAB}5{last}",
    ]
    document = archive("docx", "".join(map(written, entries)))
    found, read = changed(document, "docx", str.upper)
    assert read == ["One two", "three four", "5"]
    assert body("docx", found) == "".join(
        written(entry.replace("One two", "ONE TWO").replace("three four", "THREE FOUR")) for entry in entries
    )


def test_text_boxes_are_read_in_both_of_their_versions():
    box = "<w:txbxContent>{}</w:txbxContent>".format(written("in [a] box"))
    both = f"<w:AlternateContent><w:Choice>{box}</w:Choice><w:Fallback>{box}</w:Fallback></w:AlternateContent>"
    outer = written(f"The cat {run('@')} sleeps.").replace("@", both)
    document = archive("docx", outer)
    found, read = changed(document, "docx", str.upper)
    assert read == ["The cat sleeps.", "in a box", "in a box"]
    assert body("docx", found) == outer.replace("in ", "IN ").replace(">a<", ">A<").replace(" box", " BOX").replace(
        "The cat", "THE CAT"
    ).replace("sleeps", "SLEEPS")


# -- whole documents ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> bytes:
    """As python-docx makes it, with most of what it can make."""
    document = docx.Document()
    document.core_properties.title, document.core_properties.author = "A short report", "Ann Author"
    document.add_heading("The old cat", 0)
    paragraph = document.add_paragraph("The old man ")
    paragraph.add_run("gives").bold = True
    paragraph.add_run(" the child a ")
    red = paragraph.add_run("red book")
    red.italic, red.font.color.rgb = True, RGBColor(255, 0, 0)
    paragraph.add_run(". It is 3 < 5 & true.").add_break(WD_BREAK.PAGE)
    document.add_comment(paragraph.runs, text="A remark about it", author="Ann", initials="A")
    for text in ("First point", "Second point"):
        document.add_paragraph(text, style="List Number")
    table = document.add_table(2, 2, style="Table Grid")
    for number, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"Cell number {number}"
    table.cell(1, 1).add_table(1, 1).cell(0, 0).text = "A table within"
    picture = io.BytesIO(bytes.fromhex(PIXEL))
    document.add_picture(picture)
    document.inline_shapes[0]._inline.docPr.set("descr", 'A "small" picture')
    section = document.sections[0]
    section.header.paragraphs[0].text, section.footer.paragraphs[0].text = "A header\tright", "A footer"
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


PIXEL = (
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c6360000000020001e221bc330000000049454e44ae426082"
)
READ = [
    "The old cat",
    "The old man gives the child a red book. It is 3 < 5 & true.",
    "First point",
    "Second point",
    *(f"Cell number {number}" for number in range(4)),
    "A table within",
    'A "small" picture',
    "A header",
    "right",
    "A footer",
    "A remark about it",
    "A short report",
    "generated by python-docx",
]


def parts(document: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(document)) as found:
        return {entry.filename: found.read(entry) for entry in found.infolist()}


def blanked(part: bytes) -> bytes:
    """Without the characters of texts, and with adjacent runs of the same format as one."""
    tree = etree.fromstring(part)
    for element in tree.iter():
        element.attrib.pop("descr", None)
        element.text = None
        if element.tag == f"{W}t":
            element.attrib.clear()
    for first in list(tree.iter(f"{W}r")):
        second = first.getnext()
        while second is not None and second.tag == first.tag and _format(second) == _format(first):
            for child in [child for child in second if child.tag != f"{W}rPr"]:
                if child.tag != f"{W}t" or first[-1].tag != f"{W}t":
                    first.append(child)
            second.getparent().remove(second)
            second = first.getnext()
    return etree.tostring(tree, method="c14n")


def _format(run) -> bytes:
    return b"".join(etree.tostring(properties) for properties in run.findall(f"{W}rPr"))


def test_only_text_changes(report):
    found, read = changed(report, "docx", str.upper)
    assert Counter(read) == Counter(READ)
    before, after = parts(report), parts(found)
    assert list(before) == list(after)
    differing = {name for name in before if before[name] != after[name]}
    assert differing == {
        "word/document.xml",
        "word/header1.xml",
        "word/footer1.xml",
        "word/comments.xml",
        "docProps/core.xml",
    }
    for name in differing:
        assert blanked(before[name]) == blanked(after[name])


def test_its_own_library_reads_the_translation(report):
    found = docx.Document(io.BytesIO(translate_document(report, "docx", backwards, target="de-AT")))
    runs = [(run.text, run.bold, run.italic) for run in found.paragraphs[1].runs if run.text]
    assert runs[:2] == [("TRUE. & 5 < 3 IS IT ", None, None), ("BOOK. RED", None, True)]
    assert runs[2:5] == [(" A CHILD THE ", None, None), ("GIVES", True, None), (" MAN OLD THE", None, None)]
    assert found.paragraphs[1].runs[1].font.color.rgb == RGBColor(255, 0, 0)
    assert [paragraph.style.name for paragraph in found.paragraphs[2:4]] == ["List Number"] * 2
    assert found.tables[0].cell(1, 1).tables[0].cell(0, 0).text == "WITHIN TABLE A"
    assert found.sections[0].header.paragraphs[0].text == "HEADER A\tRIGHT"
    assert [comment.text for comment in found.comments] == ["IT ABOUT REMARK A"]
    assert (found.core_properties.title, found.core_properties.author) == ("REPORT SHORT A", "Ann Author")
    languages = found.styles.element.findall(f".//{W}lang")
    assert [language.get(f"{W}val") for language in languages] == ["de-AT"]


def test_translations_cannot_break_the_markup():
    document = archive("docx", written("The [old] cat"))
    found = translate_document(document, "docx", always("]]> </w:t> & \x0b<b>\x00"))
    texts = "".join(re.findall("<w:t[^>]*>([^<]*)", body("docx", found)))
    assert texts == "]]&gt; &lt;/w:t&gt; &amp; &lt;b&gt;"


@pytest.mark.parametrize("seed", range(8))
def test_markup_is_well_formed_with_any_links(seed):
    """Random runs, ranges, fields and links: all markup comes back once, and the words in their order."""
    choose = random.Random(seed)

    def inline(depth: int) -> str:
        choices = ["a ", "[b] ", "c", "[d]", " ", NOTE, TAB, START, STOP, field("PAGE", "7"), run("<w:br/>")]
        choices += [run(f'<w:fldChar w:fldCharType="{kind}"/>') for kind in ("begin", "separate", "end")]
        parts = [choose.choice(choices) for _ in range(choose.randint(1, 6))]
        if depth:
            around = choose.choice([(LINK, END_LINK), (SDT, END_SDT), (START, STOP), ("{<w:ins>}", "{</w:ins>}")])
            parts.insert(choose.randint(0, len(parts)), inline(depth - 1).join(around))
            parts.append(field("HYPERLINK x", inline(depth - 1)))
        return "".join(parts)

    def translate(paragraphs: list[str]) -> list[Translated]:
        size = choose.randint(1, 12)
        words = [f"x{number}{choose.choice([',', '', ')'])}" for number in range(size)]
        links = [(choose.randrange(4), choose.randrange(size)) for _ in range(choose.randint(0, 9))]
        return [Translated(" ".join(words), links) for _ in paragraphs]

    for _ in range(20):
        before = written(f"w {inline(2)} w {inline(2)}")
        after = body("docx", translate_document(archive("docx", before), "docx", translate))
        trees = [etree.fromstring(f'<w:a xmlns:w="{W[1:-1]}">{version}</w:a>') for version in (before, after)]
        names = {f"{W}{name}" for name in ("r", "t", "rPr", "b")}
        found = [Counter(element.tag for element in tree.iter() if element.tag not in names) for tree in trees]
        assert found[0] == found[1]
        assert all(text.getparent().tag == f"{W}r" for text in trees[1].iter(f"{W}t"))
        numbers = re.findall(r"x(\d+)", "".join(trees[1].itertext()))
        assert all(int(two) in (0, int(one) + 1) for one, two in itertools.pairwise(numbers))


def test_special_characters_stay_where_their_words_stay():
    names = ("noBreakHyphen", "softHyphen", "tab", "cr", "br", "ptab", "sym", "pgNum", "dayLong", "separator")
    document = archive("docx", written("One" + "".join(f"{run(f'<w:{name}/>')}two" for name in names)))
    found, read = changed(document, "docx")
    assert read == ["One-twotwo", *["two"] * 3, "twotwotwotwotwo"]
    parts = [re.findall(r"<w:(\w+)/>|>(\w+)<", body("docx", version)) for version in (document, found)]
    assert parts[0] == parts[1]

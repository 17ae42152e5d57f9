"""
Time against size for every reader of documents and of data files: ordinary text, and the slowest of many hostile
patterns (a few characters, repeated). A document is read, cut into sentences and written; nothing is translated. Times
are of this process alone, and a reader whose time is in proportion to the size has the same number in each column.

    python benchmarks/readers.py                               # text of 1 and 5 MB; patterns of 10 and 40 KB
    python benchmarks/readers.py --readers html markdown --sizes 5
"""

import argparse
import csv
import io
import json
import re
import sys
import time
import zipfile
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from html import escape, unescape
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from modeling_scratch.apps.documents import FORMATS
from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.apps.documents.format_flags import LANGUAGES
from modeling_scratch.apps.translate.paragraphs import Translated, translate_paragraphs
from modeling_scratch.data.local_files import read_lines, read_table
from modeling_scratch.errors import UserError

# Hostile patterns, separated by an ellipsis.
HOSTILE = 'a…a … …\N{NO-BREAK SPACE}…\n…a\n…\t…\\…A. …1. a\n…a.b@c.d.…http://(a…"…""…[…[^…[[a]…![…[a](…[a]: b \'c\n…]('
HOSTILE += "…*a …*_…_a*…~~a…`a…``…$…$$a…{: …> …>\n…- …- a\n…|a…|a\n|-\n…#\n…a\n===\n…<…<a …<a b='…<!--…<?…</b>…<b>…<p>"
HOSTILE += "…<p><b>…<code>…<sup>1</sup>…<a>1</a>…&…&a…&#…&#1…&amp;…{\\…-->\n…\\N"
HOSTILE += "…{{…{%…{a…[[…[[a|…^a…~a…==a…\\(…\\[\n…:a…%%…<Aa b={…<Aa b='\n…::: a\n…: a\n…!!! a\n…[^a]: "
HOSTILE += "…{n,plural,a{…{n,plural,a{}…{n,choice,0#…|…''…'{…{0}''…a\n…a  b…<a>…</a>…<!-- …&x …_a …--a …\"…é"
HOSTILE += "…-- --\n…a  b\n-- --\n…---\na\n-- --\n…+---+\n|a  |\n…[a [b]…<label>…<a href='#'>1</a>…<ruby>a<rt>…>> A: "
HOSTILE = HOSTILE.split("…")
# Hostile markup within the text of a paragraph.
HOSTILE_MARKUP = {
    "docx": [
        *(
            f"</w:t></w:r>{each}<w:r><w:t>a "
            for each in (
                "",
                "<w:r><w:rPr><w:b/></w:rPr><w:t>b</w:t></w:r>",
                "<w:r><w:tab/></w:r>",
                '<w:bookmarkStart w:id="1"/>',
                '<w:bookmarkEnd w:id="1"/>',
                '<w:bookmarkStart w:id="1"/><w:bookmarkStart w:id="2"/><w:bookmarkEnd w:id="1"/>',
                '<w:r><w:fldChar w:fldCharType="begin"/></w:r>',
                '<w:r><w:fldChar w:fldCharType="end"/></w:r>',
                '<w:r><w:fldChar w:fldCharType="begin"/><w:instrText>TOC</w:instrText></w:r>',
                "<w:hyperlink><w:r><w:t>b</w:t></w:r></w:hyperlink>",
                "<w:r><w:pict><w:p><w:r><w:t>b</w:t></w:r></w:p></w:pict></w:r>",
            )
        )
    ],
    "odt": [
        "<text:span>b</text:span>",
        '<text:span text:style-name="x">b </text:span>',
        "<text:s/>",
        '<text:bookmark-start text:name="a"/>',
        '<text:bookmark-end text:name="a"/>',
        "<text:note><text:p>b</text:p></text:note>",
        "<text:a>b</text:a>",
    ],
}
# Of reStructuredText, in a message.
REST = [
    "*a ",
    "**a ",
    "**a *b ",
    "**a *b* ",
    "`a ",
    "``a ",
    ":a:`b",
    "|a ",
    "[a ",
    "a_ ",
    "a-",
    ":a:",
    "\\\\",
    "`a <b",
    "*",
]
# Files as they are written: what precedes a pattern, the pattern, what follows, another pattern, and so on.
HOSTILE_FILES = {
    "html": ["…<sup><a href='#'>a</a></sup>", "…<sup>", "…<a href='#'><sup>", "<sup>[…a "],
    "markdown": ["…aa  …\n…--  …\n…a\n…\n", "----\n…aa  …\n…--  …\n…a\n…\n----\n"],
    "po": [
        'msgid ""\n…"a"\n',
        "…#, a\n",
        '…msgid "a"\nmsgstr ""\n',
        'msgid…""',
        '#: …../…\nmsgid "a"\nmsgstr ""\n',
        '…msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n',
        *(f'#: a.rst\nmsgid "…{each}…"\nmsgstr ""\n' for each in REST),
        *(
            f'#, {language}-format\nmsgid "{begins}"\nmsgstr ""\n'
            for language in LANGUAGES
            for begins in (
                "%…0…",
                "%1$…0…",
                "%…h…",
                "~…1…",
                "~…'…",
                "~…'~…",
                "{a…[1]…",
                "{…{a}…",
                "$…{…",
                "%<…a…",
                "%{…0…",
                "%…'%…",
            )
        ),
    ],
    "json": ["…[", '…{"a":', '["…\\u0061', '["…\\"', "…1", '[""…,"a"', "[…  "],
    "xliff": [
        '<xliff version="1.2">…<trans-unit translate="no"><source>a',
        '<xliff version="2.0">…<segment><source>a</source></segment>',
        '<xliff version="2.0"><segment… … id="a"><source>a</source></segment></xliff>',
    ],
    "properties": ["…\\\n", "…a\\\n", "… \\\n", "…a=b\n", "a=…b \\\n", "a=…\\u0061", "a=b…\\"],
    "android": [
        "<resources>…<string>",
        "<resources>…<string>a</string>",
        '<resources><string>…\\"',
        "<resources><string>…<b>",
        "<resources><string>…&lt;",
        '<resources><string>…"',
    ],
    "apple": ["…a;", "…/*", "…//", '…"', '…"a"="b";', '"a"="…\\"', "a=…'"],
}
SENTENCES = [
    "The old cat sleeps in the house at 12:30.",
    "Two dogs (a big one & a small one) run!",
    "Where is she now?",
]
CATALOGS = [name for name in HOSTILE_FILES if name not in ("html", "markdown")]
READERS = [*FORMATS, ".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet"]
CUES = {
    "srt": "1\n00:00:01,000 --> 00:00:02,000\n",
    "vtt": "WEBVTT\n\n00:00:01.000 --> 00:00:02.000\n",
}
_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
_OPEN_DOCUMENT = "urn:oasis:names:tc:opendocument:xmlns"
_ROOT_FILE = '<rootfile full-path="package"/>'
_ITEM = '<item href="page" media-type="application/xhtml+xml"/>'
# The smallest archives that are read, and the part with text.
ARCHIVES = {
    "docx": (
        {"[Content_Types].xml": f'<Types xmlns="{_TYPES}"><Override PartName="/a" ContentType="{_MAIN}"/></Types>'},
        "a",
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{}</w:body>'
        "</w:document>",
    ),
    "odt": (
        {"mimetype": "application/vnd.oasis.opendocument.text", "META-INF/manifest.xml": "<manifest/>"},
        "content.xml",
        f'<office:document-content xmlns:office="{_OPEN_DOCUMENT}:office:1.0" xmlns:text="{_OPEN_DOCUMENT}:text:1.0">'
        "<office:body><office:text>{}</office:text></office:body></office:document-content>",
    ),
    "epub": (
        {
            "META-INF/container.xml": f'<container xmlns="{_OPEN_DOCUMENT}:container">{_ROOT_FILE}</container>',
            "package": f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{_ITEM}</manifest></package>',
        },
        "page",
        '<html xmlns="http://www.w3.org/1999/xhtml"><body>{}</body></html>',
    ),
}
PARAGRAPHS = {
    "docx": "<w:p><w:r><w:t>{}</w:t></w:r></w:p>",
    "odt": "<text:p>{}</text:p>",
    "epub": "<p>{}</p>",
}


def archive(format: str, markup: str) -> bytes:
    """A document of a format of archives, with this markup in its body."""
    parts, name, template = ARCHIVES[format]
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as target:
        for part, text in {**parts, name: template.format(markup)}.items():
            target.writestr(part, text)
    return written.getvalue()


def body(format: str, content: bytes) -> str:
    """The markup in the body of such a document."""
    _, name, template = ARCHIVES[format]
    text = zipfile.ZipFile(io.BytesIO(content)).read(name).decode()
    before, after = template.split("{}")
    return text.removeprefix(before).removesuffix(after)


def document_of(format: str, text: str) -> str | bytes:
    """A document of any format with this text as its only paragraph, or its only cue."""
    if format in CATALOGS:
        return catalog(format, [text])
    if format in ARCHIVES:
        return archive(format, PARAGRAPHS[format].format(escape(text)))
    return CUES.get(format, "") + text


def text_of(format: str, content: str | bytes) -> str:
    """The text of such a document."""
    if format in ARCHIVES:
        return unescape(re.sub("<[^>]*>", "", body(format, content)))
    return content.removeprefix(CUES.get(format, ""))


def catalog(format: str, texts: list[str], translations: list[str] | None = None) -> str:
    """
    A file with these texts, one a line, in the format of a catalog; in another format, the texts themselves.

    Args:
        translations: as what the file gets when it is translated. In some formats the texts stay beside them.
    """
    found = translations or texts
    in_xml = [escape(each, quote=False) for each in found]
    if format == "po":
        pairs = zip(texts, translations or [""] * len(texts), strict=True)
        made = [
            f"msgid {json.dumps(text, ensure_ascii=False)}\nmsgstr {json.dumps(found, ensure_ascii=False)}\n"
            for text, found in pairs
        ]
    elif format == "json":
        return json.dumps(found, ensure_ascii=False, indent=1)
    elif format == "xliff":
        made = [f"<trans-unit><source>{escape(text, quote=False)}</source>" for text in texts]
        if translations:
            made = [
                f'{each}<target state="needs-review-translation">{one}</target>'
                for each, one in zip(made, in_xml, strict=True)
            ]
        made = ['<xliff version="1.2">', *(f"{each}</trans-unit>" for each in made), "</xliff>"]
    elif format == "properties":
        made = ["# é", *("a=" + each.replace("\\", r"\\").replace("\n", r"\n") for each in found)]
    elif format == "android":
        made = [re.sub(r"""(['"\\])""", r"\\\1", each).replace("\n", r"\n") for each in in_xml]
        made = ["<resources>", *(f"<string>{each}</string>" for each in made), "</resources>"]
    elif format == "apple":
        made = [f'"a" = {json.dumps(each, ensure_ascii=False)};' for each in found]
    else:
        made = found
    return "".join(f"{each}\n" for each in made)


def ordinary(reader: str, size: int) -> str | bytes:
    """Text of this many characters, as a reader often gets it."""
    first, second, third = SENTENCES
    parts = {
        "markdown": f"## {third}\n\n{first} **{second}** See [a page](http://a.b/c).\n\n- `x`: {third}\n- {first}\n\n",
        "html": f'<h2>{third}</h2>\n<p>{first} <b>{second}</b> See <a href="c">a page</a>.<br><img alt="{third}">\n',
        "srt": f"{CUES['srt']}<i>{first}</i>\n{third}\n\n",
        "vtt": f"{CUES['vtt'].removeprefix('WEBVTT')}<v Ann><i>{first}</i>\n{third}\n",
        "docx": f"<w:p><w:r><w:t>{first} </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>{third}</w:t></w:r></w:p>\n",
        "odt": f'<text:p>{first} <text:span text:style-name="Bold">{third}</text:span></text:p>\n',
        "epub": f'<h2>{third}</h2>\n<p>{first} <b>{third}</b> See <a href="c">a page</a>.<br/></p>\n',
    }
    part = parts.get(reader, f"{first} {second} {third}\n")
    if reader in CATALOGS:
        return catalog(reader, [first, second, third] * (size // (2 * len(part)) + 1))
    text = part * (size // len(part) + 1)
    return archive(reader, text) if reader in ARCHIVES else "WEBVTT" * (reader == "vtt") + text


def hostile(reader: str, pattern: str, size: int) -> str | bytes:
    """A pattern, repeated, before and after a word; in a TSV file, within a cell that a quotation mark opens."""
    text = f"a {pattern * (size // len(pattern))} b"
    if reader in CATALOGS:
        return catalog(reader, [text])
    if reader == "epub" or pattern in HOSTILE_MARKUP.get(reader, []):
        return archive(reader, PARAGRAPHS[reader].format(text))
    return document_of(reader, '"' * (reader == ".tsv") + text)


def hostile_files(reader: str) -> dict[str, Callable[[int], str]]:
    """Further hostile files of about a given size, by a name."""

    def file(parts: list[str], size: int) -> str:
        return "".join(part * (size // len(part)) if number % 2 else part for number, part in enumerate(parts))

    return {each: partial(file, each.split("…")) for each in HOSTILE_FILES.get(reader, ())}


def write(path: Path, text: str) -> None:
    """Write a data file of the kind that its name says: the text itself, or a table in which each line is a pair."""
    rows = [{"en": line, "de": line} for line in text.split("\n")]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([["en", "de"], *(row.values() for row in rows)])
        elif path.suffix == ".tsv":
            file.write("en\tde\n" + "".join(f"{row['en']}\tb\n" for row in rows))
        elif path.suffix == ".txt":
            file.write(text)
        else:
            file.write(json.dumps(rows) if path.suffix == ".json" else "".join(f"{json.dumps(row)}\n" for row in rows))


def _translated(paragraphs: list[str]) -> list[Translated]:
    return translate_paragraphs(paragraphs, lambda found: [Translated(each) for each in found], "en", "de")


def seconds(reader: str, text: str | bytes) -> float:
    """Process time to read a text, or to find that it cannot be read."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"text{reader}"
        if reader not in FORMATS:
            write(path, text)
        began = time.process_time()
        with suppress(UserError):
            if reader in FORMATS:
                translate_document(text, reader, _translated)
            else:
                deque(read_lines(path) if reader == ".txt" else read_table(path), maxlen=0)
        return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=READERS)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 5], help="of ordinary text, in MB")
    parser.add_argument("--hostile", type=float, nargs="+", default=[0.01, 0.04], help="of hostile text, in MB")
    options = parser.parse_args()
    columns = [f"{size:g} MB" for size in options.sizes] + [f"worst, {1000 * size:g} KB" for size in options.hostile]
    print(f"| seconds per MB | {' | '.join(columns)} | worst pattern |")
    print(f"|{'---|' * (len(columns) + 2)}")
    for reader in options.readers:
        found = [seconds(reader, ordinary(reader, int(1e6 * size))) / size for size in options.sizes]
        slowest = ""
        for size in options.hostile:
            texts = {each: hostile(reader, each, int(1e6 * size)) for each in HOSTILE + HOSTILE_MARKUP.get(reader, [])}
            texts |= {name: text(int(1e6 * size)) for name, text in hostile_files(reader).items()}
            most, slowest = max((seconds(reader, text), name) for name, text in texts.items())
            found.append(most / size)
        print(f"| {reader} | {' | '.join(f'{each:.2f}' for each in found)} | `{slowest!r}` |", flush=True)


if __name__ == "__main__":
    main()

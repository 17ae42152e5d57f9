#!/bin/sh
# python-docx 1.2.0 (pandoc 3.9 beside it). `paragraph.text` leaves out symbols that Word inserts from a font (w:sym, such
# as the alpha of Insert > Symbol) and optional hyphens, and gives a no-break hyphen as an ordinary one; assigning the text
# to the paragraph again makes all of this permanent. One would guess that `text` has all characters that Word shows, as
# pandoc's has: it reads the symbol as U+03B1. It matters to corpora made from Word files ("the -particle" in place of "the
# α-particle") and to programs that translate `paragraph.text`.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q python-docx==1.2.0 pypandoc_binary==1.17
cat > run.py <<'P'
from importlib.metadata import version
import docx, pypandoc
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
print("python-docx", version("python-docx"), "pandoc", pypandoc.get_pandoc_version())
document = docx.Document()
paragraph = document.add_paragraph("the ")
def add(name, text="", **attributes):
    run = paragraph.add_run()
    element = OxmlElement(f"w:{name}")
    for key, value in attributes.items(): element.set(qn(f"w:{key}"), value)
    run._r.append(element)
    run.add_text(text)
add("sym", "", font="Symbol", char="F061")
add("noBreakHyphen", "par")
add("softHyphen", "ticle")
document.save("a.docx")
found = docx.Document("a.docx").paragraphs[0].text
other = pypandoc.convert_file("a.docx", "plain", extra_args=["--wrap=none"]).strip()
print(ascii(found), ascii(other))
raise SystemExit(found != "the -particle" or "\u03b1" not in other)
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described

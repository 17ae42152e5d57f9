#!/bin/sh
# Babel 2.19.0. `pybabel compile` (write_mo) writes a plural message without any translation into the MO file as translated:
# every form is filled with the English text, singular or plural. Messages without a plural and without a translation are
# left out, as msgfmt does for both. One would guess so for plurals, too: an MO file holds translations, and whoever asks
# gettext for what it lacks gets the English text anyway. It matters to whoever reads MO files as pairs of texts, or counts
# what is translated: Sphinx 9's and other catalogs that Babel compiles have English "translations". (With msgfmt's files
# one also falls back to another language's catalog for such messages; with Babel's, one does not.)
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q babel==2.19.0 polib==1.2.0
cat > run.py <<'P'
import io
from importlib.metadata import version
import polib
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
print("babel", version("babel"), "polib", version("polib"))
text = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
text += 'msgid "One dog"\nmsgstr ""\n\nmsgid "%d cat"\nmsgid_plural "%d cats"\nmsgstr[0] ""\nmsgstr[1] ""\n'
with open("babel.mo", "wb") as file:
    write_mo(file, read_po(io.StringIO(text)))
found = [(entry.msgid, entry.msgstr, entry.msgstr_plural) for entry in polib.mofile("babel.mo")]
print("Babel's file:", found)
raise SystemExit(found != [("%d cat", "", {0: "%d cat", 1: "%d cats"})])
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described

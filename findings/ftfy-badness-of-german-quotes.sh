#!/bin/sh
# ftfy 6.3.1. `badness` and `is_bad` call a good German text broken if a word in »...« begins with Ü or Ä: the mark and
# the letter together count as a character that was decoded wrongly. These are the usual marks of German books, and an
# Ü or Ä often begins a word (Übung, Ärger). One would guess otherwise, since `fix_text` leaves such texts as they are
# and ftfy is known for hardly ever being wrong about good text. But `fix_text` also asks whether a repair decodes; `is_bad`
# alone, with which a corpus can be filtered, does not. It matters to a check of encodings, which has to ask both.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q ftfy==6.3.1
cat > run.py <<'P'
from importlib.metadata import version
from ftfy import fix_text
from ftfy.badness import is_bad
print("ftfy", version("ftfy"))
good = ["Er sagte »Übung« und ging.", "Das Buch »Ärger im Revier« ist neu."]
broken = "Er sagte „Ã¼ben“ und ging."
for text in [*good, broken]:
    print(is_bad(text), fix_text(text, uncurl_quotes=False) == text, text)
raise SystemExit(not (all(map(is_bad, good)) and all(fix_text(text, uncurl_quotes=False) == text for text in good)))
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described

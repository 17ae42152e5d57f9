#!/bin/sh
# sacrebleu 2.6.0. An output whose reference is empty does not lower the corpus chrF, however long it is: 100 for a system
# that writes a whole sentence where nothing is right. Its BLEU falls, from 100 to 76, and TER counts the words. One would
# guess that chrF charges them too, since its precision is over the n-grams of all outputs. It matters to test sets with
# gaps, as exports of half translated files have: chrF hides rambling that BLEU shows.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q sacrebleu==2.6.0
cat > run.py <<'P'
from importlib.metadata import version
import sacrebleu
print("sacrebleu", version("sacrebleu"))
outputs = ["The kiln is hot today, so wait.", "Glaze the bowl."]
references = ["The kiln is hot today, so wait.", ""]
names = ("corpus_chrf", "corpus_bleu", "corpus_ter")
found = [round(getattr(sacrebleu, name)(outputs, [references]).score) for name in names]
print(*zip(names, found))
raise SystemExit(not (found[0] == 100 > found[1] and found[2] > 0))
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described

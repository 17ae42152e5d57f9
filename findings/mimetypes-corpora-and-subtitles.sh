#!/bin/sh
# Python's mimetypes (tried: 3.11.7) and mime-db 1.54.0. The tables built into Python say that gettext's template
# messages.pot is a PowerPoint file, that train.src (the source side of a parallel corpus) is a WAIS source, and that the
# subtitles episode.ass are AAC audio; mime-db, which web servers and browsers' libraries use, agrees on the first two. One
# would guess that such tables give no type where an ending has a far more common use. It matters to programs that sort the
# files of translators by type: texts are taken for binary files and left out, without an error.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
npm install --silent --no-save mime-db@1.54.0 >/dev/null 2>&1
cat > run.py <<'P'
import json, sys
from mimetypes import MimeTypes
print("Python", sys.version.split()[0])
python = MimeTypes(filenames=())  # the built-in tables, not those of this machine
names = ("messages.pot", "train.src", "episode.ass")
found = [python.guess_type(name, strict=False)[0] for name in names]
database = json.load(open("node_modules/mime-db/db.json"))
others = [next((kind for kind, row in database.items() if name.rpartition(".")[2] in row.get("extensions", ())), None) for name in names]
for row in zip(names, found, others): print(*row)
raise SystemExit((found, others) != (
    ["application/vnd.ms-powerpoint", "application/x-wais-source", "audio/aac"], ["application/vnd.ms-powerpoint", "application/x-wais-source", None]))
P
python3 run.py || { echo changed; exit 1; }
echo as described

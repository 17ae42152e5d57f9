#!/bin/sh
# tokenizers 0.23.3. In a folder whose name is not UTF-8 (caf\351, as Latin-1 archives unpack), Tokenizer.from_file and
# Tokenizer.save raise UnicodeEncodeError, "surrogates not allowed", which names no file. One would guess that they take
# any path: Python's open() does, through surrogates (PEP 383), and so does safetensors 0.8.0, which is written in Rust
# too and lies beside it in every model's folder. It matters to what saves models: the weights are written, the tokenizer
# is not, and an error that is no OSError passes for a bug.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6
cat > run.py <<'P'
import os
from importlib.metadata import version
import numpy
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

print(*(f"{name} {version(name)}" for name in ("tokenizers", "safetensors", "numpy")))
tokenizer = Tokenizer(WordLevel({"clay": 0}, unk_token="clay"))
folder = os.fsdecode(b"caf\xe9")
os.mkdir(folder)
tokenizer.save("t.json")
os.rename("t.json", f"{folder}/t.json")


def outcome(action):
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {ascii(str(error))}"
    return "works"


found = {
    "open": outcome(lambda: open(f"{folder}/t.json").read()),
    "save_file": outcome(lambda: save_file({"w": numpy.zeros(2)}, f"{folder}/w.safetensors")),
    "load_file": outcome(lambda: load_file(f"{folder}/w.safetensors")),
    "Tokenizer.from_file": outcome(lambda: Tokenizer.from_file(f"{folder}/t.json")),
    "Tokenizer.save": outcome(lambda: tokenizer.save(f"{folder}/u.json")),
}
for name, what in found.items():
    print(f"{name}: {what}")
*others, read, saved = found.values()
refused = all(each.startswith("UnicodeEncodeError") and "t.json" not in each for each in (read, saved))
raise SystemExit(not (others == ["works"] * 3 and refused))
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described

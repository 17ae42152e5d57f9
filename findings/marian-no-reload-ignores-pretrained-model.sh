#!/bin/sh
# pymarian 1.12.42 (Marian). With `--no-reload`, training ignores `--pretrained-model` and begins with random weights,
# without a word. Its help says of --no-reload "Do not load existing model specified in --model arg", and of
# --pretrained-model "Path prefix for pre-trained model to initialize model weights", so one would guess that the two go
# together: do not go on with what is in the output folder, but begin with the given weights. It matters to whoever
# fine-tunes with a script that has --no-reload for clean starts: the loss looks like that of any new model. (Without
# --no-reload, an older file at --model wins over --pretrained-model, so that one has to be deleted.)
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q pymarian==1.12.42 numpy==2.4.6
cat > run.py <<'P'
import subprocess
import sys
from importlib.metadata import version

import numpy as np

print("pymarian", version("pymarian"))
for name in ("source", "target"):
    with open(name, "w") as file:
        file.writelines(f"a{number % 5} b{number % 7} c\n" for number in range(64))
with open("words.yml", "w") as file:
    file.writelines(f'"{word}": {index}\n' for index, word in enumerate(["</s>", "<unk>", "a0", "a1", "b0", "b1", "c"]))
options = "--type transformer --enc-depth 1 --dec-depth 1 --dim-emb 16 --transformer-dim-ffn 16 --transformer-heads 2"
options += " --tied-embeddings-all --train-sets source target --vocabs words.yml words.yml --after 1u --cpu-threads 1"
options += " --learn-rate 1e-9 --mini-batch 64 --workspace 64 --quiet --tempdir ."


def trained(model, seed, *more):
    command = [sys.executable, "-m", "pymarian", "train", *options.split(), "--model", model, "--seed", str(seed), *more]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return np.load(model)["Wemb"]


first = trained("first.npz", 1)
found = {}
for name, more in {"--pretrained-model": [], "--pretrained-model --no-reload": ["--no-reload"]}.items():
    found[name] = trained(f"then{len(more)}.npz", 2, "--pretrained-model", "first.npz", *more)
far = {name: float(abs(weights - first).max()) for name, weights in found.items()}
for name, distance in far.items():
    print(f"{name}: embeddings differ from the given ones by up to {distance:.6f} after one update of at most 1e-9")
kept, lost = far.values()
raise SystemExit(not (kept < 1e-6 and lost > 0.01))
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described

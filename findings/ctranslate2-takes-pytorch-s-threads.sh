#!/bin/sh
# ctranslate2 4.8.5 and torch 2.13.0 on Linux, in one process that imports torch first: making
# ctranslate2.Translator(..., intra_threads=1), the usual choice with inter_threads, leaves PyTorch with one thread. Each
# wheel has a libgomp of its own, but CTranslate2's calls then reach PyTorch's, whose number of threads they set. What PyTorch
# computes afterwards, such as a training after a translation, runs on one core without a word, and the last bits of its
# results change, since they depend on the number of threads. One would guess that the option is about the translator alone; and
# if ctranslate2 is imported first, it is. torch.set_num_threads afterwards puts it right; translating changes nothing.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q torch==2.13.0 ctranslate2==4.8.5 numpy==2.4.6 setuptools==84.2.1
cat > run.py <<'P'
import os
os.environ["CT2_VERBOSE"] = "-1"
import sys
for name in sys.argv[1:]:
    __import__(name)
import ctranslate2, numpy, torch
from ctranslate2.specs import model_spec, transformer_spec
print("ctranslate2", ctranslate2.__version__, "torch", torch.__version__, "imported first:", sys.argv[1])
random, names = numpy.random.default_rng(0), ["<unk>", "<s>", "</s>", *"abcdefghijklm"]
def fill(owner, name, value):  # a Transformer of one layer, a width and a vocabulary of 16, and random weights
    if value is None:
        rows = 48 if "self_attention/linear_0" in name else 32 if "/attention/linear_1" in name else 16
        shape = 16 if name.endswith(("gamma", "beta")) else (rows, 16)
        setattr(owner, name.rpartition("/")[2], random.normal(0, 1, shape).astype("float32"))
spec = transformer_spec.TransformerSpec.from_config((1, 1), 2)
model_spec.visit_spec(spec, fill)
for stack in (spec.encoder, spec.decoder):
    stack.position_encodings.encodings = numpy.zeros((32, 16), "float32")
spec.register_source_vocabulary(names), spec.register_target_vocabulary(names)
spec.validate(), spec.optimize(None), os.makedirs(sys.argv[1] + "-first"), spec.save(sys.argv[1] + "-first")
torch.set_num_threads(4)
seen = [torch.get_num_threads()]
translator = ctranslate2.Translator(sys.argv[1] + "-first", device="cpu", inter_threads=2, intra_threads=1)
seen.append(torch.get_num_threads())
torch.set_num_threads(4)
translator.translate_batch([list("abc")], max_decoding_length=8)
seen.append(torch.get_num_threads())
print("threads of PyTorch: before", seen[0], "- after making a translator", seen[1], "- set again, after translating", seen[2])
raise SystemExit(seen != [4, 1 if sys.argv[1] == "torch" else 4, 4])
P
for first in torch ctranslate2; do
    v/bin/python run.py $first || { echo changed; exit 1; }
done
echo as described

#!/bin/sh
# CTranslate2 4.8.5, on a CPU without Intel's MKL (every AMD and ARM; CT2_USE_MKL=0 makes it so elsewhere). A model that is
# saved with quantization="int16" is loaded as int8_float32: its weights lose the 8 bits that it was saved for, and it
# computes exactly as a file of half the size. One would guess that int16 is the more precise choice, or that an unsupported
# type falls back to float32, as float16 does. A warning on stderr says so at each load (CT2_VERBOSE=-1
# hides it, as here); `compute_type` tells. It matters to whoever chooses int16 to lose less than with int8.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q ctranslate2==4.8.5 numpy==2.4.6 setuptools==84.2.1
cat > run.py <<'P'
import os
os.environ |= {"CT2_USE_MKL": "0", "CT2_VERBOSE": "-1"}
from importlib.metadata import version
import ctranslate2, numpy
from ctranslate2.specs import model_spec, transformer_spec
print("ctranslate2", version("ctranslate2"), "supported:", *sorted(ctranslate2.get_supported_compute_types("cpu")))
random, names = numpy.random.default_rng(0), ["<unk>", "<s>", "</s>", *"abcdefghijklm"]
def fill(owner, name, value):  # a Transformer of one layer, a width and a vocabulary of 16, and random weights
    if value is None:
        rows = 48 if "self_attention/linear_0" in name else 32 if "/attention/linear_1" in name else 16
        shape = 16 if name.endswith(("gamma", "beta")) else (rows, 16)
        setattr(owner, name.rpartition("/")[2], random.normal(0, 1, shape).astype("float32"))
used = {}
for quantization in ("float32", "int16", "int8", "float16"):
    random = numpy.random.default_rng(0)
    spec = transformer_spec.TransformerSpec.from_config((1, 1), 2)
    model_spec.visit_spec(spec, fill)
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = numpy.zeros((32, 16), "float32")
    spec.register_source_vocabulary(names), spec.register_target_vocabulary(names)
    spec.validate(), spec.optimize(quantization), os.makedirs(quantization), spec.save(quantization)
    used[quantization] = ctranslate2.Translator(quantization, device="cpu").compute_type
    print("saved as", quantization, "computes in", used[quantization])
expected = {"float32": "float32", "int16": "int8_float32", "int8": "int8_float32"}
raise SystemExit(used != expected | {"float16": "float32"})
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described

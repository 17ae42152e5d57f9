#!/bin/sh
# CTranslate2 4.8.5. Banned tokens (suppress_sequences; min_decoding_length and no_repeat_ngram_size likewise) leave its
# softmax: the score of a translation is its probability among the tokens that are not banned, and exceeds that of
# score_batch for the same tokens and model. One would guess that a ban excludes and leaves the other scores alone, as in
# beam search of Transformers 5.24, which bans after the softmax. It matters to whoever compares scores or thresholds
# them, and to whoever expects the same translations: with several beams, other hypotheses may win.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q ctranslate2==4.8.5 numpy==2.4.6 setuptools==84.2.1
cat > run.py <<'P'
from importlib.metadata import version
import ctranslate2, numpy
from ctranslate2.specs import model_spec, transformer_spec
print("ctranslate2", version("ctranslate2"))
random, names = numpy.random.default_rng(0), ["<unk>", "<s>", "</s>", *"abcdefgh"]
shapes = {"gamma": 8, "beta": 8, "embeddings": (11, 8), "embeddings_0": (11, 8), "projection": (11, 8), "linear": (8, 8)}
shapes |= {"self_attention/linear_0": (24, 8), "/attention/linear_1": (16, 8)}
def fill(owner, name, value):  # a Transformer of one layer, a width of 8 and random weights
    if value is None:
        part, kind = name.split("/")[-2:]
        shape = next((shapes[key] for key in shapes if key in (kind, part) or "/" in key and key in name), (8, 8))
        setattr(owner, kind, random.normal(0, 0.6, shape).astype("float32"))
spec = transformer_spec.TransformerSpec.from_config((1, 1), 2)
model_spec.visit_spec(spec, fill)
for stack in (spec.encoder, spec.decoder):
    stack.position_encodings.encodings = numpy.zeros((32, 8), "float32")
spec.register_source_vocabulary(names), spec.register_target_vocabulary(names)
spec.validate(), spec.optimize(), spec.save(".")
translator = ctranslate2.Translator(".", device="cpu", compute_type="float32")
options = {"beam_size": 1, "length_penalty": 0, "return_scores": True, "max_decoding_length": 5, "return_end_token": True}
excess = []
for bans in ([], [["e"]]):
    (found,) = translator.translate_batch([["a", "b"]], suppress_sequences=bans or None, **options)
    logs = translator.score_batch([["a", "b"]], [found.hypotheses[0]])[0].log_probs[: len(found.hypotheses[0])]
    print("banned", bans, found.hypotheses[0], "score", round(found.scores[0], 2), "score_batch", round(sum(logs), 2))
    excess.append(found.scores[0] - sum(logs))
raise SystemExit(not (abs(excess[0]) < 0.01 < 0.5 < excess[1]))
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described

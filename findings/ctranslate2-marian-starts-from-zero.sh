#!/bin/sh
# ctranslate2 4.8.5 with transformers 5.24.0. The converter of Marian models starts every output from an embedding of zeros and
# drops the row of <pad>, which is right for models that came from Marian. A MarianMTModel that was trained in Transformers
# starts from the embedding of <pad>, which begins at zero but does not stay there: it is tied to the output
# projection, whose gradient reaches it in spite of padding_idx. Converted, such a model computes other probabilities, without an
# error or a warning. One would guess that the converter copies that row, or that padding_idx keeps it at zero, as
# torch says of nn.Embedding. Set to zero, hardly any difference is left: <pad> then has a logit of 0 in Transformers.
# It matters to whoever trains a Marian model with Seq2SeqTrainer and deploys it with CTranslate2.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q torch==2.13.0 transformers==5.24.0 ctranslate2==4.8.5 sentencepiece==0.2.3 numpy==2.4.6 setuptools==84.2.1
cat > run.py <<'P'
import json, os
import ctranslate2, sentencepiece, torch, transformers
from transformers import MarianConfig, MarianMTModel, MarianTokenizer
transformers.logging.set_verbosity_error()
print("ctranslate2", ctranslate2.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
english = ["The dog sleeps in the house.", "A cat sees the green tree.", "The dog sees a cat.", "A tree sleeps."]
german = ["Der Hund schläft im Haus.", "Eine Katze sieht den Baum.", "Der Hund sieht eine Katze.", "Ein Baum schläft."]
texts = english + german
sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts * 5), vocab_size=40, model_prefix="spm", minloglevel=2)
pieces = [line.split("\t")[0] for line in open("spm.vocab", encoding="utf-8")][3:]
names = ["</s>", "<unk>", *pieces, "<pad>"]
json.dump({piece: index for index, piece in enumerate(names)}, open("vocab.json", "w"))
tokenizer, pad = MarianTokenizer("spm.model", "spm.model", "vocab.json"), len(names) - 1
shape = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 1), ("ffn_dim", 64), ("attention_heads", 2))}
torch.manual_seed(0)
model = MarianMTModel(MarianConfig(vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, d_model=32, dropout=0, activation_function="relu", scale_embedding=True, **shape))
inputs = tokenizer(english, text_target=german, return_tensors="pt", padding=True)
labels = inputs.pop("labels")
start = model.get_input_embeddings().weight[pad].norm().item()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(60):
    model(**inputs, labels=labels.masked_fill(labels == pad, -100)).loss.backward()
    optimizer.step(), optimizer.zero_grad()
trained = model.eval().get_input_embeddings().weight[pad].norm().item()
print("norm of the embedding of <pad>, from which outputs start:", round(start, 3), "trained:", round(trained, 3))
def differences(folder):
    model.save_pretrained(folder), tokenizer.save_pretrained(folder)
    ctranslate2.converters.TransformersConverter(folder).convert(folder + "-converted", force=True)
    translator, largest = ctranslate2.Translator(folder + "-converted", device="cpu"), 0.0
    for source, target in zip(english, labels.tolist()):
        ids = tokenizer(source, return_tensors="pt")
        tokens = [token for token in target if token != pad]
        with torch.no_grad():
            logits = model(**ids, labels=torch.tensor([tokens])).logits[0]
        ours = logits.log_softmax(-1)[range(len(tokens)), tokens]
        made = tokenizer.convert_ids_to_tokens
        theirs = translator.score_batch([made(ids.input_ids[0].tolist())], [made(tokens)[:-1]])[0].log_probs
        largest = max(largest, (ours - torch.tensor(theirs)).abs().max().item())
    return largest
as_trained = differences("trained")
with torch.no_grad():
    model.get_input_embeddings().weight[pad] = 0
as_zero = differences("zero")
print(f"largest difference of log-probabilities: {as_trained:.4f}; with that row set to zero: {as_zero:.6f}")
raise SystemExit(not (start == 0 and trained > 0.05 and as_trained > max(0.1, 20 * as_zero)))
P
v/bin/python run.py 2>/dev/null || { echo changed; exit 1; }
echo as described

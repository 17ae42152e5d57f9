#!/bin/sh
# transformers 5.24.0: an M2M100Tokenizer made from vocab.json and a SentencePiece model does not know its 100 language tokens
# as special ones, unless additional_special_tokens names them: decode(..., skip_special_tokens=True) leaves __de__ at
# the beginning of every translation, the tokens are not in get_vocab(), and len() is smaller than their ids. get_lang_id()
# and convert_tokens_to_ids() know them all the same, so that generation works. The loop that should add them compares
# `lang_code not in str(token) not in ...`, which no token fulfils. One would guess that the tokenizer adds them, as its
# documentation shows no such argument; checkpoints of M2M100 hide it, since their files name all of them.
# It matters to whoever makes a small M2M100 of their own, and to those who size an embedding by len().
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q transformers==5.24.0 sentencepiece==0.2.3
cat > run.py <<'P'
import json
import sentencepiece, transformers
from transformers import M2M100Tokenizer
print("transformers", transformers.__version__)
texts = ["The dog sleeps in the house.", "A cat sees the green tree.", "Der Hund sieht den Baum."] * 5
sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), vocab_size=30, model_prefix="spm", minloglevel=2)
pieces = [line.split("\t")[0] for line in open("spm.vocab", encoding="utf-8")][3:]
json.dump({piece: index for index, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}, open("vocab.json", "w"))
def shows(**options):
    tokenizer = M2M100Tokenizer("vocab.json", "spm.model", src_lang="en", tgt_lang="de", **options)
    german = tokenizer.get_lang_id("de")
    ids = [tokenizer.eos_token_id, german, *tokenizer("The dog").input_ids[1:]]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    print(repr(text), "id", german, "len", len(tokenizer), "in get_vocab():", "__de__" in tokenizer.get_vocab())
    return text, german < len(tokenizer), "__de__" in tokenizer.get_vocab()
codes = M2M100Tokenizer("vocab.json", "spm.model").lang_code_to_token.values()
found = shows(), shows(additional_special_tokens=list(codes))
raise SystemExit(found != (("__de__ The dog", False, False), ("The dog", True, True)))
P
v/bin/python run.py 2>/dev/null || { echo changed; exit 1; }
echo as described

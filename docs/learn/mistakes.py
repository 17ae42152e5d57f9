"""
Train the model of minimal.py for two minutes with one mistake that people make, and see what it does:

    python docs/learn/mistakes.py no-causal-mask runs/embedded

The folder is a finished run on the embedded corpus, whose tokenizer and shape are used. Without a name, it lists the
mistakes.
"""

import json
import math
import sys
from pathlib import Path

import minimal
import sacrebleu
import torch
from tokenizers import Tokenizer
from torch import nn

from modeling_scratch.data.corpus import make_corpus

MISTAKES = {
    "none": "no mistake, for comparison",
    "padding-in-the-loss": "the loss counts the padding after short sentences",
    "no-causal-mask": "the decoder sees the tokens that it should predict",
    "labels-not-shifted": "the decoder reads the label that it should predict, and not the one before it",
    "no-source": "nothing of the encoder's output reaches the decoder",
    "no-positions": "nothing says where a token stands",
    "no-warm-up": "the learning rate is at its peak from the first update on, and high",
    "lines-out-of-step": "a line is missing in one of the two files, so each sentence has its neighbour's translation",
    "dropout-left-on": "the trained model translates without model.eval()",
}
UPDATES, SENTENCES, RATE, WARM_UP = 250, 64, 4e-3, 60


class Mistaken(minimal.Transformer):
    """The model with a mistake in its loss or its masks."""

    mistake = "none"

    def decode(self, target, memory, memory_mask):
        if self.mistake == "no-source":
            memory = torch.zeros_like(memory)
        if self.mistake != "no-causal-mask":
            return super().decode(target, memory, memory_mask)
        everything = torch.ones(1, 1, dtype=torch.bool)
        return self.decoder(target, everything, memory, memory_mask) @ self.encoder.embed_tokens.weight.T

    def loss(self, source, labels, smoothing=0.1):
        if self.mistake not in ("padding-in-the-loss", "labels-not-shifted"):
            return super().loss(source, labels, smoothing)
        is_shifted, ignored = self.mistake != "labels-not-shifted", self.pad
        target = labels
        if is_shifted:
            target, ignored = torch.cat((torch.full_like(labels[:, :1], self.start), labels[:, :-1]), dim=1), -100
        logits = self(source, target).transpose(1, 2)
        return nn.functional.cross_entropy(logits, labels, ignore_index=ignored, label_smoothing=smoothing)


def main(mistake: str, folder: str, updates: int = UPDATES) -> tuple[float, float, list[str]]:
    """Train with a mistake. Returns the loss and the BLEU of held-out sentences, and the translations of these."""
    torch.manual_seed(0)
    if mistake == "no-positions":
        minimal.positions = lambda length, width: torch.zeros(length, width)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    config = json.loads((Path(folder) / "config.json").read_text())
    model = Mistaken(config | {"dropout": 0.3 if mistake == "dropout-left-on" else 0.0})
    model.mistake = mistake
    tokenizer.enable_padding(pad_id=model.pad)

    def ids(texts: list[str]) -> torch.Tensor:
        return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(texts)])

    corpus = make_corpus(updates * SENTENCES, 100, 100, seed=0)
    pairs = {split: ([row["en"] for row in rows], [row["de"] for row in rows]) for split, rows in corpus.items()}
    sources, targets = pairs["train"]
    if mistake == "lines-out-of-step":
        targets = targets[1:] + targets[:1]
    warm_up = 1 if mistake == "no-warm-up" else WARM_UP
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    for update in range(1, updates + 1):
        rows = slice((update - 1) * SENTENCES, update * SENTENCES)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (5 if warm_up == 1 else 1) * min(update / warm_up, math.sqrt(warm_up / update))
        loss = model.loss(ids(sources[rows]), ids(targets[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 50 == 0:
            print(f"update {update}: loss {loss.item():.2f}", flush=True)
    sources, references = pairs["test"]
    with torch.no_grad():
        held_out = model.eval().loss(ids(sources), ids(references), smoothing=0.0).item()
        model.train(mistake == "dropout-left-on")
        outputs = tokenizer.decode_batch(model.translate(ids(sources)).tolist())
    bleu = sacrebleu.corpus_bleu(outputs, [references]).score
    print(f"\nheld-out sentences: loss {held_out:.2f}, BLEU {bleu:.1f}")
    for row in zip(sources[:3], references, outputs, strict=False):
        print("\n  source     {}\n  reference  {}\n  output     {}".format(*row))
    return held_out, bleu, outputs


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in MISTAKES:
        main(*sys.argv[1:])
    else:
        print(__doc__)
        print("\n".join(f"    {name:<22}{what}" for name, what in MISTAKES.items()))

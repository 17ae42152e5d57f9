"""Draw segmentations of the training text by dropping merges of a BPE vocabulary at random."""

import json

import numpy as np
from tokenizers import Tokenizer

from ..errors import UserError

# Reduced vocabularies per call of `encode`: more give more varied segmentations, but each takes milliseconds to make.
GROUPS = 16


class MergeDropout:
    """
    Segments sentences with vocabularies from which a random share of the merges is missing, so that a model sees each
    word in many segmentations. BPE-dropout (Provilkov et al. 2020, https://arxiv.org/abs/1910.13267) draws anew at each
    merge; here a dropped merge is missing throughout, so a smaller share has the same effect. The tokenizers library
    offers the original, but not with a seed, and a resumed run must draw the same segmentations.

    Args:
        tokenizer: the full BPE tokenizer.
        share: the share of merges to drop.

    Raises:
        UserError: the tokenizer is not a BPE tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, share: float):
        self.state, self.share = json.loads(tokenizer.to_str()) | {"truncation": None, "padding": None}, share
        if self.state["model"]["type"] != "BPE":
            raise UserError(
                f"tokenizer.merge_dropout is for BPE tokenizers, and this one is {self.state['model']['type']}; set it "
                "to 0"
            )

    def draw(self, generator: np.random.Generator) -> Tokenizer:
        """A tokenizer with the same tokens and fewer merges."""
        merges = self.state["model"]["merges"]
        kept = generator.random(len(merges)) >= self.share
        model = {
            **self.state["model"],
            "ignore_merges": False,
            "merges": [merge for merge, keep in zip(merges, kept, strict=True) if keep],
        }
        return Tokenizer.from_str(json.dumps({**self.state, "model": model}))

    def encode(self, sentences: list[str], generator: np.random.Generator) -> list[list[int]]:
        """The token ids of each sentence, special tokens included."""
        ids: list[list[int]] = [[] for _ in sentences]
        for group in np.array_split(generator.permutation(len(sentences)), min(GROUPS, len(sentences))):
            tokenizer = self.draw(generator)
            for row, encoding in zip(
                group, tokenizer.encode_batch_fast([sentences[row] for row in group]), strict=True
            ):
                ids[row] = encoding.ids
        return ids

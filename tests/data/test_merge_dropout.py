"""Segmentations drawn by dropping merges: of the same text, as seeded, more varied the more are dropped."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.merge_dropout import MergeDropout
from modeling_scratch.data.tokenization import PairTokenizer
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.errors import UserError

SENTENCES = [pair["en"] for pair in make_corpus(500, 1, 1)["train"]]
TOKENIZER = train_tokenizer(iter([SENTENCES]), 400)
FULL = TOKENIZER(SENTENCES).input_ids


def encode(share: float, seed: int = 0) -> list[list[int]]:
    return MergeDropout(TOKENIZER.backend_tokenizer, share).encode(SENTENCES, np.random.default_rng(seed))


def test_every_drawing_is_of_the_same_text():
    drawn = encode(0.1)
    assert TOKENIZER.batch_decode(drawn, skip_special_tokens=True) == SENTENCES
    assert {ids[-1] for ids in drawn} == {TOKENIZER.eos_token_id}


def test_the_generator_decides():
    assert encode(0.1) == encode(0.1)
    assert encode(0.1) != encode(0.1, seed=1)


def test_the_share_decides_how_many_tokens():
    tokens = [sum(map(len, encode(share))) for share in (0.0, 0.02, 0.1, 1.0)]
    assert tokens == sorted(set(tokens))
    assert encode(0.0) == FULL
    characters = {len(TOKENIZER.convert_ids_to_tokens(token)) for ids in encode(1.0) for token in ids[:-1]}
    assert characters == {1}  # no merge is left


def test_a_sentence_has_several_segmentations_in_one_drawing():
    drawn = MergeDropout(TOKENIZER.backend_tokenizer, 0.1).encode(SENTENCES[:1] * 64, np.random.default_rng(0))
    assert len(set(map(tuple, drawn))) > 4


def test_without_a_generator_nothing_is_dropped():
    rows = PairTokenizer(TOKENIZER, TOKENIZER, 256, 256, merge_dropout=0.5)(SENTENCES, SENTENCES, [*range(500)])
    assert rows["input_ids"] == rows["labels"] == FULL


def test_other_kinds_of_tokenizers_are_refused():
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    other = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    tokenizer = PairTokenizer(other, other, 256, 256, merge_dropout=0.1)
    with pytest.raises(UserError, match=r"tokenizer.merge_dropout is for BPE tokenizers, and this one is Unigram"):
        tokenizer(["a"], ["a"], [0], np.random.default_rng(0))

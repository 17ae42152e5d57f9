"""Tokenizers: exact round trips, special tokens, training on samples, existing tokenizers."""

import json
import logging
import unicodedata

import pytest
import tiktoken
from datasets import Dataset
from texts import INVISIBLE, TEXTS
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from modeling_scratch import ScratchConfig
from modeling_scratch.data import tokenizer as tokenizer_module
from modeling_scratch.data.augmentation import make_augmenter
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.streaming import sample_pairs
from modeling_scratch.data.tokenizer import adopt_tokenizer, from_tiktoken, train_tokenizer
from modeling_scratch.loading import load_config, load_tokenizers, load_translator, save_tokenizers, vocabulary_size
from modeling_scratch.model.text import clean
from modeling_scratch.recipe.schema import OptimizationSection, Recipe
from modeling_scratch.training.preparation import train_tokenizers

SENTENCES = [sentence for pair in make_corpus(500, 1, 1)["train"] for sentence in pair.values()]


@pytest.fixture(scope="module")
def trained_tokenizer():
    return train_tokenizer(iter([SENTENCES]), 400)


@pytest.fixture(scope="module")
def reloaded(trained_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained_tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_a_round_trip_without_unknown_tokens(reloaded, trained_tokenizer, text):
    ids = reloaded(text).input_ids
    assert reloaded.decode(ids, skip_special_tokens=True) == text
    assert reloaded.unk_token_id not in ids
    assert ids[-1] == reloaded.eos_token_id
    assert ids == trained_tokenizer(text).input_ids


def test_every_character_of_the_basic_plane_survives_a_round_trip(reloaded):
    for start in range(0, 0x10000, 0x400):
        text = "".join(map(chr, range(start, start + 0x400)))
        text = unicodedata.normalize("NFC", "".join(c for c in text if not 0xD800 <= ord(c) <= 0xDFFF))
        shown = "".join(c for c in text if c not in INVISIBLE)
        assert reloaded.decode(reloaded(text).input_ids, skip_special_tokens=True) == shown


def test_special_tokens_have_their_ids_and_are_not_read_from_text(reloaded):
    ids = [reloaded.pad_token_id, reloaded.bos_token_id, reloaded.eos_token_id, reloaded.unk_token_id]
    assert ids == [0, 1, 2, 3]
    assert reloaded(text_target="Die Katze.").input_ids == reloaded("Die Katze.").input_ids
    assert not set(reloaded("</s><pad>").input_ids[:-1]) & set(ids)
    assert len(reloaded) == vocabulary_size(reloaded) == 400


def test_invisible_characters_are_ignored(reloaded):
    plain = "The old cat sleeps."
    for character in INVISIBLE:
        assert reloaded(f"{character}The o{character}ld cat{character} sleeps.{character}") == reloaded(plain)
        assert clean(f"{character} The o{character}ld {character} cat sleeps. {character}") == plain
        assert reloaded(character).input_ids == [reloaded.eos_token_id]
    for character in "\u200c\u200d\ufe0f":  # these change how letters and emoji look
        assert reloaded(text := f"The o{character}ld cat sleeps.") != reloaded(plain)
        assert clean(text) == text


def test_training_is_deterministic(trained_tokenizer):
    again = train_tokenizer(iter([SENTENCES[:300], SENTENCES[300:]]), 400)
    assert again.backend_tokenizer.to_str() == trained_tokenizer.backend_tokenizer.to_str()


def test_training_splits_very_long_words():
    """Into pieces of 1,000 bytes; it would otherwise take quadratic time."""
    tokenizer = train_tokenizer(iter([["a" * 5000, "b c"] * 2]), 400)
    assert max(map(len, tokenizer.get_vocab())) == 1000
    assert len(tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a" * 5000)) == 1  # encoding does not
    marks = "a" + "".join(chr(0x300 + number * number % 112) for number in range(100_000))
    tokenizer = train_tokenizer(iter([[marks, *SENTENCES]]), 400)
    assert len(tokenizer) == 400


def test_training_uses_a_random_sample_of_sentences(caplog):
    dataset = Dataset.from_dict({"source": [f"s{i}" for i in range(5000)], "target": [f"t{i}" for i in range(5000)]})
    drawn = []
    for seed in (0, 0, 1):
        batches = list(sample_pairs(dataset, 1500, seed))
        pairs = [pair for batch in batches for pair in zip(batch["source"], batch["target"], strict=True)]
        assert len(pairs) == len(set(pairs)) == 1500
        assert all(source[1:] == target[1:] for source, target in pairs)
        drawn.append(set(pairs))
    assert drawn[0] == drawn[1] != drawn[2]
    assert sum(len(batch["source"]) for batch in sample_pairs(dataset, 5000, 0)) == 5000
    recipe = Recipe(output_dir="x", optimization=OptimizationSection(max_steps=1))
    recipe.tokenizer.max_sentences = 3000
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        train_tokenizers(recipe, dataset)
    assert "sample of 1,500 of 5,000 pairs (seed 0)" in caplog.text
    assert "tokens from 3,000 sentences" in caplog.text


@pytest.mark.parametrize(("shared", "changed"), [(True, True), (False, True), (False, False)])
def test_training_sees_texts_as_augmentation_changes_them(shared, changed):
    """So that a word in capitals is not spelled by its letters."""
    pairs = [(f"the window number {number}", f"das Fenster Nummer {number}") for number in range(1500)]
    sources, targets = zip(*pairs, strict=True)
    dataset = Dataset.from_dict({"source": sources, "target": targets})
    recipe = Recipe(output_dir="x", optimization=OptimizationSection(max_steps=1))
    recipe.tokenizer.shared, recipe.tokenizer.vocab_size = shared, 600
    augment = make_augmenter({"upper_case": 0.5}, 0) if changed else None
    made = train_tokenizers(recipe, dataset, augment=augment)
    for tokenizer, words in zip(made, ("the window", "das Fenster"), strict=True):
        assert len(tokenizer.tokenize(words)) == 2
        assert (len(tokenizer.tokenize(words.upper())) == 2) is changed
    again = train_tokenizers(recipe, dataset, augment=augment)
    assert [each.get_vocab() for each in made] == [each.get_vocab() for each in again]


def test_one_or_two_tokenizers_are_saved_and_loaded(tmp_path, trained_tokenizer):
    target = train_tokenizer(iter([SENTENCES[1::2]]), 350)
    sizes = {"vocab_size": 400, "decoder_vocab_size": 350, "share_encoder_decoder_embeddings": False}
    ScratchConfig(**sizes).save_pretrained(tmp_path)
    ScratchConfig(vocab_size=400).save_pretrained(tmp_path / "shared")
    save_tokenizers(trained_tokenizer, target, tmp_path)
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == 400
    assert len(AutoTokenizer.from_pretrained(tmp_path, subfolder="target_tokenizer")) == 350
    source, target = load_tokenizers(str(tmp_path))
    assert (len(source), len(target)) == (400, 350)
    save_tokenizers(trained_tokenizer, trained_tokenizer, tmp_path / "shared")
    source, target = load_tokenizers(str(tmp_path / "shared"))
    assert source is target


@pytest.fixture
def encoding():
    """A small encoding like cl100k_base, with its pattern and a gap in the ids before the special token."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    for merge in (b"th", b"the", b" t", b" th", b" the", b"in", b"ing"):
        ranks[merge] = len(ranks)
    pattern = (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
        r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    )
    return tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 270})


def test_a_tiktoken_encoding_keeps_its_ids(encoding, monkeypatch, tmp_path):
    monkeypatch.setattr(tokenizer_module, "_load", lambda name: from_tiktoken(encoding))
    adopted = adopt_tokenizer("cl100k_base")
    adopted.save_pretrained(tmp_path)
    adopted = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "the thing, nothing in the other ring 12345"]:
        expected = encoding.encode(text, disallowed_special=())
        assert adopted(text).input_ids == [*expected, adopted.eos_token_id]
        assert adopted.decode(expected) == text
    assert adopted.convert_tokens_to_ids("<|endoftext|>") == 270
    added = [adopted.pad_token_id, adopted.bos_token_id, adopted.eos_token_id]
    assert added == [271, 272, 273]
    assert vocabulary_size(adopted) == 274


def word_level(tmp_path, vocabulary, **special):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, "u")), **special)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def test_existing_tokens_are_not_used_as_special_ones(tmp_path):
    taken = word_level(tmp_path / "taken", {"u": 0, "a": 1, "<pad>": 2})
    with pytest.raises(ValueError, match="pad_token"):
        adopt_tokenizer(taken)
    vocabulary = {"u": 0, "a": 1, "</s>": 2, "<s>": 3}
    shared = word_level(
        tmp_path / "shared", vocabulary, pad_token="</s>", eos_token="</s>", bos_token="<s>", unk_token="u"
    )
    with pytest.raises(ValueError, match=r"pad_token and eos_token .* same token"):
        adopt_tokenizer(shared)


def test_missing_special_tokens_are_added(tmp_path):
    adopted = adopt_tokenizer(word_level(tmp_path, {"u": 0, "a": 1}, unk_token="u"))
    assert [adopted.pad_token_id, adopted.bos_token_id, adopted.eos_token_id] == [2, 3, 4]
    assert adopted("a").input_ids == [1, 4]


def test_adopted_tokenizers_end_every_text_with_eos(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "##s"]
    BertTokenizer(vocab={word: place for place, word in enumerate(words)}).save_pretrained(tmp_path / "bert")
    adopted = adopt_tokenizer(str(tmp_path / "bert"))
    save_tokenizers(adopted, adopted, tmp_path / "saved")
    for tokenizer in (adopted, AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert dict(tokenizer("A cats")) == {"input_ids": [5, 6, 7, tokenizer.eos_token_id], "attention_mask": [1] * 4}


def test_tokenizers_of_other_kinds_of_models_are_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bart"}')
    with pytest.raises(ValueError, match="bart"):
        load_tokenizers(str(tmp_path))


def test_custom_code_is_never_run(tmp_path, monkeypatch):
    """Even if the user answers yes where Transformers asks for consent."""
    monkeypatch.setattr("builtins.input", lambda *_: "yes")
    config = {"model_type": "strange", "auto_map": {"AutoConfig": "code.Config", "AutoModelForSeq2SeqLM": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": [None, "code.Tokens"]}}))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for load in (load_tokenizers, load_config, load_translator, adopt_tokenizer):
        with pytest.raises(ValueError, match="contains custom code"):
            load(str(tmp_path))
    assert not (tmp_path / "ran").exists()

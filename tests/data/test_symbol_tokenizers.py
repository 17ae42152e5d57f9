"""Tokenizers of whole symbols: characters, words between spaces, matches of a pattern."""

import re
import unicodedata
from types import SimpleNamespace

import pytest
from conftest import quick_run, run_training
from texts import write_phones
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from modeling_scratch import ScratchConfig
from modeling_scratch.data.tokenizer import PairTokenizer, train_tokenizer
from modeling_scratch.errors import UserError
from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.recipe.schema import TokenizerSection

# Of the atoms and bonds in SMILES (Schwaller et al. 2019, https://arxiv.org/abs/1811.02633).
SMILES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>|\*|\$|\%[0-9]{2}|[0-9]"
TEXTS = {
    "characters": ["a  b", "l'été 😀", " x", "naïve\tword", "Ελλάδα"],
    "decomposed": ["l'été 😀", "각시", "が  x"],
    "words": ["p l ʷ a", "ɔ̃ ʃ"],
    "pattern": ["CC(=O)N[C@@H](C)Br.Clc1ccccc1%12"],
}
PIECES = {
    "characters": lambda text: list(text),
    "decomposed": lambda text: list(unicodedata.normalize("NFD", text)),
    "words": str.split,
    "pattern": lambda text: re.findall(SMILES, text),
}


@pytest.fixture(params=TEXTS)
def trained(request):
    kind = request.param
    pattern = SMILES if kind == "pattern" else None
    return kind, train_tokenizer(iter([TEXTS[kind]]), 100, kind, pattern)


UNUSED = SimpleNamespace(config=ScratchConfig())  # instead of a model, where only tokenizers are used


def test_symbols_are_tokens_and_text_comes_back(trained, tmp_path):
    """In Transformers and in the tokenizers library alone."""
    kind, tokenizer = trained
    tokenizer.save_pretrained(tmp_path)
    plain, loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS[kind]:
        ids = loaded(text).input_ids
        assert ids[-1] == loaded.eos_token_id
        assert loaded.convert_ids_to_tokens(ids[:-1]) == PIECES[kind](text)
        assert plain.encode(text).ids == ids
        decoded = unicodedata.normalize("NFD", text) if kind == "decomposed" else text
        assert loaded.decode(ids, skip_special_tokens=True) == plain.decode(ids) == decoded


def test_the_most_frequent_symbols_are_kept_and_others_are_unknown():
    tokenizer = train_tokenizer(iter([["a a a b b c"]]), 6, "words")
    ids = tokenizer("c a b").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["<unk>", "a", "b", "</s>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a b"


def test_symbols_without_letters_are_read_and_not_copied():
    """Sentences of punctuation alone are copied; symbols may be anything."""
    tokenizer = train_tokenizer(iter([["😀 🍕 ..."]]), 20, "words")
    assert Translator(UNUSED, tokenizer, tokenizer).tokenize(["🍕 ...", " "]) == [tokenizer("🍕 ...").input_ids, []]


@pytest.mark.parametrize("pattern", ["(", "a)|(b", r"(?x) \w+ # words"])
def test_a_pattern_that_is_none(pattern):
    with pytest.raises(UserError, match=r"tokenizer\.pattern"):
        train_tokenizer(iter([["a"]]), 10, "pattern", pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(?:(?:a|aa)+)+c"])
def test_a_pattern_that_gives_up_on_a_text(pattern):
    """The tokenizers library (0.23.3) panics once Oniguruma has taken its most steps. The error is no Exception."""
    long = "a" * 40 + "b"
    with pytest.raises(UserError, match=r"tokenizer\.pattern gives up"):
        train_tokenizer(iter([[long]]), 10, "pattern", pattern)
    tokenizer = train_tokenizer(iter([["a"]]), 10, "pattern", pattern)
    with pytest.raises(UserError, match=r"tokenizer\.pattern gives up"):
        PairTokenizer(tokenizer, tokenizer, 99, 99)({"source": ["a"], "target": [long]}, [0])
    with pytest.raises(ValueError, match="cannot read one of the inputs"):
        Translator(UNUSED, tokenizer, tokenizer).tokenize(["a", long])


def test_a_pattern_that_gives_up_on_a_test_sentence_does_so_before_training(tmp_path, capsys):
    for split, source in (("train", "a"), ("validation", "a"), ("test", "a" * 40 + "b")):
        (tmp_path / f"{split}.tsv").write_text(f"{source}\tx\n" * 3)
    options = [f"data.{split}_files={tmp_path / split}.tsv" for split in ("train", "validation", "test")]
    options += ["data.source_column=1", "data.target_column=2", "tokenizer.kind=pattern", "tokenizer.pattern='(a+)+$'"]
    with pytest.raises(SystemExit):
        quick_run(tmp_path / "run", *options, "tokenizer.vocab_size=50")
    assert "the test split: the tokenizer cannot read one of the inputs" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"kind": "characters", "target_kind": "words"}, "shared"),
        ({"kind": "pattern"}, "pattern"),
        ({"pattern": "."}, "pattern"),
        ({"vocab_size": 100}, "vocab_size"),
        ({"kind": "words", "existing": "folder"}, "existing"),
    ],
)
def test_settings_that_do_not_fit(fields, key):
    with pytest.raises(ValueError, match=f"tokenizer.{key}"):
        TokenizerSection(**fields)
    TokenizerSection(kind="characters", target_kind="words", shared=False, vocab_size=50)


def test_a_run_from_letters_to_phones(tmp_path, capsys):
    """Each side has its own kind; what the vocabulary lacks is counted."""
    options = [*write_phones(tmp_path, ("cabba", "bax")), "data.test_files=null", "data.target_language=en-fonipa"]
    options += ["data.source_column=1", "data.target_column=2"]
    options += ["tokenizer.kind=characters", "tokenizer.target_kind=words", "tokenizer.shared=false"]
    options += ["tokenizer.vocab_size=50", "evaluation.metrics=[wer,token_error_rate]", "evaluation.metric=wer"]
    run = quick_run(tmp_path / "run", *options, "optimization.max_steps=4", "evaluation.every=2")
    output = capsys.readouterr()
    assert re.search(r"1 of \d+ source tokens of the validation pairs are lost", output.err)
    assert "WER" in output.out
    assert "BLEU" not in output.out
    source, target = load_tokenizers(str(run))
    assert source.convert_ids_to_tokens(source("cab").input_ids) == ["c", "a", "b", "</s>"]
    assert target.decode(target("C A B").input_ids, skip_special_tokens=True) == "C A B"
    with pytest.raises(SystemExit):
        run_training(*options, "tokenizer.shared=true", f"output_dir={tmp_path / 'other'}")

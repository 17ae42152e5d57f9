"""The pairs of each split: from files, the Hub or the embedded corpus; held out, mixed, cached and tokenized."""

import json
import logging
import os
import shutil

import pytest
from datasets import Dataset, DatasetDict, Features, Translation, Value, load_from_disk
from test_local_files import PAIRS, en_de, loaded, table, text_files
from transformers import MarianTokenizer

from modeling_scratch.data import sources
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.local_files import check_files
from modeling_scratch.data.sources import load_pairs, load_split, source_of, sources_of
from modeling_scratch.data.tokenizer import PairTokenizer, pair_lengths, tokenize_pairs, train_tokenizer
from modeling_scratch.errors import UserError
from modeling_scratch.recipe.schema import DataSection

NUMBERED = [(f"s{i}", f"t{i}") for i in range(60)]


def pairs_of(dataset) -> list[tuple[str, str]]:
    return list(zip(dataset["source"], dataset["target"], strict=True))


def test_a_changed_file_is_read_again_even_if_its_time_is_unchanged(tmp_path):
    pairs = [(f"word {number}", f"Wort {number}") for number in range(50)]
    section = en_de(train_files=text_files(tmp_path, pairs=pairs))
    assert loaded(section) == pairs
    path = tmp_path / "train.en"
    before = path.stat()
    path.write_text(path.read_text().replace("word 7\n", "king 7\n"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    pairs[7] = ("king 7", "Wort 7")
    assert loaded(section) == pairs


def test_data_sets_on_the_hub_may_have_a_translation_feature_or_a_column_for_each_language(monkeypatch):
    """As wmt/wmt14 and bentrevett/multi30k do."""
    wmt = Dataset.from_dict(
        {"translation": [{"en": source, "de": target} for source, target in PAIRS]},
        features=Features({"translation": Translation(languages=["de", "en"])}),
    )
    flat = Dataset.from_dict({"en": [p[0] for p in PAIRS], "de": [p[1] for p in PAIRS]})
    asked = []

    def fake(name, subset, split, revision):
        asked.append((name, subset, split, revision))
        return {"wmt/wmt14": wmt, "bentrevett/multi30k": flat}[name]

    monkeypatch.setattr(sources, "load_dataset", fake)
    multi30k = en_de(name="bentrevett/multi30k", test="test", revision="v2")
    assert pairs_of(source_of("train", en_de(name="wmt/wmt14", subset="de-en"), 0).load()) == PAIRS
    assert pairs_of(source_of("test", multi30k, 0).load()) == PAIRS
    assert asked == [("wmt/wmt14", "de-en", "train", None), ("bentrevett/multi30k", None, "test", "v2")]
    with pytest.raises(UserError, match=r"'fr'.* de, en"):
        source_of("train", en_de(name="wmt/wmt14", target_language="fr"), 0).load()
    with pytest.raises(UserError, match=r"data\.name: 'a/b' .*KeyError"):
        source_of("train", en_de(name="a/b", subset="c"), 0).load()


def test_a_missing_subset_is_named(tmp_path):
    table(tmp_path, "csv", [{"en": "a", "de": "b"}])
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: x\n- config_name: y\n---\n")
    with pytest.raises(UserError, match=r"data\.subset.*'x', 'y'"):
        source_of("train", en_de(name=str(tmp_path)), 0).load()


# -- held-out pairs ----------------------------------------------------------------------------------------------------


def test_validation_pairs_are_those_of_train_test_split(tmp_path, caplog):
    section = en_de(train_files=text_files(tmp_path, pairs=NUMBERED), validation_size=20)
    expected = source_of("train", section, 5).load().train_test_split(test_size=20, seed=5)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        found = load_pairs(section, 5)
    assert found["validation"].to_dict() == expected["test"].to_dict()
    assert found["train"].to_dict() == expected["train"].to_dict()
    assert "20 of 60" in caplog.text
    assert load_split(section, 5, "validation").to_dict() == found["validation"].to_dict()
    with pytest.raises(UserError, match=r"data\.validation_size \(60\)"):
        load_pairs(section.model_copy(update={"validation_size": 60}), 0)
    assert len(load_pairs(section.model_copy(update={"validation_size": None}), 0)["validation"]) == 6  # a tenth


def test_copies_of_held_out_pairs_are_not_trained_on(tmp_path, caplog):
    copies, more = NUMBERED[:40] + NUMBERED[:20], text_files(tmp_path, "more", NUMBERED)
    section = en_de(train_files=text_files(tmp_path, pairs=copies), mix=[{"files": more}], validation_size=20)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        splits = load_pairs(section, 0)
    train, held_out = set(pairs_of(splits["train"])), set(pairs_of(splits["validation"]))
    assert len(splits["validation"]) == 20
    assert not train & held_out
    assert train | held_out == set(NUMBERED)
    assert "copies of held-out pairs" in caplog.text
    assert "also training pairs" not in caplog.text


def test_pairs_with_an_empty_side_are_not_held_out(tmp_path):
    pairs = [(f"s{i}" * (i % 3 > 0), f"t{i}" * (i % 4 > 0)) for i in range(24)]
    splits = load_pairs(en_de(train_files=text_files(tmp_path, pairs=pairs), validation_size=8), 0)
    held_out = set(pairs_of(splits["validation"]))
    assert 0 < len(held_out) < 8
    assert held_out <= {pair for pair in pairs if all(pair)}
    assert len(splits["train"]) == 16
    nearly_empty = en_de(train_files=text_files(tmp_path, "few", [("", "x"), ("y", "")] * 9 + [("a", "b")]))
    with pytest.raises(UserError, match="held out"):
        load_pairs(nearly_empty, 0)


def test_the_embedded_corpus_can_hold_out_its_validation_pairs():
    pairs = load_pairs(en_de(embedded_size=50, validation=None, test=None), 0)
    assert {split: len(pairs[split]) for split in pairs} == {"train": 45, "validation": 5}


# 40 sources, of which every fourth has three targets, one of them twice; in an order that does not follow them.
SEVERAL = [(f"s{i}", f"t{i}{letter}") for letter in "abca" for i in range(40) if letter == "a" or i % 4 == 0]


def test_no_source_of_held_out_pairs_is_trained_on(tmp_path):
    """Held-out sources have all their targets, so that whichever a model writes is right."""
    mix = [{"files": text_files(tmp_path, "more", [("s0", "x"), ("s1", "x"), ("s2", "x"), ("new", "y")])}]
    section = en_de(train_files=text_files(tmp_path, pairs=SEVERAL), validation_size=30, mix=mix)
    splits = load_pairs(section, 0)
    train, held_out = pairs_of(splits["train"]), pairs_of(splits["validation"])
    sources = {source for source, _ in held_out}
    assert not sources & {source for source, _ in train}
    assert set(held_out) == {pair for pair in SEVERAL if pair[0] in sources}
    assert 30 <= len(held_out) <= 32
    assert {pair for pair in SEVERAL if pair[0] not in sources} <= set(train)
    assert ("new", "y") in train
    assert pairs_of(load_split(section, 0, "validation")) == held_out


def test_sources_that_no_pair_can_be_trained_without_are_refused(tmp_path):
    files = text_files(tmp_path, pairs=[("the same", f"t{i}") for i in range(30)])
    with pytest.raises(UserError, match=r"sources of the 30 .*data\.validation_files"):
        load_pairs(en_de(train_files=files, validation_size=3), 0)


def test_sources_that_are_also_trained_on_are_warned_about(tmp_path, caplog):
    """Whatever their targets, and with characters that models do not read."""
    more = {"validation_files": text_files(tmp_path, "dev", [("a", "b"), ("s1", "other")])}
    test = text_files(tmp_path, "test", [("s1", "t1"), ("s1\u200b", "t1"), ("c", "d")])
    load_pairs(en_de(train_files=text_files(tmp_path, pairs=NUMBERED), test_files=test, **more), 0)
    dev, test = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "1 of the 2 validation pairs (50.0%)" in dev
    assert "same target for 0" in dev
    assert "2 of the 3 test pairs (66.7%)" in test
    assert "same target for 2" in test


@pytest.mark.parametrize(
    ("empty", "shown"), [(("silo", ""), "'silo' → ''"), (("", "S"), "'' → 'S'"), (("a", "\u200b \ufeff"), "'a' → ''")]
)
def test_pairs_to_score_without_text_on_a_side_are_warned_about(empty, shown, tmp_path, caplog):
    test, further = (text_files(tmp_path, name, [("pifu", "P"), empty, empty]) for name in ("test", "further"))
    section = en_de(train_files=text_files(tmp_path), validation_size=1, test_files=test, test_sets={"more": further})
    load_pairs(section, 0)
    for split in ("test", "more"):
        assert f"2 of the 3 {split} pairs have an empty side, first pair 2 ({shown})" in caplog.text
    caplog.clear()
    load_split(section, 0, "more")  # as `scratch evaluate` does
    assert "2 of the 3 more pairs" in caplog.text


# -- folders of save_to_disk -------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A DatasetDict of which the results of `map` are in its folder too, as the datasets library (5.2) keeps them."""
    rows = Dataset.from_dict({"en": [source for source, _ in NUMBERED], "de": [target for _, target in NUMBERED]})
    folder = tmp_path / "saved"
    DatasetDict({"train": rows, "dev": rows.select(range(5))}).save_to_disk(folder, num_shards={"train": 3, "dev": 1})
    load_from_disk(str(folder)).map(lambda row: {"de": row["de"].upper()})
    assert list(folder.glob("train/cache-*.arrow"))
    return folder


def test_every_row_of_a_saved_data_set_is_read_once(saved):
    files = sorted(saved.rglob("*"))
    assert loaded(en_de(name=str(saved))) == NUMBERED
    assert loaded(en_de(name=str(saved), validation="dev"), "validation") == NUMBERED[:5]
    assert loaded(en_de(name=str(saved / "train"))) == NUMBERED  # a Dataset
    part = en_de(name=str(saved), test="train[50:]+dev[:2]")
    assert loaded(part, "test") == NUMBERED[50:] + NUMBERED[:2]
    assert sorted(saved.rglob("*")) == files


def test_a_saved_data_set_that_changes_is_read_again(saved):
    section = en_de(name=str(saved), streaming=True)
    before = source_of("train", section, 0).fingerprint()
    load_from_disk(str(saved)).filter(lambda row: row["en"] != "s7")["train"].save_to_disk(saved.with_name("other"))
    shutil.rmtree(saved / "train")
    saved.with_name("other").rename(saved / "train")
    assert loaded(section) == NUMBERED[:7] + NUMBERED[8:]
    assert source_of("train", section, 0).fingerprint() != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "dataset_dict.json").unlink(),
        lambda folder: (folder / "dataset_dict.json").write_text("{"),
        lambda folder: next(folder.glob("train/data-*.arrow")).unlink(),
        lambda folder: next(folder.glob("train/data-*.arrow")).write_bytes(b"x" * 99),
        lambda folder: (folder / "train" / "state.json").unlink(),
    ],
    ids=["no splits", "broken splits", "a missing shard", "a broken shard", "no state"],
)
def test_damaged_saved_data_sets_are_refused(damage, saved):
    damage(saved)
    for streaming in (False, True):
        with pytest.raises(UserError, match=r"data\.name: .*saved.*damaged"):
            loaded(en_de(name=str(saved), streaming=streaming))


def test_splits_and_subsets_that_a_saved_data_set_lacks_are_named(saved):
    with pytest.raises(UserError, match=r"no split 'validation'; it has train, dev"):
        load_pairs(en_de(name=str(saved)), 0)
    with pytest.raises(UserError, match=r"data\.subset=null"):
        loaded(en_de(name=str(saved), subset="x"))


def test_features_are_part_of_the_source(tmp_path):
    pairs = [("sleep", "V;PST", "slept"), ("sleep", "V;PTCP", "sleeping"), ("sleep", "", "sleep")]
    names = ["source", "features", "target"]
    dataset = Dataset.from_list([dict(zip(names, pair, strict=True)) for pair in pairs])
    assert sources_of(dataset) == ["V\x1fPST\x1fsleep", "V\x1fPTCP\x1fsleep", "sleep"]
    rows = [f"w{i}\tw{i}{tag}\t{tag}\n" for i in range(20) for tag in ("PST", "PTCP")]
    (tmp_path / "t.tsv").write_text("".join(rows))
    columns = {"source_column": 1, "target_column": 2, "feature_columns": [3]}
    splits = load_pairs(DataSection(train_files=str(tmp_path / "t.tsv"), validation_size=10, **columns), 0)
    assert [len(splits[name]) for name in ("train", "validation")] == [30, 10]


# -- several sources ---------------------------------------------------------------------------------------------------


def test_mixed_sources_follow_the_training_pairs_with_tags_and_weights(tmp_path):
    (tmp_path / "more.csv").write_text("id,english,de\n1,Two.,Zwei.\n2,,Drei.\n")
    mix = [
        {"files": str(tmp_path / "more.csv"), "source_column": "english", "weight": 0.5, "tag": "<bt>"},
        {"files": text_files(tmp_path, "others", [("Four.", "Vier.")]), "weight": 2},
        {"name": "embedded"},
    ]
    section = en_de(train_files=text_files(tmp_path), mix=mix, validation_size=1, embedded_size=3)
    pairs = load_pairs(section, 0)
    rows = list(zip(*(pairs["train"][name] for name in ("source", "target", "weight")), strict=True))
    assert {row[:2] for row in rows[:3]} < set(PAIRS)
    assert {row[2] for row in rows[:3]} == {1.0}
    assert rows[3:6] == [("<bt> Two.", "Zwei.", 0.5), ("", "Drei.", 0.5), ("Four.", "Vier.", 2.0)]
    assert len(rows) == 9
    assert pairs["validation"].column_names == ["source", "target"]


def test_a_split_loaded_alone_equals_that_loaded_with_all(tmp_path):
    mix = [{"files": text_files(tmp_path, "others", [("Four.", "Vier.")]), "weight": 2}]
    section = en_de(train_files=text_files(tmp_path), validation_files=text_files(tmp_path, "held"), mix=mix)
    for split, pairs in load_pairs(section, 0).items():
        assert load_split(section, 0, split).to_dict() == pairs.to_dict()
    with pytest.raises(UserError, match="no test split"):
        load_split(section, 0, "test")


def test_a_wrong_file_of_a_mixed_source_is_named(tmp_path):
    own = text_files(tmp_path)
    with pytest.raises(UserError, match=r"data\.mix: .* data\.train_files"):
        check_files(en_de(train_files=own, mix=[{"files": own}]))
    (tmp_path / "x.csv").write_text("id,en\n1,One.\n")
    with pytest.raises(UserError, match=r"data\.mix\[0\]: .*x\.csv .*'de'"):
        load_pairs(en_de(train_files=own, validation_size=1, mix=[{"files": str(tmp_path / "x.csv")}]), 0)
    other = text_files(tmp_path, "other")
    section = en_de(train_files=own, validation_files=other, mix=[{"files": other}])
    with pytest.raises(UserError, match=r"data\.validation_files: .*other\.\w\w .*training file"):
        check_files(section)


# -- token ids ---------------------------------------------------------------------------------------------------------


def test_tokenizing_drops_and_counts_empty_and_long_pairs(caplog):
    pairs = [("a b c", "x"), ("a", "x y z"), ("", "x"), ("a", "")]
    pairs += [("\u200b", "x"), ("a", "\ufeff \u200b"), ("a\u00a0 \u200bb", "\u200e x\u200b y")]  # as "a b", "x y"
    dataset = Dataset.from_dict({"source": [p[0] for p in pairs], "target": [p[1] for p in pairs]})
    tokenizer = train_tokenizer(iter([["a b c x y z"]]), 300)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        tokenized = tokenize_pairs(dataset, PairTokenizer(tokenizer, tokenizer, 3, 3), "train")
    assert list(tokenized["index"]) == [6]
    assert list(tokenized["input_ids"]) == [tokenizer("a b").input_ids]
    assert list(tokenized["labels"]) == [tokenizer("x y").input_ids]
    assert "6 of 7 train pairs" in caplog.text
    source_lengths, target_lengths = pair_lengths(tokenized)
    assert source_lengths.tolist() == [len(tokenizer("a b").input_ids)] == target_lengths.tolist()
    with pytest.raises(UserError, match="all 7 train pairs"):
        tokenize_pairs(dataset, PairTokenizer(tokenizer, tokenizer, 1, 256), "train")


def test_tokenized_pairs_are_cached(tmp_path):
    dataset = source_of("train", en_de(train_files=text_files(tmp_path)), 0).load()
    first, again, other = (
        tokenize_pairs(dataset, PairTokenizer(*[train_tokenizer(iter([["a b"]]), 300)] * 2, limit, 256), "train")
        for limit in (256, 256, 99)
    )
    assert first.cache_files == again.cache_files != []
    assert first.cache_files != other.cache_files
    assert Value("string") not in first.features.values()


def test_targets_are_tokenized_with_the_target_model_of_marian(tmp_path):
    """The tokenizer of OPUS-MT has a SentencePiece model for each side."""
    sentencepiece = pytest.importorskip("sentencepiece")
    pairs, pieces = make_corpus(300, 1, 1)["train"], {"</s>": 0, "<unk>": 1, "<pad>": 2}
    for side in ("en", "de"):
        options = {"model_prefix": str(tmp_path / side), "vocab_size": 120, "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=(pair[side] for pair in pairs), **options)
        for line in (tmp_path / f"{side}.vocab").read_text().splitlines()[3:]:
            pieces.setdefault(line.split("\t")[0], len(pieces))
    (tmp_path / "vocab.json").write_text(json.dumps(pieces))
    files = [str(tmp_path / file) for file in ("en.model", "de.model", "vocab.json")]
    marian, german = MarianTokenizer(*files), sentencepiece.SentencePieceProcessor(files[1])
    english, translation = pairs[0]["en"], pairs[0]["de"]
    (labels,) = PairTokenizer(marian, marian, 256, 256)({"source": [english], "target": [translation]}, [0])["labels"]
    assert labels == [*(pieces[piece] for piece in german.encode(translation, out_type=str)), pieces["</s>"]]

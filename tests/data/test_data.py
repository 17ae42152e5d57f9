"""Data from every place a user has it, and what is said where it cannot be used."""

import csv
import gzip
import json
import logging

import pytest
from datasets import Dataset, DatasetDict, Features, Translation, Value

from modeling_scratch.data import hub_source as data_module
from modeling_scratch.data.sources import load_pairs
from modeling_scratch.data.tokenization import PairTokenizer, pair_lengths, tokenize_pairs
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.recipe.schema import DataSection

PAIRS = [("A dog.", "Ein Hund."), ('He said "NA", null.', 'Er sagte "NA", null.'), ("Ä é", "ß"), ("1", "eins")]


def write(path, text, compress=False):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if compress else data)
    return str(path)


def text_files(folder, name="train", pairs=PAIRS, compress=False):
    suffix = ".gz" if compress else ""
    write(folder / f"{name}.en{suffix}", "".join(f"{source}\n" for source, _ in pairs), compress)
    write(folder / f"{name}.de{suffix}", "".join(f"{target}\n" for _, target in pairs), compress)
    return str(folder / name)


def loaded(section, split="train"):
    dataset = load_pairs(section, 0, only=split)[split]
    return list(zip(dataset["source"], dataset["target"], strict=True))


@pytest.mark.parametrize("compress", [False, True])
def test_two_text_files(tmp_path, compress):
    prefix = text_files(tmp_path, compress=compress)
    suffix = ".gz" if compress else ""
    assert loaded(DataSection(train_files=prefix)) == PAIRS
    assert loaded(DataSection(train_files=[f"{prefix}.en{suffix}", f"{prefix}.de{suffix}"])) == PAIRS
    backwards = DataSection(train_files=prefix, source_language="de", target_language="en")
    assert loaded(backwards) == [(target, source) for source, target in PAIRS]


def test_line_ends_and_separators_within_a_line(tmp_path):
    write(tmp_path / "t.en", "one\r\ntwo\u2028still two\nthree")
    write(tmp_path / "t.de", "eins\nzwei\ndrei\n")
    assert loaded(DataSection(train_files=str(tmp_path / "t"))) == [
        ("one", "eins"),
        ("two\u2028still two", "zwei"),
        ("three", "drei"),
    ]


def test_a_changed_file_is_read_again(tmp_path):
    prefix = text_files(tmp_path)
    assert len(loaded(DataSection(train_files=prefix))) == 4
    text_files(tmp_path, pairs=[("New.", "Neu.")])
    assert loaded(DataSection(train_files=prefix)) == [("New.", "Neu.")]


def table(folder, kind, rows):
    path = folder / f"train.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        Dataset.from_list(rows).to_parquet(path)
    elif kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_tables(tmp_path, kind):
    flat = [{"en": source, "other": "x", "de": target} for source, target in PAIRS]
    assert loaded(DataSection(train_files=table(tmp_path, kind, flat))) == PAIRS
    (tmp_path / "named").mkdir()
    named = [{"question": source, "answer": target} for source, target in PAIRS]
    section = DataSection(
        train_files=table(tmp_path / "named", kind, named), source_column="question", target_column="answer"
    )
    assert loaded(section) == PAIRS


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_translation_column(tmp_path, kind):
    rows = [{"translation": {"de": target, "en": source}} for source, target in PAIRS]
    assert loaded(DataSection(train_files=table(tmp_path, kind, rows))) == PAIRS


def test_hub_data_set(monkeypatch):
    """The conventions of wmt and opus sets (a Translation feature) and of bentrevett/multi30k (flat columns)."""
    wmt = Dataset.from_dict(
        {"translation": [{"en": source, "de": target} for source, target in PAIRS]},
        features=Features({"translation": Translation(languages=["de", "en"])}),
    )
    flat = Dataset.from_dict({"en": [p[0] for p in PAIRS], "de": [p[1] for p in PAIRS]})
    asked = []

    def fake(name, subset, split, revision, streaming):
        asked.append((name, subset, split, revision))
        return {"wmt/wmt14": wmt, "bentrevett/multi30k": flat}[name]

    monkeypatch.setattr(data_module, "load_dataset", fake)
    assert loaded(DataSection(name="wmt/wmt14", subset="de-en")) == PAIRS
    assert loaded(DataSection(name="bentrevett/multi30k", test="test", revision="v2"), "test") == PAIRS
    assert asked == [("wmt/wmt14", "de-en", "train", None), ("bentrevett/multi30k", None, "test", "v2")]
    with pytest.raises(ValueError, match="wmt/wmt14 has no language 'fr'; it has de, en"):
        loaded(DataSection(name="wmt/wmt14", target_language="fr"))


def test_held_out_validation(tmp_path, caplog):
    pairs = [(f"s{i}", f"t{i}") for i in range(50)]
    section = DataSection(train_files=text_files(tmp_path, pairs=pairs), validation_size=10)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        splits = load_pairs(section, 0)
    assert isinstance(splits, DatasetDict)
    assert set(splits) == {"train", "validation"}
    assert (len(splits["train"]), len(splits["validation"])) == (40, 10)
    assert sorted([*splits["train"]["source"], *splits["validation"]["source"]]) == sorted(p[0] for p in pairs)
    assert "held out 10 of 50" in caplog.text
    with pytest.raises(ValueError, match="leaves nothing of the 50 pairs"):
        load_pairs(section.model_copy(update={"validation_size": 50}), 0)


def test_byte_order_mark(tmp_path):
    text = "\ufeffen,de\na,b\n"
    assert loaded(DataSection(train_files=write(tmp_path / "t.csv", text))) == [("a", "b")]
    write(tmp_path / "t.en", "\ufeffa\n")
    write(tmp_path / "t.de", "b\n")
    assert loaded(DataSection(train_files=str(tmp_path / "t"))) == [("a", "b")]


def test_null_translations_are_empty(tmp_path):
    rows = '{"translation": {"en": "a", "de": "b"}}\n{"translation": null}\n'
    assert loaded(DataSection(train_files=write(tmp_path / "t.jsonl", rows))) == [("a", "b"), ("", "")]


def test_null_cells_are_empty(tmp_path):
    rows = [{"en": "a", "de": None}, {"en": "b", "de": "c"}]
    assert loaded(DataSection(train_files=table(tmp_path, "jsonl", rows))) == [("a", ""), ("b", "c")]


def test_bad_files(tmp_path):
    def fails(message, **files):
        with pytest.raises(ValueError, match=message):
            load_pairs(DataSection(**files), 0)

    good = text_files(tmp_path)
    fails("none.en: no such file", train_files=str(tmp_path / "none"))
    fails("x.jsonl: no such file", train_files=str(tmp_path / "x.jsonl"))
    fails("two text files", train_files=[f"{good}.en"] * 3)
    fails("data.train_files is not set", validation_files=good)
    empty = write(tmp_path / "empty.en", "")
    fails("empty.en: the file is empty", train_files=[empty, f"{good}.de"])
    empty = write(tmp_path / "empty.en.gz", "", compress=True)
    fails("empty.en.gz: the file is empty", train_files=[empty, f"{good}.de"])
    short = write(tmp_path / "short.de", "eins\n")
    fails("train.en has 4 lines and .*short.de has 1", train_files=[f"{good}.en", short])
    (tmp_path / "latin.en").write_bytes(b"fine\nfine\ncaf\xe9\nfine\n")
    fails("latin.en, line 3: not valid UTF-8", train_files=[str(tmp_path / "latin.en"), f"{good}.de"])
    (tmp_path / "cut.en.gz").write_bytes(gzip.compress(b"one\n" * 1000)[:-10])
    fails("cut.en.gz: not a complete gzip file", train_files=[str(tmp_path / "cut.en.gz"), f"{good}.de"])
    (tmp_path / "bad.jsonl").write_text('{"en": "a", "de"\n')
    fails("bad.jsonl: cannot be read as jsonl", train_files=str(tmp_path / "bad.jsonl"))
    for text, message in (
        ("en,de\na,b,c\n", "line 2: 3 fields, but the header has 2"),
        ("en,de\na,b\nc\n", "line 3: 1 fields, but the header has 2"),
        ('en,de\na,"b\n', "line 2: unexpected end of data"),
        ("en,de\n", "no rows below the header"),
    ):
        fails(f"wrong.csv.*{message}", train_files=write(tmp_path / "wrong.csv", text))
    (tmp_path / "latin.tsv").write_bytes(b"en\tde\na\tb\ncaf\xe9\tc\n")
    fails("latin.tsv, line 3: not valid UTF-8", train_files=str(tmp_path / "latin.tsv"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"en": "a", "de": "b"}\n{"en": "caf\xe9", "de": "b"}\n')
    fails("latin.jsonl, line 2: not valid UTF-8", train_files=str(tmp_path / "latin.jsonl"))
    corrupt = bytearray(gzip.compress(b"one\ntwo\nthree\n" * 1000))
    corrupt[len(corrupt) // 2] ^= 255
    (tmp_path / "corrupt.en.gz").write_bytes(corrupt)
    fails("corrupt.en.gz: not a complete gzip file", train_files=[str(tmp_path / "corrupt.en.gz"), f"{good}.de"])
    text = write(tmp_path / "text.jsonl", '{"translation": "a"}\n')
    fails("'translation' does not hold a sentence a language", train_files=text)
    blank = write(tmp_path / "blank.en", "\n\n"), write(tmp_path / "blank.de", "\n\n")
    fails("the train split has no pair with text on both sides", train_files=list(blank))
    flat = table(tmp_path, "csv", [{"en": "a", "de": "b"}])
    with pytest.raises(ValueError, match="has no column 'fr'; it has en, de"):
        load_pairs(DataSection(train_files=flat, target_language="fr"), 0)
    with pytest.raises(ValueError, match="the embedded corpus has the languages en and de"):
        load_pairs(DataSection(target_language="fr"), 0)


def test_tokenize_filters_and_counts(caplog):
    pairs = [("a b c", "x"), ("a", "x y z"), ("", "x"), ("a", ""), ("a b", "x y")]
    dataset = Dataset.from_dict({"source": [p[0] for p in pairs], "target": [p[1] for p in pairs]})
    tokenizer = train_tokenizer(iter([["a b c x y z"]]), 300)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        tokenized = tokenize_pairs(dataset, PairTokenizer(tokenizer, tokenizer, 3, 3), "train")
    assert list(tokenized["index"]) == [4]
    assert list(tokenized["input_ids"]) == [tokenizer("a b").input_ids]
    assert list(tokenized["labels"]) == [tokenizer("x y").input_ids]
    assert "dropped 4 of 5 train pairs" in caplog.text
    source_lengths, target_lengths = pair_lengths(tokenized)
    assert source_lengths.tolist() == [len(tokenizer("a b").input_ids)] == target_lengths.tolist()
    with pytest.raises(ValueError, match="all 5 train pairs were dropped"):
        tokenize_pairs(dataset, PairTokenizer(tokenizer, tokenizer, 1, 256), "train")


def test_tokenized_once(tmp_path):
    dataset = load_pairs(DataSection(train_files=text_files(tmp_path)), 0, only="train")["train"]
    first, again, other = (
        tokenize_pairs(dataset, PairTokenizer(*[train_tokenizer(iter([["a b"]]), 300)] * 2, limit, 256), "train")
        for limit in (256, 256, 99)
    )
    assert first.cache_files == again.cache_files != []
    assert first.cache_files != other.cache_files
    assert Value("string") not in first.features.values()

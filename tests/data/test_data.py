"""Data from every place a user has it, and what is said where it cannot be used."""

import csv
import gzip
import itertools
import json
import logging
import os
import time
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict, Features, Translation, Value
from transformers import MarianTokenizer

from modeling_scratch.data import sources as data_module
from modeling_scratch.data import sources as file_sources
from modeling_scratch.data import tables as pair_files
from modeling_scratch.data import tables as table_formats
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.sources import load_pairs, load_split, source_of
from modeling_scratch.data.tables import check_files
from modeling_scratch.data.tokenizer import PairTokenizer, pair_lengths, tokenize_pairs, train_tokenizer
from modeling_scratch.errors import UserError
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
    dataset = source_of(split, section, 0).load()
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


def test_texts_that_begin_with_a_tag(tmp_path):
    pairs = [("<url> says so", "<b>So</b>"), ("<url>", "<name>"), ("a < b", "a > b")]
    for each in (pairs, pairs[1:]):
        assert loaded(DataSection(train_files=text_files(tmp_path, pairs=each))) == each


def test_the_cache_knows_contents_and_repairs_itself(tmp_path, caplog):
    pairs = [(f"word {number}", f"Wort {number}") for number in range(5000)]
    section = DataSection(train_files=text_files(tmp_path, pairs=pairs))
    assert loaded(section) == pairs
    path = tmp_path / "train.en"
    before = path.stat()
    path.write_text(path.read_text().replace("word 77\n", "king 77\n"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    pairs[77] = ("king 77", "Wort 77")
    assert loaded(section) == pairs
    (cache,) = source_of("train", section, 0).load().cache_files
    file = Path(cache["filename"])
    whole = file.read_bytes()
    batch = whole.index(b"\xff\xff\xff\xff", len(whole) // 3)  # where the library finds the end if zeros are there
    for damaged in (b"", whole[: len(whole) // 2], whole[:batch] + bytes(len(whole) - batch)):
        file.write_bytes(damaged)
        assert loaded(section) == pairs
    file.with_name("dataset_info.json").write_text("{}")
    assert loaded(section) == pairs
    (made,) = source_of("train", section, 0).load().map(lambda pair: pair).cache_files
    Path(made["filename"]).write_bytes(whole[: len(whole) // 2])
    assert loaded(section) == pairs
    assert [f"{file.parents[3]} is damaged" in record.message for record in caplog.records] == [True] * 5


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


def read_twice(section):
    """The pairs as loaded, which must be those that are streamed."""
    pairs = loaded(section)
    assert [(row["source"], row["target"]) for row in source_of("train", section, 0).stream()] == pairs
    return pairs


QUOTES = [("word", "Wort"), ('He said "no".', 'Er sagte "nein".'), ('"Yes."', '"Ja."'), ("two\ttabs", "zwei\n\nZeilen")]


@pytest.mark.parametrize("writer", ["csv", "all", "pandas"])
@pytest.mark.parametrize("rows", [200, 2, 3, 4])
def test_tsv_files_that_csv_writers_wrote(writer, rows, tmp_path):
    path, pairs = tmp_path / "train.tsv", [("only", "nur")] * 150 * (rows == 200) + QUOTES[:rows]
    if writer == "pandas":
        pandas.DataFrame(pairs, columns=["en", "de"]).to_csv(path, sep="\t", index=False)
    else:
        with path.open("w", newline="") as file:
            quoting = csv.QUOTE_ALL if writer == "all" else csv.QUOTE_MINIMAL
            csv.writer(file, delimiter="\t", quoting=quoting).writerows([("en", "de"), *pairs])
    assert read_twice(DataSection(train_files=str(path))) == pairs
    stream = source_of("train", DataSection(train_files=str(path)), 0).stream()
    next(iter(stream))
    stream.load_state_dict(stream.state_dict())
    assert [(row["source"], row["target"]) for row in stream] == pairs[1:]


@pytest.mark.parametrize(
    ("cells", "warning"),
    [
        (['"Who is it?" "Me."', '"Wer ist da?" "Ich."', "a", "b"], False),
        (['"I said: ""No"""', "x", 'an inch, 1"', "y"], True),  # proof of both
        (['an inch, 1"', "y", *['"I said: ""No"""', "x"] * 500], True),
        (['5"', "x", '"Hello."', '"Hallo."'], False),
        (['"Yes, sir."', "Ja.", "Hello, you.", '"Hallo, du."'], True),  # proof of neither
        (['"open', "a", 'b"', "c", "d", "e"], False),
        (['"two', "lines", "that", "are", 'rows"', "x", "", "", '""', "empty"], False),
        (["a", '"""', '"', 'b"', "c", "d"], False),
        (["2\u20282", '"a\u2028b"'], True),
        (["a", '"' + "b" * 200, *["c", "d" * 200] * 400], False),
    ],
)
def test_plain_tsv_files_keep_their_quotation_marks(cells, warning, tmp_path, caplog):
    pairs = list(zip(cells[::2], cells[1::2], strict=True))
    lines = [f"{source}\t{target}\n" for source, target in [("en", "de"), *pairs]]
    assert read_twice(DataSection(train_files=write(tmp_path / "plain.tsv", "".join(lines)))) == pairs
    assert ("name the file plain.csv" in caplog.text) == warning


def test_tsv_files_in_which_all_is_quoted(tmp_path, caplog):
    """Marks around the names of a header are a program's; without one, all lines may be somebody's words."""
    path = write(tmp_path / "t.tsv", '"en"\t"de"\n"Yes."\t"Ja."\n')
    assert read_twice(DataSection(train_files=path)) == [("Yes.", "Ja.")]
    path = write(tmp_path / "spoken.tsv", '"Yes."\t"Ja."\n"No."\t"Nein."\n')
    spoken = DataSection(train_files=path, source_column=1, target_column=2)
    assert read_twice(spoken) == [('"Yes."', '"Ja."'), ('"No."', '"Nein."')]
    assert caplog.text.count("name the file spoken.csv") == 1


def test_a_tsv_cell_of_many_lines_takes_time_in_proportion(tmp_path):
    """Eight times the lines about eight times the time, where looking at all of a row for each line takes 64."""

    def seconds(lines: int) -> float:
        path = Path(write(tmp_path / f"{lines}.tsv", 'en\tde\n"' + "a\n" * lines + '"\tb\n'))
        began = time.process_time()
        assert len(list(table_formats.read_table(path))) == 1
        return time.process_time() - began

    assert min(seconds(48_000) for _ in range(3)) < 24 * min(seconds(6_000) for _ in range(3))


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_files_without_a_header(kind, tmp_path):
    path = write(tmp_path / f"t.{kind}", "1;Hallo;hello\n2;Guten Tag;good day\n".replace(";", ",\t"[kind == "tsv"]))
    pairs = [("hello", "Hallo"), ("good day", "Guten Tag")]
    assert read_twice(DataSection(train_files=path, source_column=3, target_column=2)) == pairs
    named = DataSection(train_files=path, source_column="1", target_column="Hallo")
    assert read_twice(named) == [("2", "Guten Tag")]
    with pytest.raises(UserError, match=r"has no column 'en'; it has 1, Hallo, hello .* the file has no header: set"):
        loaded(DataSection(train_files=path))
    with pytest.raises(UserError, match="has no column 4; it has 1, 2, 3"):
        loaded(DataSection(train_files=path, source_column=4, target_column=2))
    with pytest.raises(UserError, match="has no column 'de'; it has 1, 2, 3"):
        loaded(DataSection(train_files=path, source_column=3))
    with pytest.raises(ValueError, match="True is not a column's name, or its number"):
        DataSection(train_files=path, source_column=True)
    mix = [{"files": path, "source_column": 3, "target_column": 2}]
    mixed = load_pairs(DataSection(train_files=text_files(tmp_path), validation_size=1, mix=mix), 0)["train"]
    assert list(mixed["source"])[3:] == ["hello", "good day"]


def test_a_delimiter_that_is_not_certain(tmp_path, caplog):
    path = write(tmp_path / "t.csv", "1,5 kg;1,5 Kilo\n2,5 kg;2,5 Kilo\n")
    section = DataSection(train_files=path, source_column=1, target_column=2)
    assert read_twice(section) == [("1,5 kg", "1,5 Kilo"), ("2,5 kg", "2,5 Kilo")]
    assert "t.csv: each of ',' ';' may separate its cells; ';' is taken" in caplog.text


def test_delimiters_and_line_ends(tmp_path):
    path, rows = tmp_path / "t.csv", [("en", "de"), ("Hello, you", "a;b\tc"), ("One", "Eins")]
    for delimiter, end in itertools.product(",;\t", ("\n", "\r\n", "\r")):
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=delimiter, lineterminator=end).writerows(rows)
        assert read_twice(DataSection(train_files=str(path))) == rows[1:]
    prefix = text_files(tmp_path)
    for language in ("en", "de"):
        path = Path(f"{prefix}.{language}")
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    assert read_twice(DataSection(train_files=prefix)) == PAIRS


@pytest.mark.parametrize("streaming", [False, True])
def test_tables_whose_other_columns_differ(streaming, tmp_path):
    first, second = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text("en,de,id\na,b,1\n")
    second.write_text("de,en\nd,c\n")

    def pairs(*files):
        section = DataSection(train_files=list(map(str, files)))
        if streaming:
            return [(row["source"], row["target"]) for row in source_of("train", section, 0).stream()]
        return loaded(section)

    assert pairs(first, second) == pairs(second, first)[::-1] == [("a", "b"), ("c", "d")]
    empty, other = tmp_path / "3.csv", tmp_path / "4.jsonl"
    empty.write_text("en,de\n")  # as some shards of an export are
    other.write_text('{"en": "e", "de": "f"}\n')
    assert pairs(first, empty, other) == [("a", "b"), ("e", "f")]
    with pytest.raises(UserError, match=r"3\.csv: there are no rows"):
        pairs(empty)
    second.write_text("english,german\nc,d\n")
    with pytest.raises(UserError, match=r"2\.csv has no column 'en'; it has english, german"):
        pairs(first, second)


def test_the_files_are_to_blame(tmp_path, monkeypatch):
    """Whatever finding and reading them raises."""
    link = tmp_path / "link.en"
    link.symlink_to(link)
    for names in ([str(link), str(link)], str(tmp_path / "a\0b*.csv"), [str(link), "a\0b"]):
        with pytest.raises(UserError, match=r"data\.train_files|no such file"):
            check_files(DataSection(train_files=names))
    path = write(tmp_path / "t.csv", "en,de\na,b\n")
    monkeypatch.setattr(Path, "open", lambda *_: 1 / 0)
    with pytest.raises(UserError, match=r"t\.csv: division by zero"):
        loaded(DataSection(train_files=path))


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [
        (pair_files, "_expand", "csv"),
        (table_formats, "_row", "csv"),
        (table_formats, "_row", "parquet"),
        (file_sources, "text_of", "jsonl"),
    ],
)
def test_files_are_not_to_blame_for_our_errors(module, name, kind, tmp_path, monkeypatch):
    path = table(tmp_path, kind, [{"en": "a", "de": "b"}])
    monkeypatch.setattr(module, name, lambda *_, **__: None.missing)
    with pytest.raises(AttributeError, match="missing"):
        loaded(DataSection(train_files=path))


def test_columns_that_share_a_name(tmp_path):
    path = tmp_path / "t.parquet"
    columns = [pyarrow.array(["a", "b"]), pyarrow.array(["c", "d"]), pyarrow.array(["e", None])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["en", "de", "de"]), path)
    with pytest.raises(UserError, match=r"t\.parquet, row 1: column 'de' holds \['c', 'e'\], not a text"):
        loaded(DataSection(train_files=str(path)))
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["en", "id", "id"]), path)
    assert loaded(DataSection(train_files=str(path), target_column="en")) == [("a", "a"), ("b", "b")]


def test_bytes_are_no_text(tmp_path):
    path = str(tmp_path / "train.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"en": [b"a"], "de": ["b"]}), path)
    with pytest.raises(UserError, match=r"train\.parquet, row 1: column 'en' holds b'a', not a text"):
        load_pairs(DataSection(train_files=path), 0)
    wrong = pyarrow.array([b"caf\xe9"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"en": wrong, "de": ["b"]}), path)
    with pytest.raises(UserError, match=r"train\.parquet: cannot be read as parquet: not valid UTF-8"):
        load_pairs(DataSection(train_files=path), 0)


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

    def fake(name, subset, split, revision):
        asked.append((name, subset, split, revision))
        return {"wmt/wmt14": wmt, "bentrevett/multi30k": flat}[name]

    monkeypatch.setattr(data_module, "load_dataset", fake)
    assert loaded(DataSection(name="wmt/wmt14", subset="de-en")) == PAIRS
    assert loaded(DataSection(name="bentrevett/multi30k", test="test", revision="v2"), "test") == PAIRS
    assert asked == [("wmt/wmt14", "de-en", "train", None), ("bentrevett/multi30k", None, "test", "v2")]
    with pytest.raises(ValueError, match="wmt/wmt14 has no language 'fr'; it has de, en"):
        loaded(DataSection(name="wmt/wmt14", target_language="fr"))
    with pytest.raises(UserError, match=r"data\.name: 'a/b' cannot be read: KeyError: 'a/b'"):
        loaded(DataSection(name="a/b", subset="c"))  # whatever the library raises, here a KeyError


def test_a_damaged_copy_of_a_hub_data_set_is_named(tmp_path):
    table(tmp_path, "csv", [{"en": "a", "de": "b"}])
    section = DataSection(name=str(tmp_path))
    assert loaded(section) == [("a", "b")]
    file = Path(data_module.load_dataset(section.name, split="train").cache_files[0]["filename"])
    file.write_bytes(b"")
    said = rf"cannot be read \(if what was fetched is damaged, delete it: {file.parent}\): "
    with pytest.raises(UserError, match=said):
        loaded(section)
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: x\n- config_name: y\n---\n")
    with pytest.raises(UserError, match=r"cannot be read \(set data\.subset\): Config name is missing.*'x', 'y'"):
        loaded(section)


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
    assert load_split(section, 0, "validation").to_dict() == splits["validation"].to_dict()
    with pytest.raises(ValueError, match="leaves none of the 50 pairs"):
        load_pairs(section.model_copy(update={"validation_size": 50}), 0)


def test_nothing_that_is_held_out_is_trained_on(tmp_path, caplog):
    pairs = [(f"s{i % 40}", f"t{i % 40}") for i in range(60)]
    section = DataSection(train_files=text_files(tmp_path, pairs=pairs), validation_size=20)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        splits = load_pairs(section, 0)
    train, held_out = (set(zip(splits[name]["source"], splits[name]["target"], strict=True)) for name in splits)
    assert len(splits["validation"]) == 20
    assert not train & held_out
    assert train | held_out == set(pairs)
    assert "are the same as some of those, and are left out" in caplog.text
    assert "training pairs too" not in caplog.text
    assert "data: 60 train pairs, en to de, of" in caplog.text


def test_pairs_without_text_are_not_held_out(tmp_path):
    pairs = [(f"s{i}" * (i % 3 > 0), f"t{i}" * (i % 4 > 0)) for i in range(24)]
    section = DataSection(train_files=text_files(tmp_path, pairs=pairs), validation_size=8)
    splits = load_pairs(section, 0)
    held_out = set(zip(splits["validation"]["source"], splits["validation"]["target"], strict=True))
    assert 0 < len(held_out) < 8
    assert held_out <= {pair for pair in pairs if all(pair)}
    assert len(splits["train"]) == 16
    nearly_empty = DataSection(train_files=text_files(tmp_path, "few", [("", "x"), ("y", "")] * 9 + [("a", "b")]))
    with pytest.raises(UserError, match="none of the 1 pairs held out for validation has text on both sides"):
        load_pairs(nearly_empty, 0)


def test_what_is_held_out_is_not_mixed_in_either(tmp_path):
    pairs = [(f"s{i}", f"t{i}") for i in range(60)]
    mix = [{"files": text_files(tmp_path, "more", pairs)}]
    splits = load_pairs(DataSection(train_files=text_files(tmp_path, pairs=pairs), mix=mix, validation_size=20), 0)
    assert len(splits["train"]) == 40 + 40
    assert not set(splits["train"]["source"]) & set(splits["validation"]["source"])


def test_the_held_out_pairs_are_those_of_the_datasets_library(tmp_path):
    """As in runs begun before copies were left out."""
    pairs = [(f"s{i}", f"t{i}") for i in range(60)]
    section = DataSection(train_files=text_files(tmp_path, pairs=pairs), validation_size=20)
    expected = source_of("train", section, 5).load().train_test_split(test_size=20, seed=5)
    found = load_pairs(section, 5)
    assert found["validation"].to_dict() == expected["test"].to_dict()
    assert found["train"].to_dict() == expected["train"].to_dict()


def test_a_split_alone_is_that_of_all(tmp_path):
    mix = [{"files": text_files(tmp_path, "others", [("Four.", "Vier.")]), "weight": 2}]
    section = DataSection(train_files=text_files(tmp_path), validation_files=text_files(tmp_path, "held"), mix=mix)
    for split, pairs in load_pairs(section, 0).items():
        assert load_split(section, 0, split).to_dict() == pairs.to_dict()
    with pytest.raises(UserError, match=r"the recipe names no test split; set data\.test_files or data\.test"):
        load_split(section, 0, "test")


def test_compressed_files_without_lines(tmp_path):
    section = DataSection(train_files=text_files(tmp_path, pairs=[], compress=True))
    with pytest.raises(UserError, match=r"train\.en\.gz has 0 lines and .*train\.de\.gz has 0"):
        load_pairs(section, 0)


def test_how_many_are_held_out_by_default(tmp_path):
    pairs = [(f"s{i}", f"t{i}") for i in range(50)]
    assert len(load_pairs(DataSection(train_files=text_files(tmp_path, pairs=pairs)), 0)["validation"]) == 5


def test_splits_of_the_embedded_corpus_that_are_not_wanted():
    pairs = load_pairs(DataSection(embedded_size=50, validation=None, test=None), 0)
    assert {split: len(pairs[split]) for split in pairs} == {"train": 45, "validation": 5}


def test_a_test_set_that_is_trained_on_is_told(tmp_path, caplog):
    train = [(f"s{i}", f"t{i}") for i in range(50)]
    more = {"validation_files": text_files(tmp_path, "dev", [("a", "b"), ("s1", "other")])}
    test = text_files(tmp_path, "test", [("s1", "t1"), ("s1", "t1"), ("c", "d")])
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        load_pairs(DataSection(train_files=text_files(tmp_path, pairs=train), test_files=test, **more), 0)
    told = [record for record in caplog.records if "training pairs too" in record.message]
    assert [(each.levelname, each.message.partition(":")[2]) for each in told] == [
        ("WARNING", " 2 of the 3 test pairs (66.7%) are training pairs too: scores on them are better than on new ones")
    ]


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


def test_json_rows_that_differ(tmp_path):
    """In their keys and types, within a file and between files; a number is the text that it is written as."""
    first = write(
        tmp_path / "1.jsonl",
        '{"de": "a"}\n{"id": 1, "en": "Grüße", "de": 2.50}\n\n{"en": 1e3, "more": {}, "de": "c"}\n',
    )
    second = write(tmp_path / "2.jsonl", '{"id": "x", "de": "d", "en": "e"}\n')
    pairs = [("", "a"), ("Grüße", "2.50"), ("1e3", "c"), ("e", "d")]
    assert loaded(DataSection(train_files=[first, second])) == pairs
    assert loaded(DataSection(train_files=[second, first])) == [pairs[3], *pairs[:3]]
    section = DataSection(train_files=[first, second], streaming=True)
    assert [(row["source"], row["target"]) for row in source_of("train", section, 0).stream()] == pairs
    rows = '[{"translation": {"en": "a"}},\n {"translation": {"en": "b", "de": "c", "fr": 1}}]'
    assert loaded(DataSection(train_files=write(tmp_path / "t.json", rows))) == [("a", ""), ("b", "c")]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("streaming", [False, True])
def test_names_of_files(kind, streaming, tmp_path):
    """Characters of patterns in a folder's name; links to files without an ending, as in the Hub's cache."""
    (tmp_path / "pairs [v2]*").mkdir()
    path = Path(table(tmp_path / "pairs [v2]*", kind, [{"en": "a", "de": "b"}])).rename(
        tmp_path / "pairs [v2]*" / "blob"
    )
    (tmp_path / "pairs [v2]").mkdir()
    link = tmp_path / "pairs [v2]" / f"link.{kind}"
    link.symlink_to(path)
    section = DataSection(train_files=str(link), streaming=streaming)
    source = source_of("train", section, 0)
    assert [list(row.values()) for row in (source.stream() if streaming else source.load())] == [["a", "b"]]


def test_only_the_asterisk_is_special(tmp_path):
    (tmp_path / "a[1]?").mkdir()
    table(tmp_path / "a[1]?", "jsonl", [{"en": "a", "de": "b"}])
    assert loaded(DataSection(train_files=f"{tmp_path}/a[1]?/*.jsonl")) == [("a", "b")]
    assert loaded(DataSection(train_files=f"{tmp_path}/**/*.jsonl")) == [("a", "b")]


def test_compressed_links(tmp_path):
    for language in ("en", "de"):
        (tmp_path / language).write_bytes(gzip.compress(f"{language}\n".encode(), mtime=0))
        (tmp_path / f"t.{language}.gz").symlink_to(tmp_path / language)
    assert loaded(DataSection(train_files=str(tmp_path / "t"))) == [("en", "de")]


def test_shards_are_paired_by_name(tmp_path):
    for name in ("1.en", "1.de", "2.en", "3.de"):
        (tmp_path / name).write_text(f"{name}\n")
    with pytest.raises(UserError, match=r"2\.en has no partner in the other language"):
        loaded(DataSection(train_files=str(tmp_path / "*")))
    (tmp_path / "2.de.gz").write_bytes(gzip.compress(b"2.de\n", mtime=0))
    (tmp_path / "3.en").write_text("3.en\n")
    assert loaded(DataSection(train_files=str(tmp_path / "*"))) == [(f"{i}.en", f"{i}.de") for i in (1, 2, 3)]


def test_columns_of_a_table_beside_text_files(tmp_path):
    table(tmp_path, "csv", [{"question": "a", "answer": "b"}])
    columns = {"source_column": "question", "target_column": "answer"}
    section = DataSection(
        train_files=str(tmp_path / "train.csv"), validation_files=text_files(tmp_path, "dev"), **columns
    )
    check_files(section)
    assert loaded(section) == [("a", "b")]
    assert loaded(section, "validation") == PAIRS
    with pytest.raises(UserError, match=r"data\.source_column: text files, as in data\.train_files, have no columns"):
        check_files(DataSection(train_files=text_files(tmp_path, "dev"), **columns))


LINES = "one\ntwo\nthree\nfour\n"
# A time stamp would give each worker of pytest-xdist other test names.
COMPRESSED = gzip.compress(b"one\ntwo\nthree\n" * 1000, mtime=0)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"
CORRUPT = bytearray(COMPRESSED)
CORRUPT[len(CORRUPT) // 2] ^= 255


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.en", None, "none.en: no such file"),
        ("empty.en", b"", "empty.en: the file is empty"),
        ("empty.en.gz", gzip.compress(b"", mtime=0), "empty.en.gz has 0 lines and .*good.de has 4"),
        ("short.en", b"one\n", "short.en has 1 lines and .*good.de has 4"),
        ("latin.en", b"fine\nfine\ncaf\xe9\nfine\n", "latin.en, line 3: not valid UTF-8"),
        ("cut.en.gz", COMPRESSED[:-10], "cut.en.gz: not a complete gzip file"),
        ("corrupt.en.gz", bytes(CORRUPT), "corrupt.en.gz: not a complete gzip file"),
        (
            "wmt.en",
            b'<srcset setid="x" srclang="en">\n',
            r"wmt.en is XML or SGML \('<srcset .*\), not a sentence per line",
        ),
        ("t.en.gz", gzip.compress(b"\xef\xbb\xbf<?xml version='1.0'?>\n", mtime=0), "t.en.gz is XML or SGML"),
        ("t.en", b"<corpus>\r\n<s>\none</s>\n", r"t.en is XML or SGML \('<corpus>"),
        ("t.en", POINTER, "t.en is a pointer of Git LFS, not the file itself: run git lfs pull"),
        ("t.en.gz", POINTER, "t.en.gz is a pointer of Git LFS"),
        ("blank.en", b"\n\n\n\n", "the train split has no pair with text on both sides"),
    ],
)
def test_bad_text_files(name, content, message, tmp_path):
    (tmp_path / "good.de").write_text(LINES)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_pairs(DataSection(train_files=[str(tmp_path / name), str(tmp_path / "good.de")]), 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "none.jsonl: no such file"),
        ("bad.jsonl", b'{"en": "a", "de"\n', r"bad.jsonl, line 1: not JSON \(Expecting ':' delimiter\)"),
        ("bad.json", b'[{"en": "a", "de": "b"},\n{"en": "a"\n]', "bad.json, line 3: not JSON"),
        ("texts.jsonl", b'{"en": "a", "de": "b"}\n"c"\n', "texts.jsonl: row 2 is 'c', not a JSON object"),
        (
            "list.jsonl",
            b'{"en": "a", "de": "b"}\n{"en": ["a"], "de": "b"}\n',
            r"list.jsonl, row 2: column 'en' holds \['a'\]",
        ),
        (
            "half.jsonl",
            b'{"en": "a", "de": "\\ud83d"}\n',
            r"half.jsonl, row 1: column 'de' holds '\\ud83d', not a text",
        ),
        ("latin.jsonl", b'{"en": "a", "de": "b"}\n{"en": "caf\xe9", "de": "b"}\n', "line 2: not valid UTF-8"),
        ("text.jsonl", b'{"translation": "a"}\n', "has no column 'en'; it has translation"),
        ("text.jsonl", b'{"translation": {"en": "a", "fr": "b"}}\n', "has no language 'de'; it has en, fr"),
        (
            "some.jsonl",
            b'{"translation": {"en": "a", "de": "b"}}\n{"translation": "c"}\n',
            "some.jsonl, row 2: column 'translation' holds 'c', not a text for each language",
        ),
        ("long.csv", b"en,de\na,b,c\n", "long.csv.*line 2: 3 fields, but the header has 2"),
        ("short.csv", b"en,de\na,b\nc\n", "short.csv.*line 3: 1 fields, but the header has 2"),
        ("twice.csv", b"en,de,de\na,b,c\n", r"twice.csv, row 1: column 'de' holds \['b', 'c'\], not a text"),
        ("open.csv", b'en,de\na,"b\n', "open.csv.*line 2: unexpected end of data"),
        ("twice.jsonl", b'{"en": "a", "de": "b", "de": "c"}\n', r"row 1: column 'de' holds \['b', 'c'\], not a text"),
        ("deep.jsonl", b'{"en": ' + b"[" * 100_000, "deep.jsonl: it is nested too deeply"),
        (
            "long.jsonl",
            b'{"de": "", "en": ["' + b"x" * 10_000 + b'"]}\n',
            r"column 'en' holds \['x{1,20}\.\.\.x{1,20}'\], not",
        ),
        ("header.csv", b"en,de\n", "header.csv: there are no rows"),
        ("french.csv", b"en,fr\na,b\n", "has no column 'de'; it has en, fr"),
        ("latin.tsv", b"en\tde\na\tb\ncaf\xe9\tc\n", "latin.tsv, line 3: not valid UTF-8"),
        ("pointer.tsv", POINTER, "pointer.tsv is a pointer of Git LFS"),
        ("packed.tsv.gz", b"whatever is in it", "packed.tsv.gz is a compressed table; unpack it"),
    ],
)
def test_bad_tables(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_pairs(DataSection(train_files=str(tmp_path / name)), 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train_files": ["a", "b", "c"]}, "two text files"),
        ({"validation_files": "a"}, "data.train_files is not set"),
        ({"target_language": "fr"}, "the embedded corpus has the languages en and de"),
    ],
)
def test_bad_sections(fields, message):
    with pytest.raises(ValueError, match=message):
        load_pairs(DataSection(**fields), 0)


def test_tokenize_filters_and_counts(caplog):
    pairs = [("a b c", "x"), ("a", "x y z"), ("", "x"), ("a", "")]
    pairs += [("\u200b", "x"), ("a", "\ufeff \u200b"), ("a\u00a0 \u200bb", "\u200e x\u200b y")]  # as "a b", "x y"
    dataset = Dataset.from_dict({"source": [p[0] for p in pairs], "target": [p[1] for p in pairs]})
    tokenizer = train_tokenizer(iter([["a b c x y z"]]), 300)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        tokenized = tokenize_pairs(dataset, PairTokenizer(tokenizer, tokenizer, 3, 3), "train")
    assert list(tokenized["index"]) == [6]
    assert list(tokenized["input_ids"]) == [tokenizer("a b").input_ids]
    assert list(tokenized["labels"]) == [tokenizer("x y").input_ids]
    assert "dropped 6 of 7 train pairs" in caplog.text
    source_lengths, target_lengths = pair_lengths(tokenized)
    assert source_lengths.tolist() == [len(tokenizer("a b").input_ids)] == target_lengths.tolist()
    with pytest.raises(ValueError, match="all 7 train pairs were dropped"):
        tokenize_pairs(dataset, PairTokenizer(tokenizer, tokenizer, 1, 256), "train")


def test_tokenized_once(tmp_path):
    dataset = source_of("train", DataSection(train_files=text_files(tmp_path)), 0).load()
    first, again, other = (
        tokenize_pairs(dataset, PairTokenizer(*[train_tokenizer(iter([["a b"]]), 300)] * 2, limit, 256), "train")
        for limit in (256, 256, 99)
    )
    assert first.cache_files == again.cache_files != []
    assert first.cache_files != other.cache_files
    assert Value("string") not in first.features.values()


def test_mixed_sources(tmp_path):
    """Further pairs come after the recipe's own, with tags and weights; validation is held out of the recipe's own."""
    more = tmp_path / "more.csv"
    more.write_text("id,english,de\n1,Two.,Zwei.\n2,,Drei.\n")
    mix = [
        {"files": str(more), "source_column": "english", "weight": 0.5, "tag": "<bt>"},
        {"files": text_files(tmp_path, "others", [("Four.", "Vier.")]), "weight": 2},
        {"name": "embedded"},
    ]
    section = DataSection(train_files=text_files(tmp_path), mix=mix, validation_size=1, embedded_size=3)
    pairs = load_pairs(section, 0)
    rows = list(zip(*(pairs["train"][name] for name in ("source", "target", "weight")), strict=True))
    assert {row[:2] for row in rows[:3]} < set(PAIRS)
    assert {row[2] for row in rows[:3]} == {1.0}
    assert rows[3:6] == [("<bt> Two.", "Zwei.", 0.5), ("", "Drei.", 0.5), ("Four.", "Vier.", 2.0)]
    assert len(rows) == 9
    assert pairs["validation"].column_names == ["source", "target"]


def test_wrong_files_of_mixed_sources(tmp_path):
    own, other = text_files(tmp_path), text_files(tmp_path, "other")
    section = DataSection(train_files=own, mix=[{"files": other}, {"files": str(tmp_path / "none")}])
    with pytest.raises(UserError, match=r"data\.mix\[1\]\.files: .*none\.en: no such file"):
        check_files(section)
    section = DataSection(train_files=own, mix=[{"files": own}])
    with pytest.raises(UserError, match=r"data\.mix: .* is in data\.train_files too, from which pairs .* are held out"):
        check_files(section)
    check_files(section.model_copy(update={"validation_files": [other]}))
    (tmp_path / "x.csv").write_text("id,en\n1,One.\n")
    with pytest.raises(UserError, match=r"data\.mix\[0\]: .*x\.csv has no column 'de'"):
        load_pairs(DataSection(train_files=own, validation_size=1, mix=[{"files": str(tmp_path / "x.csv")}]), 0)
    section = DataSection(train_files=own, validation_files=other, mix=[{"files": other}])
    with pytest.raises(UserError, match=r"data\.validation_files: .*other\.\w\w is a training file too"):
        check_files(section)


def test_each_side_has_its_own_sentencepiece_model(tmp_path):
    """OPUS-MT's tokenizer reads sources with one and targets with the other; see MarianTokenizer."""
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
    (labels,) = PairTokenizer(marian, marian, 256, 256)([english], [translation], [0])["labels"]
    assert labels == [*(pieces[piece] for piece in german.encode(translation, out_type=str)), pieces["</s>"]]

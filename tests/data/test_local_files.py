"""Local text files and tables are read exactly, and errors name the file and the line."""

import csv
import gzip
import itertools
import json
from functools import partial
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset

from modeling_scratch.data import local_files
from modeling_scratch.data.local_files import check_files
from modeling_scratch.data.sources import load_pairs, source_of
from modeling_scratch.errors import UserError
from modeling_scratch.recipe.schema import DataSection

en_de = partial(DataSection, source_language="en", target_language="de")
PAIRS = [("A dog.", "Ein Hund."), ('He said "NA", null.', 'Er sagte "NA", null.'), ("Ä é", "ß"), ("1", "eins")]


def write(path, text, compress=False):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if compress else data)
    return str(path)


def text_files(folder, name="train", pairs=PAIRS, compress=False):
    suffix = ".gz" if compress else ""
    write(folder / f"{name}.en{suffix}", "".join(f"{source}\n" for source, _ in pairs), compress)
    write(folder / f"{name}.de{suffix}", "".join(f"{target}\n" for _, target in pairs), compress)
    return str(folder / name)


def table(folder, kind, rows, name="train"):
    path = folder / f"{name}.{kind}"
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


def loaded(section, split="train"):
    """The pairs of a split, which must be the same when they are streamed."""
    source = source_of(split, section, 0)
    dataset = source.load()
    pairs = list(zip(dataset["source"], dataset["target"], strict=True))
    assert [(row["source"], row["target"]) for row in source.stream()] == pairs
    return pairs


# -- text files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True])
def test_text_files_are_read_by_prefix_or_by_name(tmp_path, compress):
    prefix, suffix = text_files(tmp_path, compress=compress), ".gz" if compress else ""
    assert loaded(en_de(train_files=prefix)) == PAIRS
    assert loaded(en_de(train_files=[f"{prefix}.en{suffix}", f"{prefix}.de{suffix}"])) == PAIRS
    backwards = en_de(train_files=prefix, source_language="de", target_language="en")
    assert loaded(backwards) == [(target, source) for source, target in PAIRS]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("one\r\ntwo\u2028still two\nthree", ["one", "two\u2028still two", "three"]),
        ("\ufeffone\rtwo\rthree\r", ["one", "two", "three"]),
        ("<url> says so\n<b>\na < b\n", ["<url> says so", "<b>", "a < b"]),
        ("<br>\nPress <b>OK</b>.\n<br>\n", ["<br>", "Press <b>OK</b>.", "<br>"]),
        ("<b>\nPress\n<b>OK</b>\n", ["<b>", "Press", "<b>OK</b>"]),
    ],
    ids=[
        "line feeds",
        "carriage returns and a byte-order mark",
        "tags at the beginning",
        "a tag",
        "a tag closed later",
    ],
)
def test_a_line_ends_with_any_line_break_and_only_there(content, lines, tmp_path):
    write(tmp_path / "t.en", content)
    write(tmp_path / "t.de", "eins\nzwei\ndrei\n")
    expected = list(zip(lines, ["eins", "zwei", "drei"], strict=True))
    assert loaded(en_de(train_files=str(tmp_path / "t"))) == expected


def test_shards_are_paired_by_name(tmp_path):
    for name in ("1.en", "1.de", "2.en", "3.de"):
        (tmp_path / name).write_text(f"{name}\n")
    with pytest.raises(UserError, match=r"2\.en has no counterpart"):
        loaded(en_de(train_files=str(tmp_path / "*")))
    write(tmp_path / "2.de.gz", "2.de\n", compress=True)
    (tmp_path / "3.en").write_text("3.en\n")
    assert loaded(en_de(train_files=str(tmp_path / "*"))) == [(f"{i}.en", f"{i}.de") for i in (1, 2, 3)]


def test_only_the_asterisk_is_a_pattern(tmp_path):
    folder = tmp_path / "a[1]?"
    folder.mkdir()
    table(folder, "jsonl", [{"en": "a", "de": "b"}])
    assert loaded(en_de(train_files=f"{folder}/*.jsonl")) == [("a", "b")]
    assert loaded(en_de(train_files=f"{tmp_path}/**/*.jsonl")) == [("a", "b")]


def test_links_are_read_by_their_own_ending(tmp_path):
    """The cache of the Hub has links to files without endings."""
    for kind in ("jsonl", "parquet"):
        Path(table(tmp_path, kind, [{"en": "a", "de": "b"}])).rename(tmp_path / f"blob-{kind}")
        (tmp_path / f"link.{kind}").symlink_to(tmp_path / f"blob-{kind}")
        assert loaded(en_de(train_files=str(tmp_path / f"link.{kind}"))) == [("a", "b")]
    for language in ("en", "de"):
        write(tmp_path / language, f"{language}\n", compress=True)
        (tmp_path / f"t.{language}.gz").symlink_to(tmp_path / language)
    assert loaded(en_de(train_files=str(tmp_path / "t"))) == [("en", "de")]


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_tables_of_every_kind_are_read_by_language_or_column(tmp_path, kind):
    flat = [{"en": source, "other": "x", "de": target} for source, target in PAIRS]
    assert loaded(en_de(train_files=table(tmp_path, kind, flat))) == PAIRS
    named = table(tmp_path, kind, [{"question": source, "answer": target} for source, target in PAIRS], "named")
    assert loaded(en_de(train_files=named, source_column="question", target_column="answer")) == PAIRS


@pytest.mark.parametrize(
    "first", ["sep=;\r\n", "\ufeffSEP=;\r\n", '"sep=;"\n', "sep=;;\n", "sep=|\n", "sep=\t\n"], ids=repr
)
def test_the_line_that_declares_the_delimiter_is_no_row(first, tmp_path):
    """As for Excel, whatever the cells would say."""
    mark = first.replace('"', "").lstrip("\ufeff")[4]
    rows = [("en", "de"), ("a,b", "c,d"), ('"e,\nf"', "g,h")]
    path = write(tmp_path / "train.csv", first + "".join(f"{source}{mark}{target}\n" for source, target in rows))
    assert loaded(en_de(train_files=path)) == [("a,b", "c,d"), ("e,\nf", "g,h")]
    assert loaded(en_de(train_files=path, source_column=1, target_column=2))[0] == ("en", "de")
    write(tmp_path / "train.csv", f"{first}en{mark}de\n\na{mark}b\nc\n")
    with pytest.raises(UserError, match=r"line 5: 1 fields"):
        loaded(en_de(train_files=path))


def test_ndjson_is_another_name_of_jsonl(tmp_path):
    (tmp_path / "train.ndjson").write_text('{"en": "a", "de": "b"}\n')
    assert loaded(en_de(train_files=str(tmp_path / "train.ndjson"))) == [("a", "b")]


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("deu.txt", b"Go.\tGeh.\tCC-BY 2.0\n", r"rename it to \S*deu\.tsv; if .* data\.source_column=1 data\.target"),
        ("deu.train.gz", gzip.compress(b"go\tgeh\n", mtime=0), r"rename it to \S*deu\.tsv\.gz; if"),
        ("pairs.train", b'\xef\xbb\xbf{"en": "Go.", "de": "Geh."}\n', r"rename it to \S*pairs\.jsonl$"),
        ("deu.txt", b"Go.\nGeh.\nA\tB\n", r"single file of an unsupported kind; name a \.jsonl, \.ndjson"),
    ],
)
def test_tables_with_other_endings_are_to_be_renamed(name, content, advice, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    for columns in ({}, {"source_column": 1, "target_column": 2}):
        with pytest.raises(UserError, match=rf"data\.train_files: .*{advice}"):
            check_files(DataSection(train_files=str(path), **columns))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv"])
def test_tables_may_be_gzipped(tmp_path, kind):
    plain = Path(table(tmp_path, kind, [{"en": source, "de": target} for source, target in PAIRS]))
    packed = write(tmp_path / f"packed.{kind}.gz", plain.read_bytes(), compress=True)
    assert loaded(en_de(train_files=[packed, str(plain)])) == PAIRS * 2
    check_files(en_de(train_files=packed, validation_files=str(plain)))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tables_may_have_a_translation_column(tmp_path, kind):
    rows = [{"translation": {"de": target, "en": source}} for source, target in PAIRS]
    assert loaded(en_de(train_files=table(tmp_path, kind, rows))) == PAIRS


QUOTES = [("word", "Wort"), ('He said "no".', 'Er sagte "nein".'), ('"Yes."', '"Ja."'), ("two\ttabs", "zwei\n\nZeilen")]


@pytest.mark.parametrize("writer", ["csv", "all", "pandas"])
@pytest.mark.parametrize("rows", [200, 2, 3, 4])
def test_quoted_cells_of_tsv_files_are_unquoted(writer, rows, tmp_path):
    path, pairs = tmp_path / "train.tsv", [("only", "nur")] * 150 * (rows == 200) + QUOTES[:rows]
    if writer == "pandas":
        pandas.DataFrame(pairs, columns=["en", "de"]).to_csv(path, sep="\t", index=False)
    else:
        with path.open("w", newline="") as file:
            quoting = csv.QUOTE_ALL if writer == "all" else csv.QUOTE_MINIMAL
            csv.writer(file, delimiter="\t", quoting=quoting).writerows([("en", "de"), *pairs])
    assert loaded(en_de(train_files=str(path))) == pairs


@pytest.mark.parametrize(
    ("cells", "warning"),
    [
        (['"Who is it?" "Me."', '"Wer ist da?" "Ich."', "a", "b"], False),
        (['"I said: ""No"""', "x", 'an inch, 1"', "y"], True),  # evidence for both
        (['an inch, 1"', "y", *['"I said: ""No"""', "x"] * 500], True),
        (['5"', "x", '"Hello."', '"Hallo."'], False),
        (['"Yes, sir."', "Ja.", "Hello, you.", '"Hallo, du."'], True),  # evidence for neither
        (['"open', "a", 'b"', "c", "d", "e"], False),
        (['"two', "lines", "that", "are", 'rows"', "x", "", "", '""', "empty"], False),
        (["a", '"""', '"', 'b"', "c", "d"], False),
        (["2\u20282", '"a\u2028b"'], True),
        (["a", '"' + "b" * 200, *["c", "d" * 200] * 400], False),
    ],
)
def test_quotation_marks_of_plain_tsv_files_are_kept(cells, warning, tmp_path, caplog):
    pairs = list(zip(cells[::2], cells[1::2], strict=True))
    lines = [f"{source}\t{target}\n" for source, target in [("en", "de"), *pairs]]
    assert loaded(en_de(train_files=write(tmp_path / "plain.tsv", "".join(lines)))) == pairs
    assert ("plain.csv" in caplog.text) == warning


def test_tsv_files_with_quotes_around_every_cell_are_unquoted_if_the_header_is_quoted(tmp_path, caplog):
    """Without a header, every line may be speech."""
    path = write(tmp_path / "t.tsv", '"en"\t"de"\n"Yes."\t"Ja."\n')
    assert loaded(en_de(train_files=path)) == [("Yes.", "Ja.")]
    path = write(tmp_path / "spoken.tsv", '"Yes."\t"Ja."\n"No."\t"Nein."\n')
    spoken = en_de(train_files=path, source_column=1, target_column=2)
    assert loaded(spoken) == [('"Yes."', '"Ja."'), ('"No."', '"Nein."')]
    assert caplog.text.count("spoken.csv") == 1


def test_what_is_said_of_a_file_is_said_once_whatever_path_leads_to_it(tmp_path, caplog, monkeypatch):
    write(tmp_path / "quoted.tsv", 'en\tde\n"a ""b"""\tc\n')
    monkeypatch.chdir(tmp_path)
    with caplog.at_level("INFO", logger="modeling_scratch"):
        assert loaded(en_de(train_files="quoted.tsv")) == [('a "b"', "c")]
    assert caplog.text.count("quoted like CSV") == 1


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_columns_of_tables_without_a_header_are_chosen_by_number(kind, tmp_path):
    path = write(tmp_path / f"t.{kind}", "1;Hallo;hello\n2;Guten Tag;good day\n".replace(";", ",\t"[kind == "tsv"]))
    pairs = [("hello", "Hallo"), ("good day", "Guten Tag")]
    assert loaded(en_de(train_files=path, source_column=3, target_column=2)) == pairs
    assert loaded(en_de(train_files=path, source_column="1", target_column="Hallo")) == [("2", "Guten Tag")]
    with pytest.raises(UserError, match=r"column 'en'; it has 1, Hallo, hello .* no header"):
        loaded(en_de(train_files=path))
    with pytest.raises(UserError, match="column 4; it has 1, 2, 3"):
        loaded(en_de(train_files=path, source_column=4, target_column=2))
    with pytest.raises(ValueError, match="True is neither"):
        en_de(train_files=path, source_column=True)


def test_the_delimiter_and_line_ends_of_csv_files_are_detected(tmp_path, caplog):
    path, rows = tmp_path / "t.csv", [("en", "de"), ("Hello, you", "a;b\tc"), ("One", "Eins")]
    for delimiter, end in itertools.product(",;\t", ("\n", "\r\n", "\r")):
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=delimiter, lineterminator=end).writerows(rows)
        assert loaded(en_de(train_files=str(path))) == rows[1:]
    path = write(tmp_path / "u.csv", "1,5 kg;1,5 Kilo\n2,5 kg;2,5 Kilo\n")
    section = en_de(train_files=path, source_column=1, target_column=2)
    assert loaded(section) == [("1,5 kg", "1,5 Kilo"), ("2,5 kg", "2,5 Kilo")]
    assert "',' ';'" in caplog.text


def test_tables_may_differ_in_other_columns(tmp_path):
    contents = {"1.csv": "\ufeffen,de,id\na,b,1\n", "2.csv": "de,en\nd,c\n", "3.csv": "en,de\n"}
    contents |= {"4.jsonl": '{"en": "e", "de": "f"}\n', "5.csv": "english,german\nc,d\n"}
    first, second, empty, other, wrong = (write(tmp_path / name, text) for name, text in contents.items())
    assert loaded(en_de(train_files=[first, second])) == [("a", "b"), ("c", "d")]
    assert loaded(en_de(train_files=[first, empty, other])) == [("a", "b"), ("e", "f")]
    with pytest.raises(UserError, match=r"3\.csv: there are no rows"):
        loaded(en_de(train_files=[empty]))
    with pytest.raises(UserError, match=r"5\.csv has no column 'en'; it has english, german"):
        loaded(en_de(train_files=[first, wrong]))


def test_json_rows_may_differ_in_keys_and_types(tmp_path):
    """Numbers are read as they are written, and missing texts are empty."""
    first = write(
        tmp_path / "1.jsonl",
        '{"de": "a"}\n{"id": 1, "en": "Grüße", "de": 2.50}\n\n{"en": 1e3, "more": {}, "de": "c"}\n',
    )
    second = write(tmp_path / "2.jsonl", '{"id": "x", "de": null, "en": "e"}\n')
    pairs = [("", "a"), ("Grüße", "2.50"), ("1e3", "c"), ("e", "")]
    assert loaded(en_de(train_files=[first, second])) == pairs
    rows = '[{"translation": {"en": "a"}},\n {"translation": {"en": "b", "de": "c", "fr": 1}}, {"translation": null}]'
    assert loaded(en_de(train_files=write(tmp_path / "t.json", rows))) == [("a", ""), ("b", "c"), ("", "")]


def test_of_two_columns_with_the_same_name_none_can_be_chosen(tmp_path):
    path = tmp_path / "t.parquet"
    columns = [pyarrow.array(["a", "b"]), pyarrow.array(["c", "d"]), pyarrow.array(["e", None])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["en", "de", "de"]), path)
    with pytest.raises(UserError, match=r"t\.parquet, row 1: column 'de' holds \['c', 'e'\]"):
        loaded(en_de(train_files=str(path)))
    assert loaded(en_de(train_files=str(path), target_column="en")) == [("a", "a"), ("b", "b")]


def test_named_columns_apply_to_tables_and_not_to_text_files_beside_them(tmp_path):
    columns = {"source_column": "question", "target_column": "answer"}
    train, dev = table(tmp_path, "csv", [{"question": "a", "answer": "b"}]), text_files(tmp_path, "dev")
    section = en_de(train_files=train, validation_files=dev, **columns)
    check_files(section)
    assert (loaded(section), loaded(section, "validation")) == ([("a", "b")], PAIRS)
    with pytest.raises(UserError, match=r"data\.source_column: text files"):
        check_files(en_de(train_files=dev, **columns))


# -- errors ------------------------------------------------------------------------------------------------------------

# Compressed without a time stamp, since workers of pytest-xdist must have the same test names.
COMPRESSED = gzip.compress(b"one\ntwo\nthree\n" * 1000, mtime=0)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.en", b"", "empty.en"),
        ("empty.en.gz", gzip.compress(b"", mtime=0), "empty.en.gz has 0 lines"),
        ("short.en", b"one\n", "short.en has 1 lines and .*good.de has 4"),
        ("latin.en", b"fine\nfine\ncaf\xe9\nfine\n", "latin.en, line 3: not valid UTF-8"),
        ("cut.en.gz", COMPRESSED[:-10], "cut.en.gz.*gzip"),
        ("wmt.en", b'<srcset setid="x" srclang="en">\n', "wmt.en.*XML"),
        ("t.en.gz", gzip.compress(b"\xef\xbb\xbf<?xml version='1.0'?>\n", mtime=0), "t.en.gz.*XML"),
        ("t.en", b"<corpus>\r\n<s>\none</s>\n</corpus>\n\n", "t.en.*XML"),
        ("t.en.gz", gzip.compress(b"<corpus n='1'>\n<s>one</s>\n</CORPUS>", mtime=0), "t.en.gz.*XML"),
        ("t.en", POINTER, "t.en.*LFS"),
        ("blank.en", b"\n\n\n\n", "train split"),
    ],
)
def test_errors_in_text_files_name_the_file_and_the_line(name, content, message, tmp_path):
    (tmp_path / "good.de").write_text("one\ntwo\nthree\nfour\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_pairs(en_de(train_files=[str(tmp_path / name), str(tmp_path / "good.de")]), 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.json", b'[{"en": "a", "de": "b"},\n{"en": "a"\n]', "bad.json, line 3: not JSON"),
        ("texts.jsonl", b'{"en": "a", "de": "b"}\n"c"\n', "texts.jsonl: row 2 is 'c'"),
        ("half.jsonl", b'{"en": "a", "de": "\\ud83d"}\n', r"half.jsonl, row 1: column 'de' holds '\\ud83d'"),
        ("latin.jsonl", b'{"en": "a", "de": "b"}\n{"en": "caf\xe9", "de": "b"}\n', "line 2: not valid UTF-8"),
        ("text.jsonl", b'{"translation": {"en": "a", "fr": "b"}}\n', "no language 'de'; it has en, fr"),
        (
            "some.jsonl",
            b'{"translation": {"en": "a", "de": "b"}}\n{"translation": "c"}\n',
            "some.jsonl, row 2: column 'translation' holds 'c'",
        ),
        ("short.csv", b"en,de\na,b\nc\n", "short.csv.*line 3: 1 fields"),
        ("open.csv", b'en,de\na,"b\n\nc,d\n', "open.csv, line 2: a quotation mark begins a cell, and none ends it"),
        ("after.csv", b'en,de\na,b\n"a" b,c\n', "after.csv, line 3: text after the quotation mark that ends a cell"),
        ("return.csv", b"en,de\na\rb,c\n", "return.csv, line 2: a carriage return in a cell without quotation marks"),
        ("cell.csv", b"en,de\n\na," + b"x" * 131_073, "cell.csv, line 3: a cell of more than 131,072 characters"),
        ("twice.jsonl", b'{"en": "a", "de": "b", "de": "c"}\n', r"row 1: column 'de' holds \['b', 'c'\]"),
        ("deep.jsonl", b'{"en": ' + b"[" * 100_000, "deep.jsonl.*nested"),
        ("long.jsonl", b'{"de": "", "en": ["' + b"x" * 10_000 + b'"]}\n', r"holds \['x{1,20}\.\.\.x{1,20}'\]"),
        ("latin.tsv", b"en\tde\na\tb\ncaf\xe9\tc\n", "latin.tsv, line 3: not valid UTF-8"),
        ("packed.tsv.gz", b"anything", "packed.tsv.gz.*gzip"),
        ("packed.parquet.gz", gzip.compress(b"anything", mtime=0), "packed.parquet.gz: cannot be read as parquet"),
    ],
)
def test_errors_in_tables_name_the_file_and_the_line(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_pairs(en_de(train_files=str(tmp_path / name)), 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "train.en",
            "a\n",
            "train.source nor .*train.en and .*set data.source_language=en data.target_language=de",
        ),
        ("train.csv", "en,de\na,b\n", "no column 'source'.*set data.source_column, or data.source_language and"),
        ("train.jsonl", '{"translation": {"en": "a", "de": "b"}}\n', "has en, de .set data.source_language and"),
    ],
)
def test_files_that_need_languages_say_so(name, content, message, tmp_path):
    path = write(tmp_path / name, content).removesuffix(".en")
    with pytest.raises(UserError, match=message):
        load_pairs(DataSection(train_files=path), 0)


def test_files_without_languages_end_in_or_have_columns_named_source_and_target(tmp_path):
    write(tmp_path / "train.source", "a\n"), write(tmp_path / "train.target", "b\n")
    assert loaded(DataSection(train_files=str(tmp_path / "train"))) == [("a", "b")]
    path = table(tmp_path, "csv", [{"source": "a", "target": "b"}])
    assert loaded(DataSection(train_files=path)) == [("a", "b")]


def test_the_embedded_corpus_is_english_and_german_also_beside_files(tmp_path):
    mixed = [{"files": text_files(tmp_path, "more")}]
    pairs = load_pairs(DataSection(embedded_size=2, mix=mixed, test_sets={"own": text_files(tmp_path)}), 0)
    assert [pair["source"] for pair in pairs["train"]][2:] == [source for source, _ in PAIRS]
    assert pairs["own"]["target"] == [target for _, target in PAIRS]


def test_bytes_and_invalid_text_in_parquet_are_errors(tmp_path):
    path = str(tmp_path / "train.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"en": [b"a"], "de": ["b"]}), path)
    with pytest.raises(UserError, match=r"train\.parquet, row 1: column 'en' holds b'a'"):
        load_pairs(en_de(train_files=path), 0)
    wrong = pyarrow.array([b"caf\xe9"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"en": wrong, "de": ["b"]}), path)
    with pytest.raises(UserError, match=r"train\.parquet: .*not valid UTF-8"):
        load_pairs(en_de(train_files=path), 0)


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [(local_files, "_row", "csv"), (local_files, "_row", "parquet"), (local_files, "cell_text", "jsonl")],
)
def test_our_own_bugs_are_not_reported_as_errors_of_a_file(module, name, kind, tmp_path, monkeypatch):
    path = table(tmp_path, kind, [{"en": "a", "de": "b"}])
    monkeypatch.setattr(module, name, lambda *_, **__: None.missing)
    with pytest.raises(AttributeError, match="missing"):
        source_of("train", en_de(train_files=path), 0).load()

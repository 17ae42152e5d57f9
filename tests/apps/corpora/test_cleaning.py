"""`scratch corpus clean`: what is kept, what is dropped and why, and rules that people change."""

import csv
import json
from pathlib import Path

import pytest
from conftest import ROOT

from modeling_scratch.apps.corpora.checks import CHECKS
from modeling_scratch.apps.corpora.cleaning import clean_corpus, describe_cleaning
from modeling_scratch.apps.corpora.pair_files import PairFiles, sources_of_tests
from modeling_scratch.apps.corpora.rules import read_rules
from modeling_scratch.commands.corpus import corpus_data
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.local_files import read_table
from modeling_scratch.errors import UserError

DATA = corpus_data("en", "de")


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return path


def good_rows() -> list[dict]:
    """Unlike each other, so that no check finds a fault in them."""
    pairs = make_corpus(400, 1, 1, 0)["train"]
    chosen = {pair["de"]: pair for pair in pairs}
    return [
        {"en": pair["en"], "de": pair["de"], "origin": f"grammar.po#{place}"}
        for place, pair in enumerate(chosen.values())
    ]


def clean(path: Path, folder: Path, rules=None) -> tuple[list[dict], list[dict]]:
    output = folder / "clean.jsonl"
    clean_corpus(PairFiles([str(path)], DATA, "FILES"), output, rules or read_rules())
    return list(read_table(output)), list(read_table(folder / "clean-dropped.jsonl"))


@pytest.fixture
def few_checks(tmp_path):
    """Rules without what compares sentences of a small grammar with each other."""
    path = tmp_path / "rules.yaml"
    path.write_text("report: {near_duplicate: 0.95, misaligned: 0.85, truncated: 3.5}\n")
    return read_rules(path)


def test_every_pair_is_kept_or_dropped_with_all_its_columns(tmp_path, few_checks):
    rows = good_rows()
    rows[3] = {**rows[3], "de": "f\ufffdr", "origin": "broken.po#1"}
    rows.insert(9, {**rows[2], "origin": "copy.po#1"})
    kept, dropped = clean(written(tmp_path / "pairs.jsonl", rows), tmp_path, few_checks)
    assert kept == [row for place, row in enumerate(rows) if place not in (3, 9)]
    assert [{name: row[name] for name in rows[0]} for row in dropped] == [rows[3], rows[9]]
    assert dropped[0]["dropped"]["line"] == "4"  # read_table keeps numbers as text
    assert dropped[0]["dropped"]["reasons"].keys() >= {"encoding"}
    assert dropped[1]["dropped"] == {"line": "10", "reasons": {"duplicate": "1.0"}}


def test_a_good_pair_whose_near_duplicate_is_broken_is_kept(tmp_path):
    rows = [{"en": "We walk over the bridge.", "de": "Wir gehen Ã¼ber die Brücke."}]
    rows.append({"en": "We walk over the bridge.", "de": "Wir gehen über die Brücke."})
    rows.append({"en": "we walk over the bridge", "de": "wir gehen über die Brücke"})
    kept, dropped = clean(written(tmp_path / "pairs.jsonl", rows), tmp_path)
    assert kept == rows[1:2]
    assert [list(row["dropped"]["reasons"]) for row in dropped] == [["encoding"], ["near_duplicate"]]


def test_text_files_csv_and_numbered_columns_give_the_same_pairs(tmp_path, few_checks):
    rows = [{name: row[name] for name in ("en", "de")} for row in good_rows()[:50]]
    for name in ("en", "de"):
        (tmp_path / f"text.{name}").write_text("".join(f"{row[name]}\n" for row in rows), encoding="utf-8")
    with (tmp_path / "bare.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([row["de"], "x", row["en"]] for row in rows)
    numbered = corpus_data("en", "de", "3", "1")
    for name, data in (("text", DATA), ("bare.csv", numbered)):
        output = tmp_path / f"{name}.jsonl"
        clean_corpus(PairFiles([str(tmp_path / name)], data, "FILES"), output, few_checks)
        kept = list(read_table(output))
        assert [{side: row[side] for side in ("en", "de")} for row in kept] == rows
    assert kept[0]["column 2"] == "x"


def test_outputs_are_never_replaced_and_errors_leave_none(tmp_path, few_checks):
    pairs = written(tmp_path / "pairs.jsonl", good_rows()[:5])
    (tmp_path / "clean-dropped.jsonl").write_text("mine")
    with pytest.raises(UserError, match=r"clean-dropped\.jsonl exists"):
        clean(pairs, tmp_path, few_checks)
    assert not (tmp_path / "clean.jsonl").exists()
    (tmp_path / "clean-dropped.jsonl").unlink()
    with pairs.open("a") as file:
        file.write("{")
    with pytest.raises(UserError, match="not JSON"):
        clean(pairs, tmp_path, few_checks)
    assert not list(tmp_path.glob("*clean*"))
    bad = written(tmp_path / "bad.jsonl", [{"en": "a", "de": ""}])
    with pytest.raises(UserError, match="all 1 pairs would be dropped: empty 1"):
        clean(bad, tmp_path, few_checks)
    assert not list(tmp_path.glob("*clean*"))


def test_the_report_counts_and_shows_examples(tmp_path, few_checks):
    rows = [*good_rows()[:20], {"en": "Call 911 now.", "de": "Ruf jetzt an."}, {"en": "Hello {name}.", "de": "Hallo."}]
    path = written(tmp_path / "pairs.jsonl", rows)
    done = clean_corpus(PairFiles([str(path)], DATA, "FILES"), tmp_path / "clean.jsonl", few_checks)
    assert (done.pairs, done.kept) == (22, 21)
    text = describe_cleaning(done, few_checks)
    assert "22 pairs: kept 21, dropped 1 (4.5%)" in text
    assert "line 22: Hello {name}. → Hallo." in text
    assert text.index("placeholders (from 1 on)") < text.index("only counted") < text.index("numbers (from 1 on)")


def test_the_rules_that_ship_name_every_check_once_and_what_it_means():
    rules = read_rules()
    assert list(rules.thresholds) == list(CHECKS)
    assert not rules.drop.keys() & rules.report.keys()
    lines = (ROOT / "configuration" / "cleaning.yaml").read_text(encoding="utf-8").splitlines()
    values = [place for place, line in enumerate(lines) if line.startswith("  ") and not line.startswith("  #")]
    assert len(values) == len(CHECKS)
    assert all(lines[place - 1].startswith("  #") for place in values)


def test_own_rules_change_what_they_name(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("drop:\n  numbers: 2\nreport:\n  copy: 0.9\n")
    rules, shipped = read_rules(path), read_rules()
    assert rules.drop == {name: value for name, value in shipped.drop.items() if name != "copy"} | {"numbers": 2}
    assert rules.report["copy"] == 0.9
    assert "numbers" not in rules.report


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drop: {copies: 1}", r"drop\.copies: no such check; there are empty, "),
        ("drop: {copy: off}", r"drop\.copy is 'off', not a number above 0; to keep such pairs, move it to report"),
        ("drop: {copy: 0}", r"drop\.copy is 0, not a number"),
        ("drop: [copy]", "drop is not a list of checks, each with a number"),
        ("copy: 1", "'copy' is neither drop nor report"),
        ("drop: {copy: 1}\nreport: {copy: 1}", "copy is under both drop and report"),
        ("drop: {", "not YAML"),
    ],
)
def test_rules_with_a_mistake(tmp_path, text, message):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_rules(path)


def test_test_sets_are_named_one_by_one_or_as_two_text_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text(f"{name} {language}\n", encoding="utf-8")
    (tmp_path / "three.jsonl").write_text('{"en": "three en", "de": "x"}\n', encoding="utf-8")
    data = corpus_data("en", "de")
    assert list(sources_of_tests(["one", "two"], data)) == ["one en", "two en"]
    assert list(sources_of_tests(["one.en", "one.de"], data)) == ["one en"]
    assert list(sources_of_tests(["three.jsonl", "one"], data)) == ["three en", "one en"]
    assert list(sources_of_tests([], data)) == []

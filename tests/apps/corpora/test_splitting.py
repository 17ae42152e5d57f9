"""Whole files are held out, and no source is in two splits."""

import json
import random

import pytest
from typer.testing import CliRunner

from modeling_scratch.apps.corpora.splitting import split_corpus
from modeling_scratch.commands.corpus import app
from modeling_scratch.errors import UserError


@pytest.fixture
def pairs(tmp_path):
    """40 files of 1 to 60 pairs. Each has sources of its own and some of 30 that all may have, in any case."""
    chosen = random.Random(0)
    path = tmp_path / "pairs.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(40):
            for row in range(chosen.randint(1, 60)):
                shared = f"Open {chosen.randrange(30)}"
                source = chosen.choice([shared, shared.upper() + " "]) if chosen.random() < 0.3 else f"{number} {row} é"
                origin = f"package-{number}/a.mo#{row}#{row}"
                file.write(json.dumps({"en": source, "de": f"so: {source}", "origin": origin, "more": 1}) + "\n")
    return path


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_files_are_held_out_whole_and_share_no_source(pairs, tmp_path):
    split = split_corpus(pairs, tmp_path / "out", "en", "origin", validation=100, test=200)
    rows = {name: read(tmp_path / "out" / f"{name}.jsonl") for name in split.pairs}
    assert split.pairs == {name: len(found) for name, found in rows.items()}
    files = {name: {row["origin"].partition("#")[0] for row in found} for name, found in rows.items()}
    plain = {name: {row["en"].strip().lower() for row in found} for name, found in rows.items()}
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not files[one] & files[other]
        assert not plain[one] & plain[other]
    assert 100 <= len(rows["validation"]) <= 150
    assert 200 <= len(rows["test"]) <= 300
    left = {row["origin"] for row in read(pairs)} - {row["origin"] for found in rows.values() for row in found}
    assert len(left) == split.also_elsewhere > 0
    shared = [row for row in read(pairs) if row["origin"] in left]
    assert all("open" in row["en"].lower() for row in shared)
    assert {*split.held_out["test"], *split.held_out["validation"]} >= files["test"] | files["validation"]


def test_the_seed_decides(pairs, tmp_path):
    made = [
        split_corpus(pairs, tmp_path / str(run), "en", "origin", 50, 50, seed).held_out
        for run, seed in enumerate([1, 1, 2])
    ]
    assert made[0] == made[1] != made[2]


def test_a_split_may_be_empty(pairs, tmp_path):
    split = split_corpus(pairs, tmp_path / "out", "en", "origin", validation=0, test=20)
    assert split.pairs["validation"] == 0
    assert read(tmp_path / "out" / "validation.jsonl") == []


def test_one_large_file_is_an_error_and_nothing_is_written(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f'{{"en": "{row}", "de": "x", "origin": "memory.tmx#{row}"}}\n' for row in range(1000)))
    with pytest.raises(UserError, match=r"pairs\.jsonl: none of its 1 files .* --by"):
        split_corpus(path, tmp_path / "out", "en", "origin", validation=10, test=10)
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_column_is_named(pairs, tmp_path):
    done = CliRunner().invoke(app, ["split", str(pairs), str(tmp_path / "out"), "--source-language", "fr"])
    assert done.exit_code == 2
    assert "row 1: no text in a column 'fr'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_did(pairs, tmp_path):
    arguments = ["split", str(pairs), str(tmp_path / "out"), "--source-language", "en", "--test", "30"]
    done = CliRunner().invoke(app, [*arguments, "--validation", "20"])
    assert done.exit_code == 0, done.stderr
    assert "held out for test: package-" in done.stdout
    assert "whose sources are in other files too" in done.stdout


def test_what_is_no_table_is_an_error(tmp_path):
    (tmp_path / "pairs.en").write_text("a\n", encoding="utf-8")
    for name, message in (("pairs.en", "is no table"), ("nothing.jsonl", "no such file"), (".", "is a folder")):
        with pytest.raises(UserError, match=message):
            split_corpus(tmp_path / name, tmp_path / "out", "en", "origin", validation=1, test=1)

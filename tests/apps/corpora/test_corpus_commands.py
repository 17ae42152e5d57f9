"""`scratch corpus from` and `from-system`: what they tell, and that a recipe names the first."""

import json
import shlex
from pathlib import Path

import pytest
from corpora import PAIRS, po_file, tmx_file, xlsx_file
from test_memories import tmx_of
from typer.testing import CliRunner

from modeling_scratch.apps.corpora.corpus_from import KINDS
from modeling_scratch.commands.corpus import app
from modeling_scratch.data.local_files import CONVERTED, FORMATS, find_files
from modeling_scratch.errors import UserError
from modeling_scratch.languages import preference
from modeling_scratch.recipe.schema import DataSection


def corpus(*arguments: str):
    return CliRunner().invoke(app, list(map(str, arguments)))


LANGUAGES = ("--source-language", "en", "--target-language", "de")


def test_what_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmx_file(tmp_path, PAIRS)
    Path("more.tmx").write_bytes(tmx_of({"en": "a", "de": "b"}, {"en": "a", "fr": "c"}, {"en": "d", "de": ""}))
    result = corpus("from", "memory.tmx", "more.tmx", "pairs.jsonl", *LANGUAGES)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "memory.tmx: 200 pairs",
        "more.tmx: 1 pairs; skipped 1 in other languages, 1 without a translation",
        "wrote pairs.jsonl: 201 pairs; skipped 1 in other languages, 1 without a translation",
        "  scratch corpus report pairs.jsonl --source-language en --target-language de",
        "  scratch train --config own-text data.train_files=pairs.jsonl data.validation_files=null "
        "data.test_files=null",
    ]
    rows = list(map(json.loads, Path("pairs.jsonl").read_text(encoding="utf-8").splitlines()))
    assert rows[-1] == {"en": "a", "de": "b", "origin": "more.tmx#1"}
    again = corpus("from", "memory.tmx", "pairs.jsonl", *LANGUAGES)
    assert (again.exit_code, again.stderr) == (2, "error: pairs.jsonl exists; choose another name\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.tmx", "b.tmx"), "b.tmx: the last argument is the file to write, which ends in .jsonl"),
        (("missing.tmx", "x.jsonl"), "missing.tmx: no such file or folder"),
        (("a.docx", "x.jsonl"), "a.docx: files of this kind are not read"),
        (("a.tmx", "x.jsonl", "--source-column", "1"), "--source-column and --target-column: give both"),
        (("a.tmx", "x.jsonl", "--source-language", "tlhingan"), "tlhingan is not a language"),
        (("a.tmx", "x.jsonl", "--source-language", "de"), "source and target are the same language, de"),
        (
            ("a.tmx", "x.jsonl", "--target-language", "fi"),
            "no pairs of en and fi in a.tmx; the files have de-DE",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path(tmx_file(tmp_path, PAIRS)[0]).rename("a.tmx")
    Path("a.docx").write_bytes(b"PK")
    options = [option for option in LANGUAGES if option not in arguments]
    given = dict(zip(LANGUAGES[::2], LANGUAGES[1::2], strict=True))
    options = [part for name, value in given.items() if name not in arguments for part in (name, value)]
    result = corpus("from", *arguments, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert not Path("x.jsonl").exists()


@pytest.mark.parametrize("command", [("report", "a.csv"), ("clean", "a.csv", "x.jsonl")])
def test_errors_on_columns_name_options(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("en,en\nHello,Hallo\n")
    result = corpus(*command)
    assert result.exit_code == 2
    assert "(set --source-column, or --source-language and --target-language; if" in result.stderr
    assert "data." not in result.stderr


def test_a_recipe_names_the_command_that_makes_pairs(tmp_path, monkeypatch):
    """And the pairs are what a recipe reads."""
    monkeypatch.chdir(tmp_path)
    for name in (*tmx_file(tmp_path, PAIRS), *po_file(tmp_path, PAIRS), *xlsx_file(tmp_path, PAIRS)):
        data = DataSection(train_files=name, source_language="en", target_language="de")
        with pytest.raises(UserError, match="make pairs of") as error:
            find_files(data.train_files, data, "data.train_files")
        command = str(error.value).partition("first: ")[2].partition(";")[0]
        assert command == f"scratch corpus from {name} pairs.jsonl --source-language en --target-language de"
        assert corpus(*shlex.split(command)[2:]).exit_code == 0
        assert find_files(["pairs.jsonl"], data, "data.train_files") == [(Path("pairs.jsonl"),)]
        Path("pairs.jsonl").unlink()


def test_recipes_know_all_kinds_of_files():
    assert set(KINDS) - set(FORMATS) | {".zip", ".xml"} == set(CONVERTED)


def test_tags_that_serve_for_a_language():
    order = ["en", "en-US", "en-GB"]
    assert sorted(order[::-1], key=lambda tag: preference("en", tag)) == order
    assert [preference("en-GB", tag) for tag in ("en_gb", "en", "en-US", "de")] == [0, 1, None, None]
    assert [preference("zh", tag) is None for tag in ("zh-CN", "zh-Hans", "zh-TW", "cmn")] == [
        False,
        False,
        True,
        False,
    ]
    assert [preference("sr", tag) is None for tag in ("sr-RS", "sr-Latn", "hr")] == [False, True, True]
    assert [preference("pt", tag) for tag in ("pt-BR", "pt-PT")] == [2, 3]
    assert preference("no", "nb") is not None

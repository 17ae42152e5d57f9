"""The card and the commands of a model whose pairs are not translations."""

import re

import pytest
from conftest import quick_run, run_training
from huggingface_hub import ModelCard
from texts import write_phones
from translators import run_translate

from modeling_scratch.hub.card import build_card, check_card, required_metadata
from modeling_scratch.loading import load_tokenizers, named_languages
from modeling_scratch.run.records import RunRecords

OPTIONS = ["data.test_files=null", "data.source_language=null", "data.target_language=null", "tokenizer.shared=false"]
OPTIONS += ["data.task=the phones of a word", "tokenizer.kind=characters", "tokenizer.target_kind=words"]
OPTIONS += ["evaluation.metrics=[wer]", "evaluation.metric=wer", "optimization.max_steps=4", "evaluation.every=2"]


NAMED = ["data.source_column=source", "data.target_column=target"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = write_phones(tmp_path_factory.mktemp("words"), ("cabba", "bab"))
    columns = ["data.source_column=1", "data.target_column=2"]
    return quick_run(tmp_path_factory.mktemp("runs") / "run", *data, *columns, *OPTIONS)


def test_the_card_speaks_of_no_translation(run):
    records = RunRecords(run)
    card = build_card(run, "user/phones", records)
    check_card(str(card), required_metadata(records))
    assert card.data.language is None
    assert (card.data.pipeline_tag, card.data.tags[0]) == ("text-generation", "text2text-generation")
    assert {(result.task_type, result.metric_type) for result in card.data.eval_results} == {
        ("text2text-generation", "wer_of_words")
    }
    assert "translat" not in str(card).replace("translate_every", "").lower()  # a key of the recipe
    assert "the phones of a word" in card.text
    assert "| Tokenizer | characters and words between spaces, at most" in card.text
    assert isinstance(ModelCard(str(card)), ModelCard)


def test_its_folder_says_so_without_the_records_of_the_run(run):
    card = build_card(run, "user/phones", None)
    assert card.data.tags[0] == "text2text-generation"
    assert 'pipeline("text2text-generation", model="user/phones"' in card.text
    assert "translat" not in str(card).lower()


def test_one_language_on_both_sides_is_no_translation(run):
    card = build_card(run, "user/phones", RunRecords(run), languages=["de", "de"])
    assert card.data.language == ["de"]
    assert card.data.tags[0] == "text2text-generation"
    assert "translat" not in str(card).replace("translate_every", "").lower()


def test_its_folder_names_no_languages_and_works_on_the_command_line(run, monkeypatch):
    assert named_languages(load_tokenizers(str(run))[0]) == []
    code, output, _ = run_translate(monkeypatch, str(run), b"cab\n")
    assert code == 0
    assert re.fullmatch(rb"[A-C ]*\n", output)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ""),
        (["data.source_language=en"], "both be null"),
        (["data.source_language=en", "data.target_language=EN", "data.source_column=a"], "no column"),
        (["data.source_language=source", "data.target_language=source"], "the same column"),
        (["data.source_language=x", "data.target_language=x", *NAMED], ""),
    ],
)
def test_columns_without_languages_or_with_the_same(options, expected, tmp_path, capsys):
    data = write_phones(tmp_path, ("cabba", "bab"), header="source\ttarget\n")
    run = [*data, *OPTIONS, "optimization.max_steps=1", f"output_dir={tmp_path / 'run'}", *options]
    if expected:
        with pytest.raises(SystemExit) as end:
            run_training(*run, dry_run=True)
        assert end.value.code == 2
        assert expected in capsys.readouterr().err
    else:
        run_training(*run, dry_run=True)

"""Whole runs of train.py: files, records, vocabularies, fine-tuning, trackers, test sets."""

import re
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from accelerate import Accelerator
from conftest import few_sentences, mixed_in, quick_run, read_metrics, run_evaluation, unchanged, weights
from datasets import Dataset
from sacrebleu.metrics import BLEU
from transformers import AutoModelForSeq2SeqLM

from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.hub.allowed_files import chosen_files
from modeling_scratch.hub.card import build_card
from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.recipe.schema import DataSection
from modeling_scratch.run.log import RunLog
from modeling_scratch.run.progress import Progress
from modeling_scratch.run.records import append_record, run_of, write_translations
from modeling_scratch.training.finish import scores_before


def test_a_run_and_each_checkpoint_are_model_folders(trained):
    names = {path.name for path in trained.iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors", "modeling_scratch.py"}
    assert names >= {"tokenizer.json", "tokenizer_config.json", "recipe.yaml", "metrics.jsonl", "translations"}
    assert not [name for name in names if name.endswith(".tmp")]
    assert (trained / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert load_recipe(trained / "recipe.yaml").optimization.max_steps == 20
    for checkpoint in (trained / "checkpoints").iterdir():
        AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
        load_tokenizers(str(checkpoint))


def test_every_update_and_evaluation_is_recorded_and_the_loss_falls(trained):
    assert [record["step"] for record in read_metrics(trained, "train")] == list(range(1, 21))
    validation = read_metrics(trained, "validation")
    assert [record["step"] for record in validation] == [10, 20]
    assert all({"loss", "bleu", "chrf"} <= set(record) for record in validation)
    (test,) = read_metrics(trained, "test")
    assert test["final"]
    assert "tok:13a" in test["bleu_signature"]
    translations = (trained / "translations" / "test.txt").read_text().splitlines()
    assert [sample["translation"] for sample in test["samples"]] == translations[:5]
    assert all(sample["source"] and sample["reference"] for sample in test["samples"])
    losses = [record["loss"] for record in read_metrics(trained, "train")]
    assert losses[-1] < losses[0] - 0.5


def test_a_run_with_two_vocabularies_has_two_tokenizers(tmp_path):
    run = quick_run(tmp_path / "run", "tokenizer.shared=false", "optimization.max_steps=4")
    member = quick_run(tmp_path / "member", f"tokenizer.existing={run}", "optimization.max_steps=2", "seed=1")
    for name in ("tokenizer.json", "target_tokenizer/tokenizer.json"):
        assert (member / name).read_text() == (run / name).read_text()
    Translator.load([str(run), str(member)])  # as an ensemble
    source, target = load_tokenizers(str(run))
    config = AutoModelForSeq2SeqLM.from_pretrained(run).config
    assert source is not target
    assert not config.share_encoder_decoder_embeddings
    assert (config.vocab_size, config.decoder_vocab_size) == (len(source), len(target))
    assert target("Die Katze.").input_ids != source("Die Katze.").input_ids


def test_fine_tuning_starts_from_the_models_weights_and_config(trained, tmp_path):
    options = [f"model.start_from={trained}", "model.overrides={}", "optimization.learning_rate=1e-9"]
    run = quick_run(tmp_path / "run", *options, "optimization.max_steps=2", "checkpoints.every=1")
    for name, tensor in weights(trained).items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=0, atol=1e-7)
    assert (run / "tokenizer.json").read_text() == (trained / "tokenizer.json").read_text()
    assert AutoModelForSeq2SeqLM.from_pretrained(run).config.dropout == 0.1  # the model's own
    with_dropout = quick_run(tmp_path / "other", *options, "model.overrides.dropout=0.3", "optimization.max_steps=1")
    assert AutoModelForSeq2SeqLM.from_pretrained(with_dropout).config.dropout == 0.3


def test_fine_tuning_scores_the_model_before_and_after(trained, tmp_path, capsys):
    others = few_sentences()[1].replace("validation_files", "test_sets.others")
    options = [f"model.start_from={trained}", "model.overrides={}", others, "optimization.max_steps=2"]
    run = quick_run(tmp_path / "run", *options, mixed_in(0.5))
    before = {record["name"]: record for record in read_metrics(run, "before")}
    after = {record.get("name", "test"): record for record in read_metrics(run, "test")}
    assert before.keys() == after.keys() == {"test", "others"}
    assert {record["step"] for record in before.values()} == {0}
    (known,) = read_metrics(trained, "test")
    scores = ("bleu", "chrf", "bleu_interval", "sentences")
    assert [before["test"][key] for key in scores] == [known[key] for key in scores]
    assert (run / "translations" / "before" / "test.txt").read_text() == (
        trained / "translations" / "test.txt"
    ).read_text()
    output = capsys.readouterr().out.partition("On others:")[2].partition("before fine-tuning:")
    assert f"BLEU {after['others']['bleu']:.2f}" in output[0]
    assert f"BLEU {before['others']['bleu']:.2f}" in output[2]


def test_fine_tuning_warns_about_a_test_set_that_it_made_worse(tmp_path, caplog):
    sentences = make_corpus(60, 1, 1)["train"]
    pairs = Dataset.from_list([{"source": pair["en"], "target": pair["de"]} for pair in sentences])
    right, wrong = pairs["target"][:], [f"{text} Und." for text in pairs["target"]]
    for split, translations in (("test", wrong), ("old", right), ("same", wrong)):
        write_translations(tmp_path, f"before/{split}", translations)
        bleu = BLEU().corpus_score(translations, [right]).score
        append_record(tmp_path, {"step": 0, "split": "before", "name": split, "num_beams": 5, "bleu": bleu})
    recipe = SimpleNamespace(evaluation=SimpleNamespace(num_beams=5), data=DataSection())
    given = (recipe, tmp_path, dict.fromkeys(("test", "old", "same"), pairs))
    found = scores_before(*given, {"test": right, "old": wrong, "same": wrong, "new": right})
    assert found.keys() == {"test", "old", "same"}
    (warning,) = [record.getMessage() for record in caplog.records]
    lost = BLEU().corpus_score(right, [right]).score - BLEU().corpus_score(wrong, [right]).score
    assert re.match(rf"old: .*{lost:.2f}.*p = 0\.00", warning)
    caplog.clear()
    append_record(tmp_path, {"step": 0, "split": "before", "name": "old", "num_beams": 5, "bleu": 50.0})
    scores_before(*given, {"old": wrong})  # its earlier score is of other references
    assert "old: not compared" in caplog.text


def test_each_test_set_has_its_own_name_in_trackers(tmp_path):
    seen, accelerator = [], Accelerator(cpu=True)
    accelerator.trackers = [SimpleNamespace(name="own", log=lambda values, step: seen.extend(values))]
    log = RunLog(accelerator, tmp_path, Progress(step=1), SimpleNamespace(epochs=lambda: 0.5), 2)
    for more in ({"split": "test"}, {"split": "test", "name": "old"}, {"split": "before", "name": "old"}):
        log.record({**more, "final": True, "bleu": 2.0})
    assert [name for name in seen if name.endswith("bleu")] == ["test/bleu", "test/old/bleu", "before/old/bleu"]


def test_too_small_a_limit_on_translations_is_logged(tmp_path, capsys):
    describe = partial(quick_run, tmp_path / "run", dry_run=True, processes=1)  # nothing is trained
    describe()
    assert "evaluation.max_new_tokens" in capsys.readouterr().err
    describe("evaluation.max_new_tokens=64")
    assert "evaluation.max_new_tokens" not in capsys.readouterr().err


def test_a_sentence_to_translate_beyond_learned_positions_fails_before_training(tmp_path, fails):
    positions = ["model.overrides.position_embedding_type=learned", "model.overrides.max_position_embeddings=12"]
    line = fails(tmp_path / "run", *positions, "data.max_source_tokens=12", "data.max_target_tokens=12")
    assert re.search(r"error: the (test|validation) split: .*\d\d tokens", line)
    assert not (tmp_path / "run").exists()


def test_a_run_in_bf16_has_nearly_the_losses_of_float32_and_saves_float32(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    run = quick_run(tmp_path / "run", "optimization.max_steps=6")
    (about,) = read_metrics(run, "run")
    assert about["mixed_precision"] == "bf16"
    found, expected = ([record["loss"] for record in read_metrics(each, "train")][:6] for each in (run, trained))
    assert found != expected
    assert found == pytest.approx(expected, rel=0.01)
    assert {tensor.dtype for tensor in weights(run).values()} == {torch.float32}


def test_evaluate_prints_the_recorded_scores_and_writes_nothing(trained, capsys):
    with unchanged(trained):
        run_evaluation(str(trained))
    output = capsys.readouterr().out
    (record,) = read_metrics(trained, "test")
    for key, title in (("bleu", "BLEU"), ("chrf", "chrF")):
        expected = f"{title} {record[key]:.2f} ± {record[f'{key}_interval']:.2f}  ({record[f'{key}_signature']})"
        assert expected in output
    assert "40 sentences of test" in output


@pytest.fixture(scope="module")
def with_named_sets(tmp_path_factory) -> tuple[Path, str, str]:
    """A run with named test sets, whose averaged weights are evaluated; what it prints; and its log."""
    _, validation, test = (option.partition("=")[2] for option in few_sentences())
    options = [f"data.test_sets={{held-out: {validation}, again: {test}, taken-away: null}}"]
    options += ["checkpoints.average_last=2", "optimization.max_steps=4", "checkpoints.every=2", "evaluation.every=2"]
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as log:
        run = quick_run(tmp_path_factory.mktemp("named") / "run", *options)
    return run, output.getvalue(), log.getvalue()


def test_a_warm_up_longer_than_the_run_is_logged(with_named_sets):
    assert "optimization.warmup_steps is 10, and there are 4 updates" in with_named_sets[2]


def test_named_test_sets_are_scored(with_named_sets, capsys):
    run, output, _ = with_named_sets
    final = {record.get("name"): record for record in read_metrics(run, "test") if record["final"]}
    assert set(final) == {None, "held-out", "again"}
    assert {record["sentences"] for record in final.values()} == {40}
    assert re.findall(r"^On (.*):$", output, re.MULTILINE) == ["validation", "test", "held-out", "again"]
    run_evaluation(str(run))
    scores = re.findall(r"40 sentences of (\S+)\n  BLEU ([\d.]+)", capsys.readouterr().out)
    assert scores == [(name or "test", f"{record['bleu']:.2f}") for name, record in final.items()]
    card = str(build_card(run, "ada/model", run_of(run)))
    assert f"| held-out | {final['held-out']['bleu']:.2f} ± " in card
    assert str(Path(few_sentences()[2].partition("=")[2]).parent) not in card


def test_recorded_scores_are_those_of_the_saved_translations(with_named_sets):
    """On validation (of averaged weights), on test, and on named test sets."""
    run, _, _ = with_named_sets
    final = {record.get("name") or record["split"]: record for record in read_metrics(run) if record.get("final")}
    assert set(final) == {"validation", "test", "held-out", "again"}
    for name, record in final.items():
        prefix = few_sentences()[2 if name in ("test", "again") else 1].partition("=")[2]
        references = Path(f"{prefix}.de").read_text(encoding="utf-8").splitlines()
        lines = (run / "translations" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert sacrebleu.corpus_chrf(lines, [references]).score == record["chrf"]
    assert not any("translations/" in name for name in chosen_files(run))  # translations are not pushed

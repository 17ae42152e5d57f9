"""Whole runs through train.py: the folder, the seed, resuming, fine-tuning, averaging, scoring, several processes."""

import json
import math
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import (
    SMALL_RUN,
    Killed,
    few_sentences,
    kill_at_update,
    quick_run,
    read_metrics,
    run_training,
)
from datasets import Dataset
from forked import run_group, start_group
from sacrebleu.metrics import BLEU
from safetensors.torch import load_file
from train_on_processes import score_into, train_all, train_one, wait_for_the_main_process_and_then_for_another
from transformers import AutoModelForSeq2SeqLM

from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.hub.card import build_card
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.pipelines import load_pipeline
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.runs.folder import RunFolder
from modeling_scratch.runs.metrics_file import append_record
from modeling_scratch.runs.translations import write_translations
from modeling_scratch.training import evaluation
from modeling_scratch.training.fine_tuning import changes
from modeling_scratch.training.log import RunLog


def weights(run):
    return load_file(run / "model.safetensors")


def equal_weights(first, second):
    return all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(first).items())


def updates(run):
    """What must not depend on interruptions: every update's losses and rate."""
    names = ("step", "epoch", "loss", "cross_entropy", "learning_rate")
    return [tuple(record[name] for name in names) for record in read_metrics(run, "train")]


def test_the_folder_of_a_run(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "modeling_scratch.py",
        "recipe.yaml",
        "metrics.jsonl",
        "curves.png",
        "translations",
        "checkpoints",
    }
    assert not [name for name in names if name.endswith(".tmp")]
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert load_recipe(finished / "recipe.yaml").optimization.max_steps == 20
    for checkpoint in (finished / "checkpoints").iterdir():
        AutoModelForSeq2SeqLM.from_pretrained(checkpoint)  # every checkpoint is a model folder too
        load_tokenizers(str(checkpoint))


def test_records(finished):
    assert [record["step"] for record in read_metrics(finished, "train")] == list(range(1, 21))
    validation = read_metrics(finished, "validation")
    assert [record["step"] for record in validation] == [10, 20]
    assert all({"loss", "bleu", "chrf"} <= set(record) for record in validation)
    (test,) = read_metrics(finished, "test")
    assert test["final"]
    assert "tok:13a" in test["bleu_signature"]
    translations = (finished / "translations" / "test.txt").read_text().splitlines()
    assert [sample["translation"] for sample in test["samples"]] == translations[:5]
    assert all(sample["source"] and sample["reference"] for sample in test["samples"])
    losses = [record["loss"] for record in read_metrics(finished, "train")]
    assert losses[-1] < losses[0] - 0.5


def test_the_seed_decides(finished, tmp_path):
    again, other = quick_run(tmp_path / "again"), quick_run(tmp_path / "other", "seed=1", "optimization.max_steps=2")
    assert updates(again) == updates(finished)
    assert equal_weights(again, finished)
    assert updates(other) != updates(finished)[:2]


def test_a_resumed_run_makes_the_same_updates(finished, tmp_path, monkeypatch):
    """Killed three updates after a checkpoint in mid-epoch."""
    assert all(record["epoch"] % 1 for record in read_metrics(finished, "train") if record["step"] == 10)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at_update(patch, 14)
        with pytest.raises(Killed):
            quick_run(run)
    assert max(record["step"] for record in read_metrics(run, "train")) == 13
    quick_run(run, resume=True)
    assert updates(run) == updates(finished)
    assert equal_weights(run, finished)
    assert read_metrics(run, "test") == read_metrics(finished, "test")


def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys):
    """From the one before it the run makes the same updates again."""
    options = ["optimization.max_steps=6", "checkpoints.every=3"]
    run = quick_run(tmp_path / "run", *options)
    undisturbed = shutil.copytree(run, tmp_path / "undisturbed")
    (run / "checkpoints" / "step-0000006" / "model.safetensors").write_bytes(b"damaged")
    quick_run(run, *options, resume=True)
    assert "step-0000006: model.safetensors has 7 bytes" in capsys.readouterr().err
    assert updates(run) == updates(undisturbed)
    assert equal_weights(run, undisturbed)
    assert [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("seed", "all_as_the_first"), [(0, 21), (10, 18)])
def test_epochs_of_pairs_that_are_drawn_end_with_the_run(seed, all_as_the_first, tmp_path):
    """Epochs differ in their updates: 20 in all. The last evaluation is that of the last epoch."""
    options = ["optimization.max_steps=null", "optimization.max_epochs=3", f"seed={seed}", "evaluation.every=epoch"]
    run = quick_run(tmp_path / "run", *few_sentences(60), *options, mixed_in(0.5), "data.embedded_size=60")
    evaluated = read_metrics(run, "validation")
    assert 3 * evaluated[0]["step"] == all_as_the_first != 20
    assert [record["epoch"] for record in evaluated] == [1.0, 2.0, 3.0]


def mixed_in(weight):
    """A recipe's override: further pairs, with a tag."""
    return f"data.mix=[{{name: embedded, weight: {weight}, tag: <new>}}]"


def test_what_training_draws_is_drawn_again_by_a_resumed_run(tmp_path, monkeypatch):
    """Dropout, which pairs an epoch has; stopped in the second epoch."""
    options = [*few_sentences(60), mixed_in(0.5), "data.embedded_size=60", "optimization.optimizer=muon"]
    options += ["optimization.max_steps=12", "checkpoints.every=5", "evaluation.every=100"]
    undisturbed, run = quick_run(tmp_path / "undisturbed", *options), tmp_path / "run"
    (record,) = [record for record in read_metrics(undisturbed, "train") if record["step"] == 10]
    assert record["epoch"] > 1
    assert record["epoch"] % 1
    with monkeypatch.context() as patch:
        kill_at_update(patch, 12)
        with pytest.raises(Killed):
            quick_run(run, *options)
    quick_run(run, *options, resume=True)
    assert updates(run) == updates(undisturbed)
    assert equal_weights(run, undisturbed)


def test_a_finished_run_can_go_on(tmp_path):
    # A schedule that knows nothing of the run's end, and weights that are better at each.
    options = ["optimization.schedule=inverse_sqrt", "optimization.max_steps=6", "evaluation.metric=loss"]
    whole = quick_run(tmp_path / "whole", *options)
    longer = quick_run(tmp_path / "longer", *options, "optimization.max_steps=4")
    quick_run(longer, *options, resume=True)
    assert updates(longer) == updates(whole)
    assert equal_weights(longer, whole)


def test_a_schedule_that_follows_another_length_is_said(tmp_path, capsys):
    run = quick_run(tmp_path / "run", "optimization.schedule=cosine", "optimization.max_steps=2")
    assert "depends on the length" not in capsys.readouterr().err
    quick_run(run, "optimization.schedule=cosine", "optimization.max_steps=3", resume=True)
    said = "the learning rate of the schedule cosine depends on the length of the run: from here on it is that of the"
    assert said in capsys.readouterr().err


def test_a_warm_up_that_outlasts_the_run_is_said(tmp_path, capsys):
    quick_run(tmp_path / "run", "optimization.warmup_steps=30", "optimization.max_steps=2")
    assert "optimization.warmup_steps is 30, and there are 2 updates" in capsys.readouterr().err


def test_averaging(tmp_path):
    options = ["checkpoints.average_last=2", "checkpoints.every=2", "optimization.max_steps=6"]
    run = quick_run(tmp_path / "run", *options)
    snapshots = [load_file(run / "checkpoints" / f"step-{step:07d}" / "model.safetensors") for step in (4, 6)]
    for name, tensor in weights(run).items():
        expected = (snapshots[0][name].double() + snapshots[1][name].double()) / 2
        assert torch.equal(tensor, expected.float())


def test_a_run_that_patience_ends_says_so_and_logs_its_last_updates(tmp_path, capsys):
    options = ["optimization.learning_rate=3.0", "evaluation.metric=loss", "evaluation.patience=1"]
    options += ["evaluation.every=2", "logging_steps=50"]
    run = quick_run(tmp_path / "run", *options)
    (record,) = read_metrics(run, "train")
    assert 2 < record["step"] < 20
    said = f"training ends after update {record['step']}: 1 evaluations in a row were no better (evaluation.patience)"
    assert said in capsys.readouterr().err
    records = read_metrics(run, "train")
    quick_run(run, *options, resume=True)  # as after a kill in the final scoring
    assert said in capsys.readouterr().err
    assert read_metrics(run, "train") == records


def test_best_checkpoint_and_early_stopping(tmp_path):
    """A rate that ruins the model: the best weights are early ones, and patience ends the run."""
    options = ["optimization.learning_rate=3.0", "optimization.schedule=constant", "optimization.max_steps=200"]
    options += ["evaluation.metric=loss", "evaluation.patience=2", "evaluation.every=2", "checkpoints.every=2"]
    run = quick_run(tmp_path / "run", *options, "checkpoints.keep_last=100")
    validation = [record for record in read_metrics(run, "validation") if "final" not in record]
    losses = [record["loss"] for record in validation]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == best + 3 < 100
    checkpoint = run / "checkpoints" / f"step-{validation[best]['step']:07d}" / "model.safetensors"
    for name, tensor in load_file(checkpoint).items():
        assert torch.equal(weights(run)[name], tensor)


def test_two_vocabularies(tmp_path):
    run = quick_run(tmp_path / "run", "tokenizer.shared=false", "optimization.max_steps=4")
    member = quick_run(tmp_path / "member", f"tokenizer.existing={run}", "optimization.max_steps=2", "seed=1")
    for name in ("tokenizer.json", "target_tokenizer/tokenizer.json"):
        assert (member / name).read_text() == (run / name).read_text()
    load_pipeline([str(run), str(member)])  # as an ensemble
    source, target = load_tokenizers(str(run))
    config = AutoModelForSeq2SeqLM.from_pretrained(run).config
    assert source is not target
    assert not config.share_encoder_decoder_embeddings
    assert (config.vocab_size, config.decoder_vocab_size) == (len(source), len(target))
    assert target("Die Katze.").input_ids != source("Die Katze.").input_ids


def test_fine_tuning_starts_from_the_model(finished, tmp_path):
    options = [f"model.start_from={finished}", "model.overrides={}", "optimization.learning_rate=1e-9"]
    run = quick_run(tmp_path / "run", *options, "optimization.max_steps=2", "checkpoints.every=1")
    for name, tensor in weights(finished).items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=0, atol=1e-7)
    assert (run / "tokenizer.json").read_text() == (finished / "tokenizer.json").read_text()
    assert AutoModelForSeq2SeqLM.from_pretrained(run).config.dropout == 0.1  # the model's own
    with_dropout = quick_run(tmp_path / "other", *options, "model.overrides.dropout=0.3", "optimization.max_steps=1")
    assert AutoModelForSeq2SeqLM.from_pretrained(with_dropout).config.dropout == 0.3


def test_fine_tuning_scores_the_model_before_and_after(finished, tmp_path, capsys):
    others = few_sentences()[1].replace("validation_files", "test_sets.others")
    options = [f"model.start_from={finished}", "model.overrides={}", others, "optimization.max_steps=2"]
    run = quick_run(tmp_path / "run", *options, mixed_in(0.5))
    before = {record["name"]: record for record in read_metrics(run, "before")}
    after = {record.get("name", "test"): record for record in read_metrics(run, "test")}
    assert before.keys() == after.keys() == {"test", "others"}
    assert {record["step"] for record in before.values()} == {0}
    (known,) = read_metrics(finished, "test")
    scores = ("bleu", "chrf", "bleu_interval", "sentences")
    assert [before["test"][key] for key in scores] == [known[key] for key in scores]
    assert (run / "translations" / "before" / "test.txt").read_text() == (
        finished / "translations" / "test.txt"
    ).read_text()
    said = capsys.readouterr().out.partition("On others:")[2].partition("before fine-tuning:")
    assert f"BLEU {after['others']['bleu']:.2f}" in said[0]
    assert f"BLEU {before['others']['bleu']:.2f}" in said[2]


def test_stopped_while_the_start_is_scored(finished, tmp_path):
    options = [f"model.start_from={finished}", "model.overrides={}", "optimization.max_steps=2"]
    with pytest.raises(SystemExit) as stopped:
        quick_run(tmp_path / "run", *options, max_minutes=0)
    assert stopped.value.code == 75
    run, undisturbed = quick_run(tmp_path / "run", *options, resume=True), quick_run(tmp_path / "whole", *options)
    assert equal_weights(run, undisturbed)
    assert [read["bleu"] for read in read_metrics(run, "before")] == [
        read["bleu"] for read in read_metrics(undisturbed, "before")
    ]


def test_a_test_set_that_fine_tuning_has_made_worse(tmp_path, caplog):
    sentences = make_corpus(60, 1, 1)["train"]
    pairs = Dataset.from_list([{"source": pair["en"], "target": pair["de"]} for pair in sentences])
    right, wrong = pairs["target"][:], [f"{text} Und." for text in pairs["target"]]
    for split, translations in (("test", wrong), ("old", right), ("same", wrong)):
        write_translations(tmp_path, f"before/{split}", translations)
        append_record(tmp_path, {"step": 0, "split": "before", "name": split, "num_beams": 5, "bleu": 1.0})
    run = SimpleNamespace(folder=SimpleNamespace(path=tmp_path), pairs=dict.fromkeys(("test", "old", "same"), pairs))
    run.recipe = SimpleNamespace(evaluation=SimpleNamespace(num_beams=5), data=SimpleNamespace(target_language="de"))
    found = changes(run, {"test": right, "old": wrong, "same": wrong, "new": right})
    assert found.keys() == {"test", "old", "same"}
    (warning,) = [record.getMessage() for record in caplog.records]
    lost = BLEU().corpus_score(right, [right]).score - BLEU().corpus_score(wrong, [right]).score
    assert warning.startswith(f"old: BLEU has fallen by {lost:.2f} in fine-tuning (p = 0.00")


def test_existing_tokenizer(finished, tmp_path):
    run = quick_run(tmp_path / "run", f"tokenizer.existing={finished}", "optimization.max_steps=2")
    assert load_tokenizers(str(run))[0].get_vocab() == load_tokenizers(str(finished))[0].get_vocab()


def test_each_test_set_has_its_own_name_in_trackers(tmp_path, monkeypatch):
    from accelerate import Accelerator

    seen = []
    monkeypatch.setattr(Accelerator, "log", lambda self, values, step: seen.append(values))
    (tmp_path / "run").mkdir()
    log = RunLog(Accelerator(cpu=True), RunFolder(tmp_path / "run"))
    for more in ({"split": "test"}, {"split": "test", "name": "old"}, {"split": "before", "name": "old"}):
        log.record(1, {**more, "final": True, "bleu": 2.0})
    assert seen == [{"test/bleu": 2.0}, {"test/old/bleu": 2.0}, {"before/old/bleu": 2.0}]


def test_translations_that_will_be_cut_are_told(tmp_path, capsys):
    describe = partial(quick_run, tmp_path / "run", dry_run=True, processes=1)  # nothing is trained
    describe()
    assert "translations end after evaluation.max_new_tokens (8), but the longest training" in capsys.readouterr().err
    describe("evaluation.max_new_tokens=64")
    assert "max_new_tokens" not in capsys.readouterr().err


def test_a_tracker_that_cannot_start(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")
    from accelerate import Accelerator

    def init(*_, **__):
        raise KeyError("api_key not configured")

    monkeypatch.setattr(Accelerator, "init_trackers", init)
    with pytest.raises(SystemExit) as ended:
        quick_run(tmp_path / "run", "trackers=[tensorboard]", "optimization.max_steps=2")
    assert ended.value.code == 2
    assert "trackers: KeyError: 'api_key not configured'" in capsys.readouterr().err


def test_trackers_go_on_with_a_run_by_its_name(tmp_path, monkeypatch):
    """And write what they hold when it is stopped."""
    pytest.importorskip("tensorboard")
    from accelerate import Accelerator
    from accelerate.tracking import TensorBoardTracker

    init_trackers, finish, names, finished = Accelerator.init_trackers, TensorBoardTracker.finish, [], []

    def init(self, project, init_kwargs):
        assert init_kwargs["wandb"]["resume"] == "allow"
        names.append(init_kwargs["wandb"]["id"])
        return init_trackers(self, project)

    monkeypatch.setattr(Accelerator, "init_trackers", init)
    monkeypatch.setattr(TensorBoardTracker, "finish", lambda self: finished.append(names[-1]) or finish(self))
    options = ["trackers=[tensorboard]", "optimization.max_steps=2"]
    with pytest.raises(SystemExit):
        quick_run(tmp_path / "run", *options, max_minutes=0)
    quick_run(tmp_path / "run", *options, resume=True)
    assert list((tmp_path / "run" / "tracking").rglob("events.out.tfevents.*"))
    quick_run(tmp_path / "run", *options, overwrite=True)
    assert names[0] == names[1] != names[2]
    assert finished == names


def test_bf16(finished, tmp_path, monkeypatch):
    """As `--mixed_precision bf16` sets it: losses differ from float32's, but little; weights are stored in float32."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    run = quick_run(tmp_path / "run", "optimization.max_steps=6")
    (about,) = read_metrics(run, "run")
    assert about["mixed_precision"] == "bf16"
    found, expected = ([record["loss"] for record in read_metrics(each, "train")][:6] for each in (run, finished))
    assert found != expected
    assert found == pytest.approx(expected, rel=0.01)
    assert {tensor.dtype for tensor in weights(run).values()} == {torch.float32}


def test_a_run_that_is_cut_short_ends_with_its_last_weights(tmp_path):
    """Nothing was evaluated: there is no best."""
    run = tmp_path / "run"
    options = ["evaluation.every=100", "checkpoints.every=2"]
    quick_run(run, *options, "optimization.max_steps=4")
    (run / "checkpoints" / "step-0000004" / "manifest.json").unlink()
    quick_run(run, *options, "optimization.max_steps=2", resume=True)
    assert equal_weights(run, run / "checkpoints" / "step-0000002")
    (test,) = read_metrics(run, "test")
    assert test["step"] == 2


@pytest.fixture
def give_losses(monkeypatch):
    """Sets what the next evaluations find as the loss on the validation split."""

    def give(*losses: float) -> None:
        following = iter(losses)
        monkeypatch.setattr("modeling_scratch.training.validation.corpus_loss", lambda *arguments: next(following))

    return give


BY_LOSS = ["optimization.max_steps=8", "evaluation.every=2", "evaluation.metric=loss", "evaluation.max_new_tokens=1"]


def best(run) -> list[str]:
    """The checkpoints whose weights are those at the folder's root."""
    return [path.name for path in sorted((run / "checkpoints").iterdir()) if equal_weights(run, path)]


def test_resuming_from_before_the_best(tmp_path, give_losses):
    """The best of the updates that are made again no longer counts."""
    run, options = tmp_path / "run", [*BY_LOSS, "checkpoints.every=2", "checkpoints.keep_last=4"]
    give_losses(4.0, 3.0, 1.0, 2.0)
    quick_run(run, *options)
    assert best(run) == ["step-0000006"]
    give_losses(4.0, 5.0)
    quick_run(run, *options, resume_from="step-0000004")
    assert best(run) == ["step-0000004"]
    shutil.rmtree(run / "checkpoints" / "step-0000004")
    give_losses(4.0)
    quick_run(run, *options, resume_from="step-0000006")
    assert best(run) == ["step-0000008"]


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path, give_losses):
    give_losses(math.nan, 3.0, 4.0, 5.0)
    run = quick_run(tmp_path / "run", *BY_LOSS, "checkpoints.every=2", "checkpoints.keep_last=4")
    assert best(run) == ["step-0000004"]
    assert "NaN" not in (run / "metrics.jsonl").read_text()  # which is not JSON
    assert [record.get("loss") for record in read_metrics(run, "validation")][:2] == [None, 3.0]


def test_the_best_has_a_checkpoint(tmp_path, give_losses):
    """Even if it was found between two that the recipe asks for."""
    give_losses(3.0, 2.0, 4.0, 3.0)
    run = quick_run(tmp_path / "run", *BY_LOSS, "checkpoints.every=100", "checkpoints.keep_last=1")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-0000004", "step-0000008"]
    assert best(run) == ["step-0000004"]


def test_other_pairs_of_the_same_lengths_are_refused(tmp_path, capsys):
    """Where nothing but the text differs: two sentences of as many tokens have changed places."""
    for path in Path(few_sentences()[0].partition("=")[2]).parent.iterdir():
        shutil.copy(path, tmp_path)
    data = [f"data.{split}_files={tmp_path / split}" for split in ("train", "validation", "test")]
    run = quick_run(tmp_path / "run", *data, "optimization.max_steps=2")
    tokenizer, lines = load_tokenizers(str(run))[0], (tmp_path / "train.de").read_text().splitlines()
    lengths = [len(ids) for ids in tokenizer(lines).input_ids]
    other = next(row for row in range(1, len(lines)) if lengths[row] == lengths[0] and lines[row] != lines[0])
    lines[0], lines[other] = lines[other], lines[0]
    (tmp_path / "train.de").write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit):
        quick_run(run, *data, "optimization.max_steps=4", resume=True)
    assert "the training data is not what the run" in capsys.readouterr().err


def test_scoring_without_enough_memory(finished, monkeypatch, capsys):
    def generate(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(evaluation, "generate_batch", generate)
    with pytest.raises(SystemExit) as ended:
        run_training(evaluate=str(finished))
    assert ended.value.code == 2
    assert "error: out of memory: use a smaller model, or do less at once" in capsys.readouterr().err


def test_scoring_writes_nothing(finished, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    run_training(evaluate=str(finished))
    output = capsys.readouterr().out
    (record,) = read_metrics(finished, "test")
    for key, title in (("bleu", "BLEU"), ("chrf", "chrF")):
        said = f"{title} {record[key]:.2f} ± {record[f'{key}_interval']:.2f}  ({record[f'{key}_signature']})"
        assert said in output
    assert "40 sentences of test" in output
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


# -- several processes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory):
    """Runs of one process that accumulates two micro-batches, and of two processes; float64, no dropout."""
    folder, runs = tmp_path_factory.mktemp("processes"), []
    for processes, pieces in ((1, 2), (2, 1)):
        runs.append(folder / str(processes))
        options = [*SMALL_RUN, *few_sentences(), "model.overrides.dropout=0.0", f"output_dir={runs[-1]}"]
        options += [f"optimization.gradient_accumulation_steps={pieces}", "optimization.max_steps=12"]
        options += ["evaluation.every=6", "data.embedded_size=300", "optimization.optimizer=muon", mixed_in(0.3)]
        # In float64, since float32's rounding grows under Adam, whatever the number of processes.
        run_group(folder, processes, train_all, [{"overrides": options, "float64": True}])
    return runs


def test_two_processes_see_the_batches_of_one(one_and_two):
    one, two = (read_metrics(run, "train") for run in one_and_two)
    assert [record["step"] for record in one] == [record["step"] for record in two] == list(range(1, 13))
    assert [record["target_tokens"] for record in one] == [record["target_tokens"] for record in two]
    for name in ("loss", "cross_entropy"):
        assert [record[name] for record in one] == pytest.approx([record[name] for record in two], abs=1e-9)


def test_two_processes_find_the_scores_of_one(one_and_two):
    one, two = (read_metrics(run, "validation") for run in one_and_two)
    assert [record["loss"] for record in one] == pytest.approx([record["loss"] for record in two], abs=1e-9)
    for name in ("bleu", "chrf"):
        assert [record[name] for record in one] == [record[name] for record in two]


def test_processes_score_every_sentence_once(finished, tmp_path):
    for processes in (1, 3):
        run_group(tmp_path, processes, score_into, str(tmp_path / f"{processes}.json"), str(finished))
    one, three = (json.loads((tmp_path / f"{processes}.json").read_text()) for processes in (1, 3))
    assert one == three
    assert len(one["translations"]) == 40


def test_processes_wait_for_the_main_one_and_not_for_ever(tmp_path):
    """Longer where it works for all of them, saying so; one that hangs ends the others soon."""
    job = wait_for_the_main_process_and_then_for_another
    main, hanging = start_group(tmp_path, job, [(str(tmp_path / "said"),)] * 2)
    assert main.end(45) == 2
    assert "process 0: another process has ended or cannot be reached" in main.said
    hanging.kill()
    said = hanging.said.splitlines()
    assert said[0] == "process 1 has waited 0.5 s for the main process, which is asleep"
    assert said[1].startswith("process 1 has waited 1 s")
    assert [(tmp_path / f"said-{rank}").read_text() for rank in range(2)] == ["waited", "waited"]


def test_two_processes_end_together_on_bad_input(tmp_path):
    overrides = (*SMALL_RUN, f"output_dir={tmp_path / 'run'}", "data.train_files=/none")
    processes = start_group(tmp_path, train_one, [overrides] * 2)
    assert [process.end() for process in processes] == [2, 2]
    assert "".join(process.said for process in processes).count("error: ") == 1
    assert not (tmp_path / "run").exists()


def test_a_test_set_can_be_taken_away(tmp_path):
    """As on the command line, one of a recipe's."""
    run = quick_run(tmp_path / "run", "optimization.max_steps=2", "data.test_sets={more: null}")
    assert [record.get("name") for record in read_metrics(run, "test")] == [None]


def test_further_test_sets_are_scored_by_name(tmp_path, capsys):
    _, validation, test = (option.partition("=")[2] for option in few_sentences())
    sets = f"data.test_sets={{held-out: {validation}, again: {test}}}"
    run = quick_run(tmp_path / "run", "optimization.max_steps=2", "evaluation.every=2", "checkpoints.every=2", sets)
    said = capsys.readouterr().out
    final = {record.get("name"): record for record in read_metrics(run, "test") if record["final"]}
    assert set(final) == {None, "held-out", "again"}
    assert {record["sentences"] for record in final.values()} == {40}
    assert re.findall(r"^On (.*):$", said, re.MULTILINE) == ["test", "held-out", "again"]
    run_training(evaluate=str(run))
    scores = re.findall(r"40 sentences of (\S+)\n  BLEU ([\d.]+)", capsys.readouterr().out)
    assert scores == [(name or "test", f"{record['bleu']:.2f}") for name, record in final.items()]
    card = str(build_card(run, "ada/model"))
    assert f"| held-out | {final['held-out']['bleu']:.2f} ± " in card
    assert test.removesuffix("/test") not in card

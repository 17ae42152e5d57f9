"""A resumed run makes the same updates as one that was never interrupted; what may change when it resumes."""

import itertools
import json
import shutil
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import (
    SMALL_RUN,
    equal_weights,
    few_sentences,
    killed_run,
    mixed_in,
    quick_run,
    read_metrics,
    train_losses,
    unchanged,
    updates,
)
from filelock import FileLock
from forked import run_group
from train_on_processes import train_all
from waiting import LONGEST

from modeling_scratch.data.batches import BinCollator
from modeling_scratch.data.tokenizer import PairTokenizer
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.recipe.reading import load_recipe, recipe_text
from modeling_scratch.run import checkpoints
from modeling_scratch.run import folder as run_folder
from modeling_scratch.run.checkpoints import _differences, find_checkpoint
from modeling_scratch.run.folder import RunFolder
from modeling_scratch.run.progress import Progress
from modeling_scratch.run.records import RECIPE
from modeling_scratch.training import preparation


def test_runs_of_one_seed_are_equal(trained, tmp_path):
    again, other = quick_run(tmp_path / "again"), quick_run(tmp_path / "other", "seed=1", "optimization.max_steps=2")
    assert updates(again) == updates(trained)
    assert equal_weights(again, trained)
    assert updates(other) != updates(trained)[:2]


def test_drawn_pairs_are_evaluated_at_the_end_of_each_epoch(tmp_path):
    """Epochs differ in their number of updates, and together they have 20."""
    options = ["optimization.max_steps=null", "optimization.max_epochs=3", "seed=10", "evaluation.every=epoch"]
    run = quick_run(tmp_path / "run", *few_sentences(60), *options, mixed_in(0.5), "data.embedded_size=60")
    evaluated = read_metrics(run, "validation")
    assert [record["step"] for record in evaluated][::2] == [6, 20]
    assert [record["epoch"] for record in evaluated] == [1.0, 2.0, 3.0]


OFTEN = "lower_case: 0.5, drop_final_punctuation: 0.5, misspell: 0.5, join_sentences: 0.2, cut_phrase: 0.2"
CHANGED = [f"data.augment={{{OFTEN}}}", "optimization.max_steps=12"]
MIXED = "data.mix=[{name: embedded, weight: 0.5}]"
DRAWN = [*CHANGED, *few_sentences(60), MIXED, "data.embedded_size=60", "optimization.optimizer=muon"]
STREAM = [*CHANGED, "data.streaming=true", "data.shuffle_buffer=100"]


@pytest.mark.parametrize(
    "options", [[], DRAWN, STREAM], ids=["mid-epoch", "pairs drawn and changed in epoch 2, Muon", "stream"]
)
def test_a_killed_run_makes_the_same_updates_when_it_resumes(options, trained, tmp_path):
    """With dropout, and killed one update after a checkpoint."""
    undisturbed = quick_run(tmp_path / "undisturbed", *options) if options else trained
    run = killed_run(12, tmp_path / "run", *options)
    assert max(record["step"] for record in read_metrics(run, "train")) == 11
    quick_run(run, *options, resume=True)
    assert updates(run) == updates(undisturbed)
    assert equal_weights(run, undisturbed)
    assert read_metrics(run, "test") == read_metrics(undisturbed, "test")


def test_two_processes_make_the_same_updates_when_they_resume(tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    options = [*SMALL_RUN, *few_sentences(), "optimization.max_steps=6", "checkpoints.every=3"]
    run_group(tmp_path, 2, train_all, [{"overrides": [*options, f"output_dir={whole}"]}])
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns(".lock"))
    resumed = {"overrides": [*options, f"output_dir={run}"], "resume_from": "step-0000003"}
    run_group(tmp_path, 2, train_all, [resumed])
    assert len([record for record in read_metrics(run) if record["split"] == "run"]) == 2
    assert updates(run) == updates(whole)
    assert equal_weights(run, whole)


def test_a_finished_run_can_be_extended(tmp_path):
    # With a schedule that does not depend on the number of updates.
    options = ["optimization.schedule=inverse_sqrt", "optimization.max_steps=6", "evaluation.metric=loss"]
    whole = quick_run(tmp_path / "whole", *options)
    longer = quick_run(tmp_path / "longer", *options, "optimization.max_steps=4")
    quick_run(longer, *options, resume=True)
    assert updates(longer) == updates(whole)
    assert equal_weights(longer, whole)


@pytest.fixture
def own_data(tmp_path) -> list[str]:
    """Overrides that name copies of the small text files, to change."""
    for path in Path(few_sentences()[0].partition("=")[2]).parent.iterdir():
        shutil.copy(path, tmp_path)
    return [f"data.{split}_files={tmp_path / split}" for split in ("train", "validation", "test")]


def test_changed_training_pairs_are_refused(own_data, tmp_path, fails):
    """Even if all lengths are the same, as when two sentences of equal length are exchanged."""
    run = quick_run(tmp_path / "run", *own_data, "optimization.max_steps=2")
    tokenizer, lines = load_tokenizers(str(run))[0], (tmp_path / "train.de").read_text().splitlines()
    lengths = [len(ids) for ids in tokenizer(lines).input_ids]
    other = next(row for row in range(1, len(lines)) if lengths[row] == lengths[0] and lines[row] != lines[0])
    lines[0], lines[other] = lines[other], lines[0]
    (tmp_path / "train.de").write_text("\n".join(lines) + "\n")
    assert "training data" in fails(run, *own_data, "optimization.max_steps=4", resume=True)


def test_changed_validation_pairs_are_logged(own_data, tmp_path, capsys):
    options = [*own_data, "evaluation.every=1", "checkpoints.every=1", "optimization.max_steps=2"]
    run = quick_run(tmp_path / "run", *options)
    for side in ("en", "de"):
        lines = (tmp_path / f"validation.{side}").read_text().splitlines()
        (tmp_path / f"validation.{side}").write_text("\n".join(lines[1:]) + "\n")
    best = (run / "model.safetensors").read_bytes()
    quick_run(run, *options, resume=True)
    assert "the validation pairs have changed" in capsys.readouterr().err
    assert (run / "model.safetensors").read_bytes() == best


def test_a_run_of_an_older_version_keeps_its_tokens(own_data, tmp_path):
    """Older versions trained on sources with all their white space."""
    (tmp_path / "train.en").write_text((tmp_path / "train.en").read_text().replace(" ", "  "))
    unclean = {"cleans_sources": False}
    with (
        patch.object(preparation, "PairTokenizer", lambda *given, **named: PairTokenizer(*given, **named | unclean)),
        patch("modeling_scratch.training.train.Progress", lambda **given: Progress(**given | {"clean_sources": False})),
    ):
        run = quick_run(tmp_path / "run", *own_data, "optimization.max_steps=2")
    # With other tokens, the training data would have changed, and the run could not resume.
    quick_run(run, *own_data, "optimization.max_steps=3", resume=True)
    assert read_metrics(run, "test")[-1]["step"] == 3


def test_a_run_stopped_while_its_start_is_scored_resumes(trained, tmp_path, stops):
    options = [f"model.start_from={trained}", "model.overrides={}", "optimization.max_steps=2"]
    stops(tmp_path / "run", *options, max_minutes=0)
    run, undisturbed = quick_run(tmp_path / "run", *options, resume=True), quick_run(tmp_path / "whole", *options)
    assert equal_weights(run, undisturbed)
    scores = [[record["bleu"] for record in read_metrics(each, "before")] for each in (run, undisturbed)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("first", "option"),
    [("padded", "data.streaming=true"), ("bins", "optimization.gradient_accumulation_steps=2")],
)
def test_a_run_resumes_with_another_layout_of_batches(first, option, tmp_path, monkeypatch):
    """As between a CPU and a GPU: without dropout, the losses are equal except for rounding."""
    options = ["model.overrides.dropout=0.0", option]
    whole = quick_run(tmp_path / "whole", *options)

    def use(layout: str, patch: pytest.MonkeyPatch) -> None:
        if layout == "bins":
            patch.setattr(preparation, "make_collator", lambda recipe, accelerator, pad: BinCollator(pad, rows=2))

    with monkeypatch.context() as patch:
        use(first, patch)
        killed_run(15, tmp_path / "run", *options)
    use({"padded": "bins", "bins": "padded"}[first], monkeypatch)
    quick_run(tmp_path / "run", *options, resume=True)
    assert train_losses(tmp_path / "run") == pytest.approx(train_losses(whole), abs=1e-4)


def test_a_run_resumes_from_checkpoints_written_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "monotonic", itertools.count(step=10).__next__)
    options = ["checkpoints.every=1m", "checkpoints.keep_last=100", "optimization.max_steps=10"]
    run = quick_run(tmp_path / "run", *options)
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert len(names) > 2
    assert names[-1] == "step-0000010"
    weights = (run / "model.safetensors").read_bytes()
    quick_run(run, *options, resume_from=names[0])
    assert (run / "model.safetensors").read_bytes() == weights


# -- --auto-resume -----------------------------------------------------------------------------------------------------


TWO_UPDATES, FOUR_UPDATES = ["optimization.max_steps=2"], ["optimization.max_steps=4"]


@pytest.fixture(scope="module")
def after_two_updates(tmp_path_factory):
    return quick_run(tmp_path_factory.mktemp("runs") / "run", *TWO_UPDATES)


@pytest.fixture
def two_updates(after_two_updates, tmp_path):
    return shutil.copytree(after_two_updates, tmp_path / "run", ignore=shutil.ignore_patterns(".lock"))


def test_one_command_line_starts_resumes_and_leaves_a_finished_run_alone(tmp_path, stops, capsys):
    run, whole = tmp_path / "run", quick_run(tmp_path / "whole", *FOUR_UPDATES)
    stops(run, *FOUR_UPDATES, auto_resume=True, max_minutes=0)
    assert len(read_metrics(run, "train")) == 1
    quick_run(run, *FOUR_UPDATES, auto_resume=True)
    assert equal_weights(run, whole)
    moved = shutil.copytree(run, tmp_path / "moved", ignore=shutil.ignore_patterns(".lock"))
    capsys.readouterr()
    with unchanged(moved):
        quick_run(moved, *FOUR_UPDATES, "evaluation.batch_size=3", auto_resume=True)
    assert "is finished" in capsys.readouterr().out
    quick_run(moved, *FOUR_UPDATES, "evaluation.num_beams=1", auto_resume=True)  # its test set is scored again
    assert [record["num_beams"] for record in read_metrics(moved, "test")] == [1]
    assert equal_weights(moved, whole)


def test_a_run_without_a_checkpoint_starts_again(two_updates):
    shutil.rmtree(two_updates / "checkpoints")
    (two_updates / "model.safetensors").unlink()
    (two_updates / "metrics.jsonl").unlink()  # which records that the run is finished
    quick_run(two_updates, "optimization.max_steps=3", auto_resume=True)
    assert [record["step"] for record in read_metrics(two_updates, "train")] == [1, 2, 3]


def test_a_run_waits_for_the_one_that_is_ending_in_its_folder(two_updates, tmp_path, monkeypatch):
    """A job that a scheduler is ending may be writing its first checkpoint."""
    moved = shutil.move(two_updates / "checkpoints", tmp_path / "checkpoints")
    weights = (two_updates / "model.safetensors").read_bytes()
    (two_updates / "model.safetensors").unlink()

    def end():
        assert waiting.wait(LONGEST)
        shutil.move(moved, two_updates / "checkpoints")
        (two_updates / "model.safetensors").write_bytes(weights)
        held.release()

    held, waiting, acquire = FileLock(two_updates / ".lock", thread_local=False), threading.Event(), FileLock.acquire
    held.acquire()
    monkeypatch.setattr(FileLock, "acquire", lambda *given, **options: waiting.set() or acquire(*given, **options))
    monkeypatch.setattr(run_folder, "_SECONDS_TO_LOCK", LONGEST)
    thread = threading.Thread(target=end)
    thread.start()
    quick_run(two_updates, "optimization.max_steps=3", auto_resume=True)
    thread.join()
    assert len(read_metrics(two_updates, "run")) == 2  # it was resumed


@pytest.mark.parametrize("lost", ["model.safetensors", "modeling_scratch.py", "translations/test.txt"])
def test_files_that_a_finished_run_has_lost_are_written_again(lost, two_updates, capsys):
    before = (two_updates / lost).read_bytes()
    (two_updates / lost).unlink()
    quick_run(two_updates, *TWO_UPDATES, auto_resume=True)
    assert f"lacks {lost}" in capsys.readouterr().err
    assert (two_updates / lost).read_bytes() == before


def test_a_finished_run_without_weights_keeps_its_scores(two_updates, fails):
    shutil.rmtree(two_updates / "checkpoints")
    (two_updates / "model.safetensors").unlink()
    records = read_metrics(two_updates)
    assert "checkpoint" in fails(two_updates, *TWO_UPDATES, auto_resume=True)
    assert read_metrics(two_updates) == records


def test_a_longer_run_warns_that_its_schedule_changes(two_updates, caplog):
    recipe = load_recipe(two_updates / RECIPE, ["optimization.schedule=cosine"])
    (two_updates / RECIPE).write_text(recipe_text(recipe))
    for most, warns in ((2, False), (3, True)):
        recipe.optimization.max_steps = most
        find_checkpoint(RunFolder(two_updates), recipe, None)
        assert ("schedule depends" in caplog.text) == warns


def test_keys_that_change_no_update_may_change(two_updates, capsys):
    quick_run(two_updates, "optimization.max_steps=4", "logging_steps=2", "evaluation.num_beams=1", resume=True)
    assert "optimization.max_steps, evaluation.num_beams, logging_steps" in capsys.readouterr().err
    assert [record["step"] for record in read_metrics(two_updates, "train")] == [1, 2, 4]
    generation = json.loads((two_updates / "generation_config.json").read_text())
    assert generation.get("num_beams", 1) == 1


def test_a_run_resumes_on_other_hardware_and_logs_what_differs(two_updates, monkeypatch, capsys):
    saved = Progress(processes=1, device="cpu", precision="no", compiled=False)
    assert _differences(saved, saved) == []
    found = _differences(saved, Progress(processes=2, device="cuda", precision="bf16", compiled=True))
    assert len(found) == 4
    monkeypatch.setattr(checkpoints, "_differences", lambda saved, current: found)
    quick_run(two_updates, "optimization.max_steps=3", resume=True)
    output = capsys.readouterr().err
    assert all(difference in output for difference in found)
    assert [record["step"] for record in read_metrics(two_updates, "train")] == [1, 2, 3]

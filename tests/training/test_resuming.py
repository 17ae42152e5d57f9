"""What the seed decides: all updates, whether a run is interrupted or not; and what may change when it resumes."""

import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import (
    SMALL_RUN,
    Killed,
    equal_weights,
    few_sentences,
    kill_at_update,
    mixed_in,
    quick_run,
    read_metrics,
    train_losses,
    updates,
)
from forked import run_group
from train_on_processes import train_all

from modeling_scratch.data.batches import BinCollator
from modeling_scratch.data.tokenizer import PairTokenizer
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.training import inputs
from modeling_scratch.training.folder import OPTIMIZER, STATE
from modeling_scratch.training.progress import Progress


def test_the_seed_decides(finished, tmp_path):
    again, other = quick_run(tmp_path / "again"), quick_run(tmp_path / "other", "seed=1", "optimization.max_steps=2")
    assert updates(again) == updates(finished)
    assert equal_weights(again, finished)
    assert updates(other) != updates(finished)[:2]


@pytest.mark.parametrize(("seed", "all_as_the_first"), [(0, 21), (10, 18)])
def test_epochs_of_pairs_that_are_drawn_end_with_the_run(seed, all_as_the_first, tmp_path):
    """Epochs differ in their updates: 20 in all. The last evaluation is that of the last epoch."""
    options = ["optimization.max_steps=null", "optimization.max_epochs=3", f"seed={seed}", "evaluation.every=epoch"]
    run = quick_run(tmp_path / "run", *few_sentences(60), *options, mixed_in(0.5), "data.embedded_size=60")
    evaluated = read_metrics(run, "validation")
    assert 3 * evaluated[0]["step"] == all_as_the_first
    assert evaluated[-1]["step"] == 20
    assert [record["epoch"] for record in evaluated] == [1.0, 2.0, 3.0]


DRAWN = [*few_sentences(60), mixed_in(0.5), "data.embedded_size=60", "optimization.optimizer=muon"]
STREAM = ["data.streaming=true", "data.shuffle_buffer=100"]


@pytest.mark.parametrize("options", [[], DRAWN, STREAM], ids=["mid-epoch", "pairs drawn in epoch 2, Muon", "stream"])
def test_a_killed_run_makes_the_same_updates_when_it_resumes(options, tmp_path, monkeypatch):
    """With dropout; killed two updates after a checkpoint."""
    options = [*options, "optimization.max_steps=12", "checkpoints.every=5", "evaluation.every=10"]
    undisturbed, run = quick_run(tmp_path / "undisturbed", *options), tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at_update(patch, 12)
        with pytest.raises(Killed):
            quick_run(run, *options)
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


def test_a_finished_run_continues_if_it_is_to_be_longer(tmp_path):
    # A schedule that does not depend on the run's end, and weights that are better at each.
    options = ["optimization.schedule=inverse_sqrt", "optimization.max_steps=6", "evaluation.metric=loss"]
    whole = quick_run(tmp_path / "whole", *options)
    longer = quick_run(tmp_path / "longer", *options, "optimization.max_steps=4")
    quick_run(longer, *options, resume=True)
    assert updates(longer) == updates(whole)
    assert equal_weights(longer, whole)


def test_a_run_resumed_from_an_earlier_checkpoint_can_end_there(tmp_path):
    """Nothing was evaluated: there is no best."""
    options = ["evaluation.every=100", "checkpoints.every=2"]
    run = quick_run(tmp_path / "run", *options, "optimization.max_steps=4")
    quick_run(run, *options, "optimization.max_steps=2", resume_from="step-0000002")
    assert equal_weights(run, run / "checkpoints" / "step-0000002")
    assert [record["step"] for record in read_metrics(run, "test")] == [2]


def test_a_damaged_file_of_a_checkpoint_is_named(tmp_path, capsys):
    """From the one before it the run makes the same updates again."""
    options = ["optimization.max_steps=4", "checkpoints.every=2"]
    run = quick_run(tmp_path / "run", *options)
    undisturbed = shutil.copytree(run, tmp_path / "undisturbed")
    for name in ("random_states_0.pkl", OPTIMIZER, "model.safetensors", STATE):  # the last read is damaged first
        (run / "checkpoints" / "step-0000004" / name).write_bytes(b"damaged")
        with pytest.raises(SystemExit) as ended:
            quick_run(run, *options, resume=True)
        assert ended.value.code == 2
        assert name in (error := capsys.readouterr().err) or "step-0000004: its weights" in error
    quick_run(run, *options, resume_from="step-0000002")
    assert updates(run) == updates(undisturbed)
    assert equal_weights(run, undisturbed)


def test_a_schedule_that_follows_another_length_is_logged(tmp_path, capsys):
    run = quick_run(tmp_path / "run", "optimization.schedule=cosine", "optimization.max_steps=2")
    assert "schedule depends" not in capsys.readouterr().err
    quick_run(run, "optimization.schedule=cosine", "optimization.max_steps=3", resume=True)
    assert "schedule depends" in capsys.readouterr().err


@pytest.fixture
def own_data(tmp_path) -> list[str]:
    """Options that name copies of the small text files."""
    for path in Path(few_sentences()[0].partition("=")[2]).parent.iterdir():
        shutil.copy(path, tmp_path)
    return [f"data.{split}_files={tmp_path / split}" for split in ("train", "validation", "test")]


def test_other_pairs_of_the_same_lengths_are_refused(own_data, tmp_path, capsys):
    """Where only the text differs: two sentences of as many tokens have changed places."""
    run = quick_run(tmp_path / "run", *own_data, "optimization.max_steps=2")
    tokenizer, lines = load_tokenizers(str(run))[0], (tmp_path / "train.de").read_text().splitlines()
    lengths = [len(ids) for ids in tokenizer(lines).input_ids]
    other = next(row for row in range(1, len(lines)) if lengths[row] == lengths[0] and lines[row] != lines[0])
    lines[0], lines[other] = lines[other], lines[0]
    (tmp_path / "train.de").write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit):
        quick_run(run, *own_data, "optimization.max_steps=4", resume=True)
    assert "the training data is not what the run" in capsys.readouterr().err


def test_other_validation_pairs_are_logged(own_data, tmp_path, capsys):
    options = [*own_data, "evaluation.every=1", "checkpoints.every=1", "optimization.max_steps=2"]
    run = quick_run(tmp_path / "run", *options)
    for side in ("en", "de"):
        lines = (tmp_path / f"validation.{side}").read_text().splitlines()
        (tmp_path / f"validation.{side}").write_text("\n".join(lines[1:]) + "\n")
    best = (run / "model.safetensors").read_bytes()
    quick_run(run, *options, resume=True)
    assert "the validation pairs have changed" in capsys.readouterr().err
    assert (run / "model.safetensors").read_bytes() == best


def test_a_run_continues_with_the_tokens_that_it_began_with(own_data, tmp_path):
    """Older checkpoints were trained on sources with all their white space."""
    (tmp_path / "train.en").write_text((tmp_path / "train.en").read_text().replace(" ", "  "))
    with (
        patch.object(inputs, "PairTokenizer", lambda *given, **_: PairTokenizer(*given, cleans_sources=False)),
        patch("modeling_scratch.training.start.Progress", lambda **given: Progress(**given | {"clean_sources": False})),
    ):
        run = quick_run(tmp_path / "run", *own_data, "optimization.max_steps=2")
    # Refused, if its training pairs had other tokens.
    quick_run(run, *own_data, "optimization.max_steps=3", resume=True)
    assert read_metrics(run, "test")[-1]["step"] == 3


def test_stopped_while_the_start_is_scored(finished, tmp_path):
    options = [f"model.start_from={finished}", "model.overrides={}", "optimization.max_steps=2"]
    with pytest.raises(SystemExit) as stopped:
        quick_run(tmp_path / "run", *options, max_minutes=0)
    assert stopped.value.code == 75
    run, undisturbed = quick_run(tmp_path / "run", *options, resume=True), quick_run(tmp_path / "whole", *options)
    assert equal_weights(run, undisturbed)
    scores = [[record["bleu"] for record in read_metrics(each, "before")] for each in (run, undisturbed)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("first", ["padded", "bins"])
@pytest.mark.parametrize("option", ["data.streaming=true", "optimization.gradient_accumulation_steps=2"])
def test_a_run_resumes_in_another_layout(first, option, tmp_path, monkeypatch):
    """As between a CPU and a GPU: the same losses but for rounding, without dropout."""
    options = ["model.overrides.dropout=0.0", option]
    whole = quick_run(tmp_path / "whole", *options)

    def run(layout: str, **more) -> None:
        with monkeypatch.context() as patch:
            if layout == "bins":
                patch.setattr(inputs, "make_collator", lambda recipe, accelerator, pad: BinCollator(pad, rows=2))
            quick_run(tmp_path / "run", *options, **more)

    with monkeypatch.context() as patch:
        kill_at_update(patch, 15)
        with pytest.raises(Killed):
            run(first)
    run({"padded": "bins", "bins": "padded"}[first], resume=True)
    assert train_losses(tmp_path / "run") == pytest.approx(train_losses(whole), abs=1e-4)

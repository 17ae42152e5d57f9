"""What the seed decides: all updates, whether a run is interrupted or not."""

import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import (
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

from modeling_scratch.data.batches import BinCollator
from modeling_scratch.data.tokenizer import PairTokenizer
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.training import inputs
from modeling_scratch.training.checkpoints import Progress


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
    assert 3 * evaluated[0]["step"] == all_as_the_first
    assert evaluated[-1]["step"] == 20
    assert [record["epoch"] for record in evaluated] == [1.0, 2.0, 3.0]


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


def test_other_validation_pairs_are_told(tmp_path, capsys):
    for path in Path(few_sentences()[0].partition("=")[2]).parent.iterdir():
        shutil.copy(path, tmp_path)
    data = [f"data.{split}_files={tmp_path / split}" for split in ("train", "validation", "test")]
    data += ["evaluation.every=1", "checkpoints.every=1"]
    run = quick_run(tmp_path / "run", *data, "optimization.max_steps=2")
    capsys.readouterr()
    for side in ("en", "de"):
        lines = (tmp_path / f"validation.{side}").read_text().splitlines()
        (tmp_path / f"validation.{side}").write_text("\n".join(lines[1:]) + "\n")
    best = (run / "model.safetensors").read_bytes()
    quick_run(run, *data, "optimization.max_steps=2", resume=True)
    assert "the validation pairs have changed" in capsys.readouterr().err
    assert (run / "model.safetensors").read_bytes() == best


def test_a_run_goes_on_with_the_tokens_it_began_with(tmp_path):
    """Older checkpoints were trained on sources with all their white space."""
    for path in Path(few_sentences()[0].partition("=")[2]).parent.iterdir():
        text = path.read_text()
        (tmp_path / path.name).write_text(text.replace(" ", "  ") if path.name == "train.en" else text)
    data = [f"data.{split}_files={tmp_path / split}" for split in ("train", "validation", "test")]
    with (
        patch(
            "modeling_scratch.training.inputs.PairTokenizer",
            lambda *given, cleans_sources: PairTokenizer(*given, cleans_sources=False),
        ),
        patch("modeling_scratch.training.run.Progress", lambda **given: Progress(**given | {"clean_sources": False})),
    ):
        run = quick_run(tmp_path / "run", *data, "optimization.max_steps=2")
    quick_run(run, *data, "optimization.max_steps=3", resume=True)  # refused, if its training pairs had other tokens
    assert read_metrics(run, "test")[-1]["step"] == 3


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


@pytest.mark.parametrize("first", ["padded", "bins"])
@pytest.mark.parametrize("option", ["data.streaming=true", "optimization.gradient_accumulation_steps=2"])
def test_a_run_resumes_in_another_layout(first, option, tmp_path, monkeypatch):
    """As between a CPU and a GPU: the same losses but for rounding, without dropout."""
    options = ["model.overrides.dropout=0.0", option]
    whole = quick_run(tmp_path / "whole", *options)

    def run(layout: str, **more) -> None:
        with monkeypatch.context() as patch:
            if layout == "bins":
                patch.setattr(
                    inputs, "make_collator", lambda recipe, accelerator, pad, config: BinCollator(pad, rows=2)
                )
            quick_run(tmp_path / "run", *options, **more)

    with monkeypatch.context() as patch:
        kill_at_update(patch, 15)
        with pytest.raises(Killed):
            run(first)
    run({"padded": "bins", "bins": "padded"}[first], resume=True)
    assert train_losses(tmp_path / "run") == pytest.approx(train_losses(whole), abs=1e-4)

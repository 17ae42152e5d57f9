"""A run ends with its best weights, its last or an average, and patience ends it early."""

import itertools
import math
import shutil
from pathlib import Path

import pytest
import torch
from conftest import equal_weights, few_sentences, quick_run, read_metrics, weights

from modeling_scratch.hub.card import build_card
from modeling_scratch.run.records import RunRecords
from modeling_scratch.training import evaluation as validation


def test_an_averaged_run_ends_with_the_mean_of_its_last_checkpoints(tmp_path):
    options = ["checkpoints.average_last=2", "checkpoints.every=2", "optimization.max_steps=6"]
    run = quick_run(tmp_path / "run", *options)
    snapshots = [weights(run / "checkpoints" / f"step-{step:07d}") for step in (4, 6)]
    for name, tensor in weights(run).items():
        expected = (snapshots[0][name].double() + snapshots[1][name].double()) / 2
        assert torch.equal(tensor, expected.float())


def test_a_run_ended_by_patience_logs_the_updates_since_the_last_record(tmp_path, capsys):
    options = ["optimization.learning_rate=3.0", "evaluation.metric=loss", "evaluation.patience=1"]
    options += ["evaluation.every=2", "logging_steps=50"]
    run = quick_run(tmp_path / "run", *options)
    records = read_metrics(run, "train")
    assert [2 < record["step"] < 20 for record in records] == [True]
    quick_run(run, *options, resume=True)  # as after a kill in the final scoring
    assert capsys.readouterr().err.count("evaluation.patience") == 2
    assert read_metrics(run, "train") == records


def test_a_run_that_gets_worse_ends_early_with_its_best_weights(tmp_path):
    """The learning rate ruins the model."""
    options = ["optimization.learning_rate=3.0", "optimization.schedule=constant", "optimization.max_steps=200"]
    options += ["evaluation.metric=loss", "evaluation.patience=2", "evaluation.every=2", "checkpoints.every=2"]
    run = quick_run(tmp_path / "run", *options, "checkpoints.keep_last=100")
    validation = [record for record in read_metrics(run, "validation") if "final" not in record]
    losses = [record["loss"] for record in validation]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == best + 3 < 100
    assert equal_weights(run, run / "checkpoints" / f"step-{validation[best]['step']:07d}")


@pytest.fixture
def give_losses(monkeypatch):
    """Sets the validation losses of the next evaluations."""

    def give(*losses: float) -> None:
        following = iter(losses)
        monkeypatch.setattr("modeling_scratch.training.evaluation.corpus_loss", lambda *arguments: next(following))

    return give


BY_LOSS = ["optimization.max_steps=8", "evaluation.every=2", "evaluation.metric=loss", "evaluation.max_new_tokens=1"]


def best(run) -> list[str]:
    """The checkpoints that have the final weights."""
    return [path.name for path in sorted((run / "checkpoints").iterdir()) if equal_weights(run, path)]


def test_a_run_resumed_from_before_its_best_forgets_it(tmp_path, give_losses):
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


def test_a_loss_of_nan_is_never_the_best(tmp_path, give_losses):
    give_losses(math.nan, 3.0, 4.0, 5.0)
    run = quick_run(tmp_path / "run", *BY_LOSS, "checkpoints.every=2", "checkpoints.keep_last=4")
    assert best(run) == ["step-0000004"]
    assert "NaN" not in (run / "metrics.jsonl").read_text()  # NaN is not JSON
    assert [record.get("loss") for record in read_metrics(run, "validation")][:2] == [None, 3.0]


def test_the_loss_chooses_the_best_where_bleu_cannot(tmp_path, give_losses, monkeypatch, capsys):
    """For targets of one word, BLEU is 0 for right translations, and higher for longer wrong ones."""
    data = []
    for option in few_sentences():
        name, _, path = option.partition("=")
        for side, words in (("en", None), ("de", 1)):
            lines = Path(f"{path}.{side}").read_text().splitlines()
            target = tmp_path / f"{Path(path).name}.{side}"
            target.write_text("".join(f"{' '.join(line.split()[:words])}\n" for line in lines))
        data.append(f"{name}={tmp_path / Path(path).name}")
    options = [*data, "optimization.max_steps=16", "evaluation.every=2", "evaluation.patience=2"]
    options += ["checkpoints.every=2", "checkpoints.keep_last=9"]
    give_losses(4.0, 3.0, 3.5, 3.1)
    scores, translate_split = itertools.chain([0.0, 0.0, 9.2], itertools.repeat(0.0)), validation.translate_split

    def rambling(*given, **more):
        translations, found = translate_split(*given, **more)
        return translations, found | {"bleu": next(scores)}

    monkeypatch.setattr(validation, "translate_split", rambling)
    run = quick_run(tmp_path / "run", *options)
    assert [record["bleu"] for record in read_metrics(run, "validation")] == [0, 0, 9.2, 0]
    assert best(run) == ["step-0000004"]
    output = capsys.readouterr().err
    assert output.count("so the loss chooses") == 1
    assert "training ends after update 8" in output
    assert "by Loss" in build_card(run, "ada/tiny", RunRecords(run)).text
    give_losses(3.2, 2.0, 2.5, 2.5)
    quick_run(run, *options, resume_from="step-0000004")
    assert best(run) == ["step-0000008"]
    output = capsys.readouterr().err
    assert "so the loss chooses" not in output
    assert "training ends after update 12" in output


def test_the_best_has_a_checkpoint_even_if_none_was_due(tmp_path, give_losses):
    give_losses(3.0, 2.0, 4.0, 3.0)
    run = quick_run(tmp_path / "run", *BY_LOSS, "checkpoints.every=100", "checkpoints.keep_last=1")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-0000004", "step-0000008"]
    assert best(run) == ["step-0000004"]

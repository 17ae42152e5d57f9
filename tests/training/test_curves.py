"""The curves show the records of metrics.jsonl, each measure in its own panel over the same updates."""

import json
import math

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from modeling_scratch.commands.figures import app
from modeling_scratch.run import curves


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def records():
    train = [
        {"split": "train", "step": step, "loss": 9 / step, "cross_entropy": 8 / step, "learning_rate": step * 1e-4}
        for step in range(1, 21)
    ]
    scores = [
        {"split": "validation", "step": 10, "loss": 1.5},
        {"split": "validation", "step": 20, "loss": 1.2, "bleu": 20.0, "chrf": 40.0},
        {"split": "test", "step": 20, "final": True, "bleu": 19.0, "chrf": 39.0},
    ]
    return train + scores


def test_the_command_plots_a_file_whose_last_line_was_cut_off(tmp_path):
    lines = [json.dumps(record) for record in records()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"split": "tr')
    assert run("curves", tmp_path).exit_code == 0
    pixels = imread(tmp_path / "curves.png")
    assert 1400 <= pixels.shape[1] <= 1600  # twice the width of a page on the Hub
    assert pixels[..., :3].std() > 0.02


def panels(metrics):
    return {axis.get_title(loc="left"): axis for axis in curves.curves_figure(metrics).axes}


LOSS, OBJECTIVE = "Cross-entropy per target token (nats)", "Training loss as minimized (nats)"


def test_each_measure_has_a_panel_and_all_share_the_updates():
    found = panels(records())
    drawn = {title: [line.get_xydata().tolist() for line in axis.lines] for title, axis in found.items()}
    assert drawn == {
        LOSS: [[[step, 8 / step] for step in range(1, 21)], [[10, 1.5], [20, 1.2]]],
        OBJECTIVE: [[[step, 9 / step] for step in range(1, 21)]],
        "BLEU on validation": [[[20, 20.0]]],
        "chrF on validation": [[[20, 40.0]]],
        "Learning rate": [[[step, step * 1e-4] for step in range(1, 21)]],
    }
    assert [text.get_text() for text in found[LOSS].get_legend().get_texts()] == ["training", "validation"]
    assert len({axis.get_xlim() for axis in found.values()}) == 1


def test_without_label_smoothing_there_is_one_training_loss():
    assert OBJECTIVE not in panels([record | {"loss": record.get("cross_entropy", 1.0)} for record in records()])


def test_a_missing_value_is_a_gap():
    metrics = records()
    del metrics[4]["loss"], metrics[4]["cross_entropy"]
    line = panels(metrics)[LOSS].lines[0]
    assert [step for step, value in line.get_xydata() if math.isnan(value)] == [5]


def test_only_warm_up_may_be_out_of_view():
    values = [1000.0 if step < 10 else 5 - step / 50 for step in range(1, 101)]
    train = [{"split": "train", "step": step, "cross_entropy": y} for step, y in enumerate(values, start=1)]
    validation = [{"split": "validation", "step": 0, "loss": 6.0}, {"split": "validation", "step": 100, "loss": 2.5}]
    low, high = panels(train + validation)[LOSS].get_ylim()
    assert 2.5 < low + 1 < 3.5
    assert 6 < high < 7


@pytest.mark.parametrize("metrics", [[], records()[:1], records()[:2], records()[-2:], [{"split": "run", "step": 0}]])
def test_a_run_with_few_records_can_be_plotted(metrics, recwarn):
    curves.curves_figure(metrics).draw_without_rendering()
    assert not recwarn.list


def test_a_short_run_is_in_view_beside_a_long_one():
    short, long = (
        [{"split": "validation", "step": step * n, "loss": 9.0 / step} for step in (1, 2, 3)] for n in (1, 99)
    )
    low, high = curves.comparison_figure({"short": short, "long": long}).axes[0].get_ylim()
    assert low < 3.0 < 4.5 < high


@pytest.mark.parametrize("metrics", [None, "", "loss 3\n"])
def test_a_folder_without_records_is_an_error(metrics, tmp_path):
    if metrics is not None:
        (tmp_path / "metrics.jsonl").write_text(metrics)
    result = run("curves", tmp_path)
    assert result.exit_code == 2
    assert "metrics.jsonl" in result.stderr

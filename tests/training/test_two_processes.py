"""Several processes make the updates of one, get its scores, and end together."""

import json
import re

import pytest
import torch
from conftest import SMALL_RUN, few_sentences, mixed_in, read_metrics
from forked import run_group, start_group
from train_on_processes import score_into, train_all, train_one, wait_for_one_that_hangs
from translators import widened

from modeling_scratch.loading import load_translator


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory):
    """A run of one process that accumulates two micro-batches and a run of two processes, without dropout."""
    folder, runs = tmp_path_factory.mktemp("processes"), []
    for processes, pieces in ((1, 2), (2, 1)):
        runs.append(folder / str(processes))
        options = [*SMALL_RUN, *few_sentences(), "model.overrides.dropout=0.0", f"output_dir={runs[-1]}"]
        options += [f"optimization.gradient_accumulation_steps={pieces}", "optimization.max_steps=12"]
        options += ["evaluation.every=6", "data.embedded_size=300", "optimization.optimizer=muon", mixed_in(0.3)]
        # In float64, since rounding errors of float32 grow under Adam.
        log = run_group(folder, processes, train_all, [{"overrides": options, "float64": True}])
        assert re.search(r"some of \d+ words are copied in [1-9]\d*% of the training pairs", log)
    return runs


def test_two_processes_make_the_updates_of_one(one_and_two):
    one, two = (read_metrics(run, "train") for run in one_and_two)
    assert [record["step"] for record in one] == [record["step"] for record in two] == list(range(1, 13))
    assert [record["target_tokens"] for record in one] == [record["target_tokens"] for record in two]
    for name in ("loss", "cross_entropy"):
        assert [record[name] for record in one] == pytest.approx([record[name] for record in two], abs=1e-9)


def test_two_processes_get_the_scores_of_one(one_and_two):
    one, two = (read_metrics(run, "validation") for run in one_and_two)
    assert [record["loss"] for record in one] == pytest.approx([record["loss"] for record in two], abs=1e-9)
    for name in ("bleu", "chrf"):
        assert [record[name] for record in one] == [record[name] for record in two]


def test_processes_score_every_sentence_once(trained, tmp_path):
    """With a random model whose translations differ, so that an exchange would be noticed."""
    folder = str(widened(trained, tmp_path / "model"))
    model = load_translator(folder)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    for processes in (1, 3):
        run_group(tmp_path, processes, score_into, str(tmp_path / f"{processes}.json"), folder)
    one, three = (json.loads((tmp_path / f"{processes}.json").read_text()) for processes in (1, 3))
    assert one == three
    assert len(one["translations"]) == 40
    assert len(set(one["translations"])) > 20


def test_a_process_that_hangs_ends_the_others(tmp_path):
    main, hanging = start_group(tmp_path, wait_for_one_that_hangs, [()] * 2)
    assert main.end() == 1
    hanging.kill()
    assert "if another process ended before this one" in main.output


def test_bad_input_ends_all_processes_with_one_error(tmp_path):
    overrides = (*SMALL_RUN, f"output_dir={tmp_path / 'run'}", "data.train_files=/none")
    processes = start_group(tmp_path, train_one, [overrides] * 2)
    assert [process.end() for process in processes] == [2, 2]
    assert "".join(process.output for process in processes).count("error: ") == 1
    assert not (tmp_path / "run").exists()

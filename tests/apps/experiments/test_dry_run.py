"""What a dry run describes, compared with the run that follows, and what it leaves behind."""

import os
import re
from pathlib import Path

import datasets
import pytest
import yaml
from conftest import SMALL_RUN, few_sentences, quick_run, read_metrics, run_training

from modeling_scratch import ScratchForConditionalGeneration


def dry_run(capsys, processes: int, *options: str) -> dict[str, str]:
    """The lines of a dry run, by their first words."""
    capsys.readouterr()
    run_training(*SMALL_RUN, *options, dry_run=True, processes=processes)
    recipe, _, output = capsys.readouterr().out.partition("\nmodel: ")
    assert yaml.safe_load(recipe)["evaluation"]["batch_size"] == 128  # a default
    return dict(line.split(": ", 1) for line in f"model: {output}".splitlines())


def test_batches_updates_and_parameters_are_those_of_the_run(tmp_path, monkeypatch, capsys):
    """An epoch of one process with 8 micro-batches per update has those of 4 processes with 2."""
    cut, size = "optimization.gradient_accumulation_steps", "optimization.tokens_per_batch=2048"
    options = [*few_sentences(), size, "optimization.max_steps=50", f"{cut}=2", f"output_dir={tmp_path / 'run'}"]
    output = dry_run(capsys, 4, *options)
    assert not any(tmp_path.iterdir())
    sizes, forward = [], ScratchForConditionalGeneration.forward

    def watched(self, *arguments, labels=None, **inputs):
        if self.training:
            sizes.append(labels.numel())
        return forward(self, *arguments, labels=labels, **inputs)

    monkeypatch.setattr(ScratchForConditionalGeneration, "forward", watched)
    epoch = ["optimization.max_epochs=1", "optimization.max_steps=null", "evaluation.every=epoch"]
    run = quick_run(tmp_path / "run", *epoch, size, f"{cut}=8")
    updates, model = len(read_metrics(run, "train")), ScratchForConditionalGeneration.from_pretrained(run)
    expected = f"2 micro-batches per update, each of at most {max(sizes)} padded target tokens"
    assert output["per process (4)"] == expected
    assert output["updates"].startswith(f"50, {updates} per epoch, of ")
    assert output["model"].startswith(f"{model.num_parameters():,} parameters")


def test_only_a_data_set_that_was_named_is_said_to_be_ignored(capsys):
    for options, ignored in (([], False), (["data.name=ada/pairs"], True)):
        run_training(*SMALL_RUN, *few_sentences(), *options, dry_run=True, processes=1)
        printed = capsys.readouterr()
        assert ("ignored" in printed.out + printed.err) == ignored


def test_a_dry_run_times_updates_and_leaves_only_cached_data(tmp_path, monkeypatch, capsys):
    options, cache = [*SMALL_RUN, *few_sentences(), "output_dir=run"], Path(datasets.config.HF_DATASETS_CACHE)
    monkeypatch.chdir(tmp_path)

    def left() -> set[Path]:
        paths = {path for folder in (tmp_path, Path(os.environ["HF_HOME"])) for path in folder.rglob("*")}
        return {path for path in paths if not path.is_relative_to(cache)}

    before = left()
    run_training(*options, dry_run=True)
    assert re.search(r"^time: about .* target tokens/s, from 5 updates", capsys.readouterr().out, re.MULTILINE)
    assert left() == before
    cached = set(cache.rglob("*"))
    run_training(*options, "optimization.max_steps=1")
    assert set(cache.rglob("*")) == cached  # the run uses the same data


def test_empty_micro_batches_are_a_warning(tmp_path, capsys):
    output = dry_run(capsys, 64, f"output_dir={tmp_path / 'run'}")
    (idle,) = [line for line in output if "are empty" in line]
    empty, parts = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", idle)[:2])
    assert parts % 64 == 0
    assert 0 < empty < parts
    assert "fewer processes" in output[idle]


def test_a_stream_is_described_by_its_tokens(tmp_path, capsys):
    stream = ["data.streaming=true", "optimization.max_steps=70", f"output_dir={tmp_path / 'run'}"]
    output = dry_run(capsys, 2, *stream)
    assert output["updates"].startswith("70, of at most 512 padded tokens")
    assert "256 padded target tokens" in output["per process (2)"]
    with pytest.raises(SystemExit):
        run_training(*SMALL_RUN, *stream, dry_run=True, processes=9)
    assert "leaves 56 tokens" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())

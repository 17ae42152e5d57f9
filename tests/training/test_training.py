"""Whole runs through train.py: the folder, the seed, resuming, fine-tuning, averaging, scoring, several processes."""

import itertools
import json
import math
import re
import shutil
import time

import pytest
import torch
from conftest import ROOT, SMALL_RUN, launch, read_metrics, run_command, run_training, small_run
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from modeling_scratch.data.corpus import write_corpus
from modeling_scratch.hub.card import build_card
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.training import loop
from modeling_scratch.training.validation import Validator


def weights(run):
    return load_file(run / "model.safetensors")


def equal_weights(first, second):
    return all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(first).items())


def updates(run):
    """What must not depend on interruptions: every update's loss and rate."""
    return [(r["step"], r["epoch"], r["loss"], r["learning_rate"]) for r in read_metrics(run, "train")]


def test_the_folder_of_a_run(trained):
    names = {path.name for path in trained.iterdir()}
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
        "samples.md",
        "checkpoints",
    }
    assert not [name for name in names if name.endswith(".tmp")]
    assert (trained / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (trained / "samples.md").read_text().count("- source: ") == 5
    assert load_recipe(trained / "recipe.yaml").optimization.max_steps == 20
    for checkpoint in (trained / "checkpoints").iterdir():
        AutoModelForSeq2SeqLM.from_pretrained(checkpoint)  # every checkpoint is a model folder too
        load_tokenizers(str(checkpoint))


def test_records(trained):
    assert [record["step"] for record in read_metrics(trained, "train")] == list(range(1, 21))
    validation = read_metrics(trained, "validation")
    assert [record["step"] for record in validation] == [10, 20]
    assert all({"loss", "bleu", "chrf"} <= set(record) for record in validation)
    (test,) = read_metrics(trained, "test")
    assert test["final"]
    assert "tok:13a" in test["bleu_signature"]
    losses = [record["loss"] for record in read_metrics(trained, "train")]
    assert losses[-1] < losses[0] - 0.5


LOADS_ALONE = """
import sys, json
sys.modules["modeling_scratch"] = None  # as on a machine that has nothing of this project
from transformers import AutoTokenizer, AutoModelForSeq2SeqLM
folder, sentences = sys.argv[1], json.loads(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
for sentence in sentences:
    output = model.generate(**tokenizer(sentence, return_tensors="pt"))
    print(json.dumps(tokenizer.decode(output[0], skip_special_tokens=True)))
"""


def test_another_process_translates_the_samples_alike(trained):
    page = (trained / "samples.md").read_text()
    sources, translations = re.findall(r"- source: (.*)", page), re.findall(r"  translation: ?(.*)", page)
    result = run_command("-c", LOADS_ALONE, str(trained), json.dumps(sources), PYTHONPATH="")
    assert result.returncode == 0, result.stderr
    assert [json.loads(line) for line in result.stdout.splitlines()] == translations


def test_the_seed_decides(trained, tmp_path):
    again, other = small_run(tmp_path / "again"), small_run(tmp_path / "other", "seed=1")
    assert updates(again) == updates(trained)
    assert equal_weights(again, trained)
    assert not equal_weights(other, trained)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stop_at", [13, 20])
def test_a_resumed_run_makes_the_same_updates(stop_at, tmp_path, monkeypatch, trained):
    """Stopped three updates after a checkpoint in mid-epoch, or after the last update."""
    update = loop._update

    def stop(run, batch):
        if run.progress.step == stop_at:
            raise Stopped
        return update(run, batch)

    options = ["optimization.max_steps=30"]
    whole = small_run(tmp_path / "whole", *options)
    assert any(record["epoch"] % 1 for record in read_metrics(whole, "train") if record["step"] in (10, 20))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_update", stop)
        with pytest.raises(SystemExit):
            small_run(tmp_path / "stopped", *options)
    assert max(record["step"] for record in read_metrics(tmp_path / "stopped", "train")) == stop_at
    small_run(tmp_path / "stopped", *options, resume=True)
    assert updates(tmp_path / "stopped") == updates(whole)
    assert equal_weights(tmp_path / "stopped", whole)
    assert read_metrics(tmp_path / "stopped", "test") == read_metrics(whole, "test")


def test_a_finished_run_can_go_on(tmp_path):
    options = ["optimization.schedule=inverse_sqrt"]  # knows nothing of the run's end
    whole = small_run(tmp_path / "whole", *options)
    longer = small_run(tmp_path / "longer", *options, "optimization.max_steps=12")
    small_run(longer, *options, resume=True)
    assert updates(longer) == updates(whole)
    assert equal_weights(longer, whole)


def test_averaging(tmp_path):
    run = small_run(tmp_path / "run", "checkpoints.average_last=2", "checkpoints.every=5")
    snapshots = [load_file(run / "checkpoints" / f"step-{step:07d}" / "model.safetensors") for step in (15, 20)]
    for name, tensor in weights(run).items():
        expected = (snapshots[0][name].double() + snapshots[1][name].double()) / 2
        assert torch.equal(tensor, expected.float())


def test_best_checkpoint_and_early_stopping(tmp_path):
    """A rate that ruins the model: the best weights are early ones, and patience ends the run."""
    options = ["optimization.learning_rate=3.0", "optimization.schedule=constant", "optimization.max_steps=200"]
    options += ["evaluation.metric=loss", "evaluation.patience=2", "evaluation.every=2", "checkpoints.every=2"]
    run = small_run(tmp_path / "run", *options, "checkpoints.keep_last=100")
    validation = [record for record in read_metrics(run, "validation") if "final" not in record]
    losses = [record["loss"] for record in validation]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == best + 3 < 100
    checkpoint = run / "checkpoints" / f"step-{validation[best]['step']:07d}" / "model.safetensors"
    for name, tensor in load_file(checkpoint).items():
        assert torch.equal(weights(run)[name], tensor)


def test_two_vocabularies(tmp_path):
    run = small_run(tmp_path / "run", "tokenizer.shared=false", "optimization.max_steps=4")
    source, target = load_tokenizers(str(run))
    config = AutoModelForSeq2SeqLM.from_pretrained(run).config
    assert source is not target
    assert not config.share_encoder_decoder_embeddings
    assert (config.vocab_size, config.decoder_vocab_size) == (len(source), len(target))
    assert target("Die Katze.").input_ids != source("Die Katze.").input_ids


def test_fine_tuning_starts_from_the_model(trained, tmp_path):
    options = [f"model.start_from={trained}", "model.overrides={}", "optimization.learning_rate=1e-9"]
    run = small_run(tmp_path / "run", *options, "optimization.max_steps=2", "checkpoints.every=1")
    for name, tensor in weights(trained).items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=0, atol=1e-7)
    assert (run / "tokenizer.json").read_text() == (trained / "tokenizer.json").read_text()
    assert AutoModelForSeq2SeqLM.from_pretrained(run).config.dropout == 0.1  # the model's own
    with_dropout = small_run(tmp_path / "other", *options, "model.overrides.dropout=0.3", "optimization.max_steps=1")
    assert AutoModelForSeq2SeqLM.from_pretrained(with_dropout).config.dropout == 0.3


def test_existing_tokenizer(trained, tmp_path):
    run = small_run(tmp_path / "run", f"tokenizer.existing={trained}", "optimization.max_steps=2")
    assert load_tokenizers(str(run))[0].get_vocab() == load_tokenizers(str(trained))[0].get_vocab()


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    run = small_run(tmp_path / "run", "trackers=[tensorboard]", "optimization.max_steps=2")
    assert list((run / "tracking").rglob("events.out.tfevents.*"))


def test_trackers_go_on_with_a_run_by_its_name(tmp_path, monkeypatch):
    """And write what they hold when it is stopped."""
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
        small_run(tmp_path / "run", *options, max_minutes=0)
    small_run(tmp_path / "run", *options, resume=True)
    small_run(tmp_path / "run", *options, overwrite=True)
    assert names[0] == names[1] != names[2]
    assert finished == names


def test_bf16(trained, tmp_path, monkeypatch):
    """As `--mixed_precision bf16` sets it: other losses than float32's, by little; weights are stored in float32."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    run = small_run(tmp_path / "run")
    (about,) = read_metrics(run, "run")
    assert about["mixed_precision"] == "bf16"
    found, expected = ([record["loss"] for record in read_metrics(each, "train")] for each in (run, trained))
    assert found != expected
    assert found == pytest.approx(expected, rel=0.01)
    assert {tensor.dtype for tensor in weights(run).values()} == {torch.float32}


def test_a_run_that_is_cut_short_ends_with_its_last_weights(tmp_path):
    """Nothing was evaluated: there is no best."""
    run = tmp_path / "run"
    options = ["evaluation.every=100", "checkpoints.every=5"]
    small_run(run, *options, "optimization.max_steps=10")
    (run / "checkpoints" / "step-0000010" / "manifest.json").unlink()
    small_run(run, *options, "optimization.max_steps=5", resume=True)
    assert equal_weights(run, run / "checkpoints" / "step-0000005")
    (test,) = read_metrics(run, "test")
    assert test["step"] == 5


def test_resuming_from_before_the_best(tmp_path, monkeypatch):
    """The best of the updates that are made anew is not the best; nor is a loss that is no number."""

    def run(losses, **options):
        losses = iter(losses)
        monkeypatch.setattr(Validator, "loss", lambda self: next(losses))
        small_run(
            tmp_path / "run",
            "evaluation.every=5",
            "evaluation.metric=loss",
            "checkpoints.every=5",
            "checkpoints.keep_last=4",
            **options,
        )

    def best():
        steps = [path for path in (tmp_path / "run" / "checkpoints").iterdir()]
        return [path.name for path in sorted(steps) if equal_weights(tmp_path / "run", path)]

    run([math.nan, 3.0, 1.0, 2.0])
    assert best() == ["step-0000015"]
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()  # which is no JSON
    assert [record.get("loss") for record in read_metrics(tmp_path / "run", "validation")][:2] == [None, 3.0]
    run([4.0, 5.0], resume_from="step-0000010")
    assert best() == ["step-0000010"]
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000010")
    run([4.0], resume_from="step-0000015")
    assert best() == ["step-0000020"]


def test_other_pairs_of_the_same_lengths_are_refused(tmp_path, capsys):
    write_corpus(tmp_path, 300)
    files = [f"data.{split}_files={tmp_path / split}" for split in ("train", "validation", "test")]
    run = small_run(tmp_path / "run", *files, "optimization.max_steps=2")
    lines = (tmp_path / "train.de").read_text().splitlines()
    order = sorted(range(len(lines)), key=lambda row: (len(tokens(run, lines[row])), row))
    swapped = list(lines)
    for first, second in itertools.pairwise(order):
        if len(tokens(run, lines[first])) == len(tokens(run, lines[second])) and lines[first] != lines[second]:
            swapped[first], swapped[second] = lines[second], lines[first]
            break
    assert swapped != lines
    (tmp_path / "train.de").write_text("\n".join(swapped) + "\n")
    with pytest.raises(SystemExit):
        small_run(run, *files, "optimization.max_steps=4", resume=True)
    assert "the training data is not what the run" in capsys.readouterr().err


def tokens(run, sentence):
    return load_tokenizers(str(run))[0](sentence).input_ids


def test_the_best_has_a_checkpoint(tmp_path, monkeypatch):
    """Also where it was found between two that the recipe asks for."""
    losses = iter([3.0, 2.0, 4.0, 3.0])
    monkeypatch.setattr(Validator, "loss", lambda self: next(losses))
    run = small_run(
        tmp_path / "run",
        "evaluation.every=5",
        "evaluation.metric=loss",
        "checkpoints.every=100",
        "checkpoints.keep_last=1",
    )
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-0000010", "step-0000020"]
    assert equal_weights(run, run / "checkpoints" / "step-0000010")
    assert not equal_weights(run, run / "checkpoints" / "step-0000020")


def test_scoring_writes_nothing(trained, capsys):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    run_training(evaluate=str(trained))
    output = capsys.readouterr().out
    (record,) = read_metrics(trained, "test")
    assert f"BLEU {record['bleu']:.2f}  ({record['bleu_signature']})" in output
    assert "500 sentences of test" in output
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


# -- several processes ---------------------------------------------------------------------------------------------


def test_two_processes_see_the_batches_of_one(tmp_path):
    """
    And one process those of one that accumulates two. In float64 without dropout: float32's rounding grows under Adam,
    whatever the number of processes.
    """
    script = str(ROOT / "tests" / "train_in_float64.py")
    options = [*SMALL_RUN, "model.overrides.dropout=0.0", "optimization.max_steps=50", "evaluation.every=25"]
    for processes, pieces in ((1, 2), (2, 1)):
        cut = f"optimization.gradient_accumulation_steps={pieces}"
        result = launch(processes, script, *options, cut, f"output_dir={tmp_path / str(processes)}")
        assert result.returncode == 0, result.stderr
    one, two = (read_metrics(tmp_path / str(processes), "train") for processes in (1, 2))
    assert [record["step"] for record in one] == [record["step"] for record in two] == list(range(1, 51))
    for first, second in zip(one, two, strict=True):
        assert first["target_tokens"] == second["target_tokens"]
        assert first["loss"] == pytest.approx(second["loss"], abs=1e-9)
    validation = [read_metrics(tmp_path / str(processes), "validation") for processes in (1, 2)]
    for first, second in zip(*validation, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], abs=1e-9)
        assert (first["bleu"], first["chrf"]) == (second["bleu"], second["chrf"])


def test_processes_score_every_sentence_once(trained):
    script = str(ROOT / "tests" / "score_and_dump.py")
    outputs = []
    for processes in (1, 3):
        result = launch(processes, script, str(trained))
        assert result.returncode == 0, result.stderr
        outputs.append(json.loads(result.stdout.splitlines()[-1]))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]["translations"]) == 500


PATIENCE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from datetime import timedelta
from modeling_scratch.runs import processes
from modeling_scratch.runs.faults import explained_loss_of_a_process
processes.PATIENCE, processes.PATIENCE_WITH_MAIN = timedelta(seconds=3), timedelta(seconds=60)
accelerator = processes.make_accelerator()
print(processes.on_main(accelerator, lambda: time.sleep(6) or "waited"), flush=True)
with explained_loss_of_a_process(accelerator):
    if not accelerator.is_main_process:
        time.sleep(60)
    accelerator.wait_for_everyone()
"""


def test_processes_wait_for_the_main_one_and_not_for_ever(tmp_path):
    """Longer where it works for all; one that hangs ends the others soon."""
    script = tmp_path / "patience.py"
    script.write_text(PATIENCE)
    began = time.monotonic()
    result = launch(2, str(script), str(ROOT))
    assert time.monotonic() - began < 45
    assert result.stdout.count("waited") == 2
    assert "process 0: another process has ended or cannot be reached" in result.stderr


def test_two_processes_end_together_on_bad_input(tmp_path):
    result = launch(2, str(ROOT / "train.py"), *SMALL_RUN, f"output_dir={tmp_path / 'run'}", "data.train_files=/none")
    assert result.returncode != 0
    assert result.stderr.count("error: ") == 1
    assert not (tmp_path / "run").exists()


def test_further_test_sets_are_scored_by_name(tmp_path, capsys):
    write_corpus(tmp_path / "text", 60)
    sets = f"data.test_sets={{held-out: {tmp_path / 'text' / 'validation'}, again: {tmp_path / 'text' / 'test'}}}"
    options = ["optimization.max_steps=2", "evaluation.every=2", "checkpoints.every=2", sets]
    run = small_run(tmp_path / "run", *options)
    said = capsys.readouterr().out
    final = {record.get("name"): record for record in read_metrics(run, "test") if record["final"]}
    assert set(final) == {None, "held-out", "again"}
    assert {record["sentences"] for record in final.values()} == {500}
    assert re.findall(r"^On (.*):$", said, re.MULTILINE) == ["test", "held-out", "again"]
    run_training(evaluate=str(run))
    scores = re.findall(r"500 sentences of (\S+)\n  BLEU ([\d.]+)", capsys.readouterr().out)
    assert scores == [(name or "test", f"{record['bleu']:.2f}") for name, record in final.items()]
    card = str(build_card(run, "ada/model"))
    assert f"| held-out | {final['held-out']['bleu']:.2f} |" in card
    assert str(tmp_path) not in card

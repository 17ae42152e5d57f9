"""Bad folders, checkpoints and numbers end with one clear line and exit code 2; for bad commands see bad_input.txt."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from conftest import SMALL_RUN, few_sentences, quick_run, read_metrics, run_training
from safetensors.torch import load_file, save_file
from transformers import MarianConfig

from modeling_scratch.commands import translate
from modeling_scratch.commands.cli import one_line_errors
from modeling_scratch.files import reading


def fails(capsys, *overrides, **options):
    """The one error line of train.py."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run_training(*overrides, **options)
    assert stop.value.code == 2
    output = capsys.readouterr()
    lines = [line for line in output.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, output.err
    assert "Traceback" not in output.err
    assert output.out == ""
    return lines[0]


def test_any_process_reports_that_it_ran_out_of_memory(capsys):
    """Not only the main one: the others may have enough."""
    with pytest.raises(SystemExit) as stop, one_line_errors(debug=False, is_main=False):
        raise MemoryError
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: out of memory: ")


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), ModuleNotFoundError("x"), ValueError("x")])
def test_only_errors_of_a_reader_are_blamed_on_the_user(error, tmp_path, capsys):
    for where, code in ((reading(tmp_path, "cannot be read: "), 2), (nullcontext(), 1)):
        with pytest.raises(SystemExit) as stop, one_line_errors(debug=False), where:
            raise error
        assert stop.value.code == code
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {tmp_path}: cannot be read: ")
    assert "bug of modeling_scratch" in printed


def test_the_folder_of_another_run_is_not_touched(trained, capsys):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    assert "already holds a run" in fails(capsys, *SMALL_RUN, f"output_dir={trained}")
    line = fails(capsys, *SMALL_RUN, f"output_dir={trained}", "seed=3", resume=True)
    assert "cannot resume" in line
    assert "seed" in line
    for key in ("checkpoints.average_last=2", "evaluation.metric=loss", "model.overrides.dropout=0.2"):
        assert key.split("=")[0] in fails(capsys, *SMALL_RUN, f"output_dir={trained}", key, resume=True)
    line = fails(capsys, *SMALL_RUN, f"output_dir={trained}", "data.train_files=/none/train", overwrite=True)
    assert "/none/train.en" in line
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_fine_tuning_another_kind_of_model_is_refused(trained, tmp_path, capsys):
    MarianConfig(vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1).save_pretrained(tmp_path / "marian")
    for file in trained.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "marian")
    line = fails(
        capsys,
        *SMALL_RUN,
        f"output_dir={tmp_path / 'run'}",
        f"model.start_from={tmp_path / 'marian'}",
        "model.overrides={}",
    )
    assert "is a marian model" in line


def test_overwrite_deletes_the_old_run_only(trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "thesis.txt").write_text("not of the run")
    (run / "modeling_old.py").write_text("of the old run")
    quick_run(run, "optimization.max_steps=3", overwrite=True)
    assert (run / "thesis.txt").exists()
    assert not (run / "modeling_old.py").exists()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-0000003"]


def test_a_run_may_begin_with_links_to_another_disk(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    quick_run(tmp_path / "run", "optimization.max_steps=1")
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["step-0000001"]


def test_a_damaged_model_cannot_be_scored(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    content = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(content[:-50])
    fails(capsys, evaluate=str(run))


def test_missing_weights_are_an_error(trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("checkpoints"))
    weights = load_file(run / "model.safetensors")
    name = "model.decoder.layers.0.cross_attn.q_proj.weight"
    del weights[name]
    save_file(weights, run / "model.safetensors", {"format": "pt"})
    for options in ({"evaluate": str(run)}, {}):
        overrides = [*SMALL_RUN, f"output_dir={tmp_path / 'new'}", f"model.start_from={run}", "model.overrides={}"]
        assert name in fails(capsys, *([] if options else overrides), **options)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["optimization.learning_rate=1e30", "optimization.warmup_steps=0", "evaluation.every=2"],
            "the loss on the validation split is not",
        ),
        (
            ["optimization.epsilon=1e-300", "optimization.max_steps=4"],
            "holds NaN or infinite values, and is not written",
        ),
        (["optimization.learning_rate=1e30", "checkpoints.average_last=2"], "training has diverged: "),
    ],
    ids=["learning rate", "epsilon", "average"],
)
def test_a_short_run_that_diverges_writes_no_model(overrides, said, tmp_path, capsys):
    """Too short for the guard that counts skipped updates."""
    run = tmp_path / "run"
    line = fails(capsys, *SMALL_RUN, *few_sentences(), f"output_dir={run}", *overrides)
    assert line.startswith("error: training has diverged: ")
    assert said in line
    assert not [record for record in read_metrics(run) if "final" in record]
    weights = set(run.rglob("*.safetensors"))
    assert run / "model.safetensors" not in weights
    for path in weights:
        assert all(torch.isfinite(tensor).all() for tensor in load_file(path).values())


def test_too_many_nonfinite_updates_end_a_run(tmp_path, capsys):
    options = ["optimization.learning_rate=1e30", "optimization.warmup_steps=0", "checkpoints.every=1"]
    options += ["optimization.max_nonfinite_updates=3", "data.embedded_size=30"]
    line = fails(capsys, *SMALL_RUN, f"output_dir={tmp_path / 'run'}", *options)
    assert "is not finite, as in the 3 updates before" in line
    assert "Lower optimization.learning_rate" in line
    step = int(re.search(r"update (\d+)", line)[1])
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept[-1] == f"step-{step - 4:07d}"  # of before
    for tensor in load_file(tmp_path / "run" / "checkpoints" / kept[-1] / "model.safetensors").values():
        assert torch.isfinite(tensor).all()


def test_the_data_to_score_on_is_never_guessed(trained, tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(trained / "checkpoints" / "step-0000020", elsewhere)
    assert "--config" in fails(capsys, evaluate=str(elsewhere))
    run_training(evaluate=str(trained / "checkpoints" / "step-0000020"))
    assert "500 sentences of test" in capsys.readouterr().out
    assert "do not go together" in fails(capsys, evaluate=str(trained), resume=True)


def test_debug_prints_the_traceback(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run_training(config=str(tmp_path / "none.yaml"), debug=True)
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "none.yaml: no such file" in printed.splitlines()[-1]


@pytest.mark.parametrize("wrong", [{"early_stopping": "x"}, {"num_beams": "x"}, {"length_penalty": [1]}], ids=str)
def test_generation_settings_of_the_wrong_type_are_named(wrong, trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints"))
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | wrong))
    with pytest.raises(SystemExit) as end:
        translate.main(str(folder), input=str(folder / "recipe.yaml"), format="lines")
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert next(iter(wrong)) in line

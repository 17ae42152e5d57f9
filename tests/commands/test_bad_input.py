"""Bad folders, checkpoints and diverging runs end with one line and exit code 2. Bad commands are in bad_input.txt."""

import json
import os
import re
import shutil
import sys
from contextlib import nullcontext
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import torch
from conftest import read_metrics, run_evaluation, run_training, unchanged
from safetensors.torch import load_file, save_file
from transformers import MarianConfig

from modeling_scratch.commands import figures, improve, translate, upload
from modeling_scratch.commands.cli import one_line_errors
from modeling_scratch.files import reading


def test_any_process_reports_that_it_ran_out_of_memory(capsys):
    with pytest.raises(SystemExit) as stop, one_line_errors(debug=False, is_main=False):
        raise MemoryError
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: out of memory: ")


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), ModuleNotFoundError("x"), ValueError("x")])
def test_only_errors_while_reading_a_file_are_user_errors(error, tmp_path, capsys):
    for where, code in ((reading(tmp_path, "cannot be read: "), 2), (nullcontext(), 1)):
        with pytest.raises(SystemExit) as stop, one_line_errors(debug=False), where:
            raise error
        assert stop.value.code == code
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {tmp_path}: cannot be read: ")
    assert "bug of modeling_scratch" in printed


def test_the_folder_of_another_run_is_not_touched(trained, fails):
    with unchanged(trained):
        assert "already holds a run" in fails(trained)
        for key in ("seed=3", "checkpoints.average_last=2", "evaluation.metric=loss", "model.overrides.dropout=0.2"):
            assert key.split("=")[0] in fails(trained, key, resume=True)
        named = f"--config {trained / 'recipe.yaml'}"
        assert named in fails(f"output_dir={trained}", run=run_training, resume=True)
        assert "/none/train.en" in fails(trained, "data.train_files=/none/train", overwrite=True)


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9"), "caf\ud800"], ids=ascii)
def test_names_that_are_not_utf_8_are_refused_before_anything_is_written(name, trained, tmp_path, fails, monkeypatch):
    """Recipes and the files of tokenizers cannot hold them. Python reads such bytes as surrogates (PEP 383)."""
    monkeypatch.chdir(tmp_path)
    os.symlink(trained, os.fsdecode(b"caf\xe9"))
    lines = {
        "input": str(trained / "recipe.yaml"),
        "format": "lines",
        "engine": "torch",
    }
    for command, arguments in (
        (translate.main, {"model": os.fsdecode(b"caf\xe9"), **lines}),
        (improve.main, {"run": trained, "output": Path(name), "dry_run": True}),
        (upload.main, {"folder": trained, "repo_id": "ada/model", "message": name}),
    ):
        assert "valid UTF-8" in fails(run=partial(command, **arguments))
    assert "UTF-8" in fails(Path("run"), f"data.train_files={name}")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_name_that_is_not_utf_8_is_printed(tmp_path, monkeypatch):
    path = Path(tmp_path / os.fsdecode(b"caf\xe9.png"))
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), "utf-8"))
    figures.positions(out=path)
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().decode() == f"{tmp_path}/caf\\udce9.png\n"
    assert path.exists()


def test_fine_tuning_another_kind_of_model_is_refused(trained, tmp_path, fails):
    MarianConfig(vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1).save_pretrained(tmp_path / "marian")
    for file in trained.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "marian")
    assert "marian" in fails(tmp_path / "run", f"model.start_from={tmp_path / 'marian'}", "model.overrides={}")


def test_damaged_weights_cannot_be_scored_or_trained_on(trained, tmp_path, fails):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    weights, name = load_file(run / "model.safetensors"), "model.decoder.layers.0.cross_attn.q_proj.weight"
    del weights[name]
    save_file(weights, run / "model.safetensors", {"format": "pt"})
    assert name in fails(str(run), run=run_evaluation)
    assert name in fails(tmp_path / "new", f"model.start_from={run}", "model.overrides={}")
    assert not (tmp_path / "new").exists()
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-50])
    fails(str(run), run=run_evaluation)


_OWN_EMBEDDINGS = "model.overrides.share_encoder_decoder_embeddings=false"


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["optimization.learning_rate=1e30", "optimization.warmup_steps=0", "evaluation.every=2"], "validation"),
        # Tokens that the first batch's sources lack have no gradient, so their rows become 0 / 0.
        (["optimization.epsilon=1e-300", "optimization.max_steps=4", _OWN_EMBEDDINGS], "NaN"),
        (["optimization.learning_rate=1e30", "checkpoints.average_last=2"], "diverged"),
    ],
    ids=["learning rate", "epsilon", "average"],
)
def test_a_run_that_diverges_writes_no_model(overrides, word, tmp_path, fails):
    """Even one so short that the limit on skipped updates is not reached."""
    run = tmp_path / "run"
    line = fails(run, *overrides)
    assert "diverged" in line
    assert word in line
    assert not [record for record in read_metrics(run) if "final" in record]
    weights = set(run.rglob("*.safetensors"))
    assert run / "model.safetensors" not in weights
    for path in weights:
        assert all(torch.isfinite(tensor).all() for tensor in load_file(path).values())


def test_too_many_nonfinite_updates_end_a_run(tmp_path, fails):
    options = ["optimization.learning_rate=1e30", "optimization.warmup_steps=0", "checkpoints.every=1"]
    line = fails(tmp_path / "run", *options, "optimization.max_nonfinite_updates=3")
    assert "optimization.learning_rate" in line
    step = int(re.search(r"update (\d+)", line)[1])
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept[-1] == f"step-{step - 4:07d}"  # the last checkpoint before them
    for tensor in load_file(tmp_path / "run" / "checkpoints" / kept[-1] / "model.safetensors").values():
        assert torch.isfinite(tensor).all()


def test_the_data_to_score_on_comes_from_the_run_or_the_command(trained, tmp_path, fails, capsys):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(trained / "checkpoints" / "step-0000020", elsewhere)
    assert "--config" in fails(str(elsewhere), run=run_evaluation)
    run_evaluation(str(trained / "checkpoints" / "step-0000020"))
    assert "40 sentences of test" in capsys.readouterr().out


def test_debug_prints_the_traceback(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run_training(config=str(tmp_path / "none.yaml"), debug=True)
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "none.yaml" in printed.splitlines()[-1]


@pytest.mark.parametrize("wrong", [{"early_stopping": "x"}, {"num_beams": "x"}, {"length_penalty": [1]}], ids=str)
def test_generation_settings_of_the_wrong_type_are_named(wrong, trained, tmp_path, fails):
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints"))
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | wrong))
    line = fails(str(folder), run=translate.main, input=str(folder / "recipe.yaml"), format="lines")
    assert next(iter(wrong)) in line

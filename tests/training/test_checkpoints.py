"""No run resumes from a checkpoint that is damaged, replaced, renamed, of another model or of a newer version."""

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import equal_weights, quick_run, read_metrics, run_training, unchanged, updates

from modeling_scratch.errors import UserError
from modeling_scratch.recipe.reading import load_recipe, recipe_text
from modeling_scratch.run.checkpoints import find_checkpoint
from modeling_scratch.run.folder import CHECKSUMS, OPTIMIZER, STATE, WEIGHTS, RunFolder
from modeling_scratch.run.progress import read_progress
from modeling_scratch.run.records import RECIPE


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of a run with the checkpoints step-0000010 and step-0000020."""
    return Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns(".lock")))


def change_state(checkpoint: Path, **changes) -> None:
    """Change a checkpoint's state; None deletes a key."""
    content = json.loads((checkpoint / STATE).read_text()) | changes
    (checkpoint / STATE).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def zero_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def rename(newest: Path) -> None:
    newest.rename(newest.with_name("step-0000100"))


def replace_optimizer(newest: Path) -> None:
    shutil.copy(newest.with_name("step-0000010") / OPTIMIZER, newest)


def replace_model(newest: Path) -> None:
    """By one that is consistent in itself."""
    config = json.loads((newest / "config.json").read_text())
    (newest / "config.json").write_text(json.dumps(config | {"d_model": 64}))
    change_state(newest, **{CHECKSUMS: None})


DAMAGES = {
    "half of the weights is zero": (lambda newest: zero_half(newest / WEIGHTS), "step-0000020/model.safetensors"),
    "the best weights are damaged": (lambda newest: zero_half(newest / WEIGHTS), "step-0000020/model.safetensors"),
    "the optimizer is another step's": (replace_optimizer, "step-0000020/optimizer.bin"),
    "the tokenizer was changed": (lambda newest: (newest / "tokenizer.json").write_text("{}"), "tokenizer.json"),
    "a file is gone": (lambda newest: (newest / OPTIMIZER).unlink(), "optimizer.bin: no such file"),
    "renamed": (rename, r"step-0000100 is the checkpoint of update 20; rename it to step-0000020"),
    "another model's": (replace_model, "step-0000020 is of another model .*d_model is 64, not 32"),
    "newer": (lambda newest: change_state(newest, horizon=3, sails="up"), "does not know horizon, sails"),
    "a wrong type": (lambda newest: change_state(newest, step="many"), "training_state.json: .*step"),
    "a list": (lambda newest: (newest / STATE).write_text("[]"), "training_state.json: expected an object"),
    "not JSON": (lambda newest: (newest / STATE).write_text("damaged"), r"step-0000020/training_state\.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_not_what_was_written_is_refused_and_nothing_is_changed(damage, run):
    spoil, message = DAMAGES[damage]
    change_state(run / "checkpoints" / "step-0000010", best=1.0, best_step=20)
    spoil(run / "checkpoints" / "step-0000020")
    folder, name = RunFolder(run), "step-0000010" if damage == "the best weights are damaged" else None
    with unchanged(run), pytest.raises(UserError, match=message) as raised:
        find_checkpoint(folder, load_recipe(run / RECIPE), name)
    advice = {"renamed": r"rename it to step-0000020", "newer": "resume with the version that wrote it"}
    advice["the best weights are damaged"] = r", or delete \S*step-0000020: the best is then chosen anew"
    advised = advice.get(damage, r"; resume from another checkpoint \(--resume-from\)")
    assert re.search(f"{advised}$", str(raised.value))


def test_best_weights_that_cannot_be_read_end_a_run_before_later_checkpoints_are_discarded(run):
    """As in checkpoints without checksums."""
    for step in (10, 20):
        change_state(run / "checkpoints" / f"step-{step:07d}", **{CHECKSUMS: None})
    (run / "checkpoints" / "step-0000010" / WEIGHTS).write_bytes(b"damaged")
    folder = RunFolder(run)
    with pytest.raises(UserError, match=r"step-0000010/model\.safetensors"):
        folder.rewind(folder.checkpoints.path(10), 10, 10, best=10)
    assert folder.checkpoints.steps() == [10, 20]


def test_a_run_whose_newest_checkpoint_is_damaged_resumes_from_one_without_checksums(run, trained, fails):
    """Those of earlier versions have none."""
    change_state(run / "checkpoints" / "step-0000010", **{CHECKSUMS: None})
    (run / "checkpoints" / "step-0000020" / WEIGHTS).write_bytes(b"damaged")
    assert WEIGHTS in fails(run, resume=True)
    quick_run(run, resume_from="step-0000010")
    assert updates(run) == updates(trained)
    assert equal_weights(run, trained)


@pytest.mark.parametrize("name", [OPTIMIZER, WEIGHTS, "random_states_0.pkl"])
def test_without_checksums_too_an_error_about_a_checkpoint_says_what_to_do(name, run, fails):
    checkpoint = run / "checkpoints" / "step-0000020"
    (checkpoint / name).unlink()
    change_state(checkpoint, **{CHECKSUMS: None})
    line = fails(run, "optimization.max_steps=21", resume=True)
    assert "; resume from another checkpoint (--resume-from)" in line


def test_a_damaged_best_checkpoint_may_be_deleted(run, capsys):
    change_state(run / "checkpoints" / "step-0000020", best=1.0, best_step=10)
    shutil.rmtree(run / "checkpoints" / "step-0000010")
    quick_run(run, "optimization.max_steps=21", resume=True)
    assert "the best is chosen anew" in capsys.readouterr().err


@pytest.mark.parametrize(("unsettled", "completed"), [(None, 20), (False, 20), (True, 19)])
def test_checkpoints_of_earlier_versions_say_what_is_left_to_do_after_their_update(unsettled, completed, run):
    checkpoint = run / "checkpoints" / "step-0000020"
    change_state(checkpoint, unsettled=unsettled, completed_step=None)
    assert read_progress(checkpoint).completed_step == completed


# -- copies ------------------------------------------------------------------------------------------------------------


def test_the_recipe_of_a_copied_run_resumes_the_copy(trained, run, capsys):
    with unchanged(trained):
        run_training("optimization.max_steps=21", config=str(run / RECIPE), resume_from="step-0000010")
    assert f"output_dir: {run}" in capsys.readouterr().err
    assert read_metrics(run, "train")[-1]["step"] == 21


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("options", [{"overwrite": True}, {"auto_resume": True}], ids=str)
def test_the_recipe_of_a_copied_run_does_not_decide_which_run_is_replaced(
    options, edited, trained, run, tmp_path, fails
):
    """Its output_dir is that of the original, or has been edited for a new run."""
    if edited:
        recipe = load_recipe(run / RECIPE, [f"output_dir={tmp_path / 'fresh'}"])
        (run / RECIPE).write_text(recipe_text(recipe))
    named = tmp_path / "fresh" if edited else trained
    with unchanged(trained, run):
        line = fails(config=str(run / RECIPE), run=run_training, **options)
    assert re.search(rf"output_dir={run} or '?output_dir={named}", line)


def test_a_new_run_from_the_edited_recipe_of_another_is_in_the_folder_that_it_names(run, tmp_path):
    recipe = load_recipe(run / RECIPE, [f"output_dir={tmp_path / 'fresh'}", "optimization.max_steps=1"])
    (run / RECIPE).write_text(recipe_text(recipe))
    with unchanged(run):
        run_training(config=str(run / RECIPE))
    assert read_metrics(tmp_path / "fresh", "test")

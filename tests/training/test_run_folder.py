"""Run folders: checkpoints that are whole or not at all, averages, records."""

import itertools
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
from forked import start
from safetensors.torch import load_file, save_file
from train_on_processes import lock_folder

from modeling_scratch.errors import UserError
from modeling_scratch.recipe import CONFIGURATION_FOLDER
from modeling_scratch.recipe.reading import load_recipe, recipe_text
from modeling_scratch.training import folder as run_folder
from modeling_scratch.training.folder import (
    METRICS_FILE,
    RECIPE,
    WEIGHTS,
    RunFolder,
    append_record,
    forget_after,
    read_metrics,
)


def write_checkpoint(folder, step, value=0.0, keep_last=2, best=None):
    temporary = folder.checkpoints.begin(step)
    save_file({"a": torch.full((3,), value), "b": torch.full((2,), value).bfloat16()}, temporary / "model.safetensors")
    (temporary / "optimizer.bin").write_bytes(b"state" * 10)
    folder.checkpoints.finish(step, {"step": step, "best_step": best}, keep_last)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def test_the_last_checkpoints_are_kept(folder):
    for step in (5, 10, 15, 100):
        write_checkpoint(folder, step)
    assert folder.checkpoints.steps() == [15, 100]
    assert folder.checkpoints.newest() == (folder.checkpoints.path(100), [])


def test_an_unfinished_checkpoint_is_none(folder):
    write_checkpoint(folder, 5)
    folder.checkpoints.begin(10)
    assert folder.checkpoints.steps() == [5]
    write_checkpoint(folder, 10)  # and does not stand in the way of the next try
    assert folder.checkpoints.steps() == [5, 10]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.bin", "training_state.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["missing", "truncated", "flipped"])
def test_damage_is_found_and_named(folder, name, harm):
    write_checkpoint(folder, 5)
    write_checkpoint(folder, 10)
    path = folder.checkpoints.path(10) / name
    content = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    elif harm == "truncated":
        path.write_bytes(content[:-7])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    checkpoint, (why,) = folder.checkpoints.newest()
    assert checkpoint == folder.checkpoints.path(5)
    assert "step-0000010" in why
    assert name in why or name == "manifest.json"
    with pytest.raises(ValueError, match=re.escape(why)):
        folder.checkpoints.named("step-0000010")
    assert folder.checkpoints.named("step-0000005") == checkpoint
    with pytest.raises(ValueError, match="no checkpoint 'step-7'; there are step-0000005, step-0000010"):
        folder.checkpoints.named("step-7")


def test_the_best_checkpoint_is_kept(folder):
    for step in (5, 10, 15, 20):
        write_checkpoint(folder, step, keep_last=1, best=10)
    assert folder.checkpoints.steps() == [10, 20]
    assert folder.checkpoints.put_away_after(10) == ["step-0000020"]
    assert folder.checkpoints.steps() == [10]


class Killed(BaseException):
    pass


def kill_at(monkeypatch, number: int) -> None:
    """Raise Killed in place of the n-th call that changes the disk, from now on."""
    calls = itertools.count(1)

    def patch(module, name):
        function = getattr(module, name)

        def call(*arguments, **options):
            if next(calls) == number:
                raise Killed
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    for module, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (shutil, "rmtree"), (Path, "write_text")):
        patch(module, name)


def test_killed_at_every_stage_of_writing(folder, monkeypatch):
    """Of a new checkpoint, and of one in place of an older one of the same step, as a stopped run writes."""
    stages = 0
    for again in (False, True):
        for number in itertools.count(1):
            shutil.rmtree(folder.path)
            folder.create()
            write_checkpoint(folder, 5, value=5.0)
            write_checkpoint(folder, 10, value=1.0)
            if again:
                write_checkpoint(folder, 15, value=1.5)
            with monkeypatch.context() as patch:
                kill_at(patch, number)
                try:
                    write_checkpoint(folder, 15, value=2.0)
                    finished = True
                except Killed:
                    finished = False
            if again:
                folder.checkpoints.named("step-0000015")  # the older or the new one
            checkpoint, passed_over = folder.checkpoints.newest()
            value = load_file(checkpoint / "model.safetensors")["a"][0].item()
            assert passed_over == []
            assert (checkpoint.name, value) in [("step-0000010", 1.0), ("step-0000015", 1.5), ("step-0000015", 2.0)]
            write_checkpoint(folder, 20, value=3.0)  # what was left does not stand in the way
            assert folder.checkpoints.newest() == (folder.checkpoints.path(20), [])
            assert not list(folder.checkpoints.folder.glob(".*"))
            if finished:
                assert (checkpoint.name, value) == ("step-0000015", 2.0)
                break
            stages += 1
    assert stages > 20


def test_average_is_the_mean_of_what_was_kept(folder, caplog):
    kept = {}
    for step, value in ((1, 100.0), (2, 1.0), (3, 2.0), (4, 6.0)):
        write_checkpoint(folder, step, value)
        kept |= folder.snapshots.keep(step, folder.checkpoints.path(step) / WEIGHTS)
    last = dict(list(kept.items())[1:])
    weights = folder.snapshots.average(last)
    assert torch.equal(weights["a"], torch.full((3,), 3.0))
    assert weights["b"].dtype == torch.bfloat16
    folder.snapshots.delete_all_but(last)
    assert sorted(path.name for path in folder.snapshots.folder.iterdir()) == sorted(last)
    folder.write_weights(weights)
    assert torch.equal(load_file(folder.path / "model.safetensors")["a"], weights["a"])
    assert "without" not in caplog.text


def test_an_average_says_what_it_is_without(folder, caplog):
    kept = {}
    for step in (1, 2, 3):
        write_checkpoint(folder, step, float(step))
        kept |= folder.snapshots.keep(step, folder.checkpoints.path(step) / WEIGHTS)
    first, second, third = (folder.snapshots.folder / name for name in kept)
    first.unlink()
    flip_last_byte(second)
    assert torch.equal(folder.snapshots.average(kept)["a"], torch.full((3,), 3.0))
    assert f"{first} is missing" in caplog.text
    assert f"{second} is damaged" in caplog.text
    third.unlink()
    with pytest.raises(ValueError, match="holds no weights to average"):
        folder.snapshots.average(kept)


def flip_last_byte(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_what_a_killed_process_left_is_no_obstacle(tmp_path):
    for name in (".recipe.yaml.tmp", ".seen-by-all-0123", ".lock", "LICENSE"):
        (tmp_path / name).touch()
    assert not run_folder.holds_other_things(tmp_path)
    (tmp_path / ".env").touch()
    assert run_folder.holds_other_things(tmp_path)


def test_one_process_at_a_time(tmp_path, monkeypatch):
    """Another is told so, whether it replaces or begins, until the first has ended."""
    monkeypatch.setattr(run_folder, "_SECONDS_TO_LOCK", 0.1)
    folder, locked = RunFolder(tmp_path / "run"), tmp_path / "locked"
    first = start(tmp_path / "first", lock_folder, str(folder.path), str(locked))
    while not locked.exists():
        assert first.process.is_alive(), first.said
        time.sleep(0.01)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="is in use by another run"):
            folder.check(resume=False, overwrite=overwrite)
    first.kill()
    folder.check(resume=False, overwrite=False)
    folder.check(resume=False, overwrite=False)  # its own lock is in nobody's way
    second = start(tmp_path / "second", lock_folder, str(folder.path), str(locked))
    assert second.end() == 2
    assert "is in use by another run" in second.said


def test_the_best_of_each_that_is_kept_is_kept(folder):
    def write(step, best):
        folder.checkpoints.begin(step)
        (folder.checkpoints.unfinished(step) / WEIGHTS).write_bytes(b"")
        folder.checkpoints.finish(step, {"step": step, "best_step": best}, 2)

    for step, best in ((1, 1), (2, 1), (3, 1), (4, 4)):
        write(step, best)
    assert folder.checkpoints.steps() == [1, 3, 4]  # 3 goes on from 1
    write(5, 4)
    assert folder.checkpoints.steps() == [4, 5]


def test_a_damaged_record_is_left_out(folder, caplog):
    append_record(folder.path, {"step": 1, "split": "train"})
    with (folder.path / METRICS_FILE).open("ab") as file:
        file.write(b"\0\0\0\0\n[1]\n\xff\n")
    for wrong in ({"bleu": "x"}, {"bleu_interval": [1]}, {"seconds": "1"}, {"samples": ["x"]}):
        append_record(folder.path, {"step": 1, "split": "test", "final": True} | wrong)
    append_record(folder.path, {"step": 2, "split": "train"})
    assert [record["step"] for record in read_metrics(folder.path)] == [1, 2]
    damaged = [line for line in range(1, 10) if f"line {line} is damaged and left out" in caplog.text]
    assert damaged == [*range(2, 9)]


def test_records_after_a_step_are_forgotten(folder):
    for step in (1, 2, 3):
        append_record(folder.path, {"step": step, "split": "train"})
    append_record(folder.path, {"step": 2, "split": "test", "final": True})
    with (folder.path / METRICS_FILE).open("a") as file:
        file.write('{"step": 4, "spl')  # the writer was killed
    forget_after(folder.path, 2)
    assert read_metrics(folder.path) == [
        {"step": 1, "split": "train"},
        {"step": 2, "split": "train"},
    ]


@pytest.fixture
def places(tmp_path):
    """What a folder to write to may be."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("precious")
    (tmp_path / "licensed").mkdir()
    (tmp_path / "licensed" / "LICENSE-DATA").write_text("CC-BY-4.0")
    (tmp_path / "other recipe").mkdir()
    (tmp_path / "other recipe" / "recipe.yaml").write_text("flour: 500 g")
    (tmp_path / "run").mkdir()
    shutil.copy(CONFIGURATION_FOLDER / "recipes" / "embedded.yaml", tmp_path / "run" / "recipe.yaml")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "resume", "overwrite", "message"),
    [
        ("new", False, False, None),
        ("new", True, False, "no run to resume"),
        ("licensed", False, False, None),
        ("licensed", True, False, "no run to resume"),
        ("foreign", False, False, "files that are not a run's"),
        ("foreign", False, True, "files that are not a run's"),
        ("foreign/thesis.tex", False, True, "is a file"),
        (
            "other recipe",
            False,
            True,
            "a recipe that is not a run's .*'flour'.*; correct it or set another output_dir",
        ),
        ("other recipe", True, False, "a recipe that is not a run's"),
        ("run", False, False, "already holds a run"),
        ("run", False, True, None),
        ("run", True, False, None),
    ],
)
def test_what_may_be_written_where(place, resume, overwrite, message, places):
    folder = RunFolder(places / place)
    if message is None:
        folder.check(resume, overwrite)
        return
    with pytest.raises(UserError, match=message):
        folder.check(resume, overwrite)


def test_a_new_run_deletes_what_runs_write_and_no_more(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    recipe = load_recipe(CONFIGURATION_FOLDER / "recipes" / "embedded.yaml", [f"output_dir={folder.path}"])
    (folder.path / RECIPE).write_text(recipe_text(recipe))
    write_checkpoint(folder, 5)
    kept = [".card.md", ".hub.json", "LICENSE", "README.md", "my.txt"]
    for name in ["config.json", WEIGHTS, "stacks.py", "metrics.jsonl", *kept]:
        (folder.path / name).write_text("old")
    folder.create()
    assert {path.name for path in folder.path.iterdir()} == {*kept, ".lock"}

"""Run folders: complete checkpoints, averages, records, translations, and what may be written where."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import Killed, quick_run
from forked import start
from safetensors.torch import load_file, save_file
from train_on_processes import lock_folder
from waiting import wait_until

from modeling_scratch.errors import UserError
from modeling_scratch.recipe import CONFIGURATION_FOLDER
from modeling_scratch.recipe.reading import load_recipe, recipe_text
from modeling_scratch.run import folder as run_folder
from modeling_scratch.run.folder import WEIGHTS, RunFolder
from modeling_scratch.run.records import (
    METRICS_FILE,
    RECIPE,
    append_record,
    forget_after,
    read_metrics,
    read_translations,
    write_translations,
)

EMBEDDED = CONFIGURATION_FOLDER / "recipes" / "embedded.yaml"


def write_checkpoint(folder, step, value=0.0, keep_last=2, best=None):
    temporary = folder.checkpoints.begin(step)
    save_file({"a": torch.full((3,), value), "b": torch.full((2,), value).bfloat16()}, temporary / WEIGHTS)
    (temporary / "optimizer.bin").write_bytes(b"state" * 10)
    folder.checkpoints.finish(step, {"step": step, "best_step": best}, keep_last)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.lock()
    return folder


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_only_the_last_checkpoints_are_kept(folder):
    for step in (5, 10, 15, 100):
        write_checkpoint(folder, step)
    assert folder.checkpoints.steps() == [15, 100]
    assert folder.checkpoints.newest() == folder.checkpoints.path(100)
    assert folder.checkpoints.named("step-0000015") == folder.checkpoints.path(15)
    with pytest.raises(UserError, match=r"'step-7'.* step-0000015, step-0000100"):
        folder.checkpoints.named("step-7")


def test_the_best_checkpoint_of_every_kept_one_is_kept(folder):
    for step, best in ((1, 1), (2, 1), (3, 1), (4, 4)):
        write_checkpoint(folder, step, best=best)
    assert folder.checkpoints.steps() == [1, 3, 4]  # a run that resumes from 3 needs 1
    write_checkpoint(folder, 5, best=4)
    assert folder.checkpoints.steps() == [4, 5]
    assert folder.checkpoints.discard_after(4) == ["step-0000005"]
    assert folder.checkpoints.steps() == [4]


def kill_at(monkeypatch, number: int) -> None:
    """Raise Killed instead of the n-th call from now that changes the disk."""
    calls = itertools.count(1)

    def patch(module, name):
        function = getattr(module, name)

        def call(*arguments, **options):
            if next(calls) == number:
                raise Killed
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    for module, name in ((os, "rename"), (os, "fsync"), (shutil, "rmtree"), (Path, "write_text")):
        patch(module, name)


@pytest.mark.parametrize("again", [False, True], ids=["new", "replaced"])
def test_a_checkpoint_is_complete_or_absent_wherever_its_writer_is_killed(again, folder, monkeypatch):
    for number in itertools.count(1):
        shutil.rmtree(folder.path)
        folder.path.mkdir()
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
        checkpoint = folder.checkpoints.newest()
        value = load_file(checkpoint / WEIGHTS)["a"][0].item()
        assert (checkpoint.name, value) in [("step-0000010", 1.0), ("step-0000015", 1.5), ("step-0000015", 2.0)]
        assert (checkpoint / "optimizer.bin").stat().st_size == 50
        write_checkpoint(folder, 20, value=3.0)  # the remains of the killed one do not prevent it
        assert folder.checkpoints.newest() == folder.checkpoints.path(20)
        assert not list(folder.checkpoints.folder.glob(".*"))
        if finished:
            assert (checkpoint.name, value) == ("step-0000015", 2.0)
            break
    assert number > 7


def test_the_average_is_the_mean_of_the_kept_weights(folder):
    kept = []
    for step, value in ((1, 100.0), (2, 1.0), (3, 2.0), (4, 6.0)):
        write_checkpoint(folder, step, value)
        kept.append(folder.keep_for_averaging(step, folder.checkpoints.path(step) / WEIGHTS))
    folder.forget_averaged(kept[1:])
    assert sorted(path.name for path in (folder.path / "averaging").iterdir()) == kept[1:]
    weights = folder.average(kept[1:])
    assert torch.equal(weights["a"], torch.full((3,), 3.0))
    assert weights["b"].dtype == torch.bfloat16
    with pytest.raises(UserError, match=kept[0]):
        folder.average(kept)


# -- records and translations ------------------------------------------------------------------------------------------


def test_damaged_records_are_named(folder):
    append_record(folder.path, {"step": 1, "split": "train"})
    with (folder.path / METRICS_FILE).open("ab") as file:
        file.write(b"\0\0\0\0\n")
    with pytest.raises(UserError, match=METRICS_FILE):
        read_metrics(folder.path)


def test_records_after_the_resumed_step_are_removed(folder):
    for step in (1, 2, 3):
        append_record(folder.path, {"step": step, "split": "train"})
    append_record(folder.path, {"step": 2, "split": "test", "final": True})
    with (folder.path / METRICS_FILE).open("a") as file:
        file.write('{"step": 4, "spl')  # the writer was killed
    forget_after(folder.path, 2, 2)
    assert read_metrics(folder.path) == [{"step": 1, "split": "train"}, {"step": 2, "split": "train"}]


@pytest.mark.parametrize("texts", [[], [""], ["", "", "a"], ["a\nb", "c\r\nd\n", "e\u2028f\x85g"], ["größer", " x "]])
def test_translations_are_read_as_they_were_written(texts, tmp_path):
    write_translations(tmp_path, "test", ["of an earlier scoring"] * 9)
    write_translations(tmp_path, "test", texts)
    found = read_translations(tmp_path, "test")
    assert [text.split() for text in found] == [text.split() for text in texts]


def test_an_unreadable_file_of_translations_is_named(tmp_path):
    for content in (None, b"\xff\n"):
        if content is not None:
            (tmp_path / "translations").mkdir()
            (tmp_path / "translations" / "test.txt").write_bytes(content)
        with pytest.raises(UserError, match=r"test\.txt"):
            read_translations(tmp_path, "test")


# -- what may be written where -----------------------------------------------------------------------------------------


def test_only_one_process_may_write_to_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "_SECONDS_TO_LOCK", 0.1)
    folder, locked = RunFolder(tmp_path / "run"), tmp_path / "locked"
    first = start(tmp_path / "first", lock_folder, str(folder.path), str(locked))
    wait_until(lambda: locked.exists() or not first.process.is_alive())
    for overwrite in (False, True):
        with pytest.raises(UserError, match="is in use by another run"):
            folder.claim(resume=False, overwrite=overwrite)
    first.kill()
    folder.claim(resume=False, overwrite=False)
    folder.claim(resume=False, overwrite=False)  # a process may claim its folder again
    second = start(tmp_path / "second", lock_folder, str(folder.path), str(locked))
    assert second.end() == 2
    assert "is in use by another run" in second.output


@pytest.fixture
def places(tmp_path):
    """Folders that an output_dir may name."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("precious")
    (tmp_path / "licensed").mkdir()
    for name in ("LICENSE-DATA", ".recipe.yaml.tmp", ".seen-by-all-0123", ".lock"):  # three remains of a killed run
        (tmp_path / "licensed" / name).touch()
    (tmp_path / "other recipe").mkdir()
    (tmp_path / "other recipe" / "recipe.yaml").write_text("flour: 500 g")
    for name in ("run", "copied recipe", "own recipe"):
        (tmp_path / name).mkdir()
    for name in ("run", "copied recipe"):
        (tmp_path / name / "recipe.yaml").write_text(recipe_text(load_recipe(EMBEDDED)))
    (tmp_path / "run" / ".lock").touch()  # it was killed before its first record
    (tmp_path / "copied recipe" / "LICENSE").touch()
    shutil.copy(EMBEDDED, tmp_path / "own recipe" / "recipe.yaml")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "resume", "overwrite", "message"),
    [
        ("new", False, False, None),
        ("new", True, False, "no run to resume"),
        ("licensed", False, False, None),
        ("licensed", True, False, "no run to resume"),
        ("foreign", False, False, "not a run's"),
        ("foreign", False, True, "not a run's"),
        ("foreign/thesis.tex", False, True, "is a file"),
        ("foreign/thesis.tex/run", False, False, "nothing can be written"),
        ("other recipe", False, True, "flour"),
        ("other recipe", True, False, "flour"),
        ("own recipe", False, True, "not a run's"),
        ("own recipe", True, False, "no run to resume"),
        ("copied recipe", False, True, "not a run's"),
        ("copied recipe", True, False, "no run to resume"),
        ("run", False, False, "already holds a run"),
        ("run", False, True, None),
        ("run", True, False, None),
    ],
)
def test_a_run_only_writes_to_a_new_folder_or_that_of_a_run(place, resume, overwrite, message, places):
    folder = RunFolder(places / place)
    if message is None:
        folder.claim(resume, overwrite)
        assert folder.path.is_dir()
        return
    with pytest.raises(UserError, match=message):
        folder.claim(resume, overwrite)


def files_in(folder: Path) -> set[str]:
    """The files in a folder and its real subfolders."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


FINE_TUNED = ["model.start_from=TRAINED", "model.overrides={}", "checkpoints.average_last=2", "trackers=[tensorboard]"]
TWO_TOKENIZERS = ["tokenizer.shared=false", "checkpoints.average_last=2"]


def test_a_new_run_deletes_only_files_of_the_old_one(folder, tmp_path, caplog):
    """Links to another disk are kept, but the files of the run there are deleted."""
    sets = "data.test_sets={more: x}"
    (folder.path / RECIPE).write_text(recipe_text(load_recipe(EMBEDDED, [f"output_dir={folder.path}", sets])))
    (tmp_path / "disk").mkdir()
    for name in ("checkpoints", "averaging", "translations"):
        (folder.path / name).symlink_to(tmp_path / "disk")
    write_checkpoint(folder, 5)
    (folder.checkpoints.path(5) / "modeling_old.py").touch()  # of an earlier version
    folder.keep_for_averaging(5, folder.checkpoints.path(5) / WEIGHTS)
    for name in ("test", "before/test", "more", "validation"):
        write_translations(folder.path, name, ["eins"])
    outside = {"mine.txt", "before/mine.txt", "step-5/mine.txt", "step-0000005.bak/mine.txt", "own.safetensors"}
    kept = {".card.md", ".hub.json", "LICENSE", "README.md", "my.txt", "notes.json", "analysis.py", "own.safetensors"}
    kept |= {"tracking/mine.txt", "target_tokenizer/mine.json"}
    written = {"config.json", "modeling_old.py", "metrics.jsonl", "target_tokenizer/vocab.json"}
    written |= {"tracking/modeling_scratch/events.out"}
    written |= {"decoding.py", "recorded_decoding.py"}  # the model's code in versions 0.1 and 0.2
    for place, names in ((folder.path, kept | written), (tmp_path / "disk", outside)):
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("old")
    (folder.path / WEIGHTS).symlink_to(tmp_path / "disk" / "own.safetensors")
    with caplog.at_level("INFO"):
        folder.clear()
    assert files_in(folder.path) == {*kept, ".lock"}
    assert files_in(tmp_path / "disk") == outside
    assert all(name in caplog.text for name in ("notes.json", "translations/mine.txt", "tracking/mine.txt"))
    assert ".lock" not in caplog.text


@pytest.mark.parametrize("options", [[], FINE_TUNED, TWO_TOKENIZERS], ids=["plain", "fine-tuned", "two tokenizers"])
def test_all_that_a_run_writes_is_deleted(options, trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    if options:
        options = [each.replace("TRAINED", str(trained)) for each in options]
        quick_run(run, *options, "optimization.max_steps=2", "checkpoints.every=1", overwrite=True)
    names = files_in(run)
    assert not options or names > {"averaging/step-0000002.safetensors"}
    RunFolder(run).clear()
    assert files_in(run) == {".lock"}
    assert [path.name for path in run.iterdir()] == [".lock"]

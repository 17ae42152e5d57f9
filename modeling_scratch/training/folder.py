"""
Write and read metrics.jsonl, the records of a run.

Write and read a run's final translations, so that runs can be compared without translating again.

Store checkpoints in a run's folder so that each is complete or absent.

A run's folder: the model at its root, its checkpoints and its records.
"""

import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import ConfigDict, create_model
from safetensors.torch import load_file, save_file

from ..errors import UserError, as_user_error
from ..files import is_real_folder, reading, remove, sha256, sync, write_lines, write_whole, written_whole
from ..metrics import METRICS
from ..recipe.reading import load_recipe

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"

_NUMBERS = ("epoch", "loss", "cross_entropy", "learning_rate", "seconds", "target_tokens", "parameters", "sentences")
_NUMBERS += (*METRICS, *(f"{key}_interval" for key in METRICS))
_TEXTS = ("name", "device", "device_name", "mixed_precision", *(f"{key}_signature" for key in METRICS))
_Record = create_model(  # the types that readers rely on; a record may hold more
    "_Record",
    __config__=ConfigDict(strict=True),
    split=str,
    step=int,
    samples=(list[dict[str, str]], []),
    **dict.fromkeys(_NUMBERS, (float | None, None)),
    **dict.fromkeys(_TEXTS, (str | None, None)),
)


def append_record(run: Path, record: dict[str, Any]) -> None:
    """Append a record as one line."""
    with (run / METRICS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """
    The records of a run; none if it has not written any. A damaged line is left out, with a warning. A last line
    without a line feed was cut off by an interrupt, and is ignored.
    """
    path = run / METRICS_FILE
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            _Record.model_validate(record)
            records.append(record)
        except (ValueError, RecursionError):
            logger.warning(f"{path}, line {number} is damaged and left out")
    return records


def scored_set(record: dict[str, Any]) -> str:
    """The name of the split or further test set that a record's scores are for."""
    return record.get("name") or record["split"]


def finally_scored(run: Path) -> dict[str, dict[str, Any]]:
    """The last record of each set that a run has scored with its final weights, by its name; none if there are none."""
    return {scored_set(record): record for record in read_metrics(run) if record.get("final")}


def forget_after(run: Path, step: int, unsettled: bool = False) -> None:
    """Drop what a resumed run writes again: final records, those after `step` and, if `unsettled`, its evaluation."""
    kept = [
        record
        for record in read_metrics(run)
        if record["step"] <= step
        and "final" not in record
        and not (unsettled and record["step"] == step and record["split"] != "train")
    ]
    write_whole(run / METRICS_FILE, "".join(json.dumps(record) + "\n" for record in kept))


TRANSLATIONS = "translations"


def write_translations(run: Path, name: str, translations: Sequence[str]) -> None:
    """Write the translations of a split or further test set, one a line, replacing earlier ones."""
    path = run / TRANSLATIONS / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, translations)


def read_translations(run: Path, name: str) -> list[str]:
    """
    The translations of a split or test set, in the order of its sentences.

    Raises:
        UserError: there are none, or the file is not UTF-8.
    """
    path = run / TRANSLATIONS / f"{name}.txt"
    with reading(path):
        text = path.read_bytes().decode("utf-8")
    return text.removesuffix("\n").split("\n") if text else []


WEIGHTS = "model.safetensors"
STATE = "training_state.json"
MANIFEST = "manifest.json"
_CHECKPOINT = re.compile(r"step-(\d+)")


@contextmanager
def _deleting_is_not_vital() -> Iterator[None]:
    """Log a failure to delete an old checkpoint instead of raising it: the new one is already written."""
    try:
        yield
    except OSError as error:
        logger.warning(f"an old checkpoint cannot be deleted: {error}")


class CheckpointStore:
    """The folders of a run's checkpoints, by step."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:07d}"

    def steps(self) -> list[int]:
        """
        Steps that have a checkpoint, ascending. One that was being replaced when the process was killed is put back
        first, so the folder must be locked.
        """
        if not self.folder.is_dir():
            return []
        for replaced in self.folder.glob(".step-*.old"):  # killed between the two renames of `finish`
            final = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".old"))
            if not final.exists():
                os.rename(replaced, final)
        matches = (_CHECKPOINT.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in matches if match)

    def unfinished(self, step: int) -> Path:
        """The folder of a checkpoint while it is being written."""
        return self.folder / f".step-{step:07d}.tmp"

    def begin(self, step: int) -> Path:
        """An empty folder to write a checkpoint to; `finish` renames it."""
        temporary = self.unfinished(step)
        remove(temporary)
        temporary.mkdir(parents=True)
        return temporary

    def finish(self, step: int, state: dict[str, Any], keep_last: int) -> None:
        """
        Write the state, then the manifest; rename the folder; delete all but the last `keep_last` checkpoints and those
        that they name as the best. A folder with a checkpoint's name is always complete, even after an interrupt.
        """
        temporary, final = self.unfinished(step), self.path(step)
        (temporary / STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        manifest = {
            path.relative_to(temporary).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)}
            for path in files
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        folders = [path for path in temporary.rglob("*") if path.is_dir()]
        for path in [*files, temporary / MANIFEST, *folders, temporary]:
            sync(path)
        if final.exists():  # the run was stopped at this step and resumed
            replaced = self.folder / f".step-{step:07d}.old"
            remove(replaced)
            os.rename(final, replaced)
        os.rename(temporary, final)
        sync(self.folder)
        with _deleting_is_not_vital():
            for leftover in self.folder.glob(".step-*"):
                remove(leftover)
            steps = self.steps()
            best_of_kept = set(map(self._best_step, steps[-keep_last:]))
            for old in steps[:-keep_last]:
                if old not in best_of_kept:
                    remove(self._rename_away(old))

    def _best_step(self, step: int) -> int | None:
        """The step of the best weights according to a checkpoint; a run resumed from it needs them."""
        try:
            return json.loads((self.path(step) / STATE).read_text(encoding="utf-8")).get("best_step")
        except (OSError, ValueError, AttributeError):  # damaged: no run can resume from it
            return None

    def _rename_away(self, step: int) -> Path:
        # Rename before deleting, so that a half-deleted folder never looks like a checkpoint.
        doomed = self.folder / f".step-{step:07d}.gone"
        remove(doomed)
        os.rename(self.path(step), doomed)
        return doomed

    def put_away_after(self, step: int) -> list[str]:
        """Discard the checkpoints after a step: the next `finish` deletes them. Returns their names."""
        later = [each for each in self.steps() if each > step]
        for each in later:
            self._rename_away(each)
        return [self.path(each).name for each in later]

    def newest(self) -> tuple[Path, list[str]]:
        """The newest complete checkpoint, and why each newer one is not. UserError if there is none."""
        passed_over = []
        for step in reversed(self.steps()):
            try:
                verify_checkpoint(self.path(step))
            except ValueError as error:
                passed_over.append(str(error))
            else:
                return self.path(step), passed_over
        why = f": {'; '.join(passed_over)}" if passed_over else ""
        raise UserError(f"{self.folder.parent} holds no checkpoint to resume from{why}; start again with --overwrite")

    def named(self, name: str) -> Path:
        """A checkpoint by its folder's name, such as step-0000500. UserError if it is missing or damaged."""
        steps = self.steps()
        if name not in {self.path(step).name for step in steps}:
            there = ", ".join(self.path(step).name for step in steps) or "none"
            raise UserError(f"{self.folder.parent} holds no checkpoint {name!r}; there are {there}")
        verify_checkpoint(self.folder / name)
        return self.folder / name


def verify_checkpoint(folder: Path) -> None:
    """UserError if a file of a checkpoint is missing, or differs in size or contents from what was written."""
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder}: {MANIFEST} is missing, so the checkpoint is not complete")
    with as_user_error(f"{folder}: {MANIFEST} is damaged: "):
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: (entry["size"], entry["sha256"]) for name, entry in manifest.items()}
    if missing := {STATE, WEIGHTS} - set(expected):
        raise UserError(f"{folder}: {MANIFEST} is damaged, it does not name {' and '.join(sorted(missing))}")
    for name, (size, digest) in expected.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{folder}: {name} is missing")
        if path.stat().st_size != size:
            raise UserError(f"{folder}: {name} has {path.stat().st_size} bytes, not {size}: truncated")
        with reading(path):
            found = sha256(path)
        if found != digest:
            raise UserError(f"{folder}: {name} is not what was written: its SHA-256 differs")


class Snapshots:
    """Weights kept for averaging (section 6.1)."""

    def __init__(self, folder: Path):
        self.folder = folder

    def keep(self, step: int, weights: Path) -> dict[str, str]:
        """Copy a weights file for averaging. Returns its name and SHA-256, for `average`."""
        self.folder.mkdir(exist_ok=True)
        target = self.folder / f"step-{step:07d}.safetensors"
        with written_whole(target) as temporary:
            shutil.copyfile(weights, temporary)
        return {target.name: sha256(target)}

    def delete_all_but(self, kept: Iterable[str]) -> None:
        """Delete all other snapshots, including those after the step that the run resumed from."""
        for path in self.folder.glob("step-*.safetensors"):
            if path.name not in kept:
                with _deleting_is_not_vital():
                    path.unlink()

    def average(self, snapshots: dict[str, str]) -> dict[str, torch.Tensor]:
        """
        The mean of the snapshots (section 6.1). Damaged or missing ones are left out, with a warning.

        Args:
            snapshots: names, with SHA-256.
        """
        paths = []
        for name, digest in snapshots.items():
            path = self.folder / name
            if path.is_file() and sha256(path) == digest:
                paths.append(path)
            else:
                logger.warning(f"{path} is {'damaged' if path.is_file() else 'missing'}: the average is without it")
        if not paths:
            raise UserError(f"{self.folder} holds no weights to average; make them anew with --resume-from")
        logger.info(f"averaging the weights of the last {len(paths)} checkpoints")
        total: dict[str, torch.Tensor] = {}
        dtypes = {}
        for path in paths:
            for name, tensor in load_file(path).items():
                dtypes[name] = tensor.dtype
                total[name] = total.get(name, 0) + tensor.double()
        return {name: (tensor / len(paths)).to(dtypes[name]) for name, tensor in total.items()}


OPTIMIZER, SCALER = "optimizer.bin", "scaler.pt"
RECIPE = "recipe.yaml"
CURVES = "curves.png"
TRACKING = "tracking"
LOCK = ".lock"
_ROOMS = ("checkpoints", "averaging", TRANSLATIONS)  # folders that a user may replace by links to other disks
_WRITTEN = ("checkpoints/step-*", "checkpoints/.step-*", "averaging/step-*.safetensors", f"{TRANSLATIONS}/*.txt")
_WRITTEN += ("target_tokenizer", TRACKING, "*.safetensors", "*.json", "*.py", METRICS_FILE, CURVES, RECIPE)
# May lie in a folder before its run begins. They are pushed with the model but are not part of it: a push never deletes
# them from the Hub.
COMPANIONS = ("LICENSE*", "NOTICE*")
SEEN = ".seen-by-all-"
_LEFT = (f"{SEEN}*", ".*.tmp")  # by a process that was killed
_SECONDS_TO_LOCK = 15  # the workers of a killed run outlive it by a few seconds


def random_states(process: int) -> str:
    """The file in a checkpoint that holds a process's random states."""
    return f"random_states_{process}.pkl"


def holds_other_things(folder: Path) -> bool:
    """Whether a folder without a run holds files that keep a run from beginning there."""

    def may_stay(path: Path) -> bool:
        if path.is_symlink() and path.name in _ROOMS:
            return True
        return path.name == LOCK or (path.is_file() and any(fnmatch(path.name, each) for each in (*COMPANIONS, *_LEFT)))

    return not all(map(may_stay, folder.iterdir()))


class RunFolder:
    """The folder of a run, which one process at a time may write to."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = CheckpointStore(self.path / "checkpoints")
        self.snapshots = Snapshots(self.path / "averaging")
        self._made = False
        # One lock per process, held until it ends: two runs in one folder would delete each other's files.
        self._lock = FileLock(self.path.resolve() / LOCK, is_singleton=True)

    def lock(self) -> None:
        """Keep other runs from writing to the folder. UserError if one is already doing so."""
        if self._lock.is_locked:
            return
        try:
            self._lock.acquire(timeout=_SECONDS_TO_LOCK)
        except Timeout:
            raise UserError(
                f"{self.path} is in use by another run; wait for it, or choose another output_dir"
            ) from None

    def is_run(self) -> bool:
        """Whether a run made this folder. Its recipe must be valid, since --overwrite deletes what is here."""
        if not (self.path / RECIPE).is_file():
            return False
        try:
            load_recipe(self.path / RECIPE)
        except ValueError:
            return False
        return True

    def locked_can_go_on(self) -> bool:
        """
        Whether there is a run to resume: one that has written a checkpoint, even a damaged one, weights, or final
        scores. Locks the folder, so that it stays true. UserError if it is in use.
        """
        if self.path.is_dir():
            self.lock()
        has_something = self.checkpoints.steps() or (self.path / WEIGHTS).exists() or finally_scored(self.path)
        return self.is_run() and bool(has_something)

    def check(self, resume: bool, overwrite: bool) -> None:
        """Lock the folder, if it exists. UserError if it conflicts with the command line, or is in use."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; output_dir must be a folder")
        if is_run := (self.path / RECIPE).is_file():
            try:
                load_recipe(self.path / RECIPE)
            except UserError as error:
                raise UserError(
                    f"{self.path} holds a recipe that is not a run's ({error}); correct it or set another output_dir"
                ) from error
        elif resume:
            raise UserError(f"{self.path} holds no run to resume")
        if is_run and not resume and not overwrite:
            self.lock()  # if it is in use, that is what there is to say
            raise UserError(f"{self.path} already holds a run: continue it with --resume, replace it with --overwrite")
        if not is_run and self.path.is_dir() and holds_other_things(self.path):
            raise UserError(f"{self.path} holds files that are not a run's; choose another output_dir")
        self._check_writable()
        for path in map(self.path.joinpath, _ROOMS):
            if path.is_symlink() and not path.is_dir():  # as on a disk that is not mounted
                raise UserError(f"{path} is a link, and there is no folder {os.readlink(path)}")
        if overwrite:
            self._check_deletable()
        if self.path.is_dir():
            self.lock()

    def _check_writable(self) -> None:
        """Create a temporary file, since permission bits alone do not tell whether this is possible."""
        there = next(path for path in (self.path, *self.path.resolve().parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise UserError(f"output_dir {self.path}: nothing can be written to {there} ({error.strerror})") from None

    def _written(self) -> list[Path]:
        """What runs have written here, the recipe last."""
        found = [path for pattern in _WRITTEN for path in sorted(self.path.glob(pattern))]
        return [path for path in found if path.parent != self.path or not path.name.startswith(".")]

    def _check_deletable(self) -> None:
        """UserError if `create` would fail halfway, at something that cannot be deleted."""
        for path in self._written():
            for folder in (path.parent, *(each for each in (path, *path.rglob("*")) if is_real_folder(each))):
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise UserError(f"{path} cannot be deleted, since {folder} is not writable; nothing was deleted")

    def make(self) -> None:
        """Make the folder, if it does not exist, and lock it."""
        self._made = self._made or not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()

    def remove_if_empty(self) -> None:
        """Remove the folder if `make` made it; one that was there may be a mount point or a link."""
        if self._made and {path.name for path in self.path.iterdir()} <= {LOCK}:
            self._lock.release()
            shutil.rmtree(self.path)
            self._made = False

    def create(self) -> None:
        """
        Make the folder. If it holds a run (which `check` has allowed to be replaced), delete the files that runs
        write, the recipe last, so that it still counts as a run after an interrupt. The model card and the record of
        pushes stay for the next push. A link to a folder of checkpoints, as on a larger disk, stays too, and so does
        what others have in that folder.
        """
        self.make()
        if self.is_run():
            logger.info(f"deleting the run in {self.path}")
            for path in self._written():
                remove(path)
            for path in map(self.path.joinpath, _ROOMS):
                with suppress(OSError):  # a link, a disk of its own, or something else is in it
                    path.rmdir()

    # -- weights -------------------------------------------------------------------------------------------------

    def go_on_from(self, checkpoint: Path, step: int, best: int | None, unsettled: bool) -> bool:
        """
        Restore the folder to its state at a checkpoint: the best weights at its root, no later checkpoints or records.

        Args:
            best: the step of the best weights so far; None if nothing was evaluated.
            unsettled: whether the evaluation at this step will be repeated.

        Returns:
            Whether the weights at the root are the best ones; otherwise they are the checkpoint's.
        """
        if later := self.checkpoints.put_away_after(step):
            logger.warning(f"the later checkpoints {', '.join(later)} are discarded; the next one replaces them")
        forget_after(self.path, step, unsettled)
        weights, has_best = checkpoint, False
        if best is not None:
            try:
                verify_checkpoint(self.checkpoints.path(best))
                weights, has_best = self.checkpoints.path(best), True
            except ValueError as error:
                logger.warning(f"the best weights so far cannot be used; the best is chosen anew ({error})")
        # The weights at the root may be from later updates.
        self.write_weights(load_file(weights / WEIGHTS))
        return has_best

    def write_weights(self, weights: dict[str, torch.Tensor], folder: Path | None = None) -> None:
        """
        Write weights where from_pretrained finds them: at the root, or in another folder.

        Raises:
            UserError: they are not finite.
        """
        for name, tensor in weights.items():
            if not torch.isfinite(tensor).all():
                raise UserError(
                    f"training has diverged: {name} holds NaN or infinite values, and is not written; lower "
                    "optimization.learning_rate, or lengthen optimization.warmup_steps, and begin anew"
                )
        with written_whole((folder or self.path) / WEIGHTS) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary, {"format": "pt"})

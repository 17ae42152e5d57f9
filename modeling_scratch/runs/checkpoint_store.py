"""Store checkpoints in a run's folder so that each is complete or absent."""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ..errors import UserError, as_user_error
from ..files import reading, remove, sha256, sync, written_whole

logger = logging.getLogger(__name__)

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

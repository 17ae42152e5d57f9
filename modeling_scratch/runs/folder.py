"""A run's folder: the model at its root, its checkpoints and its records."""

import logging
import os
import shutil
import tempfile
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file

from ..errors import UserError
from ..files import is_real_folder, remove, written_whole
from ..recipe.reading import load_recipe
from .checkpoint_store import WEIGHTS, CheckpointStore, Snapshots, verify_checkpoint
from .metrics_file import METRICS_FILE, finally_scored, forget_after
from .translations import TRANSLATIONS

logger = logging.getLogger(__name__)

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

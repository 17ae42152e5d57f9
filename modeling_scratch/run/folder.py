"""
A run's folder: the model at its root, and beside it the recipe, metrics.jsonl, the translations, the checkpoints, and
the weights that will be averaged.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from ..errors import UserError, shortened
from ..files import reading, remove, sha256, sync, written_whole
from ..model import configuration_scratch
from ..model.confidence import FILE as CONFIDENCE
from ..model.translation_pipeline import TARGET_FOLDER
from ..recipe.reading import is_saved_recipe, load_recipe
from .records import BEFORE, METRICS_FILE, RECIPE, TRANSLATIONS, finally_scored, forget_after

logger = logging.getLogger(__name__)

# At the root.
WEIGHTS = "model.safetensors"
CURVES = "curves.png"
LOCK = ".lock"
# In a checkpoint, beside the files of a model.
STATE, OPTIMIZER, SCALER = "training_state.json", "optimizer.bin", "scaler.pt"
CHECKSUMS = "sha256"  # in the state: of the files that a run resumes from
# Folders. All but TRACKING may be links to folders on other disks.
CHECKPOINTS, AVERAGING, TRACKING = "checkpoints", "averaging", "tracking"
PROJECT = "modeling_scratch"  # in trackers
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "spiece.model",
)
# A folder may hold these before its run begins. They are pushed with the model but are not part of it: a push never
# deletes them from the Hub.
COMPANIONS = ("LICENSE*", "NOTICE*")
SEEN = ".seen-by-all-"  # how the name of a file begins that shows whether all processes share the folder

# The files that runs write, besides those named after splits and steps, and of models of other kinds and versions.
_FILES: tuple[str, ...] = (WEIGHTS, METRICS_FILE, CURVES, CONFIG_NAME, GENERATION_CONFIG_NAME, CONFIDENCE)
_FILES += (*TOKENIZER_FILES, *(f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES))
_FILES += tuple(path.name for path in Path(configuration_scratch.__file__).parent.glob("[!_]*.py"))
# Code of models of 0.1 and 0.2. Like all these files, --overwrite deletes it.
_CODE_BEFORE = (
    "decoder_steps",
    "decoding",
    "dropout",
    "fast_cpu",
    "feed_forward",
    "loss",
    "pretrained",
    "recorded_decoding",
    "vocabulary",
)
_FILES += tuple(f"{name}.py" for name in _CODE_BEFORE)
_STEPS = (CHECKPOINTS, r"step-\d{7,}|\.step-\d{7,}\.(?:tmp|gone)"), (AVERAGING, r"step-\d{7,}\.safetensors")
_OF_TRACKERS = (f"{TRACKING}/{PROJECT}", f"{TRACKING}/.aim")  # of TensorBoard and Aim
_LEFTOVERS = (f"{SEEN}*", ".*.tmp")  # of a process that was killed
_CHECKPOINT = re.compile(r"step-(\d+)")
_SECONDS_TO_LOCK = 15  # the workers of a killed run outlive it by a few seconds


def checkpoint_name(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step:07d}"


def random_states(process: int) -> str:
    """The file in a checkpoint that holds a process's random states."""
    return f"random_states_{process}.pkl"


class RunFolder:
    """The folder of a run, which one process at a time may write to: the main process of the run that has locked it."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = CheckpointStore(self.path / CHECKPOINTS)
        self._made = False
        # Held until the process ends: two runs in one folder would delete each other's files.
        self._lock = FileLock(self.path.resolve() / LOCK, is_singleton=True)

    # -- before a run ------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Make the folder if it does not exist, and lock it. Raises UserError if another run has."""
        existed = self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self._made = self._made or not existed
        if self._lock.is_locked:
            return
        try:
            self._lock.acquire(timeout=_SECONDS_TO_LOCK)
        except Timeout:
            raise UserError(
                f"{self.path} is in use by another run; wait for it, or choose another output_dir"
            ) from None

    def unlock(self) -> None:
        self._lock.release()

    def is_run(self) -> bool:
        """Whether a run made this folder, and not somebody for their own recipe, which --overwrite would delete."""
        try:
            load_recipe(self.path / RECIPE)
        except UserError:
            return False
        if (self.path / METRICS_FILE).exists() or self.checkpoints.steps():
            return True
        # A run that was killed before its first record. These files tell it from a copy of a run's recipe.
        has_begun = any((self.path / name).exists() for name in (LOCK, Path(configuration_scratch.__file__).name))
        return has_begun and is_saved_recipe(self.path / RECIPE)

    def can_resume(self) -> bool:
        """Whether the folder holds a run that has written a checkpoint, weights or final scores. Locks the folder."""
        if not self.is_run():
            return False
        self.lock()  # first: the run that is ending may be writing its first checkpoint
        return bool(self.checkpoints.steps() or (self.path / WEIGHTS).exists() or finally_scored(self.path))

    def claim(self, resume: bool, overwrite: bool) -> None:
        """Lock the folder, made if needed. Raises UserError if it conflicts with the command line, or is in use."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; output_dir must be a folder")
        if (self.path / RECIPE).is_file():
            load_recipe(self.path / RECIPE)  # an invalid one may not be a run's
        is_run = self.is_run()
        if resume and not is_run:
            raise UserError(f"{self.path} holds no run to resume")
        if not is_run and self.path.is_dir() and holds_other_things(self.path):
            raise UserError(f"{self.path} holds files that are not a run's; choose another output_dir")
        try:
            self.lock()
        except OSError as error:
            raise UserError(f"output_dir: nothing can be written to {self.path} ({error.strerror})") from error
        if is_run and not resume and not overwrite:
            raise UserError(f"{self.path} already holds a run: continue it with --resume, replace it with --overwrite")

    def remove_if_unused(self) -> None:
        """Remove the folder if `lock` made it, and nothing has been written to it since."""
        if self._made and {path.name for path in self.path.iterdir()} <= {LOCK}:
            self._lock.release()
            shutil.rmtree(self.path)
            self._made = False

    def clear(self) -> None:
        """
        Delete what runs have written, the recipe last, so that the folder still counts as a run after an interrupt. The
        model card and the file of past pushes stay for the next push; so do links to folders, and what others have put
        there, which the log names.
        """
        if not self.is_run():
            return
        logger.info(f"deleting the run in {self.path}")
        for path in self._written():
            remove(path)
        (self.path / RECIPE).unlink()
        names = (f"{TRANSLATIONS}/{BEFORE}", CHECKPOINTS, AVERAGING, TRANSLATIONS, TARGET_FOLDER, TRACKING)
        folders = [self.path / name for name in names]
        for folder in folders:
            with suppress(OSError):  # a link, or something else is in it
                folder.rmdir()
        left = [path for folder in (self.path, *folders) if folder.is_dir() for path in sorted(folder.iterdir())]
        if stays := [str(path.relative_to(self.path)) for path in left if path not in (*folders, self.path / LOCK)]:
            logger.info(f"these stay, since no run wrote them: {shortened(', '.join(stays), 1000)}")

    def _written(self) -> list[Path]:
        """
        What runs have written here, except for the recipe: files by their names, since others may lie beside them, and
        checkpoints as a whole. The files of a model have the names that they have in its checkpoints.
        """
        checkpoints = [self.checkpoints.path(step) for step in self.checkpoints.steps()]
        of_models = (str(path.relative_to(folder)) for folder in checkpoints for path in folder.rglob("*"))
        sets = ["validation", "test", *load_recipe(self.path / RECIPE).data.test_sets]
        translations = (f"{TRANSLATIONS}/{file}" for name in sets for file in (f"{name}.txt", f"{BEFORE}/{name}.txt"))
        files = [self.path / name for name in {*_FILES, *of_models, *translations}]
        whole = [
            path
            for folder, pattern in _STEPS
            if (self.path / folder).is_dir()
            for path in (self.path / folder).iterdir()
            if re.fullmatch(pattern, path.name)
        ]
        whole += [self.path / name for name in _OF_TRACKERS]
        found = [path for path in files if path.is_file() or path.is_symlink()] + whole
        may_be_links = [self.path, *(self.path / name for name in (CHECKPOINTS, AVERAGING, TRANSLATIONS))]
        return [path for path in found if path.parent in may_be_links or not path.parent.is_symlink()]

    # -- weights -----------------------------------------------------------------------------------------------------

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
                    "optimization.learning_rate, or lengthen optimization.warmup_steps, and start a new run"
                )
        with written_whole((folder or self.path) / WEIGHTS) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary, {"format": "pt"})

    def rewind(self, checkpoint: Path, step: int, completed_step: int, best: int | None) -> bool:
        """
        Restore the folder to its state at a checkpoint: the best weights at its root, no later checkpoints or records.

        Args:
            completed_step: the last update whose evaluation, if due, is in the checkpoint.
            best: the step of the best weights so far; None if nothing was evaluated.

        Returns:
            Whether the weights at the root are the best ones; otherwise they are the checkpoint's.
        """
        has_best = best is not None and self.checkpoints.path(best).is_dir()
        source = (self.checkpoints.path(best) if has_best else checkpoint) / WEIGHTS
        with reading(source):  # before anything is discarded
            weights = load_file(source)
        if later := self.checkpoints.discard_after(step):
            logger.warning(f"the later checkpoints {', '.join(later)} are discarded; the next one replaces them")
        forget_after(self.path, step, completed_step)
        if best is not None and not has_best:
            logger.warning("the checkpoint of the best weights so far is gone; the best is chosen anew")
        # The weights at the root may be from later updates.
        self.write_weights(weights)
        return has_best

    # -- weights to average (section 6.1) ----------------------------------------------------------------------------

    def keep_for_averaging(self, step: int, weights: Path) -> str:
        """Copy a weights file. Returns the copy's name, for `average`."""
        (self.path / AVERAGING).mkdir(exist_ok=True)
        copy = self.path / AVERAGING / f"step-{step:07d}.safetensors"
        with written_whole(copy) as temporary:
            shutil.copyfile(weights, temporary)
        return copy.name

    def forget_averaged(self, kept: Iterable[str]) -> None:
        """Delete all other copies, including those after the step that the run resumed from."""
        for path in (self.path / AVERAGING).glob("step-*.safetensors"):
            if path.name not in kept:
                path.unlink()

    def average(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The mean of these copies, computed in float64."""
        total: dict[str, torch.Tensor] = {}
        for name in names:
            with reading(self.path / AVERAGING / name):
                weights = load_file(self.path / AVERAGING / name)
                for key, tensor in weights.items():
                    total[key] = total.get(key, 0) + tensor.double()
        return {key: (tensor / len(names)).to(weights[key].dtype) for key, tensor in total.items()}


def holds_other_things(folder: Path) -> bool:
    """Whether a folder without a run holds files that keep a run from beginning there."""

    def may_stay(path: Path) -> bool:
        if path.is_symlink() and path.name in (CHECKPOINTS, AVERAGING, TRANSLATIONS):
            return True
        is_ours = path.name == LOCK or any(fnmatch(path.name, pattern) for pattern in (*COMPANIONS, *_LEFTOVERS))
        return is_ours and path.is_file()

    return not all(map(may_stay, folder.iterdir()))


def _files_to_resume_from(checkpoint: Path) -> list[str]:
    """The names of a checkpoint's files, except for those that are not read: the model's code and generation config."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.suffix != ".py"]
    return [str(path.relative_to(checkpoint)) for path in files if path.name not in (GENERATION_CONFIG_NAME, STATE)]


class CheckpointStore:
    """The checkpoints of a run, a folder each. A folder named step-N is complete; others have names with a dot."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, step: int) -> Path:
        return self.folder / checkpoint_name(step)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, ascending."""
        paths = self.folder.iterdir() if self.folder.is_dir() else []
        matches = (_CHECKPOINT.fullmatch(path.name) for path in paths if path.is_dir())
        return sorted(int(match[1]) for match in matches if match)

    def newest(self) -> Path:
        """The newest checkpoint. Raises UserError if there is none."""
        if steps := self.steps():
            return self.path(steps[-1])
        raise UserError(f"{self.folder.parent} holds no checkpoint to resume from; start again with --overwrite")

    def named(self, name: str) -> Path:
        """A checkpoint by its folder's name, such as step-0000500. Raises UserError if there is none."""
        names = [self.path(step).name for step in self.steps()]
        if name not in names:
            there = ", ".join(names) or "none"
            raise UserError(f"{self.folder.parent} holds no checkpoint {name!r}; there are {there}")
        return self.folder / name

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
        Write the state, and rename the folder. Then delete all but the last `keep_last` checkpoints and those that they
        name as the best: a run that resumes from them needs its weights.
        """
        temporary = self.unfinished(step)
        state = state | {CHECKSUMS: {name: sha256(temporary / name) for name in _files_to_resume_from(temporary)}}
        (temporary / STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")
        for path in [*temporary.rglob("*"), temporary]:  # on disk before the rename, even after a power failure
            sync(path)
        if self.path(step).exists():  # the run was stopped at this step and resumed
            self._rename_away(step)
        os.rename(temporary, self.path(step))
        sync(self.folder)
        steps = self.steps()
        kept = {*steps[-keep_last:], *map(self._best_step, steps[-keep_last:])}
        for old in set(steps) - kept:
            self._rename_away(old)
        for leftover in self.folder.glob(".step-*"):
            remove(leftover)

    def check(self, checkpoint: Path, names: Iterable[str] | None = None) -> None:
        """
        Raise UserError if a file that a run resumes from is not the one that was written, as after a faulty copy.
        Checkpoints of earlier versions have no checksums.

        Args:
            names: of the files; None: all of them.
        """
        with reading(checkpoint / STATE):
            checksums = json.loads((checkpoint / STATE).read_text(encoding="utf-8")).get(CHECKSUMS, {})
        for name in checksums if names is None else checksums.keys() & set(names):
            with reading(checkpoint / name):
                is_same = sha256(checkpoint / name) == checksums[name]
            if not is_same:
                raise UserError(f"{checkpoint / name} is damaged or replaced: it is not the file that the run wrote")

    def _best_step(self, step: int) -> int | None:
        return json.loads((self.path(step) / STATE).read_text(encoding="utf-8")).get("best_step")

    def _rename_away(self, step: int) -> None:
        # Renamed before it is deleted, so that a half-deleted folder never looks like a checkpoint.
        doomed = self.folder / f".step-{step:07d}.gone"
        remove(doomed)
        os.rename(self.path(step), doomed)

    def discard_after(self, step: int) -> list[str]:
        """Discard the checkpoints after a step: the next `finish` deletes them. Returns their names."""
        steps = [later for later in self.steps() if later > step]
        for later in steps:
            self._rename_away(later)
        return [self.path(later).name for later in steps]

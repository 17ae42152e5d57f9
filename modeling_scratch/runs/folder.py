"""What is in a run's folder, and how it is written: whole or not at all."""

import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file

from ..errors import UserError, Diverged
from ..recipe.reading import load_recipe

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
OPTIMIZER, SCALER = "optimizer.bin", "scaler.pt"
RECIPE = "recipe.yaml"
METRICS = "metrics.jsonl"
CURVES = "curves.png"
SAMPLES = "samples.md"
TRACKING = "tracking"
STATE = "training_state.json"
MANIFEST = "manifest.json"
LOCK = ".lock"
_SECONDS_TO_LOCK = 15  # the workers of a run that was killed end some seconds after it
_CHECKPOINT = re.compile(r"step-(\d+)")


def random_states(process: int) -> str:
    """The file of a process's random states in a checkpoint."""
    return f"random_states_{process}.pkl"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _deleting_is_not_vital() -> Iterator[None]:
    """What is new is written: no reason to end a run."""
    try:
        yield
    except OSError as error:
        logger.warning(f"an old checkpoint cannot be deleted: {error}")


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Where to write a file so that a reader sees the old one or the new one, also after a power failure."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)  # as the umask has it; safetensors makes files private
        yield temporary
        os.chmod(temporary, mode)
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file of text, whole or not at all."""
    with _whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


class RunFolder:
    """A run's folder: the model at its root, checkpoints to continue from, records of the training."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "averaging"
        # One for the whole process, until it ends: of two at once, each would delete what the other writes.
        self._lock = FileLock(self.path.resolve() / LOCK, is_singleton=True)

    def lock(self) -> None:
        """Keep other processes from writing to the folder. UserError if one does."""
        if self._lock.is_locked:
            return
        try:
            self._lock.acquire(timeout=_SECONDS_TO_LOCK)
        except Timeout:
            raise UserError(
                f"{self.path} is in use by another run; wait for it, or choose another output_dir"
            ) from None

    def is_run(self) -> bool:
        """Whether a run made this folder: any `recipe.yaml` will not do, since --overwrite deletes."""
        if not (self.path / RECIPE).is_file():
            return False
        try:
            load_recipe(self.path / RECIPE)
        except ValueError:
            return False
        return True

    def can_go_on(self) -> bool:
        """Whether there is a run with more to lose than its beginning: any checkpoint, be it damaged, or weights."""
        replaced = self.checkpoints.glob(".step-*.old")
        return self.is_run() and bool(self.checkpoint_steps() or any(replaced) or (self.path / WEIGHTS).exists())

    def check(self, resume: bool, overwrite: bool) -> None:
        """Lock the folder, if it is there. UserError if it is not what the command line takes it to be, or in use."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; output_dir must be a folder")
        if resume and overwrite:
            raise UserError("--resume continues a run and --overwrite deletes it; give one of them")
        if resume and not self.is_run():
            raise UserError(f"{self.path} holds no run to resume")
        if self.is_run() and not resume and not overwrite:
            raise UserError(f"{self.path} already holds a run: continue it with --resume, replace it with --overwrite")
        if not self.is_run() and self.path.is_dir() and any(path.name != LOCK for path in self.path.iterdir()):
            raise UserError(f"{self.path} holds files that are not a run's; choose another output_dir")
        self._check_writable()
        if self.path.is_dir():
            self.lock()

    def _check_writable(self) -> None:
        """By writing: permissions do not say all. What is written has no name, and leaves nothing."""
        there = next(path for path in (self.path, *self.path.resolve().parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise UserError(f"output_dir {self.path}: nothing can be written to {there} ({error.strerror})") from None

    def make(self) -> None:
        """Make the folder, if it is not there, and lock it."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()

    def remove_if_empty(self) -> None:
        if {path.name for path in self.path.iterdir()} <= {LOCK}:
            self._lock.release()
            shutil.rmtree(self.path)

    def create(self) -> None:
        """
        Make the folder. Of a run that was there (`check` has seen that it is one, and may go) the files that runs write
        are deleted, its recipe last, so that what an interrupt leaves is still a run. What was pushed where, and the
        card, stay: the next push goes on from them.
        """
        self.make()
        if self.is_run():
            logger.info(f"deleting the run in {self.path}")
            patterns = ["checkpoints", "averaging", "target_tokenizer", TRACKING, "*.safetensors", "*.json", "*.py"]
            for pattern in [*patterns, METRICS, CURVES, SAMPLES, RECIPE]:
                for path in self.path.glob(pattern):
                    if path.name.startswith("."):
                        continue
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:07d}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint, ascending."""
        if not self.checkpoints.is_dir():
            return []
        matches = (_CHECKPOINT.fullmatch(path.name) for path in self.checkpoints.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in matches if match)

    def unfinished(self, step: int) -> Path:
        """Where a checkpoint is while it is written."""
        return self.checkpoints / f".step-{step:07d}.tmp"

    def begin_checkpoint(self, step: int) -> Path:
        """An empty folder to fill; `finish_checkpoint` gives it its name."""
        temporary = self.unfinished(step)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        return temporary

    def finish_checkpoint(self, step: int, state: dict[str, Any], keep_last: int, best: int | None = None) -> None:
        """
        Write the state and, last, the manifest; rename; delete all but the last checkpoints and that of the best step.
        Whatever interrupts this, a folder with a checkpoint's name is a whole one.
        """
        temporary, final = self.unfinished(step), self.checkpoint(step)
        (temporary / STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        manifest = {
            path.relative_to(temporary).as_posix(): {"size": path.stat().st_size, "sha256": _sha256(path)}
            for path in files
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        folders = [path for path in temporary.rglob("*") if path.is_dir()]
        for path in [*files, temporary / MANIFEST, *folders, temporary]:
            _sync(path)
        if final.exists():  # a run that was stopped here, and went on
            replaced = self.checkpoints / f".step-{step:07d}.old"
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(final, replaced)
        os.rename(temporary, final)
        _sync(self.checkpoints)
        with _deleting_is_not_vital():
            for leftover in self.checkpoints.glob(".step-*"):
                shutil.rmtree(leftover)
            # Later ones are damaged: the run was continued from before them.
            steps = [each for each in self.checkpoint_steps() if each <= step]
            best_of_kept = {best, *map(self._best_step, steps[-keep_last:])}
            for old in steps[:-keep_last]:
                if old not in best_of_kept:
                    self._delete_checkpoint(old)

    def _best_step(self, step: int) -> int | None:
        """The step of the best weights as of a checkpoint: a run that goes on from it needs them."""
        try:
            return json.loads((self.checkpoint(step) / STATE).read_text(encoding="utf-8")).get("best_step")
        except (OSError, ValueError, AttributeError):  # damaged: no run goes on from it
            return None

    def set_aside_after(self, step: int) -> None:
        """Damaged checkpoints must not be counted among those that are kept; the next one that is written ends them."""
        for each in self.checkpoint_steps():
            if each > step:
                damaged = self.checkpoints / f".step-{each:07d}.damaged"
                shutil.rmtree(damaged, ignore_errors=True)
                os.rename(self.checkpoint(each), damaged)

    def _delete_checkpoint(self, step: int) -> None:
        # Under another name first: what is half deleted must not look like a checkpoint.
        doomed = self.checkpoints / f".step-{step:07d}.gone"
        os.rename(self.checkpoint(step), doomed)
        shutil.rmtree(doomed)

    def delete_checkpoints_after(self, step: int) -> list[str]:
        """Delete the later checkpoints of a run that goes on from here; their names."""
        later = [each for each in self.checkpoint_steps() if each > step]
        for each in later:
            self._delete_checkpoint(each)
        return [self.checkpoint(each).name for each in later]

    def newest_checkpoint(self) -> tuple[Path, list[str]]:
        """
        The newest checkpoint that is whole, and why each newer one is not. UserError if there is none.
        """
        for replaced in self.checkpoints.glob(".step-*.old"):  # killed between the two renames of `finish_checkpoint`
            final = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".old"))
            if not final.exists():
                os.rename(replaced, final)
        passed_over = []
        for step in reversed(self.checkpoint_steps()):
            try:
                verify_checkpoint(self.checkpoint(step))
            except ValueError as error:
                passed_over.append(str(error))
            else:
                return self.checkpoint(step), passed_over
        why = f": {'; '.join(passed_over)}" if passed_over else ""
        raise UserError(f"{self.path} holds no checkpoint to resume from{why}; start again with --overwrite")

    def named_checkpoint(self, name: str) -> Path:
        """A checkpoint by the name of its folder, as step-0000500. UserError if it is not there, or not whole."""
        steps = self.checkpoint_steps()
        if name not in {self.checkpoint(step).name for step in steps}:
            there = ", ".join(self.checkpoint(step).name for step in steps) or "none"
            raise UserError(f"{self.path} holds no checkpoint {name!r}; there are {there}")
        verify_checkpoint(self.checkpoints / name)
        return self.checkpoints / name

    def go_on_from(self, checkpoint: Path, step: int, best: int | None, unsettled: bool, drop_later: bool) -> bool:
        """
        Leave in the folder what there was at a checkpoint, the best weights at its root.

        Args:
            best: the step of the best weights so far; None: nothing was evaluated.
            unsettled: the evaluation of this step is made again.
            drop_later: later checkpoints are to be deleted; otherwise they are damaged.

        Returns:
            Whether the weights at the root are the best ones; otherwise they are the checkpoint's.
        """
        if not drop_later:
            self.set_aside_after(step)
        elif deleted := self.delete_checkpoints_after(step):
            logger.warning(f"deleted the later checkpoints {', '.join(deleted)}")
        self.forget_after(step, unsettled)
        weights, has_best = checkpoint, False
        if best is not None:
            try:
                verify_checkpoint(self.checkpoint(best))
                weights, has_best = self.checkpoint(best), True
            except ValueError as error:
                logger.warning(f"the best weights so far cannot be used; what is best is found anew ({error})")
        # Those at the root may be of updates that are made again, or not made any more.
        self.write_weights(load_file(weights / WEIGHTS))
        return has_best

    # -- weights -------------------------------------------------------------------------------------------------

    def snapshot(self, step: int, weights: Path) -> dict[str, str]:
        """Keep a file of weights for averaging. Returns its name and SHA-256, for `averaged_weights`."""
        self.snapshots.mkdir(exist_ok=True)
        target = self.snapshots / f"step-{step:07d}.safetensors"
        with _whole(target) as temporary:
            shutil.copyfile(weights, temporary)
        return {target.name: _sha256(target)}

    def delete_snapshots_but(self, kept: Iterable[str]) -> None:
        """Also later ones, of a run that was continued from before them."""
        for path in self.snapshots.iterdir():
            if path.name not in kept:
                with _deleting_is_not_vital():
                    path.unlink()

    def averaged_weights(self, snapshots: dict[str, str]) -> dict[str, torch.Tensor]:
        """
        The mean of weights that were kept (section 6.1). A warning names those that are not what was kept.

        Args:
            snapshots: names and SHA-256.
        """
        paths = []
        for name, digest in snapshots.items():
            path = self.snapshots / name
            if path.is_file() and _sha256(path) == digest:
                paths.append(path)
            else:
                logger.warning(f"{path} is {'damaged' if path.is_file() else 'missing'}: the average is without it")
        if not paths:
            raise UserError(f"{self.snapshots} holds no weights to average; make them anew with --resume-from")
        logger.info(f"averaging the weights of the last {len(paths)} checkpoints")
        total: dict[str, torch.Tensor] = {}
        dtypes = {}
        for path in paths:
            for name, tensor in load_file(path).items():
                dtypes[name] = tensor.dtype
                total[name] = total.get(name, 0) + tensor.double()
        return {name: (tensor / len(paths)).to(dtypes[name]) for name, tensor in total.items()}

    def write_weights(self, weights: dict[str, torch.Tensor], folder: Path | None = None) -> None:
        """
        Put weights where from_pretrained finds them: at the root, or in another folder.

        Raises:
            Diverged: they are not finite.
        """
        for name, tensor in weights.items():
            if not torch.isfinite(tensor).all():
                raise Diverged(
                    f"training has diverged: {name} holds NaN or infinite values, and is not written; lower "
                    "optimization.learning_rate, or lengthen optimization.warmup_steps, and begin anew"
                )
        with _whole((folder or self.path) / WEIGHTS) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary, {"format": "pt"})

    # -- records -------------------------------------------------------------------------------------------------

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl. What an interrupt or a power failure left of a line is none."""
        path, found = self.path / METRICS, []
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else [""]
        for number, line in enumerate(lines[:-1], start=1):
            try:
                record = json.loads(line)
                found += [record] if isinstance(record["step"], int) else []
            except (ValueError, KeyError, TypeError):
                logger.warning(f"{path}, line {number} is damaged and left out")
        return found

    def forget_after(self, step: int, unsettled: bool = False) -> None:
        """Drop the records of what a resumed run does again; `unsettled`: the evaluation of this step too."""
        kept = [record for record in self.metrics() if record["step"] <= step and "final" not in record]
        kept = [record for record in kept if not (unsettled and record["step"] == step and record["split"] != "train")]
        write_whole(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in kept))


def verify_checkpoint(folder: Path) -> None:
    """Raise UserError if a file of a checkpoint is missing, has another size, or other contents than were written."""
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder}: {MANIFEST} is missing, so the checkpoint is not complete")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: (entry["size"], entry["sha256"]) for name, entry in manifest.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise UserError(f"{folder}: {MANIFEST} is damaged") from None
    if missing := {STATE, WEIGHTS} - set(expected):
        raise UserError(f"{folder}: {MANIFEST} is damaged, it does not name {' and '.join(sorted(missing))}")
    for name, (size, digest) in expected.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{folder}: {name} is missing")
        if path.stat().st_size != size:
            raise UserError(f"{folder}: {name} has {path.stat().st_size} bytes, not {size}: truncated")
        try:
            found = _sha256(path)
        except OSError as error:
            raise UserError(f"{folder}: {name} cannot be read ({error})") from None
        if found != digest:
            raise UserError(f"{folder}: {name} is not what was written: its SHA-256 differs")

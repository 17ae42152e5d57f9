"""
Turn faults of a long run (memory, disk, lost processes) into one-line errors that say what to do.

Choose the number of threads for training: no more than there are idle cores.

Choose the precision of matrix products: bf16 where the hardware is faster in it, float32 elsewhere.

Set up the processes of a run, and let them wait for each other and fail together.

Check that all processes of a run see the same folder and would train the same model.
"""

import logging
import os
import platform
import re
import shutil
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    DynamoBackend,
    InitProcessGroupKwargs,
    LoggerType,
    ProjectConfiguration,
    broadcast_object_list,
    gather_object,
)
from safetensors import SafetensorError
from transformers import PreTrainedModel

from .. import __version__
from ..errors import ProcessError, UserError, first_line, is_lack_of_memory
from ..model.fast_cpu import is_amd_cpu
from ..recipe.reading import flat_recipe
from ..recipe.schema import Recipe
from .folder import SEEN, TRACKING, RunFolder, read_metrics

logger = logging.getLogger(__name__)

_LOST = re.compile(r"connection (closed|reset|refused)|broken pipe|timed out|timeout|\bpeer\b|nccl|gloo", re.IGNORECASE)


@contextmanager
def explained_lack_of_memory(accelerator: Accelerator, doing: str, advice: str) -> Iterator[None]:
    """
    Turn an out-of-memory error into a ProcessError.

    Args:
        doing: what needed the memory, such as "evaluating".
        advice: what to change.
    """
    try:
        yield
        return
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # to free their tensors
    raise ProcessError(f"out of memory on {accelerator.device} {doing}: {advice}")


def is_loss_of_a_process(error: BaseException, accelerator: Accelerator) -> bool:
    """Whether an error says that another process can no longer be reached."""
    return isinstance(error, RuntimeError) and accelerator.num_processes > 1 and bool(_LOST.search(str(error)))


@contextmanager
def explained_failure_to_write(accelerator: Accelerator, what: str, folder: Path) -> Iterator[None]:
    """Turn a failure to write into a UserError that says what is short, and that nothing is lost."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError, SafetensorError, ValueError) as error:
        if isinstance(error, UserError) or is_loss_of_a_process(error, accelerator):
            raise
        reason, whole = " ".join(str(error).split()), "The checkpoints before it are whole"
        if is_lack_of_memory(error):
            doing = f"writing {what}" + (f" ({reason})" if reason else "")
            raise ProcessError(
                f"out of memory on {accelerator.device} {doing}. {whole}: free memory, then --resume"
            ) from error
        there = next(path for path in (folder, *folder.resolve().parents) if path.exists())
        free = f"{shutil.disk_usage(there).free:,} bytes are free"
        raise UserError(
            f"{what} cannot be written to {folder} ({free}): {reason}. {whole}: make room, then --resume"
        ) from error


@contextmanager
def explained_loss_of_a_process(accelerator: Accelerator, when: Callable[[], str] = str) -> Iterator[None]:
    """
    Turn the loss of another process into a ProcessError.

    Args:
        when: says when it happened, such as "in update 30".
    """
    try:
        yield
    except RuntimeError as error:
        if not is_loss_of_a_process(error, accelerator):
            raise
        raise ProcessError(
            f"process {accelerator.process_index}: another process has ended or cannot be reached {when()}".rstrip()
            + f" ({first_line(error)}); start again with --resume auto"
        ) from error


if TYPE_CHECKING:
    from accelerate import Accelerator

_SECONDS, _RECENT = 1.0, 30.0  # the shortest and the longest time over which other processes are watched


def _cores() -> list[int]:
    """The cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(psutil.cpu_count() or 1))


def _clocks() -> tuple[float, float, float]:
    """
    In seconds: the time; the time that processes have run on this process's cores, without those of a lower priority;
    and the time that this process has run.
    """
    every = psutil.cpu_times(percpu=True)
    own = [every[core] for core in _cores() if core < len(every)]
    is_low = hasattr(os, "nice") and os.nice(0) > 0
    busy = sum(core.user + core.system + (getattr(core, "nice", 0.0) if is_low else 0.0) for core in own)
    return time.monotonic(), busy, time.process_time()


class _Watch:
    """How busy other processes keep the cores on which this one may run."""

    def __init__(self):
        self.before = _clocks()

    def busy_cores(self) -> float:
        """The mean number of busy cores since the start or the last call, if recent, else over a second from now."""
        if time.monotonic() > self.before[0] + _RECENT:
            self.before = _clocks()
        time.sleep(max(0.0, self.before[0] + _SECONDS - time.monotonic()))
        now = _clocks()
        seconds, everywhere, here = (after - before for after, before in zip(now, self.before, strict=True))
        self.before = now
        return max(0.0, everywhere - here) / seconds


watch = _Watch()


@cache
def _default_threads() -> int:
    import torch  # not before: a command watches other processes while it imports torch

    return torch.get_num_threads()


def choose_threads(accelerator: "Accelerator", before: int = 0) -> None:
    """
    Set the number of PyTorch's threads for training on the CPU, unless OMP_NUM_THREADS or a launcher has set it.

    Threads wait for one another hundreds of times in each update. On a busy core, each wait may take as long as another
    process is allowed to keep the core: on two cores, two runs with two threads each get a third of their speed or
    less, with one thread each about 80 %.

    Args:
        before: the number that a resumed run has trained with so far, on which the rounding depends; 0: not known.
    """
    import torch

    if accelerator.device.type != "cpu" or accelerator.num_processes > 1:
        return
    if "OMP_NUM_THREADS" not in os.environ:
        default, cores = _default_threads(), len(_cores())
        if before:
            chosen, why = min(before, cores), "as the run trained before"
        else:
            busy = watch.busy_cores()
            chosen, why = min(default, round(cores - busy)), f"as other processes use {busy:.1f} of {cores} cores"
        torch.set_num_threads(max(1, chosen))
        if torch.get_num_threads() != default:
            said = f"threads: {torch.get_num_threads()} and not {default}, {why}"
            logger.info(f"{said}; OMP_NUM_THREADS={default} overrides this")
    if before and torch.get_num_threads() != before:
        logger.warning(f"threads: {torch.get_num_threads()} instead of {before}: the rounding differs from here on")


_OF_LAUNCHER = "ACCELERATE_MIXED_PRECISION"  # set by `accelerate launch`, and read by Accelerate
_AS_ACCELERATE_NAMES_IT = {"float32": "no", "bf16": "bf16"}
_AS_PEOPLE_NAME_IT = {"no": "float32", "bf16": "bf16 (weights, updates and losses in float32)"}


def is_faster_in_bf16() -> bool:
    """Whether this machine's GPU, or else its CPU, multiplies faster in bf16 than in float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("avx512_bf16") and not capabilities.get("amx_bf16"):
        # Intel's processors with AVX512-FP16 have AMX, which a virtual machine may hide, leaving AVX512-BF16 with
        # half the speed of float32. AMD's processors are faster in bf16.
        return is_amd_cpu() or not capabilities.get("avx512_fp16")
    return bool(capabilities.get("amx_bf16"))


def choose_precision(recipe: Recipe, before: Path | None = None) -> str | None:
    """
    Choose and log a run's precision, as Accelerate names it; None if the launcher has chosen.

    Args:
        before: the folder of a run; `auto` then is the precision that it trained in last.
    """
    launched = os.environ.get(_OF_LAUNCHER)
    if launched is not None:
        if recipe.precision != "auto" and _AS_ACCELERATE_NAMES_IT[recipe.precision] != launched:
            logger.warning(f"precision: {launched}, the launcher's, and not the recipe's {recipe.precision}")
        return None
    if recipe.precision != "auto":
        return _AS_ACCELERATE_NAMES_IT[recipe.precision]
    records = [] if before is None else read_metrics(before)
    kept = next((each["mixed_precision"] for each in reversed(records) if "mixed_precision" in each), None)
    chosen = kept or ("bf16" if is_faster_in_bf16() else "no")
    why = "as the run trained before" if kept else "precision=float32 and precision=bf16 override this"
    logger.info(f"precision: {_AS_PEOPLE_NAME_IT.get(chosen, chosen)}; {why}")
    return chosen


try:
    from torch.distributed import set_timeout  # from PyTorch 2.15 on
except ImportError:
    from torch.distributed.distributed_c10d import _set_pg_timeout as set_timeout

# How long processes wait for one that hangs, and for one with long work, such as the main one's for all (preparing
# data, writing a checkpoint, pushing). One that dies is noticed at once, by its closed connections or by the launcher.
PATIENCE, PATIENCE_WITH_WORK = timedelta(minutes=30), timedelta(hours=6)
# After this many seconds a process reports what it is waiting for, and again whenever the wait has doubled.
_SECONDS_TO_MEET, _SECONDS_WITH_WORK = 15.0, 60.0


@contextmanager
def _said_while_waiting(what: str, seconds: float) -> Iterator[None]:
    """Report on stderr, after `seconds` and whenever the wait has doubled, what this process is waiting for."""
    done, started = threading.Event(), time.monotonic()

    def speak() -> None:
        waited = seconds
        while not done.wait(started + waited - time.monotonic()):
            process = os.environ.get("RANK", "0")
            print(f"process {process} has waited {waited:g} s for {what}", file=sys.stderr, flush=True)
            waited *= 2

    threading.Thread(target=speak, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _wait_for_the_others():
    """A context in which each machine's first process reports missing ones, which cannot report themselves."""
    place = os.environ
    if place.get("WORLD_SIZE", "1") == "1" or place.get("LOCAL_RANK", "0") != "0":
        return nullcontext()
    address = f"{place.get('MASTER_ADDR')}:{place.get('MASTER_PORT')}"
    what = f"all of {place['WORLD_SIZE']} processes to meet at {address}"
    return _said_while_waiting(f"{what} (start those that are missing, with this address)", _SECONDS_TO_MEET)


def make_accelerator(recipe: Recipe | None = None, before: Path | None = None) -> Accelerator:
    """
    An Accelerator configured by `accelerate launch` or its config file, with the recipe's trackers. Its precision is
    the launcher's if there is one, else the recipe's.

    Args:
        before: the folder of a run whose precision is kept, such as one to resume.
    """
    trackers, project = recipe.trackers if recipe else [], None
    if trackers:
        project = ProjectConfiguration(logging_dir=str(Path(recipe.output_dir) / TRACKING))
    if unknown := set(trackers) - {each.value for each in LoggerType}:
        known = ", ".join(sorted(each.value for each in LoggerType))
        raise UserError(f"trackers: {', '.join(sorted(unknown))} is not known to Accelerate, which has {known}")
    with _wait_for_the_others():
        accelerator = Accelerator(
            mixed_precision=choose_precision(recipe, before) if recipe else None,
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=PATIENCE),
                DistributedDataParallelKwargs(gradient_as_bucket_view=True),  # saves 4 bytes per parameter
            ],
            cpu=not torch.accelerator.is_available(),
            log_with=trackers or None,
            project_config=project,
        )
    found = {str(getattr(tracker, "value", tracker)) for tracker in accelerator.log_with}
    if missing := sorted(set(trackers) - found - {"all"}):
        raise UserError(f"trackers: {', '.join(missing)} is not installed")
    if accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise UserError(
            f"Accelerate is set to {accelerator.distributed_type}, which is not supported; to share a model among "
            "processes use configuration/accelerate/fsdp.yaml"
        )
    if accelerator.gradient_accumulation_steps != 1:
        raise UserError(
            f"Accelerate is set to {accelerator.gradient_accumulation_steps} gradient accumulation steps; set "
            "optimization.gradient_accumulation_steps in the recipe instead"
        )
    if accelerator.state.dynamo_plugin.backend != DynamoBackend.NO:
        raise UserError("Accelerate is set to compile; set compile=true in the recipe instead")
    if accelerator.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for float32 products
    return accelerator


def describe(accelerator: Accelerator, model: PreTrainedModel) -> dict[str, Any]:
    """What a model was trained with, for its card: devices, precision, parameters, versions."""
    device = accelerator.device
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        # platform.processor() is empty on many Linux systems; the kernel knows the name.
        cpuinfo = Path("/proc/cpuinfo")
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
        named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = named[0] if named else platform.processor() or platform.machine()
    return {
        "device": device.type,
        "device_name": name,
        "processes": accelerator.num_processes,
        "mixed_precision": accelerator.mixed_precision,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **versions(),
        **{name: version(name) for name in ("datasets", "tokenizers", "sacrebleu")},
    }


def versions() -> dict[str, str]:
    """Versions of the packages that a run's updates depend on."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "modeling_scratch": __version__,
    }


@contextmanager
def _exchange(accelerator: Accelerator, what: str, when: str) -> Iterator[None]:
    """
    Wrap an exchange that may have to wait for long work. The last process of each machine reports what it is waiting
    for, unless it is the main one.

    Args:
        what: what to wait for.
        when: as for `explained_loss_of_a_process`.
    """
    if accelerator.num_processes == 1:
        yield
        return
    is_last = accelerator.local_process_index == int(os.environ.get("LOCAL_WORLD_SIZE", 1)) - 1
    speaks = is_last and not accelerator.is_main_process
    said = _said_while_waiting(what, _SECONDS_WITH_WORK) if speaks else nullcontext()
    set_timeout(PATIENCE_WITH_WORK)  # for later collectives
    try:
        with explained_loss_of_a_process(accelerator, lambda: when), said:
            yield
    finally:
        set_timeout(PATIENCE)


def on_main(accelerator: Accelerator, function: Callable[[], Any], doing: str = "working for all") -> Any:
    """
    Run a function on the main process and give every process its result or exception, so that none waits for one that
    failed. It may take up to PATIENCE_WITH_WORK; meanwhile one process per machine reports what it is waiting for.

    Args:
        doing: what the function does, for these messages.
    """
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = function()
        except Exception as error:
            if accelerator.num_processes == 1:
                raise
            outcome[1] = error
    what = f"the main process, which is {doing}"
    with _exchange(accelerator, what, f"after {doing}" if accelerator.is_main_process else f"while waiting for {what}"):
        broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def main_first(accelerator: Accelerator, function: Callable[[], Any], doing: str = "working for all") -> Any:
    """
    Run a function on the main process, then on the first of each other machine, then on the rest, which use its
    cache. If it fails on one, it fails on all.

    Args:
        doing: as for `on_main`.
    """
    results: list[Any] = []

    def here(works: bool) -> None:
        if works and not results:
            results.append(function())

    on_main(accelerator, lambda: here(True), doing)
    for works in (accelerator.is_local_main_process, True):
        on_all(accelerator, lambda works=works: here(works), doing)
    return results[0]


def on_all(accelerator: Accelerator, function: Callable[[], Any], doing: str = "working too") -> Any:
    """
    Run a function on every process. If it fails on one, it fails on all, so that none waits in vain: on the failing
    process with its own error, on the others with a UserError that quotes it.

    Args:
        doing: as for `on_main`.
    """
    result, failure = None, None
    try:
        result = function()
    except Exception as error:
        failure = error
    said = None if failure is None else f"{type(failure).__name__}: {failure}"
    with _exchange(accelerator, f"the others, which are {doing}", f"after {doing}"):
        others = [each for each in gather_object([said]) if each is not None]
    if failure is not None:
        raise failure
    if others:
        raise UserError(f"another process failed: {others[0]}")
    return result


_SECONDS_TO_SEE = 20  # how long a file from another node may take to appear
# Paths may differ between nodes.
_PATHS = ("output_dir", "data.train_files", "data.validation_files", "data.test_", "data.mix")


def check_folder(accelerator: Accelerator, folder: RunFolder) -> None:
    """UserError if a process does not see what the main one writes to the run's folder."""
    token = folder.path / f"{SEEN}{uuid.uuid4().hex}"

    def leave() -> str:
        folder.make()
        token.touch()
        return token.name

    def remove() -> None:
        token.unlink(missing_ok=True)
        folder.remove_if_empty()

    name = on_main(accelerator, leave)
    try:
        blind = gather_object([not _sees(folder, name)])
    finally:
        on_main(accelerator, remove)
    if any(blind):
        raise UserError(
            f"process {blind.index(True)} does not see what process 0 writes to {folder.path.resolve()}: set "
            "output_dir to a folder that all nodes share"
        )


def _sees(folder: RunFolder, name: str) -> bool:
    """Whether this process sees the named file, allowing for the delay of a network file system."""
    for _ in range(_SECONDS_TO_SEE):
        with suppress(OSError):
            if name in os.listdir(folder.path):
                return True
        time.sleep(1)
    return False


def check_run(accelerator: Accelerator, recipe: Recipe, compiled: bool, data: str, updates: int) -> None:
    """
    Raise the same UserError on every process if they would not all train the same model.

    Args:
        data: the fingerprint of the training pairs.
        updates: the number of updates in the whole run.
    """
    facts = {key: value for key, value in flat_recipe(recipe).items() if not key.startswith(_PATHS)} | versions()
    facts["data.mix"] = [each.model_dump(exclude={"files"}) for each in recipe.data.mix]
    facts |= {"mixed precision": accelerator.mixed_precision, "kind of device": accelerator.device.type}
    facts["whether layers are compiled"] = compiled
    everybody = gather_object([facts | {"training data, by SHA-256": data, "number of updates": updates}])
    for name, value in everybody[0].items():
        for rank, other in enumerate(each.get(name) for each in everybody):
            if other != value:
                raise UserError(
                    f"the processes do not agree on {name}: {value} on process 0, {other} on process {rank}; start all "
                    "with the same command, data and versions"
                )

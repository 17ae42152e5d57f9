"""Set up the processes of a run, and let them wait for each other and fail together."""

import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
from transformers import PreTrainedModel

from .. import __version__
from ..errors import UserError
from ..recipe.schema import Recipe
from .faults import explained_loss_of_a_process
from .folder import TRACKING
from .precision import choose_precision

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

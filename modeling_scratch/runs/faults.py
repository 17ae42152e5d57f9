"""What goes wrong in a long run through nobody's typing, said in one line with what to do about it."""

import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
import pyarrow
import torch
from accelerate import Accelerator
from accelerate.utils.memory import clear_device_cache
from safetensors import SafetensorError
from torch import nn

from ..errors import Diverged, ProcessError, UserError

_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_LOST = re.compile(r"connection (closed|reset|refused)|broken pipe|timed out|timeout|\bpeer\b|nccl|gloo", re.IGNORECASE)


@contextmanager
def explained_damage_of_the_cache() -> Iterator[None]:
    """UserError that says what to delete, where a file in the cache of datasets cannot be read."""
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and "Expected to be able to read" not in str(error):
            raise
        raise UserError(
            f"a file in the cache of datasets is damaged ({error}); delete {datasets.config.HF_DATASETS_CACHE} and "
            "start again"
        ) from error


def _is_lack_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


@contextmanager
def explained_lack_of_memory(accelerator: Accelerator, doing: str, advice: Callable[[], str]) -> Iterator[None]:
    """
    ProcessError where memory does not suffice.

    Args:
        doing: what it does not suffice for.
        advice: what to change; called when the memory of the failed attempt is free again.
    """
    try:
        yield
        return
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # their tensors
    raise ProcessError(f"out of memory on {accelerator.device} {doing}: {advice()}")


def pieces_that_fit(model: nn.Module, batch: dict[str, torch.Tensor], **options) -> int:
    """
    Try into how many pieces a batch must be cut so that a forward and backward pass of one fits into memory.

    Args:
        model: not wrapped, for this process tries it alone.
        options: of its forward pass, besides the batch.

    Returns:
        A power of two, at least 2; 0 if not even one pair fits.
    """
    rows, pieces = len(batch["input_ids"]), 1
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    while pieces < rows:
        pieces *= 2
        clear_device_cache(garbage_collection=True)
        piece = {name: tensor[: -(-rows // pieces)] for name, tensor in batch.items()}
        try:
            # Not backward(), by which DDP would send gradients to processes that do not expect them.
            torch.autograd.grad(model(**piece, **options).loss, parameters, allow_unused=True)
            return pieces
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_lack_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
    return 0


def is_loss_of_a_process(error: BaseException, accelerator: Accelerator) -> bool:
    """Whether an error says that another process cannot be reached any more."""
    return isinstance(error, RuntimeError) and accelerator.num_processes > 1 and bool(_LOST.search(str(error)))


@contextmanager
def explained_failure_to_write(accelerator: Accelerator, what: str, folder: Path) -> Iterator[None]:
    """UserError that says how much room there is, and that nothing is lost."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        if isinstance(error, Diverged) or is_loss_of_a_process(error, accelerator):
            raise
        raise UserError(
            f"{what} cannot be written to {folder} ({shutil.disk_usage(folder).free:,} bytes are free): "
            f"{' '.join(str(error).split())}. The checkpoints before it are whole: make room, then --resume"
        ) from error


@contextmanager
def explained_loss_of_a_process(accelerator: Accelerator) -> Iterator[None]:
    """ProcessError where another process cannot be reached any more."""
    try:
        yield
    except RuntimeError as error:
        if not is_loss_of_a_process(error, accelerator):
            raise
        raise ProcessError(
            f"process {accelerator.process_index}: another process has ended or cannot be reached "
            f"({str(error).splitlines()[0]}); start again with --resume auto"
        ) from error


@contextmanager
def said_while_waiting(what: str, every: float = 15.0) -> Iterator[None]:
    """Say on stderr, again and again, what is waited for: a process that never comes sends no error."""
    done, started = threading.Event(), time.monotonic()

    def speak() -> None:
        while not done.wait(every):
            print(f"waiting for {what}, for {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)

    threading.Thread(target=speak, daemon=True).start()
    try:
        yield
    finally:
        done.set()

"""Turn faults of a long run (memory, disk, lost processes) into one-line errors that say what to do."""

import re
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator
from safetensors import SafetensorError

from ..errors import ProcessError, UserError, first_line, is_lack_of_memory

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

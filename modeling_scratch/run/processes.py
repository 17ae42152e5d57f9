"""The processes of a run work together: they wait for one another, fail together, and stop together when asked to."""

import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import psutil
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError
from transformers import StoppingCriteria

from ..data.batches import SIGNALS
from ..errors import ProcessError, UserError, is_lack_of_memory

Result = TypeVar("Result")


def on_main(accelerator: Accelerator, function: Callable[[], Result]) -> Result:
    """Run a function on the main process. Every process gets its result, or raises its exception."""
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = function()
        except Exception as error:
            if accelerator.num_processes == 1:
                raise
            outcome[1] = error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def write_on_main(accelerator: Accelerator, what: str, folder: Path, function: Callable[[], Result]) -> Result:
    """`on_main` for a function that writes `what` to a run's folder. UserError on all processes if it cannot."""

    def write() -> Result:
        with explained_failure_to_write(what, folder):
            return function()

    return on_main(accelerator, write)


def on_all(accelerator: Accelerator, function: Callable[[], Result]) -> Result:
    """
    Run a function on every process. If it fails on one, it fails on all: there with its own error, on the others with a
    UserError that quotes it.
    """
    result, failure = None, None
    try:
        result = function()
    except Exception as error:
        failure = error
    quoted = None if failure is None else f"{type(failure).__name__}: {failure}"
    others = [message for message in gather_object([quoted]) if message is not None]
    if failure is not None:
        raise failure
    if others:
        raise UserError(f"another process failed: {others[0]}")
    return result


def main_first(accelerator: Accelerator, function: Callable[[], Result]) -> Result:
    """
    Run a function on the main process, then on the first process of each other machine, then on the rest, which use
    its cache. If it fails on one, it fails on all.
    """
    results: list[Result] = []

    def once(its_turn: bool) -> None:
        if its_turn and not results:
            results.append(function())

    on_main(accelerator, lambda: once(True))
    on_all(accelerator, lambda: once(accelerator.is_local_main_process))
    on_all(accelerator, lambda: once(True))
    return results[0]


# -- explaining faults -------------------------------------------------------------------------------------------------


@contextmanager
def advising_on_memory(accelerator: Accelerator, doing: str, advice: str) -> Iterator[None]:
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


@contextmanager
def explained_failure_to_write(what: str, folder: Path) -> Iterator[None]:
    """
    Turn a failure to write into a UserError that names the space left and what is intact; a lack of memory into a
    ProcessError. Only for code that calls no other process: a lost one is a RuntimeError too.
    """
    intact = "Earlier checkpoints are intact"
    try:
        yield
    except UserError:
        raise
    except (MemoryError, OSError, RuntimeError, SafetensorError, ValueError) as error:
        reason = " ".join(str(error).split())
        if is_lack_of_memory(error):
            message = f"out of memory writing {what} ({reason}). {intact}: free memory, then --resume"
            raise ProcessError(message) from error
        there = next(path for path in (folder, *folder.resolve().parents) if path.exists())
        free = f"{shutil.disk_usage(there).free:,} bytes are free"
        raise UserError(
            f"{what} cannot be written to {folder} ({free}): {reason}. {intact}: make room, then --resume"
        ) from error


# -- stopping ----------------------------------------------------------------------------------------------------------


def _seconds_before() -> float:
    """How long the launcher has run that restarted this process; 0 if none did."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return 0
    return time.time() - psutil.Process(os.getppid()).create_time()


class StopRequest:
    """
    A request to stop, truthy once made. Inside `with`, signals make it; a second Ctrl-C raises KeyboardInterrupt.

    Args:
        max_minutes: time after which to make the request; None: no limit. Restarts by a launcher get no new time.
    """

    def __init__(self, max_minutes: float | None = None):
        self.reason: str | None = None
        self._end = None if max_minutes is None else time.monotonic() + 60 * max_minutes - _seconds_before()
        self._max_minutes = max_minutes
        self._before: dict = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
            self._before = {number: signal.signal(number, self._catch) for number in heard}
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __bool__(self) -> bool:
        if self.reason is None and self._end is not None and time.monotonic() >= self._end:
            self.reason = f"--max-minutes {self._max_minutes:g}"
        return self.reason is not None

    def agreed(self, accelerator: Accelerator) -> bool:
        """Whether any process was asked to stop. All processes must call this together, and get the same answer."""
        if accelerator.num_processes == 1:
            return bool(self)
        asked = torch.tensor(float(bool(self)), device=accelerator.device)
        return accelerator.reduce(asked, "sum").item() > 0


class StopDecoding(StoppingCriteria):
    """Ends `generate` at the next token when a run is asked to stop; the unfinished translations are discarded."""

    is_rowwise = True  # the answer is the same for all rows, so finished sentences may leave the batch

    def __init__(self, request: StopRequest):
        self.request = request

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        """(batch_size,): whether each sequence is done."""
        return torch.full((input_ids.shape[0],), bool(self.request), device=input_ids.device)

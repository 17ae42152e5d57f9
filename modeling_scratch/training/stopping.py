"""Stop a run after the current update, when a signal or the clock asks for it."""

import os
import signal
import threading
import time
from types import FrameType

import psutil
import torch
from accelerate import Accelerator
from transformers import StoppingCriteria

from ..data.batches import SIGNALS


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

"""Ends a run on request, after the update that it is in: by a signal, or by the clock."""

import signal
import threading
import time
from types import FrameType

import torch
from accelerate import Accelerator
from transformers import StoppingCriteria

# What asks for a stop: Ctrl-C, schedulers and launchers, clusters before they take a machine back, a closed terminal.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]


class StopRequest:
    """
    Whether a run was asked to end. Signals are caught within `with`; a second Ctrl-C raises KeyboardInterrupt.

    Args:
        max_minutes: of this process, from here on; None: no limit.
    """

    def __init__(self, max_minutes: float | None = None):
        self.reason: str | None = None
        self._end = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._max_minutes = max_minutes
        self._before: dict = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
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
        """Whether any process was asked to end. All processes must call this together, and hear the same."""
        if accelerator.num_processes == 1:
            return bool(self)
        asked = torch.tensor(float(bool(self)), device=accelerator.device)
        return accelerator.reduce(asked, "sum").item() > 0


class StopDecoding(StoppingCriteria):
    """Ends `generate` at the next token when a run was asked to end; what it has written by then is of no use."""

    is_rowwise = True  # sentences that are done may leave the batch: it is the same for all

    def __init__(self, request: StopRequest):
        self.request = request

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        """(batch_size,): whether each sequence is done."""
        return torch.full((input_ids.shape[0],), bool(self.request), device=input_ids.device)


def ignore_signals(worker: int) -> None:
    """For processes that prepare batches: theirs is to work until the training process has ended."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

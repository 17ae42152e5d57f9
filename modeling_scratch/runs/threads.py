"""Choose the number of threads for training: no more than there are idle cores."""

import logging
import os
import time
from functools import cache
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from accelerate import Accelerator

logger = logging.getLogger(__name__)

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

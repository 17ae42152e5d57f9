"""Choose the number of a training's threads: no more than there are idle cores."""

import logging
import os
import time
from functools import cache
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from accelerate import Accelerator

logger = logging.getLogger(__name__)

_SECONDS = 1.0  # the least time over which other processes are watched


class _Watch:
    """How busy other processes keep the cores. Those of a lower priority do not count."""

    def __init__(self):
        self.before = self._clocks()

    @staticmethod
    def _clocks() -> tuple[float, float, float]:
        """The time, the time of all cores in all processes, and the time of all cores in this process, in seconds."""
        everywhere = psutil.cpu_times()
        return time.monotonic(), everywhere.user + everywhere.system, time.process_time()

    def busy_cores(self) -> float:
        """The number of busy cores, on average since the last call or the start."""
        time.sleep(max(0.0, self.before[0] + _SECONDS - time.monotonic()))
        now = self._clocks()
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
    Set the number of PyTorch's threads for a training on the CPU, unless OMP_NUM_THREADS or a launcher has set it.

    Threads wait for one another hundreds of times in each update. On a busy core, each wait may take as long as another
    process is allowed to keep it: two trainings with two threads each on two cores get a third of their speed or less,
    with one thread each some 70 %.

    Args:
        before: the number with which a resumed run has trained so far: the rounding depends on it. 0: not known.
    """
    import torch

    if "OMP_NUM_THREADS" in os.environ or accelerator.device.type != "cpu" or accelerator.num_processes > 1:
        return
    default, cores = _default_threads(), psutil.cpu_count() or 1
    if before:
        chosen, why = min(before, max(cores, default)), "as the run trained before"
    else:
        busy = watch.busy_cores()
        chosen, why = max(1, min(default, round(cores - busy))), f"as other processes use {busy:.1f} of {cores} cores"
    if chosen != default:
        logger.info(f"threads: {chosen} and not {default}, {why}; OMP_NUM_THREADS={default} overrides this")
    torch.set_num_threads(chosen)

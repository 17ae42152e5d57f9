"""
Record the kernels of an update once, as CUDA graphs, and replay them.

An update of a small model has a thousand kernels, which a host takes longer to launch than the GPU to run.
"""

import logging
from collections.abc import Callable

import torch

logger = logging.getLogger(__name__)

MicroBatches = list[dict[str, torch.Tensor]]

_MOST_SHAPES = 64  # of which graphs are kept: each takes a few megabytes, besides the memory that all share
# A GPU must have so many times the memory that a plain update takes: recorded ones share up to twice that, which the
# plain ones, of new shapes, cannot use.
_ROOM = 3


class UpdateGraphs:
    """
    The two halves of an update, between which the host reads the loss: both are called plainly the first time that
    micro-batches have some shapes, recorded the second time, and replayed from then on. They must not wait for the
    device, and what they leave must be in tensors that they found, or in gradients, which only the second half reads:
    graphs share their memory, so the next one overwrites it.

    Args:
        passes: takes micro-batches on the device.
        step: the optimizer's.
    """

    def __init__(self, passes: Callable[[MicroBatches], None], step: Callable[[], None], device: torch.device):
        self.passes, self.step, self.device = passes, step, device
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        self.seen: set[tuple] = set()
        self.recorded: dict[tuple, tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph, MicroBatches]] = {}
        self.has_stepped = False  # an optimizer makes its state at its first step
        self.needed = 0  # bytes, the most that plain passes have taken
        self.has_warned = False
        self.current: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph, MicroBatches] | None = None

    def make_passes(self, micro_batches: MicroBatches) -> None:
        """The first half, over micro-batches on the host (pinned) or the device."""
        key = tuple(tensor.shape for batch in micro_batches for tensor in batch.values())
        is_due = key in self.seen and key not in self.recorded and len(self.recorded) < _MOST_SHAPES
        if is_due and self.has_stepped and self._has_room():
            self.recorded[key] = self._record(self._on_device(micro_batches))
        self.seen.add(key)
        self.current = self.recorded.get(key)
        if self.current is None:
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self.passes(self._on_device(micro_batches))
            self.needed = max(self.needed, torch.cuda.max_memory_allocated(self.device) - before)
            return
        graph, _, inputs = self.current
        for static, given in zip(inputs, micro_batches, strict=True):
            for name, tensor in given.items():
                static[name].copy_(tensor, non_blocking=True)
        graph.replay()

    def make_step(self) -> None:
        """The second half, for the gradients of the last passes."""
        if self.current is None:
            self.step()
            self.has_stepped = True
        else:
            self.current[1].replay()

    def _has_room(self) -> bool:
        free, _ = torch.cuda.mem_get_info(self.device)
        ours = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if free + ours >= _ROOM * self.needed:
            return True
        if not self.has_warned:
            self.has_warned = True
            logger.warning(
                f"updates are not recorded, which is slower: the GPU has {(free + ours) / 2**30:.1f} GiB beside the "
                f"model, and {_ROOM * self.needed / 2**30:.1f} are needed; larger "
                "optimization.gradient_accumulation_steps need less"
            )
        return False

    def _on_device(self, micro_batches: MicroBatches) -> MicroBatches:
        return [
            {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
            for batch in micro_batches
        ]

    def _record(self, inputs: MicroBatches) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph, MicroBatches]:
        """Nothing is computed here, and no random number is drawn."""
        graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for graph, function in zip(graphs, (lambda: self.passes(inputs), self.step), strict=True):
            # Other threads may use the device meanwhile, such as the one that pins the memory of batches.
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                function()
        return *graphs, inputs

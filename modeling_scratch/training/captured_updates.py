"""
Capture the kernels of an update once, as CUDA graphs, and replay them: an update of a small model has a thousand
kernels, which a host takes longer to launch than the GPU to run.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from transformers import PreTrainedModel

from ..data.batches import BatchShare
from ..recipe.schema import OptimizationSection
from .fast_layers import has_own_hooks
from .step import StepResult, TrainingStep

logger = logging.getLogger(__name__)

MicroBatches = list[dict[str, torch.Tensor]]

_MOST_SHAPES = 64  # of which CUDA graphs are kept: each takes a few megabytes, besides the memory that all share
# A GPU must have so many times the memory that a plain update takes: captured ones share up to twice that, which the
# plain ones, of new shapes, cannot use.
_ROOM = 3


def may_capture(accelerator: Accelerator, model: nn.Module | None = None) -> bool:
    """
    Whether updates can be captured: in one process on a GPU. Several processes exchange gradients meanwhile; with
    float16 the host decides about the scale; and hooks of the model run on the host.
    """
    is_alone = accelerator.num_processes == 1 and accelerator.distributed_type == DistributedType.NO
    has_hooks = model is not None and any(map(has_own_hooks, model.modules()))
    return accelerator.device.type == "cuda" and is_alone and accelerator.scaler is None and not has_hooks


def make_training_step(
    accelerator: Accelerator, model: PreTrainedModel, optimization: OptimizationSection
) -> TrainingStep:
    """What makes the updates of a run. The arguments and errors are those of `TrainingStep`."""
    kind = CapturedTrainingStep if may_capture(accelerator, model) else TrainingStep
    return kind(accelerator, model, optimization)


@dataclass
class _Captured:
    """An update of micro-batches of some shapes, in two CUDA graphs, between which the host reads the loss."""

    micro_batches: MicroBatches  # on the device, where the CUDA graphs read them
    passes: torch.cuda.CUDAGraph
    step: torch.cuda.CUDAGraph


class CapturedTrainingStep(TrainingStep):
    """
    A TrainingStep that makes an update plainly the first time that micro-batches have some shapes, captures it the
    second time, and replays it from then on. Everything that changes from update to update is on the device: the batch,
    its number of target tokens, the learning rate. CUDA graphs share their memory, so the next one that is replayed
    overwrites whatever an update leaves elsewhere than in weights, states, `loss_sums` and `gradient_norm`.
    """

    def __init__(self, accelerator: Accelerator, model: PreTrainedModel, optimization: OptimizationSection):
        super().__init__(accelerator, model, optimization)
        device = accelerator.device
        self.learning_rate, self.target_tokens = (torch.ones((), device=device) for _ in range(2))
        for group in self.optimizer.param_groups:
            group["capturable"] = True
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        self.seen: set[tuple] = set()
        self.captured: dict[tuple, _Captured] = {}
        self.current: _Captured | None = None  # of this update; None: it is made plainly
        self.has_stepped = False  # an optimizer makes its state at its first step
        self.needed = 0  # bytes, the most that plain passes have taken
        self.has_warned = False

    def __call__(self, batch: BatchShare, *arguments, **options) -> StepResult:
        """Like the method that it overrides, on another stream than the default one, which cannot be captured."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = super().__call__(batch, *arguments, **options)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def set_learning_rate(self, learning_rate: float | torch.Tensor) -> None:
        """Like the method that it overrides."""
        super().set_learning_rate(self.learning_rate.fill_(learning_rate))

    def make_passes(
        self, micro_batches: Iterable[dict[str, torch.Tensor]], count: int, target_tokens: int | torch.Tensor
    ) -> None:
        """Like the method that it overrides. The micro-batches are on the host (pinned) or the device."""
        micro_batches = list(micro_batches)
        self.target_tokens.fill_(target_tokens)
        key = tuple(tensor.shape for micro_batch in micro_batches for tensor in micro_batch.values())
        is_due = key in self.seen and key not in self.captured and len(self.captured) < _MOST_SHAPES
        if is_due and self.has_stepped and self._has_room():
            self.captured[key] = self._capture(micro_batches)
        self.seen.add(key)
        self.current = self.captured.get(key)
        if self.current is None:
            before = torch.cuda.memory_allocated(self.accelerator.device)
            torch.cuda.reset_peak_memory_stats(self.accelerator.device)
            super().make_passes(micro_batches, count, self.target_tokens)
            peak = torch.cuda.max_memory_allocated(self.accelerator.device)
            self.needed = max(self.needed, peak - before)
        else:
            for static, given in zip(self.current.micro_batches, micro_batches, strict=True):
                for name, tensor in given.items():
                    static[name].copy_(tensor, non_blocking=True)
            self.current.passes.replay()

    def step_optimizer(self) -> None:
        """Like the method that it overrides."""
        if self.current is None:
            super().step_optimizer()
            self.has_stepped = True
        else:
            self.current.step.replay()

    def _has_room(self) -> bool:
        device = self.accelerator.device
        free, _ = torch.cuda.mem_get_info(device)
        ours = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if free + ours >= _ROOM * self.needed:
            return True
        if not self.has_warned:
            self.has_warned = True
            logger.warning(
                f"updates are not captured, which is slower: the GPU has {(free + ours) / 2**30:.1f} GiB beside the "
                f"model, and {_ROOM * self.needed / 2**30:.1f} are needed; larger "
                "optimization.gradient_accumulation_steps need less"
            )
        return False

    def _capture(self, micro_batches: MicroBatches) -> _Captured:
        """Nothing is computed here, and no random number is drawn."""
        inputs = [
            {name: torch.empty_like(tensor, device=self.accelerator.device) for name, tensor in micro_batch.items()}
            for micro_batch in micro_batches
        ]
        captured = _Captured(inputs, torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())
        # Other threads may use the device meanwhile, such as the one that pins the memory of batches.
        options = {"pool": self.pool, "stream": self.stream, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(captured.passes, **options):
            super().make_passes(inputs, len(inputs), self.target_tokens)
        with torch.cuda.graph(captured.step, **options):
            super().step_optimizer()
        return captured

"""
Capture the kernels of an update once, as CUDA graphs, and replay them: an update of a small model has a thousand
kernels, which a host takes longer to launch than the GPU to run.

Each captured update is first compared with a plain one.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from transformers import PreTrainedModel

from ..data.batches import BatchShare
from ..recipe.schema import OptimizationSection
from ..run.processes import advising_on_memory
from .fast_layers import has_own_hooks
from .step import StepResult, TrainingStep

logger = logging.getLogger(__name__)

MicroBatches = list[dict[str, torch.Tensor]]

_MOST_SHAPES = 64  # of which CUDA graphs are kept: each takes a few megabytes, besides the memory that all share
# A GPU must have so many times the memory that a plain update takes: captured ones share up to twice that, which the
# plain ones, of new shapes, cannot use.
_ROOM = 3
# How much a captured update may differ from a plain one, relative to it: its loss and gradient norm by some rounding
# errors of its products, in TF32 or bfloat16. The change of the weights differs more, since Adam scales up gradients
# that are nothing but rounding; without the optimizer's step, or for another batch, it differs by 1 or more. Chosen by
# this reasoning; not measured on a GPU yet.
_MOST_DIFFERENCE = {"no": 4 * 2**-10, "bf16": 4 * 2**-7}
_MOST_DIFFERENCE_OF_CHANGE = 0.25


def may_capture(accelerator: Accelerator, model: nn.Module | None = None) -> bool:
    """
    Whether updates can be captured: in one process on a GPU. Several processes exchange gradients meanwhile; with
    float16 the host decides about the scale; and hooks of the model run on the host.
    """
    is_alone = accelerator.num_processes == 1 and accelerator.distributed_type == DistributedType.NO
    has_hooks = model is not None and any(map(has_own_hooks, model.modules()))
    is_comparable = accelerator.mixed_precision in _MOST_DIFFERENCE
    return accelerator.device.type == "cuda" and is_alone and is_comparable and not has_hooks


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

    def replay_passes(self, micro_batches: MicroBatches) -> None:
        """Make the passes over these micro-batches, which may be on the host."""
        for static, given in zip(self.micro_batches, micro_batches, strict=True):
            for name, tensor in given.items():
                static[name].copy_(tensor, non_blocking=True)
        self.passes.replay()


class CapturedTrainingStep(TrainingStep):
    """
    A TrainingStep that makes an update plainly the first time that micro-batches have some shapes, captures it the
    second time, and replays it from then on. If a captured update differs from a plain one, all updates are made
    plainly. Everything that changes from update to update is on the device: the batch, its number of target tokens, the
    learning rate. CUDA graphs share their memory, so the next one that is replayed overwrites whatever an update leaves
    elsewhere than in weights, states, `loss_sums` and `gradient_norm`.
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
        self.captures = True  # False: captured updates differ from plain ones here
        self.has_warned = False  # of too little memory

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
        micro_batches, device = list(micro_batches), self.accelerator.device
        key = tuple(tensor.shape for micro_batch in micro_batches for tensor in micro_batch.values())
        is_due = self.captures and key in self.seen and key not in self.captured and self.has_stepped
        self.target_tokens.fill_(target_tokens)
        if is_due and len(self.captured) < _MOST_SHAPES and self._has_room():
            self._capture_and_compare(key, micro_batches)
        self.seen.add(key)
        self.current = self.captured.get(key)
        if self.current is None:
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            super().make_passes(micro_batches, count, self.target_tokens)
            self.needed = max(self.needed, torch.cuda.max_memory_allocated(device) - before)
        else:
            self.current.replay_passes(micro_batches)

    def step_optimizer(self) -> None:
        """Like the method that it overrides."""
        if self.current is None:
            super().step_optimizer()
            self.has_stepped = True
        else:
            self.current.step.replay()

    def _has_room(self) -> bool:
        """Whether the memory suffices for the CUDA graphs, and for the copies that comparing takes."""
        device = self.accelerator.device
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        needed = _ROOM * self.needed + 2 * sum(tensor.nbytes for tensor in [*self._weights(), *self._states()])
        if free < needed and not self.has_warned:
            self.has_warned = True
            logger.warning(
                f"an update is not captured, which is slower: the GPU has {free / 2**30:.1f} GiB beside the model, and "
                f"{needed / 2**30:.1f} are needed; larger optimization.gradient_accumulation_steps need less"
            )
        return free >= needed

    def _capture_and_compare(self, key: tuple, micro_batches: MicroBatches) -> None:
        """Capture the update of some shapes, to be replayed from now on unless it differs from a plain one."""
        count, captured = len(micro_batches), self._capture(micro_batches)
        plain_passes = partial(super().make_passes, micro_batches, count, self.target_tokens)
        doing = "comparing a captured update with a plain one"
        with advising_on_memory(self.accelerator, doing, self._smaller_batches(count)):
            plain, change = self._outcome(plain_passes, super().step_optimizer)
            found, other = self._outcome(partial(captured.replay_passes, micro_batches), captured.step.replay)
        if not plain.isfinite().all():  # such an update is skipped, and says little; the next one is captured
            return
        size = torch.nn.utils.get_total_norm(change)
        torch._foreach_sub_(change, other)
        difference = torch.nn.utils.get_total_norm(change)
        most = _MOST_DIFFERENCE[self.accelerator.mixed_precision]
        if torch.allclose(found, plain, rtol=most, atol=0) and difference <= _MOST_DIFFERENCE_OF_CHANGE * size:
            self.captured[key] = captured
        else:
            self.captures = False
            self.captured.clear()
            logger.warning("no updates are captured, which is slower: here they differ from plain ones")

    def _capture(self, micro_batches: MicroBatches) -> _Captured:
        """Nothing is computed here, and no random number is drawn."""
        inputs = [
            {name: torch.zeros_like(tensor, device=self.accelerator.device) for name, tensor in micro_batch.items()}
            for micro_batch in micro_batches
        ]
        captured = _Captured(inputs, torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())
        # Other threads may use the device meanwhile, such as the one that pins the memory of batches.
        capture = partial(torch.cuda.graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
        with capture(captured.passes):
            super().make_passes(inputs, len(inputs), self.target_tokens)
        with capture(captured.step):
            super().step_optimizer()
        return captured

    def _outcome(self, passes: Callable[[], None], step: Callable[[], None]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """
        The loss, cross-entropy and gradient norm of an update, and by how much it changes the weights. Afterwards
        weights, states and random numbers are as before; `loss_sums` and `gradient_norm` are not, but the update that
        follows begins with them.
        """
        device, weights, states = self.accelerator.device, self._weights(), self._states()
        before = [tensor.clone() for tensor in [*weights, *states]]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            passes()
        measured = torch.cat([self.loss_sums, self.gradient_norm[None]])
        step()
        change = torch._foreach_sub(weights, before[: len(weights)])
        torch._foreach_copy_([*weights, *states], before)
        return measured, list(change)

    def _weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]

    def _states(self) -> list[torch.Tensor]:
        return [tensor for state in self.optimizer.state.values() for tensor in state.values()]

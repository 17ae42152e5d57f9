"""Make one update: forward and backward passes over a global batch, gradient clipping, optimizer step."""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from ..data.batches import BatchShare
from ..recipe.schema import OptimizationSection
from ..run.processes import advising_on_memory
from ..run.sharding import gathered, wrap_model_and_optimizer
from .fused_loss import TrainingLoss
from .optimization import make_optimizer


@dataclass(frozen=True)
class StepResult:
    """The outcome of an update, the same on all processes."""

    loss: float  # the training objective, per target token, over all processes
    cross_entropy: float  # the same without label smoothing, as on the validation split
    finite: bool  # False if loss or gradient was not finite, so that the optimizer step was skipped
    requested: dict[str, bool]  # which of the requests any process made


class TrainingStep:
    """
    Makes updates. Wraps or shards the model and puts it on its device, as the launcher's settings require. On a GPU,
    `CapturedTrainingStep` does the same faster.

    Raises:
        UserError: the model cannot be sharded with these settings (see `sharding.wrap_model_and_optimizer`).
    """

    def __init__(self, accelerator: Accelerator, model: PreTrainedModel, optimization: OptimizationSection):
        self.accelerator, self.optimization = accelerator, optimization
        # Weights from a file lie anywhere in memory, and how products round can depend on that: without a copy, a
        # resumed run would differ from an uninterrupted one on some processors.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        device, dtype = accelerator.device, torch.get_default_dtype()
        self.loss_sums = torch.zeros(2, device=device, dtype=dtype)  # of loss and cross-entropy
        self.gradient_norm = torch.zeros((), device=device, dtype=dtype)
        optimizer = make_optimizer(model, optimization, accelerator.mixed_precision)
        self.model, self.optimizer = wrap_model_and_optimizer(accelerator, model, optimizer)
        self.fused_loss = TrainingLoss(optimization.label_smoothing)

    def __call__(
        self, batch: BatchShare, learning_rate: float, requests: dict[str, Callable[[], bool]] | None = None
    ) -> StepResult:
        """
        Make one update.

        Args:
            requests: by name, whether this process asks all of them for something; found out after its passes, and
                exchanged together with the loss.
        """
        requests = requests or {}
        self.set_learning_rate(learning_rate)
        self.make_passes(batch.micro_batches, batch.count, batch.target_tokens)
        # `full_like` fills them on the device; copying numbers from the host would wait for the device.
        own = [torch.full_like(self.loss_sums[:1], float(is_made())) for is_made in requests.values()]
        sums = self.accelerator.reduce(torch.cat([self.loss_sums, *own]), "sum")
        # Only here do we wait for the device. While it makes the step, the host prepares the next update.
        norm, loss, cross_entropy, *counts = torch.cat([self.gradient_norm[None], sums]).tolist()
        finite = math.isfinite(loss) and math.isfinite(norm)
        advice = f"use a smaller model, or {self._smaller_batches(self.optimization.gradient_accumulation_steps)}"
        doing = "for the optimizer, whose states are 8 bytes a parameter"
        with advising_on_memory(self.accelerator, doing, advice):
            if finite:
                self.step_optimizer()
            else:
                self.optimizer.zero_grad()
                if self.accelerator.scaler is not None:
                    self.accelerator.scaler.update()  # lowers the scale
        requested = {name: count > 0 for name, count in zip(requests, counts, strict=True)}
        return StepResult(loss, cross_entropy, finite, requested)

    def set_learning_rate(self, learning_rate: float | torch.Tensor) -> None:
        """Set the learning rate of all parameters."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def make_passes(
        self, micro_batches: Iterable[dict[str, torch.Tensor]], count: int, target_tokens: int | torch.Tensor
    ) -> None:
        """
        Forward and backward passes over this process's micro-batches, and clipping. Leaves the sums of loss and
        cross-entropy in `loss_sums`, and the norm of the gradient in `gradient_norm`.

        Args:
            count: of the micro-batches.
            target_tokens: the number in the global batch.
        """
        accelerator = self.accelerator
        self.loss_sums.zero_()
        advice = self._smaller_batches(count)
        for number, micro_batch in enumerate(micro_batches, start=1):
            inputs = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in micro_batch.items()}
            exchange = nullcontext() if number == count else accelerator.no_sync(self.model)
            shapes = f"{tuple(inputs['input_ids'].shape)} source and {tuple(inputs['labels'].shape)} target tokens"
            within_memory = advising_on_memory(accelerator, f"with {shapes} at once", advice)
            with exchange, within_memory:
                loss, cross_entropy = self.losses(inputs, target_tokens)
                # DDP averages over processes, but the loss is already divided by the tokens of all of them.
                accelerator.backward(loss * accelerator.num_processes)
            self.loss_sums += torch.stack([loss.detach(), cross_entropy])
        limit = self.optimization.max_grad_norm
        norm = accelerator.clip_grad_norm_(self.model.parameters(), math.inf if limit is None else limit)
        self.gradient_norm.copy_(gathered(norm))

    def losses(
        self, batch: dict[str, torch.Tensor], target_tokens: int | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and cross-entropy, summed over a micro-batch's target tokens and divided by the global batch's."""
        # The model's `loss` is what `fused_loss` returns, and TrainingLoss returns both.
        return self.model(**batch, num_items_in_batch=target_tokens, fused_loss=self.fused_loss).loss

    def step_optimizer(self) -> None:
        """Update the weights by their gradients, and delete these."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _smaller_batches(self, pieces: int) -> str:
        """Advice if a process runs out of memory with its share of an update cut into this many micro-batches."""
        return (
            f"set optimization.gradient_accumulation_steps={2 * pieces}, which changes no batch, or halve "
            f"optimization.tokens_per_batch (now {self.optimization.tokens_per_batch}) and start a new run; with "
            "data.streaming=true, start a new run for either"
        )

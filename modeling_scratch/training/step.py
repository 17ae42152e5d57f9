"""Make one update: forward and backward passes over a global batch, gradient clipping, optimizer step."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from ..recipe.schema import OptimizationSection
from ..runs.faults import explained_lack_of_memory
from .global_batches import BatchShare
from .loss import TrainingLoss
from .optimization import make_optimizer
from .sharding import gathered, prepare


@dataclass(frozen=True)
class StepResult:
    """The outcome of an update, the same on all processes."""

    loss: float  # the training objective, per target token, over all processes
    cross_entropy: float  # the same without label smoothing, as on the validation split
    finite: bool  # False if loss or gradient was not finite, so that the optimizer step was skipped
    answers: dict[str, bool]  # for each question, whether any process answered yes


class TrainingStep:
    """
    Makes updates. Wraps or shards the model and puts it on its device, as the launcher's settings say.

    Raises:
        UserError: the model cannot be sharded with these settings (see `sharding.prepare`).
    """

    def __init__(self, accelerator: Accelerator, model: PreTrainedModel, optimization: OptimizationSection):
        self.accelerator, self.optimization = accelerator, optimization
        optimizer = make_optimizer(model, optimization, accelerator.mixed_precision)
        self.model, self.optimizer = prepare(accelerator, model, optimizer)
        self.fused_loss = TrainingLoss(optimization.label_smoothing)

    def losses(self, batch: dict[str, torch.Tensor], target_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and cross-entropy, summed over a micro-batch's target tokens and divided by the global batch's."""
        return self.model(**batch, num_items_in_batch=target_tokens, fused_loss=self.fused_loss).loss

    def __call__(
        self, batch: BatchShare, learning_rate: float, questions: dict[str, Callable[[], bool]] | None = None
    ) -> StepResult:
        """
        Make one update.

        Args:
            questions: what each process is asked after its passes; the answers are exchanged together with the loss.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        losses = self._accumulate_gradients(batch)
        questions = questions or {}
        # Filled on the device: copying numbers there would wait for it.
        own = [torch.full_like(losses[:1], float(ask())) for ask in questions.values()]
        sums = torch.cat([losses, *own])
        sums = self.accelerator.reduce(sums, "sum")
        advice = f"use a smaller model, or {self._smaller_batches(self.optimization.gradient_accumulation_steps)}"
        doing = "for the optimizer, whose states are 8 bytes a parameter"
        with explained_lack_of_memory(self.accelerator, doing, advice):
            norm, loss, cross_entropy, *counts = self._clip(sums)
            finite = math.isfinite(loss) and math.isfinite(norm)
            if finite:
                self.optimizer.step()
            elif self.accelerator.scaler is not None:
                self.accelerator.scaler.update()  # lowers the scale
        self.optimizer.zero_grad()
        answers = {name: count > 0 for name, count in zip(questions, counts, strict=True)}
        return StepResult(loss, cross_entropy, finite, answers)

    def _accumulate_gradients(self, batch: BatchShare) -> torch.Tensor:
        """Forward and backward passes over this process's micro-batches; the sums of loss and cross-entropy, (2,)."""
        accelerator = self.accelerator
        totals = torch.zeros(2, device=accelerator.device, dtype=torch.get_default_dtype())
        advice = self._smaller_batches(batch.count)
        for number, micro_batch in enumerate(batch.micro_batches, start=1):
            inputs = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in micro_batch.items()}
            exchange = nullcontext() if number == batch.count else accelerator.no_sync(self.model)
            shapes = f"{tuple(inputs['input_ids'].shape)} source and {tuple(inputs['labels'].shape)} target tokens"
            within_memory = explained_lack_of_memory(accelerator, f"with {shapes} at once", advice)
            with exchange, within_memory:
                loss, cross_entropy = self.losses(inputs, batch.target_tokens)
                # DDP averages over processes, but the loss is already divided by the tokens of all of them.
                accelerator.backward(loss * accelerator.num_processes)
            totals += torch.stack([loss.detach(), cross_entropy])
        return totals

    def _clip(self, sums: torch.Tensor) -> list[float]:
        """Clip the gradient. Returns its norm and the sums; only here do we wait for the device."""
        limit = self.optimization.max_grad_norm
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), math.inf if limit is None else limit)
        return torch.cat([gathered(norm).to(sums.dtype)[None], sums]).tolist()

    def _smaller_batches(self, pieces: int) -> str:
        """Advice for when an update's share of a process takes too much memory in this many pieces."""
        return (
            f"set optimization.gradient_accumulation_steps={2 * pieces}, which changes no batch, or halve "
            f"optimization.tokens_per_batch (now {self.optimization.tokens_per_batch}) and begin anew; with "
            "data.streaming=true, begin anew for either"
        )

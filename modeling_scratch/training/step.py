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
from .fused_loss import TrainingLoss
from .graphs import MicroBatches, UpdateGraphs
from .optimization import make_optimizer
from .processes import advising_on_memory
from .sharding import gathered, wrap_model_and_optimizer


@dataclass(frozen=True)
class StepResult:
    """The outcome of an update, the same on all processes."""

    loss: float  # the training objective, per target token, over all processes
    cross_entropy: float  # the same without label smoothing, as on the validation split
    finite: bool  # False if loss or gradient was not finite, so that the optimizer step was skipped
    answers: dict[str, bool]  # for each question, whether any process answered yes


class TrainingStep:
    """
    Makes updates. Wraps or shards the model and puts it on its device, as the launcher's settings require.

    Args:
        graphs: record the kernels of an update on a GPU, and replay them (see `graphs.py`). Everything that changes
            from update to update is then on the device: the batch, its number of target tokens, the learning rate.

    Raises:
        UserError: the model cannot be sharded with these settings (see `sharding.wrap_model_and_optimizer`).
    """

    def __init__(
        self, accelerator: Accelerator, model: PreTrainedModel, optimization: OptimizationSection, graphs: bool = False
    ):
        self.accelerator, self.optimization = accelerator, optimization
        # Weights from a file lie anywhere in memory, and how products round can depend on that: without a copy, a
        # resumed run would differ from an uninterrupted one on some processors.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        device, dtype = accelerator.device, torch.get_default_dtype()
        self.loss_sums = torch.zeros(2, device=device, dtype=dtype)  # of loss and cross-entropy
        self.gradient_norm = torch.zeros((), device=device, dtype=dtype)
        self.learning_rate = torch.zeros((), device=device) if graphs else None
        self.target_tokens: int | torch.Tensor | None = torch.ones((), device=device) if graphs else None
        optimizer = make_optimizer(model, optimization, accelerator.mixed_precision, self.learning_rate)
        self.model, self.optimizer = wrap_model_and_optimizer(accelerator, model, optimizer)
        self.fused_loss = TrainingLoss(optimization.label_smoothing)
        self.graphs = UpdateGraphs(self._make_all_passes, self._optimizer_step, device) if graphs else None

    def losses(
        self, batch: dict[str, torch.Tensor], target_tokens: int | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and cross-entropy, summed over a micro-batch's target tokens and divided by the global batch's."""
        return self.model(**batch, num_items_in_batch=target_tokens, fused_loss=self.fused_loss).loss

    def __call__(
        self, batch: BatchShare, learning_rate: float, questions: dict[str, Callable[[], bool]] | None = None
    ) -> StepResult:
        """
        Make one update.

        Args:
            questions: each process answers these yes-or-no questions after its passes; the answers are exchanged
                together with the loss.
        """
        if self.graphs is None:
            return self._update(batch, learning_rate, questions or {})
        stream = self.graphs.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._update(batch, learning_rate, questions or {})
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _update(self, batch: BatchShare, learning_rate: float, questions: dict[str, Callable[[], bool]]) -> StepResult:
        if self.graphs is None:
            self.target_tokens = batch.target_tokens
        else:
            self.learning_rate.fill_(learning_rate)
            self.target_tokens.fill_(batch.target_tokens)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate if self.learning_rate is None else self.learning_rate
        # Many micro-batches need not be in memory at once, unless they are recorded together.
        if self.graphs is None:
            self._make_passes(batch.micro_batches, batch.count)
        else:
            self.graphs.make_passes(list(batch.micro_batches))
        # `full_like` fills them on the device; copying numbers from the host would wait for the device.
        own = [torch.full_like(self.loss_sums[:1], float(ask())) for ask in questions.values()]
        sums = self.accelerator.reduce(torch.cat([self.loss_sums, *own]), "sum")
        # Only here do we wait for the device. While it makes the step, the host prepares the next update.
        norm, loss, cross_entropy, *counts = torch.cat([self.gradient_norm[None], sums]).tolist()
        finite = math.isfinite(loss) and math.isfinite(norm)
        advice = f"use a smaller model, or {self._smaller_batches(self.optimization.gradient_accumulation_steps)}"
        doing = "for the optimizer, whose states are 8 bytes a parameter"
        with advising_on_memory(self.accelerator, doing, advice):
            if finite:
                (self._optimizer_step if self.graphs is None else self.graphs.make_step)()
            else:
                self.optimizer.zero_grad()
                if self.accelerator.scaler is not None:
                    self.accelerator.scaler.update()  # lowers the scale
        answers = {name: count > 0 for name, count in zip(questions, counts, strict=True)}
        return StepResult(loss, cross_entropy, finite, answers)

    def _make_passes(self, micro_batches: Iterable[dict[str, torch.Tensor]], count: int) -> None:
        """
        Forward and backward passes over this process's micro-batches, and clipping. Leaves the sums of loss and
        cross-entropy in `loss_sums`, and the norm of the gradient in `gradient_norm`.
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
                loss, cross_entropy = self.losses(inputs, self.target_tokens)
                # DDP averages over processes, but the loss is already divided by the tokens of all of them.
                accelerator.backward(loss * accelerator.num_processes)
            self.loss_sums += torch.stack([loss.detach(), cross_entropy])
        limit = self.optimization.max_grad_norm
        norm = accelerator.clip_grad_norm_(self.model.parameters(), math.inf if limit is None else limit)
        self.gradient_norm.copy_(gathered(norm))

    def _make_all_passes(self, micro_batches: MicroBatches) -> None:
        self._make_passes(micro_batches, len(micro_batches))

    def _optimizer_step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _smaller_batches(self, pieces: int) -> str:
        """Advice if a process runs out of memory with its share of an update cut into this many micro-batches."""
        return (
            f"set optimization.gradient_accumulation_steps={2 * pieces}, which changes no batch, or halve "
            f"optimization.tokens_per_batch (now {self.optimization.tokens_per_batch}) and start a new run; with "
            "data.streaming=true, start a new run for either"
        )

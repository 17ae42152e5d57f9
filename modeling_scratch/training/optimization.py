"""Optimizer and learning rate schedule."""

import math

import torch
from torch import nn
from transformers import PreTrainedModel

from ..recipe.schema import OptimizationSection
from .muon import Muon


def learning_rate_at(step: int, optimization: OptimizationSection, total_steps: int | None) -> float:
    """
    The learning rate of update `step`, counted from 1: it grows linearly to `learning_rate` over `warmup_steps`, then
    follows the schedule.

    `inverse_sqrt` is section 5.3's d_model^-0.5 min(step^-0.5, step warmup^-1.5), with its peak given directly: the
    paper's base model peaks at (512 * 4000)^-0.5 = 7.0e-4. `cosine` and `linear` reach 0 after `total_steps`. There is
    no scheduler state to save.
    """
    peak, warmup = optimization.learning_rate, optimization.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if optimization.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    if optimization.schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if optimization.schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (1.0 - progress)


def make_optimizer(
    model: PreTrainedModel, optimization: OptimizationSection, precision: str = "no", rate: torch.Tensor | None = None
) -> torch.optim.Optimizer:
    """
    Adam (section 5.3), with decoupled weight decay for matrices, but not for biases, norms and embeddings; or Muon for
    the matrices of layers, with Adam for the rest.

    Args:
        precision: of the matrix products in training, as Accelerate names it; with "bf16", Muon's are in bf16 too.
        rate: a number on the device that holds the learning rate, so that a recorded step follows it; None: the rate is
            set in the parameter groups.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in parameters if parameter.ndim > 1 and id(parameter) not in embeddings]
    others = [parameter for parameter in parameters if parameter.ndim <= 1 or id(parameter) in embeddings]
    groups = [{"params": decayed, "weight_decay": optimization.weight_decay}, {"params": others, "weight_decay": 0.0}]
    options = {"lr": optimization.learning_rate if rate is None else rate, "capturable": rate is not None}
    options |= {"betas": optimization.betas, "eps": optimization.epsilon, "fused": True}
    if optimization.optimizer == "adamw":
        return torch.optim.AdamW(groups, **options)
    head = model.get_output_embeddings().weight
    of_layers, of_head = [each for each in decayed if each is not head], [each for each in decayed if each is head]
    groups = [{**groups[0], "params": of_layers, "muon": True}, {**groups[0], "params": of_head, "muon": False}]
    groups = [group for group in [*groups, {"params": others, "weight_decay": 0.0, "muon": False}] if group["params"]]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return Muon(groups, dtype, **options)

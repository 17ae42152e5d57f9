"""How the weights are updated: the learning rate, Adam (section 5.3), and Muon for the matrices of layers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..recipe.schema import SCHEDULES, OptimizationSection
from ..run.sharding import cut_like, gathered

MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, as in torch.optim.Muon
_ITERATIONS = 5


def learning_rate_at(step: int, optimization: OptimizationSection, total_steps: int) -> float:
    """
    The learning rate of update `step`, counted from 1: it grows linearly to `learning_rate` over `warmup_steps`, then
    follows the schedule, one of `SCHEDULES`. `inverse_sqrt` is that of section 5.3 with its peak given directly: the
    paper's base model peaks at (512 * 4000)^-0.5 = 7.0e-4. There is no scheduler state to save.
    """
    peak, warmup = optimization.learning_rate, optimization.warmup_steps
    if step < warmup:
        return peak * step / warmup
    return peak * SCHEDULES[optimization.schedule].factor(step, warmup, total_steps)


def make_optimizer(
    model: PreTrainedModel, optimization: OptimizationSection, precision: str = "no"
) -> torch.optim.Optimizer:
    """
    Adam (section 5.3), with decoupled weight decay for matrices, but not for biases, norms and embeddings; or Muon for
    the matrices of layers, with Adam for the rest.

    Args:
        precision: of the matrix products in training, as Accelerate names it; with "bf16", Muon's are in bf16 too.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in parameters if parameter.ndim > 1 and id(parameter) not in embeddings]
    others = [parameter for parameter in parameters if parameter.ndim <= 1 or id(parameter) in embeddings]
    groups = [{"params": decayed, "weight_decay": optimization.weight_decay}, {"params": others, "weight_decay": 0.0}]
    options: dict[str, Any] = {"lr": optimization.learning_rate, "betas": optimization.betas}
    options |= {"eps": optimization.epsilon, "fused": True}
    if optimization.optimizer == "adamw":
        return torch.optim.AdamW(groups, **options)
    head = model.get_output_embeddings().weight
    of_layers = [matrix for matrix in decayed if matrix is not head]
    of_head = [matrix for matrix in decayed if matrix is head]
    groups = [{**groups[0], "params": of_layers, "muon": True}, {**groups[0], "params": of_head, "muon": False}]
    groups = [group for group in [*groups, {"params": others, "weight_decay": 0.0, "muon": False}] if group["params"]]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return Muon(groups, dtype, **options)


class Muon(torch.optim.AdamW):
    """
    Groups with `muon=True` are updated by Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/), scaled
    so that AdamW's learning rates and weight decay fit (Liu et al. 2025, https://arxiv.org/abs/2502.16982); others by
    AdamW. Unlike torch.optim.Muon, it batches matrices of the same shape and supports sharded ones.

    Args:
        groups: parameter groups, each with a key `muon`; where it is True, of matrices only.
        dtype: of the iteration's products, for parameters in float32.
        options: of AdamW.
    """

    def __init__(self, groups: list[dict], dtype: torch.dtype = torch.float32, **options):
        super().__init__(groups, **options)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """Update the parameters that have a gradient."""
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["muon"]]
            super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["muon"]:
                for parameters in _by_shape(group["params"]):
                    self._update(parameters, group["lr"], group["weight_decay"])

    def _update(self, parameters: list[torch.Tensor], rate: float | torch.Tensor, weight_decay: float) -> None:
        """Update matrices of one shape. A rate on the device is read there, as a captured step must."""
        gradients, momenta = [parameter.grad for parameter in parameters], []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)  # AdamW expects one when it loads a state
                state["momentum_buffer"] = torch.zeros_like(parameter)
            state["step"] += 1
            momenta.append(state["momentum_buffer"])
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        # Nesterov momentum.
        updates = torch.stack([gathered(update) for update in torch._foreach_lerp(gradients, momenta, MOMENTUM)])
        dtype = self.dtype if updates.dtype == torch.float32 else updates.dtype
        whole = orthogonalized(updates.to(dtype)).to(updates.dtype)
        directions = [cut_like(*pair) for pair in zip(parameters, whole, strict=True)]
        scale = -rate * 0.2 * math.sqrt(max(parameters[0].shape))
        torch._foreach_mul_(parameters, 1 - rate * weight_decay)
        if isinstance(scale, torch.Tensor):
            torch._foreach_add_(parameters, torch._foreach_mul(directions, scale))
        else:
            torch._foreach_add_(parameters, directions, alpha=scale)


def _by_shape(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The parameters that have a gradient, grouped by shape."""
    found: dict[torch.Size, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            found.setdefault(parameter.shape, []).append(parameter)
    return list(found.values())


def orthogonalized(matrices: torch.Tensor) -> torch.Tensor:
    """
    Approximately the nearest matrices with orthonormal rows or columns: singular values become about 0.7 to 1.2.

    Args:
        matrices: (count, rows, columns).
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT  # (count, rows, rows)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x

"""Shard models among processes (FSDP2, through Accelerate), and gather and load whole weights and optimizer states."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from ..errors import UserError


def is_sharded(accelerator: Accelerator | None) -> bool:
    """Whether each process holds a part of each weight, so that all must take part in every forward pass."""
    return accelerator is not None and accelerator.distributed_type == DistributedType.FSDP


def wrap_model_and_optimizer(
    accelerator: Accelerator, model: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """
    Model and optimizer as Accelerate wraps them for its processes.

    Raises:
        UserError: Accelerate is set to FSDP's first version.
    """
    if not is_sharded(accelerator):
        return accelerator.prepare(model, optimizer)
    plugin = accelerator.state.fsdp_plugin
    if plugin.fsdp_version != 2:
        raise UserError(f"fsdp_version is {plugin.fsdp_version}; set it to 2, as configuration/accelerate/fsdp.yaml")
    if plugin.mixed_precision_policy is not None:
        # Accelerate's own policy rounds losses and sums of gradients to 16 bits.
        policy = replace(plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None)
        plugin.mixed_precision_policy = policy
    with _embeddings_hidden(model):
        model, optimizer = accelerator.prepare(model, optimizer)
    register_fsdp_forward_method(model, "generate")  # it calls parts of the model separately
    return model, optimizer


@contextmanager
def _embeddings_hidden(model: PreTrainedModel) -> Iterator[None]:
    """
    Keep embeddings and output projection in the root FSDP group, with everything outside the layers. Accelerate 1.15
    would give them groups of their own, but a tied weight must be in a single group, and the fused loss reads the
    projection's weight without calling the module, although only a call would gather it.
    """
    model.get_input_embeddings = model.get_output_embeddings = lambda: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.get_input_embeddings, model.get_output_embeddings


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded tensor; any other tensor itself. All processes must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def is_finite(accelerator: Accelerator, model: nn.Module) -> bool:
    """Whether all weights are finite. All processes must call this together."""
    own = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in model.parameters())
    return all(gather_object([all(bool(weight.isfinite().all()) for weight in own)]))


def cut_like(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a whole tensor that is the same on all processes, if the parameter is sharded."""
    if not isinstance(parameter, DTensor):
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def load_whole_weights(accelerator: Accelerator, model: PreTrainedModel, weights: dict[str, Any]) -> None:
    """Load whole weights into a model, which may be sharded."""
    if is_sharded(accelerator):
        report = set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=False))
    else:
        report = model.load_state_dict(weights, strict=False)
    # Tied weights are stored once; any other missing weight would silently keep its value.
    assert set(report.missing_keys) <= set(model.all_tied_weights_keys), report
    assert not report.unexpected_keys, report


def whole_optimizer_state(accelerator: Accelerator, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """
    The optimizer's `state_dict` with whole tensors on the main process, and None in their place on others. All
    processes must call this together. Tensors are gathered one at a time and moved to the CPU, since the device may not
    hold them all.
    """
    state = optimizer.state_dict()
    if not is_sharded(accelerator):
        return state

    def on_main(value: torch.Tensor) -> torch.Tensor | None:
        whole = gathered(value)
        return whole.cpu() if accelerator.is_main_process else None

    tensors = {
        index: {name: on_main(value) for name, value in values.items()} for index, values in state["state"].items()
    }
    return state | {"state": tensors}


def load_whole_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the result of `whole_optimizer_state` into an optimizer, sharded like the parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def cut(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        if parameter.device.type == "cpu":  # otherwise it would remain a part of the memory-mapped file
            value = value.clone()
        return cut_like(parameter, value) if value.shape == parameter.shape else value  # otherwise a count of steps

    cut_state = {
        index: {name: cut(value, parameters[index]) for name, value in values.items()}
        for index, values in state["state"].items()
    }
    # How a rate is kept depends on the device, and each update sets it.
    kept = [{name: group[name] for name in ("lr", "capturable")} for group in optimizer.param_groups]
    groups = [saved | own for saved, own in zip(state["param_groups"], kept, strict=True)]
    optimizer.load_state_dict({"state": cut_state, "param_groups": groups})

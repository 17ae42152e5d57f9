"""Compile the layers for training, in long runs on a GPU."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from accelerate import Accelerator
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError
from torch.utils._triton import has_triton
from transformers import PreTrainedModel

from ..data.batches import BinCollator
from ..errors import UserError
from ..recipe.schema import Recipe
from .captured_updates import CapturedTrainingStep, may_capture
from .step import TrainingStep

logger = logging.getLogger(__name__)

# Rows of the batch that is traced, and their length. They differ from each other, from 1, and from usual widths of
# attention heads: the compiler would take such coincidences for granted.
_ROWS, _BIN = 3, 416
# Compiling takes half a minute, and saves a quarter of the time that updates take without it (measured on an H200,
# captured updates of models of 2 and 60 million parameters): it pays in runs of at least so many tokens.
MANY_TOKENS = 10**8


def is_compiled(recipe: Recipe, accelerator: Accelerator, updates: int) -> bool:
    """
    Whether to compile training: by default, in long runs on GPUs that Triton supports. On a CPU, eager mode is faster.
    """
    if recipe.compile == "auto":
        is_long = updates * recipe.optimization.tokens_per_batch >= MANY_TOKENS
        return accelerator.device.type == "cuda" and is_long and has_triton()
    return recipe.compile


def uses_bins(recipe: Recipe, accelerator: Accelerator) -> bool:
    """
    Whether to lay pairs into bins: where layers may be compiled, or updates captured, since batches of bins have few
    shapes.
    """
    on_gpu = accelerator.device.type == "cuda"
    return recipe.compile is True or (on_gpu and (recipe.compile == "auto" or may_capture(accelerator)))


def compile_layers(model: PreTrainedModel, **options) -> None:
    """
    Compile each layer's call in place, so that weights keep their names. In evaluation mode the layers run as if they
    were not compiled. Layers of a kind share what is compiled, including those that hooks, adapters or sharding have
    changed in the same way.
    """
    # DDP would split what is compiled at the boundaries of its buckets, in the middle of layers.
    torch._dynamo.config.optimize_ddp = False
    for stack in (model.model.encoder, model.model.decoder):
        for layer in stack.layers:
            layer.compile(**{"dynamic": True, **options})
            layer._compiled_call_impl = partial(_call, layer, layer._compiled_call_impl)


def _call(layer: nn.Module, compiled: Callable, *arguments, **options):
    return (compiled if layer.training else layer._call_impl)(*arguments, **options)


def example_batch(model: PreTrainedModel, device: torch.device) -> dict[str, torch.Tensor]:
    """A batch to trace the layers with, before the first real one, laid out as real ones are."""
    collate = BinCollator(model.config.pad_token_id, rows=_ROWS)
    collate.length = _BIN
    return {name: tensor.to(device) for name, tensor in collate([([1, 1], [1, 1])]).items()}


def compile_training(step: TrainingStep) -> None:
    """
    Compile the layers of the step's model, using a batch that no update is made from. The model is in training mode.

    Raises:
        UserError: the compiler fails or is missing.
    """
    logger.info("compiling the layers, which takes half a minute to two minutes")
    accelerator, device = step.accelerator, step.accelerator.device
    model = accelerator.unwrap_model(step.model)
    compile_layers(model)
    step.fused_loss = replace(step.fused_loss, compiled=device.type == "cuda")
    batch = example_batch(model, device)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            accelerator.backward(step.losses(batch, batch["labels"].numel())[0])
    except (TorchDynamoException, InductorError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"the layers cannot be compiled here ({first}); set compile=false") from error
    step.optimizer.zero_grad()


def log_use_of_gpu(step: TrainingStep, compiled: bool) -> None:
    """On a GPU, say whether updates are captured and layers compiled."""
    if step.accelerator.device.type != "cpu":
        captured = "" if isinstance(step, CapturedTrainingStep) else "not "
        layers = f"layers {'' if compiled else 'not '}compiled"
        logger.info(f"updates are {captured}captured, {layers} (docs/scaling.md, Training on a GPU)")

"""Compile encoder and decoder layers for training, into two graphs that serve all batches."""

import logging

import torch
from accelerate import Accelerator
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError
from torch.utils._triton import has_triton
from transformers import PreTrainedConfig, PreTrainedModel

from ..errors import UserError
from ..recipe.schema import Recipe
from .step import TrainingStep

logger = logging.getLogger(__name__)

# Sizes of the batch that is traced. They differ from each other, from 1, and from usual widths of attention heads: the
# compiler would take such coincidences for granted.
_PAIRS, _SOURCE_LENGTH, _TARGET_LENGTH = 3, 88, 104
LENGTHS_OF = 8  # lengths in compiled training are multiples of this, which suits the matrix units of GPUs


def is_compiled(recipe: Recipe, accelerator: Accelerator) -> bool:
    """Whether to compile training: by default, on GPUs that Triton supports. On the CPU, eager mode is faster."""
    if recipe.compile == "auto":
        return accelerator.device.type == "cuda" and has_triton()
    return recipe.compile


def compile_layers(model: PreTrainedModel, **options) -> None:
    """
    Compile each layer's call in place, so that weights keep their names. Layers of a kind share a graph, including
    those that hooks, adapters or sharding have changed in the same way.
    """
    # DDP would split graphs at its bucket boundaries, in the middle of layers.
    torch._dynamo.config.optimize_ddp = False
    for stack in (model.model.encoder, model.model.decoder):
        for layer in stack.layers:
            layer.compile(**{"dynamic": True, **options})


def longest(config: PreTrainedConfig) -> int | None:
    """The length beyond which lengths must not be rounded up: the end of learned positions."""
    return config.max_position_embeddings if config.position_embedding_type == "learned" else None


def example_batch(model: PreTrainedModel, device: torch.device) -> dict[str, torch.Tensor]:
    """A batch to trace the graphs with, before the first real one."""
    limit = longest(model.config)
    target = _TARGET_LENGTH if limit is None else min(_TARGET_LENGTH, limit)
    source = min(_SOURCE_LENGTH, target - 1)
    tokens = torch.ones(_PAIRS, source, dtype=torch.long, device=device)
    labels = torch.ones(_PAIRS, target, dtype=torch.long, device=device)
    positions = torch.arange(source, device=device)[None]
    return {"input_ids": tokens, "attention_mask": tokens, "position_ids": positions, "labels": labels}


def not_compiled():
    """A context in which compiled layers run eagerly, for evaluation and translation."""
    return torch.compiler.set_stance("force_eager")


def make_graphs(model: PreTrainedModel, step: TrainingStep) -> None:
    """
    Compile the layers of the step's model for training, using a batch that no update is made from.

    Args:
        model: not wrapped.

    Raises:
        UserError: the compiler fails or is missing.
    """
    logger.info("compiling the layers, which takes a minute or two")
    compile_layers(model)
    device = step.accelerator.device
    batch = example_batch(model, device)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            step.accelerator.backward(step.losses(batch, batch["labels"].numel())[0])
    except (TorchDynamoException, InductorError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"the layers cannot be compiled here ({first}); set compile=false") from error
    step.optimizer.zero_grad()

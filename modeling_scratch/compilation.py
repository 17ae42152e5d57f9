"""
Training through torch.compile: an encoder layer, a decoder layer and the loss of a chunk of logits, a graph of each for
all batches.
"""

import importlib.util

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from .recipe import Recipe

# Sizes of the batch that the graphs are made from. Sizes that are alike, or 1, would be taken for always so.
_PAIRS, _SOURCE_LENGTH, _TARGET_LENGTH = 3, 16, 24
LENGTHS_OF = 8  # in compiled training lengths are multiples of it, as the matrix units of GPUs have it


def is_compiled(recipe: Recipe, accelerator: Accelerator) -> bool:
    """Whether a run trains compiled. By default on GPUs alone: on the CPU it takes a fifth longer."""
    if recipe.compile == "auto":
        return accelerator.device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return recipe.compile


def compile_layers(model: PreTrainedModel, **options) -> None:
    """
    Have each layer's call compiled, in place, so that weights keep their names. Layers of a kind share a graph, and so
    do those that hooks, adapters and sharding have changed alike.
    """
    for stack in (model.model.encoder, model.model.decoder):
        for layer in stack.layers:
            layer.compile(**{"dynamic": True, **options})


def example_batch(model: PreTrainedModel, device: torch.device) -> dict[str, torch.Tensor]:
    """What the graphs of training are to be made from, before the first batch."""
    tokens = torch.ones(_PAIRS, _SOURCE_LENGTH, dtype=torch.long, device=device)
    labels = torch.ones(_PAIRS, _TARGET_LENGTH, dtype=torch.long, device=device)
    positions = torch.arange(_SOURCE_LENGTH, device=device)[None]
    return {"input_ids": tokens, "attention_mask": tokens, "position_ids": positions, "labels": labels}


def not_compiled():
    """A context in which compiled layers run as they are written, as for translating."""
    return torch.compiler.set_stance("force_eager")

"""Check what can be checked before any data is read: files, workers, positions, memory."""

import math
import os
from pathlib import Path

import psutil
import torch
from accelerate import Accelerator

from ..data.pair_files import check_files
from ..errors import UserError
from ..model.configuration_scratch import ScratchConfig
from ..model.modeling_scratch import ScratchForConditionalGeneration
from ..recipe.schema import Recipe
from .alignment_scores import check_alignments
from .sharding import is_sharded

BYTES_A_PARAMETER = 16  # in float32: weight, gradient, and AdamW's two moments
_WORKERS_A_CORE = 4
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_before_reading(recipe: Recipe, config: ScratchConfig, accelerator: Accelerator) -> None:
    """
    UserError for what would fail after minutes of preparation, or exhaust the machine.

    Args:
        config: the config of the model to train.
    """
    check_files(recipe.data)
    check_alignments(recipe)
    _check_workers(recipe.data.num_workers)
    check_positions(recipe, config)
    _check_memory(config, accelerator)


def _check_workers(workers: int) -> None:
    most = _WORKERS_A_CORE * (os.cpu_count() or 1)
    if workers > most:
        raise UserError(f"data.num_workers is {workers:,}; at most {most} processes help {os.cpu_count()} cores")


def check_positions(recipe: Recipe, config: ScratchConfig) -> None:
    """UserError if the recipe allows sequences longer than learned positions."""
    limit = config.max_position_embeddings
    allowed = {
        "data.max_source_tokens": recipe.data.max_source_tokens,
        "data.max_target_tokens": recipe.data.max_target_tokens,
        "evaluation.max_new_tokens": recipe.evaluation.max_new_tokens,
    }
    for key, length in allowed.items():
        if config.position_embedding_type == "learned" and length > limit:
            raise UserError(f"learned positions end at max_position_embeddings ({limit}), but {key} allows {length}")


def count_parameters(config: ScratchConfig) -> int:
    """A model's number of parameters, extrapolated from one with a layer on each side that takes no memory."""
    shallow = ScratchConfig(**{name: getattr(config, name) for name in ScratchConfig.fields()})
    shallow.encoder_layers = shallow.decoder_layers = 1
    with torch.device("meta"):
        model = ScratchForConditionalGeneration(shallow)
    total = model.num_parameters()
    if not config.share_layers:
        depths = {model.get_encoder(): config.encoder_layers, model.get_decoder(): config.decoder_layers}
        for stack, depth in depths.items():
            total += (depth - 1) * sum(weight.numel() for weight in stack.layers.parameters())
    return total


def memory_of(accelerator: Accelerator) -> int:
    """Bytes of memory on a process's device; on CPUs, of the machine or container, shared by its processes."""
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_properties(accelerator.device).total_memory
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    return min(psutil.virtual_memory().total, int(limit) if limit.isdigit() else math.inf)


def _check_memory(config: ScratchConfig, accelerator: Accelerator) -> None:
    parameters, memory = count_parameters(config), memory_of(accelerator)
    copies = 1.0
    if accelerator.device.type == "cpu":  # processes share the memory
        copies = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if is_sharded(accelerator):
        copies /= accelerator.num_processes
    needed = BYTES_A_PARAMETER * parameters * copies
    if needed > memory:
        raise UserError(
            f"model: {parameters:,} parameters take {needed / 2**30:,.1f} GiB to train on {accelerator.device.type} "
            f"(weights, gradients, moments), and {memory / 2**30:,.1f} GiB are available: take a smaller d_model or "
            "vocabulary, or fewer layers, or shard the model (docs/scaling.md)"
        )

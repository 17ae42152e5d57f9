"""What goes wrong in a long run through nobody's typing, said in one line with what to do about it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import datasets
import pyarrow
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from .recipe import Recipe

_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_LOST = re.compile(r"connection (closed|reset|refused)|broken pipe|timed out|timeout|\bpeer\b|nccl|gloo", re.IGNORECASE)


class ProcessError(ValueError):
    """What one process of several has seen by itself, so that it must say so itself."""


@contextmanager
def explained_damage_of_the_cache() -> Iterator[None]:
    """ValueError that says what to delete, where a file in the cache of datasets cannot be read."""
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and "Expected to be able to read" not in str(error):
            raise
        raise ValueError(
            f"a file in the cache of datasets is damaged ({error}); delete {datasets.config.HF_DATASETS_CACHE} and "
            "start again"
        ) from error


@contextmanager
def explained_lack_of_memory(
    accelerator: Accelerator, batch: dict[str, torch.Tensor], recipe: Recipe
) -> Iterator[None]:
    """ProcessError with the numbers to change, where a micro-batch does not fit into memory."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        sizes = {name: tuple(batch[name].shape) for name in ("input_ids", "labels")}
        steps = recipe.optimization.gradient_accumulation_steps
        raise ProcessError(
            f"out of memory on {accelerator.device} with {sizes['input_ids']} source and {sizes['labels']} target "
            f"tokens at once: set optimization.gradient_accumulation_steps={2 * steps}, which changes no update, or "
            f"optimization.tokens_per_batch={recipe.optimization.tokens_per_batch // 2}, which does"
        ) from error


@contextmanager
def explained_loss_of_a_process(accelerator: Accelerator) -> Iterator[None]:
    """ProcessError where another process cannot be reached any more."""
    try:
        yield
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not _LOST.search(str(error)):
            raise
        raise ProcessError(
            f"process {accelerator.process_index}: another process has ended or cannot be reached "
            f"({str(error).splitlines()[0]}); start again with --resume"
        ) from error


def together(accelerator: Accelerator, function: Callable[[], Any]) -> Any:
    """
    Run on every process. If it fails on one, it fails on all, so that none waits for another: there with its own
    error, elsewhere with a ValueError that quotes it.
    """
    result, failure = None, None
    try:
        result = function()
    except Exception as error:
        failure = error
    said = None if failure is None else f"{type(failure).__name__}: {failure}"
    others = [each for each in gather_object([said]) if each is not None]
    if failure is not None:
        raise failure
    if others:
        raise ValueError(f"another process failed: {others[0]}")
    return result

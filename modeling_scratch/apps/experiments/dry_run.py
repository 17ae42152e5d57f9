"""Describe a run without training: its recipe, batches, updates, memory and time."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from ...data.batches import BatchShare, EpochBatches
from ...data.sources import SPLITS
from ...model.configuration_scratch import ScratchConfig
from ...recipe.reading import recipe_text
from ...recipe.schema import EMBEDDED, Recipe
from ...run.log import format_duration, speed
from ...run.run import RunData
from ...training.captured_updates import CapturedTrainingStep, make_training_step
from ...training.compilation import compile_training, is_compiled
from ...training.preparation import BYTES_A_PARAMETER, prepare
from ...training.throughput import utilization_per_token
from ...training.train import total_updates

_MIB = 2**20
# How many activations per token and dimension a layer keeps for the backward pass; measured in docs/lab/scaling.md.
_KEPT_BY_ENCODER, _KEPT_BY_DECODER = 16, 24
_BYTES = {"no": 4, "bf16": 2, "fp16": 2}
_WARM_UP, _TIMED = 2, 5  # updates


def describe_run(recipe: Recipe, accelerator: Accelerator, processes: int | None = None) -> Iterator[str]:
    """
    Yield the recipe with all defaults, then lines that describe what each process would do. This leaves nothing behind
    but data in the cache of `datasets`, which the run will use.

    Args:
        processes: the number of processes to assume; None: those that were launched, with some updates timed.

    Raises:
        UserError: recipe or data are not valid, or a stream's batches are too small for this many processes.
    """
    yield recipe_text(recipe)
    if recipe.data.name not in EMBEDDED and any(split in recipe.data.files() for split in SPLITS):
        yield f"data.name: {recipe.data.name} is ignored, since the recipe names local files"
    optimization, supposed = recipe.optimization, processes or accelerator.num_processes
    count = optimization.gradient_accumulation_steps
    pieces = supposed * count
    data, model = prepare(recipe, accelerator, readers=pieces)
    config = model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    target = f" and {config.target_vocab_size:,}" if config.target_vocab_size != config.vocab_size else ""
    yield f"model: {parameters:,} parameters, vocabulary {config.vocab_size:,}{target}"
    if not isinstance(data.batches, EpochBatches):
        steps, tokens = optimization.max_steps, optimization.tokens_per_batch
        yield f"updates: {steps:,}, of at most {tokens:,} padded tokens each; the stream's number of pairs is unknown"
        kept = tokens // pieces
    else:
        steps, kept = yield from _describe_updates(data, recipe, pieces)
    yield (
        f"per process ({supposed}): {count} micro-batch{'' if count == 1 else 'es'} per update, "
        f"{'' if count == 1 else 'each of '}at most {kept:,} padded target tokens"
    )
    yield from _describe_memory(config, parameters, kept, accelerator.mixed_precision)
    if processes is None:
        yield _describe_time(data, model, recipe, accelerator, steps)


def _describe_time(
    data: RunData, model: PreTrainedModel, recipe: Recipe, accelerator: Accelerator, updates: int
) -> str:
    """An estimate from a few updates on this machine, on a model that is then discarded."""
    per_token = utilization_per_token(model, data.validation, accelerator)
    measured = []
    for update, target_tokens in updates_to_measure(data, model, recipe, accelerator, updates):
        started = time.perf_counter()
        update()
        measured.append((time.perf_counter() - started, target_tokens))
    one = statistics.median(took for took, _ in measured)
    rate = sum(tokens for _, tokens in measured) / sum(took for took, _ in measured)
    utilization = None if per_token is None else rate * per_token
    return (
        f"time: about {format_duration(one * updates)} for the updates alone, {speed(rate, utilization)}, from "
        f"{len(measured)} updates that were timed here"
    )


def updates_to_measure(
    data: RunData, model: PreTrainedModel, recipe: Recipe, accelerator: Accelerator, updates: int
) -> Iterator[tuple[Callable[[], None], int]]:
    """
    Yield functions that make an update each and wait for the device, and the update's target tokens. What is done once
    for the first updates, or for each shape of a batch, is done before.

    Args:
        updates: in the whole run, on which it depends whether layers are compiled.
    """
    step = make_training_step(accelerator, model, recipe.optimization)
    step.model.train()
    if is_compiled(recipe, accelerator, updates):
        compile_training(step)

    def update(batch: BatchShare, micro_batches: list[dict[str, torch.Tensor]]) -> None:
        step(replace(batch, micro_batches=iter(micro_batches)), recipe.optimization.learning_rate)
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()

    for number, batch in enumerate(itertools.islice(data.batches.iterate(), _WARM_UP + _TIMED)):
        make = partial(update, batch, list(batch.micro_batches))
        # The second time that an update may be captured, it is; from then on it is replayed.
        for _ in range(2 if isinstance(step, CapturedTrainingStep) else int(number < _WARM_UP)):
            make()
        if number >= _WARM_UP:
            yield make, batch.target_tokens


def _describe_updates(data: RunData, recipe: Recipe, pieces: int) -> Iterator[str]:
    """Yields lines; returns the number of updates and the padded target tokens of the largest micro-batch."""
    optimization, plan = recipe.optimization, data.batches.plan()
    steps = total_updates(optimization, data.batches)
    pairs = np.mean([len(batch) for batch in plan.batches])
    tokens = int(np.mean([plan.target_tokens(update) for update in range(len(plan))]))
    yield (
        f"updates: {steps:,}, {len(plan):,} per epoch, of {pairs:,.0f} pairs and {tokens:,} target tokens on average; "
        f"warm-up takes {optimization.warmup_steps:,}"
    )
    lengths = plan.target_lengths
    shares = [share for batch in plan.batches for share in np.array_split(batch, pieces)]
    idle = sum(len(share) == 0 for share in shares)
    if idle:
        yield (
            f"{idle:,} of {len(shares):,} micro-batches ({idle / len(shares):.1%}) are empty and waste time: "
            "raise optimization.tokens_per_batch, or use fewer processes"
        )
    return steps, max(int(len(share) * lengths[share].max()) for share in shares if len(share))


def _describe_memory(config: ScratchConfig, parameters: int, tokens: int, precision: str) -> Iterator[str]:
    layers = _KEPT_BY_ENCODER * config.encoder_layers + _KEPT_BY_DECODER * config.decoder_layers
    name = "float32" if precision == "no" else precision
    states, kept = BYTES_A_PARAMETER * parameters, layers * config.d_model * _BYTES.get(precision, 2) * tokens
    yield (
        f"memory per process: {states / _MIB:,.0f} MiB for weights, gradients and moments (less if sharded), about "
        f"{kept / _MIB:,.0f} MiB for the backward pass in {name}"
    )

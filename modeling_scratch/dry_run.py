"""What a recipe would do on so many processes: batches, updates, memory and operations, before a machine is booked."""

from collections.abc import Iterator

import numpy as np
from accelerate import Accelerator

from .configuration_scratch import ScratchConfig
from .preparation import Inputs, prepare_inputs
from .recipe import Recipe
from .updates import PlannedUpdates

_MIB = 2**20
# Numbers that a layer keeps for its backward pass, for each token and dimension: docs/scaling.md has them measured.
_KEPT_BY_ENCODER, _KEPT_BY_DECODER = 16, 24
_BYTES = {"no": 4, "bf16": 2, "fp16": 2}
_GPUS = {"A100": 312e12, "H100": 989e12}  # dense operations a second in bf16
_UTILISATION = 0.2  # of these, a guess


def describe_run(recipe: Recipe, accelerator: Accelerator, processes: int) -> Iterator[str]:
    """
    Lines that say what each of so many processes would do. Data is read and tokenized, and nothing trained or written.

    Raises:
        ValueError: what is wrong with recipe or data; a stream's batches are too small for so many processes.
    """
    optimization = recipe.optimization
    pieces = processes * optimization.gradient_accumulation_steps
    inputs = prepare_inputs(recipe, accelerator, readers=pieces)
    config = inputs.model.config
    parameters = sum(parameter.numel() for parameter in inputs.model.parameters())
    yield f"model: {parameters:,} parameters, vocabulary {config.vocab_size:,}"
    if not isinstance(inputs.source, PlannedUpdates):
        steps, tokens, largest = optimization.max_steps, optimization.tokens_per_batch, None
        yield f"updates: {steps:,}, of at most {tokens:,} padded tokens each; how many pairs a stream has is not known"
        kept = tokens // pieces
    else:
        steps, tokens, largest = yield from _describe_updates(inputs, recipe, pieces)
        kept = largest
    yield (
        f"each of {processes} processes: micro-batches in an update: {optimization.gradient_accumulation_steps}; "
        f"padded target tokens in one: at most {kept:,}"
    )
    yield from _describe_memory(config, parameters, kept, accelerator.mixed_precision)
    yield from _describe_hours(config, steps * tokens, processes)


def _describe_updates(inputs: Inputs, recipe: Recipe, pieces: int) -> Iterator[str]:
    """Returns updates, target tokens of a mean one, and the padded ones of the largest micro-batch."""
    optimization, plan = recipe.optimization, inputs.source.plan()
    by_epochs = optimization.max_epochs * len(plan) if optimization.max_epochs else None
    steps = min(each for each in (by_epochs, optimization.max_steps) if each is not None)
    pairs = np.mean([len(batch) for batch in plan.batches])
    tokens = int(np.mean([plan.target_tokens(update) for update in range(len(plan))]))
    yield (
        f"updates: {steps:,}, {len(plan):,} an epoch, of {pairs:,.0f} pairs and {tokens:,} target tokens on average; "
        f"warm-up takes {optimization.warmup_steps:,}"
    )
    lengths = plan.target_lengths
    shares = [share for batch in plan.batches for share in np.array_split(batch, pieces)]
    idle = sum(len(share) == 0 for share in shares)
    if idle:
        yield (
            f"of {len(shares):,} parts of updates {idle:,} ({idle / len(shares):.0%}) have no pair and only cost time: "
            "give optimization.tokens_per_batch more, or fewer processes"
        )
    return steps, tokens, max(int(len(share) * lengths[share].max()) for share in shares if len(share))


def _describe_memory(config: ScratchConfig, parameters: int, tokens: int, precision: str) -> Iterator[str]:
    layers = _KEPT_BY_ENCODER * config.encoder_layers + _KEPT_BY_DECODER * config.decoder_layers
    name = "float32" if precision == "no" else precision
    states, kept = 16 * parameters, layers * config.d_model * _BYTES.get(precision, 2) * tokens
    yield (
        f"memory of each: {states / _MIB:,.0f} MiB of weights, gradients and moments (a part of them, where they are "
        f"sharded), about {kept / _MIB:,.0f} MiB for the backward pass in {name}"
    )


def multiplied_weights(config: ScratchConfig) -> int:
    """Elements of the matrices that a source token and its target token are multiplied by, the projection's too."""
    width = config.d_model
    weights = config.encoder_layers * (4 * width**2 + 2 * width * config.encoder_ffn_dim)
    weights += config.decoder_layers * (8 * width**2 + 2 * width * config.decoder_ffn_dim)
    return weights + width * config.target_vocab_size


def _describe_hours(config: ScratchConfig, tokens: int, processes: int) -> Iterator[str]:
    """Two operations for each weight that a token meets going forward, and twice as many going back."""
    operations = 6 * multiplied_weights(config) * tokens
    hours = {name: operations / (3600 * processes * peak * _UTILISATION) for name, peak in _GPUS.items()}
    yield (
        f"{tokens:,} target tokens, {operations:.1e} operations: at a guessed {_UTILISATION:.0%} of the peak in bf16 "
        + ", ".join(f"{time:,.2g} hours on {processes} {name}" for name, time in hours.items())
    )

"""
Make the global batches that updates train on.

They come from a data set, planned an epoch at a time, or from a stream; a resumed run gets the same ones.
"""

import hashlib
import itertools
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch.utils.data import DataLoader

from ..errors import ProcessError, UserError
from ..model.loss import IGNORE_INDEX
from ..recipe.schema import Recipe
from .batches import EpochPlan, PairCollator, make_loader, plan_epoch, worker_options
from .streaming import PairStream, Position, StreamReader
from .tokenizer import MANY_DROPPED, PairTokenizer, pair_lengths

logger = logging.getLogger(__name__)

_PREFETCHED = 4  # batches that a worker prepares ahead


def _own_words(error: Exception) -> str:
    """An error's message; for an error in a DataLoader worker, the end of the traceback that it contains."""
    lines = str(error).rpartition("Traceback (most recent call last):")[2].strip().splitlines()
    first = next((number for number, line in enumerate(lines) if re.match(r"[\w.]+: ", line)), 0)
    return " ".join(lines[first:])


def fingerprint_of(dataset: Dataset) -> str:
    """A hash of all token ids of tokenized pairs."""
    digest = hashlib.sha256()
    for batch in dataset.select_columns(["input_ids", "labels"]).with_format("arrow").iter(10_000):
        for column in batch.columns:
            digest.update(pc.list_value_length(column).to_numpy().tobytes())
            digest.update(column.combine_chunks().flatten().to_numpy().tobytes())
    return digest.hexdigest()


@dataclass
class BatchShare:
    """One process's share of a global batch, which holds the pairs of one update."""

    micro_batches: Iterator[dict[str, torch.Tensor]]
    count: int  # of micro-batches
    target_tokens: int  # over all processes


class EpochBatches:
    """
    Global batches of a tokenized data set, planned an epoch at a time. Unlike those of Accelerate's data loaders, they
    do not depend on the number of processes. All processes call every method together.

    Args:
        dataset: the pairs, tokenized.
        weights: how often an epoch has the pair of each `index`; None: once.
    """

    revision = None  # the commit of the data, which only a stream records

    def __init__(
        self,
        dataset: Dataset,
        recipe: Recipe,
        collate: PairCollator,
        accelerator: Accelerator,
        weights: np.ndarray | None = None,
    ):
        self.dataset, self.recipe, self.collate, self.accelerator = dataset, recipe, collate, accelerator
        self.lengths = pair_lengths(dataset)
        self.weights = None if weights is None else weights[dataset.with_format("numpy")["index"][:]]
        self.epoch, self.next_batch = 0, 0
        self._plan = lru_cache(maxsize=2)(self._plan_epoch)  # batches are made ahead, of the next epoch too

    def plan(self) -> EpochPlan:
        """The batches of the current epoch."""
        return self._plan(self.epoch)

    def _plan_epoch(self, epoch: int) -> EpochPlan:
        return plan_epoch(
            *self.lengths, self.recipe.optimization.tokens_per_batch, self.recipe.seed, epoch, self.weights
        )

    def batches_in(self, epochs: int) -> int:
        """The number of batches in the first epochs."""
        if self.weights is None or not (self.weights % 1).any():
            # The same in every epoch, since the sorted lengths alone determine where batches are cut.
            return epochs * len(self.plan())
        return sum(len(self._plan(epoch)) for epoch in range(epochs))  # of pairs that are drawn at random

    def fingerprint(self) -> str:
        """A run resumes only with the pairs that it began with."""
        return fingerprint_of(self.dataset)

    def epochs(self) -> float:
        """The number of passes made over the data, which may be a fraction."""
        done = self.next_batch / len(self.plan()) if self.next_batch else 0.0  # at an epoch's start, do not plan it yet
        return round(self.epoch + done, 4)

    def position(self) -> dict[str, Any]:
        """The position of the next batch, the same on all processes, for a checkpoint."""
        return {"epoch": self.epoch, "update": self.next_batch}

    def save_readers(self, folder: Path) -> None:
        """Nothing to write into a checkpoint: `position` is complete."""

    def go_to(self, position: dict[str, Any], folder: Path) -> None:
        """Continue from the position in a checkpoint."""
        self.epoch, self.next_batch = position["epoch"], position["update"]

    def iterate(self) -> Iterator[BatchShare]:
        """Yield batches from the current position on, forever."""
        accumulation, is_on_gpu = (
            self.recipe.optimization.gradient_accumulation_steps,
            self.accelerator.device.type == "cuda",
        )
        workers = max(self.recipe.data.num_workers, int(is_on_gpu))  # a GPU would wait for a batch to be laid out
        loader = make_loader(
            self.dataset, self._micro_batches(self.epoch, self.next_batch), self.collate, workers, is_on_gpu
        )
        batches = iter(loader)
        while True:
            tokens = self.plan().target_tokens(self.next_batch)
            self.next_batch += 1
            if self.next_batch == len(self.plan()):
                self.epoch, self.next_batch = self.epoch + 1, 0
            yield BatchShare(itertools.islice(batches, accumulation), accumulation, tokens)

    def _micro_batches(self, epoch: int, update: int) -> Iterator[list[int]]:
        """This process's micro-batches from an update on, forever."""
        accelerator, accumulation = self.accelerator, self.recipe.optimization.gradient_accumulation_steps
        while True:
            shares = (accelerator.process_index, accelerator.num_processes, accumulation)
            yield from self._plan(epoch).micro_batches(update, *shares)
            epoch, update = epoch + 1, 0


class StreamBatches:
    """
    Global batches of a stream, with the methods of `EpochBatches`. A global batch is made of one batch from each
    reader. The number of readers, processes times accumulation steps, is fixed when the run begins; any number of
    processes that divides it can resume the run.

    Args:
        readers: the number of readers of a resumed run; None: a new run.
    """

    def __init__(
        self,
        stream: PairStream,
        tokenizer: PairTokenizer,
        recipe: Recipe,
        collate: PairCollator,
        accelerator: Accelerator,
        readers: int | None = None,
    ):
        self.stream, self.tokenizer, self.recipe = stream, tokenizer, recipe
        self.revision = stream.revision
        self.collate, self.accelerator, self._told = collate, accelerator, False
        processes = accelerator.num_processes
        self.readers = readers = readers or processes * recipe.optimization.gradient_accumulation_steps
        if readers % processes:
            fitting = " or ".join(str(number) for number in range(1, readers + 1) if readers % number == 0)
            raise UserError(
                f"the run cut its stream into {readers} parts, which {processes} processes cannot share evenly; resume "
                f"it on {fitting} processes"
            )
        # The most source or target tokens in one reader's part of a global batch, padding included.
        self.tokens_per_batch = tokens = recipe.optimization.tokens_per_batch // readers
        longest = max(tokenizer.max_source_tokens, tokenizer.max_target_tokens)
        if tokens < longest:
            raise UserError(
                f"optimization.tokens_per_batch leaves {tokens} tokens to each of {readers} parts of the stream, which "
                f"must hold the longest pair that data.max_source_tokens and data.max_target_tokens allow ({longest})"
            )
        share, rank = readers // processes, accelerator.process_index
        self.mine = range(rank * share, (rank + 1) * share)
        self.positions = {reader: Position() for reader in self.mine}

    def fingerprint(self) -> str:
        return self.stream.fingerprint

    def epochs(self) -> float:
        """The passes through the stream that this process's first reader has completed."""
        return float(self.positions[self.mine[0]].passes)

    def batches_in(self, epochs: int) -> None:
        """None: the length of a stream is unknown."""

    def position(self) -> dict[str, Any]:
        return {"readers": self.readers}

    def _file(self, folder: Path, reader: int) -> Path:
        return folder / f"reader-{reader}.json"

    def save_readers(self, folder: Path) -> None:
        """Write the state of this process's readers, which `position` does not hold, into a checkpoint."""
        for reader, position in self.positions.items():
            self._file(folder, reader).write_text(json.dumps(asdict(position)), encoding="utf-8")

    def go_to(self, position: dict[str, Any], folder: Path) -> None:
        assert position == self.position(), position
        self.positions = {
            reader: Position(**json.loads(self._file(folder, reader).read_text(encoding="utf-8")))
            for reader in self.mine
        }

    def _open(self, reader: int) -> DataLoader:
        recipe = self.recipe
        workers = min(1, recipe.data.num_workers)
        pairs = StreamReader(
            self.stream,
            self.tokenizer,
            self.collate,
            self.tokens_per_batch,
            max(1, recipe.data.shuffle_buffer // self.readers),
            recipe.seed,
            reader,
            self.readers,
            self.positions[reader],
        )
        return DataLoader(
            pairs,
            batch_size=None,
            prefetch_factor=_PREFETCHED if workers else None,
            **worker_options(workers),
            pin_memory=self.accelerator.device.type == "cuda",
            generator=torch.Generator().manual_seed(0),
        )

    def iterate(self) -> Iterator[BatchShare]:
        loaders = {reader: iter(self._open(reader)) for reader in self.mine}
        while True:
            batches, positions = [], {}
            for reader in self.mine:
                try:
                    batch, positions[reader] = next(loaders[reader])
                except (ValueError, OSError, RuntimeError) as error:  # on this process alone
                    raise ProcessError(f"the training stream: {_own_words(error)}") from error
                batches.append(batch)
            tokens = sum(int((batch["labels"] != IGNORE_INDEX).sum()) for batch in batches)
            total = self.accelerator.reduce(torch.tensor(tokens, device=self.accelerator.device), "sum").item()
            self.positions = positions
            self._tell_of_dropped(positions[self.mine[0]])
            yield BatchShare(iter(batches), len(batches), total)

    def _tell_of_dropped(self, first: Position) -> None:
        """Warn once if many of the pairs that the first reader has read were dropped."""
        if not self._told and first.seen and first.dropped > MANY_DROPPED * first.seen:
            self._told = True
            logger.warning(
                f"data: dropped {first.dropped:,} of the {first.seen:,} training pairs so far "
                f"({first.dropped / first.seen:.0%}) that were empty or longer than {self.tokenizer.limits}"
            )


GlobalBatches = EpochBatches | StreamBatches

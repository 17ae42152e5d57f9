"""
Stream training pairs that may exceed memory.

A stream is divided among readers. Each reads a pool of pairs at a time, shuffles it and cuts it into batches, in an
order that a resumed run repeats exactly. `StreamBatches` at the end makes the global batches of a run.
"""

import hashlib
import itertools
import json
import logging
import random
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

from ..errors import ProcessError, UserError, as_user_error
from ..files import read_json
from ..recipe.schema import SOURCE, TARGET, DataSection, Recipe
from .augmentation import Augmenter
from .batches import BatchShare, Collator, EpochBatches, counted_share, plan_batches, worker_options
from .sources import SEE_REPORT, source_of
from .tokenizer import MANY_DROPPED, PairTokenizer

logger = logging.getLogger(__name__)

_PREFETCHED = 4  # batches that a worker prepares ahead
_READ_ROWS = 1000


@dataclass
class PairStream:
    """A stream of pairs, and what identifies it."""

    pairs: IterableDataset
    fingerprint: str
    revision: str | None = None  # the commit, for data on the Hub

    def part(self, reader: int, readers: int, seed: list[int]) -> IterableDataset:
        """The pairs that only this reader sees in a pass; the seed shuffles the order of the shards."""
        pairs = split_dataset_by_node(self.pairs, rank=reader, world_size=readers)
        pairs.set_epoch(1 + int(np.random.default_rng(seed).integers(2**31)))  # 0 would leave the shards in order
        return pairs

    def first(self, limit: int, seed: int) -> Iterator[dict[str, list[str]]]:
        """The first `limit` pairs of the first pass, in batches. Raises UserError if the stream cannot be read."""
        pairs = itertools.islice(self.part(0, 1, [seed, 0]), limit)
        with as_user_error("the training stream: "):  # such as a lost connection
            while batch := list(itertools.islice(pairs, _READ_ROWS)):
                yield columns_of(batch)


def sample_pairs(train: Dataset | PairStream, limit: int, seed: int) -> Iterator[Mapping[str, Sequence[str]]]:
    """Training pairs in batches, at most `limit`: a seeded sample of a data set, or the beginning of a stream."""
    if isinstance(train, PairStream):
        return train.first(limit, seed)
    if len(train) > limit:
        train = train.select(sorted(random.Random(seed).sample(range(len(train)), limit)))
    return train.iter(_READ_ROWS)


def open_stream(data: DataSection, seed: int) -> PairStream:
    """
    The recipe's training pairs as a stream. Only the first rows of each file are read, except that a TSV file with
    quotation marks in them is read whole.

    Raises:
        UserError: a file is missing or empty; a column, language or split does not exist; there are no rows.
    """
    if (source := source_of("train", data, seed)) is None:
        raise UserError("data.train_files must be set if the other splits are local files")
    return PairStream(source.stream(), hashlib.sha256(source.fingerprint().encode()).hexdigest(), source.revision)


def columns_of(pairs: list[dict[str, str]]) -> dict[str, list[str]]:
    """Pairs of a stream, at least one, as columns."""
    return {name: [pair[name] for pair in pairs] for name in pairs[0]}


@dataclass(frozen=True)
class Position:
    """A reader's position after a batch: all that it needs to continue from there."""

    passes: int = 0  # completed passes through its pairs
    pool: int = 0  # the current pool in this pass
    batch: int = 0  # the next batch in this pool
    read: int = 0  # pairs of this pass before this pool
    dropped: int = 0  # pairs that were empty or too long, over all passes
    seen: int = 0  # pairs before this pool, over all passes
    rows: dict[str, Any] | None = None  # the datasets library's state before this pool; None: at the beginning


class StreamReader(torch.utils.data.IterableDataset):
    """
    One of several readers that divide a stream among them. It reads a pool of pairs, shuffles it, cuts it into batches
    of similar lengths and yields these in random order, then reads the next pool. At the end of the stream it starts
    over, with the shards in a different order. Seed and position determine everything, so a checkpoint holds no pairs:
    a resumed reader reads its pool again.

    Args:
        tokenizer: tokenizes pairs, and drops those that are empty or too long.
        tokens_per_batch: the most source or target tokens in a batch, padding included.
        pool_size: pairs that are shuffled and sorted together, and held in memory.
        reader, readers: the number of this reader, from 0, and how many there are.
        position: where to begin.
        augment: changes the pairs of each pass; None: they stay as they are.

    Yields:
        ({input_ids, attention_mask, position_ids, labels}, position after the batch).
    """

    def __init__(
        self,
        stream: PairStream,
        tokenizer: PairTokenizer,
        collate: Collator,
        tokens_per_batch: int,
        pool_size: int,
        seed: int,
        reader: int,
        readers: int,
        position: Position,
        augment: Augmenter | None = None,
    ):
        self.augment = augment
        self.stream, self.tokenizer, self.collate = stream, tokenizer, collate
        self.tokens_per_batch, self.pool_size = tokens_per_batch, pool_size
        self.seed, self.reader, self.readers, self.position = seed, reader, readers, position

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], Position]]:
        position = self.position
        while True:
            before = position.dropped
            position = yield from self._pass(position)
            if position.read == position.dropped - before:
                raise UserError(
                    f"reader {self.reader + 1} of {self.readers} of the training stream finds no pair to train on: "
                    f"all are empty or longer than {self.tokenizer.limits}, or there are fewer pairs than readers"
                )
            position = Position(passes=position.passes + 1, dropped=position.dropped, seen=position.seen)

    def _pass(self, position: Position) -> Generator[tuple[dict[str, torch.Tensor], Position], None, Position]:
        """Yield batches from a position to the end of the stream; return the position there."""
        part = self.stream.part(self.reader, self.readers, [self.seed, position.passes])
        if position.rows is not None:
            part.load_state_dict(position.rows)
        pairs = iter(part)
        while True:
            with as_user_error():
                pool = list(itertools.islice(pairs, self.pool_size))
            if not pool:
                return position
            count = len(pool)
            generator = np.random.default_rng([self.seed, self.reader, position.passes, position.pool])
            columns: Mapping[str, Sequence[str]] = columns_of(pool)
            places = [(self.reader, position.passes, position.pool, number) for number in range(count)]
            if self.augment is not None:
                columns = self.augment(columns, places)
            kept = self.tokenizer(columns, range(count), places)
            del pool, columns
            source_lengths, target_lengths = (
                np.array(kept[f"{side}_length"], dtype=np.int64) for side in (SOURCE, TARGET)
            )
            batches = plan_batches(source_lengths, target_lengths, self.tokens_per_batch, generator)
            for number in range(position.batch, len(batches)):
                position = replace(position, batch=number + 1)
                chosen = batches[number].tolist()
                yield self.collate([(kept["input_ids"][index], kept["labels"][index]) for index in chosen]), position
            position = replace(
                position,
                pool=position.pool + 1,
                batch=0,
                read=position.read + count,
                dropped=position.dropped + count - len(kept["index"]),
                seen=position.seen + count,
                rows=part.state_dict(),
            )
            del kept  # memory holds one pool, not two


class StreamBatches:
    """
    The global batches of a stream, with the methods of `EpochBatches`. A global batch consists of one batch from each
    reader. The number of readers, processes times accumulation steps, is fixed when the run begins; any number of
    processes that divides it can resume the run.

    Args:
        readers: the number of readers of a resumed run; None: a new run.
        augment: see `StreamReader`.
    """

    def __init__(
        self,
        stream: PairStream,
        tokenizer: PairTokenizer,
        recipe: Recipe,
        collate: Collator,
        accelerator: Accelerator,
        readers: int | None = None,
        augment: Augmenter | None = None,
    ):
        self.stream, self.tokenizer, self.recipe, self.augment = stream, tokenizer, recipe, augment
        self.revision = stream.revision
        self.collate, self.accelerator = collate, accelerator
        self._warned = False
        processes = accelerator.num_processes
        self.readers = readers = readers or processes * recipe.optimization.gradient_accumulation_steps
        if readers % processes:
            fitting = " or ".join(str(number) for number in range(1, readers + 1) if readers % number == 0)
            raise UserError(
                f"the run divided its stream into {readers} parts, which {processes} processes cannot share evenly; "
                f"resume it on {fitting} processes"
            )
        # The most source or target tokens in one reader's part of a global batch, padding included.
        self.tokens_per_batch = tokens = recipe.optimization.tokens_per_batch // readers
        longest = max(tokenizer.max_source_tokens, tokenizer.max_target_tokens)
        if tokens < longest:
            raise UserError(
                f"optimization.tokens_per_batch leaves {tokens} tokens for each of {readers} parts of the stream, "
                f"less than the longest pair that data.max_source_tokens and data.max_target_tokens allow ({longest})"
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
        """Write the positions of this process's readers into a checkpoint."""
        for reader, position in self.positions.items():
            self._file(folder, reader).write_text(json.dumps(asdict(position)), encoding="utf-8")

    def go_to(self, position: dict[str, Any], folder: Path) -> None:
        assert position == self.position(), position
        self.positions = {reader: Position(**read_json(self._file(folder, reader))) for reader in self.mine}

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
            self.augment,
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
                except (ValueError, OSError, RuntimeError) as error:  # perhaps on this process only
                    raise ProcessError(f"the training stream: {_message(error)}") from error
                batches.append(batch)
            share = counted_share(batches, self.accelerator)
            self.positions = positions
            self._warn_about_dropped(positions[self.mine[0]])
            yield share

    def _warn_about_dropped(self, first: Position) -> None:
        """Warn once if many of the pairs that the first reader has read were dropped."""
        if not self._warned and first.seen and first.dropped > MANY_DROPPED * first.seen:
            self._warned = True
            logger.warning(
                f"data: dropped {first.dropped:,} of the {first.seen:,} training pairs so far "
                f"({first.dropped / first.seen:.0%}) that were empty or longer than {self.tokenizer.limits}"
                + SEE_REPORT
            )


def _message(error: Exception) -> str:
    """The message of an error; if it came from a DataLoader worker, without the traceback that precedes it."""
    lines = str(error).rpartition("Traceback (most recent call last):")[2].strip().splitlines()
    first = next((number for number, line in enumerate(lines) if re.match(r"[\w.]+: ", line)), 0)
    return " ".join(lines[first:])


GlobalBatches = EpochBatches | StreamBatches

"""
Stream training pairs that may exceed memory.

A stream is divided among readers, shuffled and batched in an order that a resumed run repeats exactly.
"""

import hashlib
import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node

from ..errors import UserError, as_user_error
from ..recipe.schema import SOURCE, TARGET, DataSection
from .batches import PairCollator, plan_batches
from .sources import source_of
from .tokenizer import PairTokenizer

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

    def sentences(self, sides: list[str], limit: int, seed: int) -> Iterator[list[str]]:
        """The first `limit` sentences of the first pass, in batches. UserError if the stream cannot be read."""
        pairs = itertools.islice(self.part(0, 1, [seed, 0]), max(1, limit // len(sides)))
        with as_user_error("the training stream: "):  # as of a lost connection
            while batch := list(itertools.islice(pairs, _READ_ROWS)):
                yield [pair[side] for side in sides for pair in batch]


def open_stream(data: DataSection, seed: int) -> PairStream:
    """
    The recipe's training pairs as a stream, without reading more than the first rows of each file (but all of a TSV
    file that has quotation marks in them, to know whether they are text).

    Raises:
        UserError: a file is missing or empty; a column, language or split does not exist; there are no rows.
    """
    source = source_of("train", data, seed)
    return PairStream(source.stream(), hashlib.sha256(source.fingerprint().encode()).hexdigest(), source.revision)


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
    One of several readers of a stream, each with its own pairs. It reads a pool of pairs, shuffles it, cuts it into
    batches of similar lengths and yields these in random order, then reads the next pool. At the end of the stream it
    starts over, with the shards in another order. Seed and position determine everything, so a checkpoint holds no
    pairs: a resumed reader reads its pool again.

    Args:
        tokenizer: tokenizes pairs, and drops those that are empty or too long.
        tokens_per_batch: the most source or target tokens in a batch, padding included.
        pool_size: pairs that are shuffled and sorted together, and held in memory.
        reader, readers: the number of this reader, from 0, and how many there are.
        position: where to begin.

    Yields:
        ({input_ids, attention_mask, position_ids, labels}, position after the batch).
    """

    def __init__(
        self,
        stream: PairStream,
        tokenizer: PairTokenizer,
        collate: PairCollator,
        tokens_per_batch: int,
        pool_size: int,
        seed: int,
        reader: int,
        readers: int,
        position: Position,
    ):
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
                    f"each is empty or longer than {self.tokenizer.limits}, or there are fewer pairs than readers"
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
            kept = self.tokenizer([pair[SOURCE] for pair in pool], [pair[TARGET] for pair in pool], range(count))
            del pool
            lengths = (np.array(kept[f"{side}_length"], dtype=np.int64) for side in (SOURCE, TARGET))
            batches = plan_batches(*lengths, self.tokens_per_batch, generator)
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

"""
A training set that is read as it is needed, so that it may be larger than memory: opened, cut into readers that see
different pairs, shuffled and batched, the same way again after every interruption.
"""

import hashlib
import itertools
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from datasets import IterableDataset, load_dataset, load_dataset_builder
from datasets.distributed import split_dataset_by_node
from datasets.exceptions import DatasetNotFoundError

from ..errors import UserError
from ..recipe.schema import EMBEDDED_CORPUS, SOURCE, TABLE_SUFFIXES, TARGET, DataSection
from .batching import PairCollator, plan_batches
from .corpus import stream_corpus
from .pair_files import as_paths, check_file, find_files, read_pairs
from .pair_files import read_rows as read_table
from .sources import Columns, PairTokenizer, find_columns, pick_columns

EMBEDDED_PARTS = 64  # of the embedded corpus
_READ_ROWS = 1000


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """UserError that names the stream, where a file of it cannot be read."""
    try:
        yield
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise UserError(f"{name} cannot be read: {error}") from error


@dataclass
class PairStream:
    """A stream of rows and where in them the texts are; `key` tells one stream from another."""

    rows: IterableDataset
    columns: Columns
    key: str
    name: str  # for a person
    revision: str | None = None  # the commit, where they are on the Hub

    def read(self, rows: Iterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
        """The next rows; none at the end. UserError that names the stream, where it cannot be read."""
        with _explained(self.name):
            return list(itertools.islice(rows, count))

    def part(self, reader: int, readers: int, seed: list[int]) -> IterableDataset:
        """What one of several readers sees of a pass, none of what another one sees; the seed orders its parts."""
        rows = split_dataset_by_node(self.rows, rank=reader, world_size=readers)
        rows.set_epoch(1 + int(np.random.default_rng(seed).integers(2**31)))  # 0 would leave the parts in order
        return rows

    def sentences(self, sides: list[str], limit: int, seed: int) -> Iterator[list[str]]:
        """So many sentences from the beginning of the first pass, in batches."""
        pairs = itertools.islice(self.part(0, 1, [seed, 0]), max(1, limit // len(sides)))
        while batch := self.read(pairs, _READ_ROWS):
            picked = pick_columns({name: [row[name] for row in batch] for name in batch[0]}, self.columns)
            yield [sentence for side in sides for sentence in picked[side]]


def open_stream(data: DataSection, seed: int) -> PairStream:
    """
    The recipe's training pairs as a stream, without reading more than its first row.

    Raises:
        UserError: a file is missing or empty; a column, language or split does not exist; there is not a single row.
    """
    revision = None
    if data.train_files is not None:
        rows, where = _from_files(data)
    elif data.name == EMBEDDED_CORPUS:
        size = -(-data.embedded_size // EMBEDDED_PARTS)
        rows = IterableDataset.from_generator(
            stream_corpus, gen_kwargs={"parts": list(range(EMBEDDED_PARTS)), "size": size, "seed": seed}
        )
        where = f"the embedded corpus, {size} pairs a part, seed {seed}"
    else:
        rows, revision = _from_hub(data)
        where = f"{data.name} {data.subset} {data.train} {revision}"
    name = data.name if data.train_files is None else str(data.train_files)
    with _explained(name):
        first = next(iter(rows), None)
    if first is None:
        raise UserError(f"{where}: there is not a single row")
    translation = first.get("translation")
    languages = None if "translation" not in first else list(translation) if isinstance(translation, dict) else []
    columns = find_columns(list(first), languages, data, where)
    for column, key in columns.values():
        if isinstance(value := first[column] if key is None else first[column][key], list | dict):
            raise UserError(f"{where}: column {column!r} holds {value!r}, not a text in each row")
    return PairStream(rows, columns, hashlib.sha256(repr([where, columns]).encode()).hexdigest(), name, revision)


def _from_hub(data: DataSection) -> tuple[IterableDataset, str]:
    """The rows, and the commit that they are read from as long as this stream is open."""
    try:
        builder = load_dataset_builder(data.name, data.subset, revision=data.revision)
        return builder.as_streaming_dataset(split=data.train), builder.hash
    except DatasetNotFoundError as error:
        raise UserError(f"data.name: {str(error).splitlines()[0]}") from error
    except ConnectionError as error:
        raise UserError(
            f"data.name: cannot reach the Hub for {data.name!r}; for local data set data.train_files"
        ) from error


def _from_files(data: DataSection) -> tuple[IterableDataset, str]:
    """The rows of local files, each a part of its own, and what tells these from other files."""
    found = find_files(data.train_files, data, data.files_key("train"))
    paths = [path for entry in found for path in as_paths(entry)]
    for path in paths:
        check_file(path)
    where = ", ".join(f"{path} ({path.stat().st_size:,} bytes, beginning {_beginning(path)})" for path in paths)
    names = [str(path.resolve()) for path in paths]
    if isinstance(found[0], tuple):
        rows = IterableDataset.from_generator(
            _text_rows,
            gen_kwargs={"sources": names[0::2], "targets": names[1::2], "languages": _languages(data)},
        )
        return rows, where
    suffixes = {path.suffix.lower() for path in paths}
    if len(suffixes) > 1:
        raise UserError(f"data.train_files must be of one kind, got {', '.join(sorted(suffixes))}")
    suffix = suffixes.pop()
    if suffix in (".csv", ".tsv"):
        return IterableDataset.from_generator(_table_rows, gen_kwargs={"paths": names}), where
    return load_dataset(TABLE_SUFFIXES[suffix], data_files=names, split="train", streaming=True), where


def _beginning(path: Path) -> str:
    """Tells files of one size apart, mostly: to read all of a corpus just for this would take too long."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(2**20)).hexdigest()[:8]


def _languages(data: DataSection) -> tuple[str, str]:
    return data.source_language, data.target_language


# datasets takes each entry of the lists that it hands to a generator for a part; a tuple is none.


def _text_rows(sources: list[str], targets: list[str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    for source, target in zip(sources, targets, strict=True):
        try:
            for pair in read_pairs(source, target, ""):
                yield dict(zip(languages, (pair[SOURCE], pair[TARGET]), strict=True))
        except ValueError as error:
            same = "they do not have the same number of lines" if str(error).startswith("zip()") else error
            raise UserError(f"{source} and {target}: {same}") from None


def _table_rows(paths: list[str]) -> Iterator[dict[str, str]]:
    for path in paths:
        yield from read_table(json.dumps([path]), "")


@dataclass(frozen=True)
class Position:
    """Where a reader stands, after a batch; what it needs to go on from there."""

    passes: int = 0  # through its pairs
    pool: int = 0  # of this pass
    batch: int = 0  # of this pool, the next
    read: int = 0  # pairs of this pass before this pool
    dropped: int = 0  # pairs that were empty or too long, in all
    rows: dict[str, Any] | None = None  # of datasets: the stream's state before this pool; None: at the beginning


class StreamReader(torch.utils.data.IterableDataset):
    """
    One of several readers of a stream, which see different pairs. Each reads a pool of pairs, shuffles it, cuts it into
    batches of like lengths and gives these in random order, then reads the next pool, and begins again at the end of
    the stream, with its parts in another order. All is decided by the seed and the position, so that nothing of a pool
    has to be kept to go on in its middle: it is read again.

    Args:
        stream: the pairs.
        tokenizer: makes token ids, and drops pairs.
        tokens_per_batch: padded source or target tokens in a batch, at most.
        pool_size: pairs that are shuffled and sorted together; what memory holds.
        reader, readers: which one this is, from 0, of how many.
        position: where to begin.

    Yields:
        ({input_ids, attention_mask, labels}, indices of the pairs in this pass, the position after the batch).
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

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], list[int], Position]]:
        position = self.position
        while True:
            before = position.dropped
            position = yield from self._pass(position)
            if position.read == position.dropped - before:
                raise UserError(
                    f"reader {self.reader + 1} of {self.readers} of the training stream finds no pair to train on: "
                    f"each is empty or longer than {self.tokenizer.limits}, or there are fewer pairs than readers"
                )
            position = Position(passes=position.passes + 1, dropped=position.dropped)

    def _pass(
        self, position: Position
    ) -> Generator[tuple[dict[str, torch.Tensor], list[int], Position], None, Position]:
        """From a position to the end of the stream; returns the last one."""
        rows = self.stream.part(self.reader, self.readers, [self.seed, position.passes])
        if position.rows is not None:
            rows.load_state_dict(position.rows)
        pairs = iter(rows)
        while True:
            pool = self.stream.read(pairs, self.pool_size)
            if not pool:
                return position
            picked = pick_columns({name: [row[name] for row in pool] for name in pool[0]}, self.stream.columns)
            indices = range(position.read, position.read + len(pool))
            kept = self.tokenizer(picked[SOURCE], picked[TARGET], indices)
            del pool, picked
            generator = np.random.default_rng([self.seed, self.reader, position.passes, position.pool])
            lengths = (np.array(kept[f"{side}_length"], dtype=np.int64) for side in (SOURCE, TARGET))
            batches = plan_batches(*lengths, self.tokens_per_batch, generator)
            for number in range(position.batch, len(batches)):
                position = replace(position, batch=number + 1)
                chosen = batches[number].tolist()
                batch = self.collate([(kept["input_ids"][index], kept["labels"][index]) for index in chosen])
                yield batch, [kept["index"][index] for index in chosen], position
            position = replace(
                position,
                pool=position.pool + 1,
                batch=0,
                read=position.read + len(indices),
                dropped=position.dropped + len(indices) - len(kept["index"]),
                rows=rows.state_dict(),
            )
            del kept  # memory holds one pool, not two

"""
Batches of tokenized pairs: planned by length, laid out as tensors, and shared among processes.

A global batch holds the pairs of one update. It has a bounded number of tokens and does not depend on the number of
processes; a resumed run gets the same ones. `EpochBatches` at the end brings everything together.
"""

import atexit
import hashlib
import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch.utils.data import DataLoader

from ..model.masking import IGNORE_INDEX
from ..recipe.schema import SOURCE, TARGET, Recipe
from .augmentation import Augmenter
from .tokenizer import PairTokenizer, pair_lengths

EMPTY = -1  # stands for a pair that the loss ignores; a micro-batch without pairs holds only this
Ids = Sequence[int] | np.ndarray
Pair = tuple[Ids, Ids]  # the token ids of source and target
_WORKERS_OF_GPU = 4  # at most, for each process
_FULL = 0.8  # copies of the longest sentence must fill at least this part of a row
_PIECES = 3  # of a micro-batch of changed pairs: in one, three fifths of what is computed is padding, in three a sixth

# Sent by Ctrl-C, by schedulers and launchers, by clusters before they reclaim a machine, and by a closed terminal.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]


# -- which pairs form a batch ------------------------------------------------------------------------------------------


def plan_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_batch: int, generator: np.random.Generator | None
) -> list[np.ndarray]:
    """
    Cut a data set into batches of at most `tokens_per_batch` tokens, padding included, in source and in target.

    Args:
        source_lengths, target_lengths: (pairs,), in tokens.
        generator: shuffles pairs of equal length among batches, then the batches; None keeps everything sorted.

    Returns:
        One array of indices per batch, sorted by length.
    """
    longest = np.maximum(source_lengths, target_lengths)
    ties = np.arange(len(longest)) if generator is None else generator.permutation(len(longest))
    order = np.lexsort((ties, source_lengths, longest))
    batches, start = [], 0
    for end, index in enumerate(order):
        if end > start and (end - start + 1) * longest[index] > tokens_per_batch:
            batches.append(order[start:end])
            start = end
    if start < len(order):
        batches.append(order[start:])
    if generator is not None:
        batches = [batches[i] for i in generator.permutation(len(batches))]
    return batches


@dataclass
class EpochPlan:
    """The global batches of one epoch, one per update, and how each is cut into micro-batches."""

    batches: list[np.ndarray]
    target_lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.batches)

    def target_tokens(self, batch_index: int) -> int:
        """The number of target tokens in a global batch, by which the sum of its losses is divided."""
        return int(self.target_lengths[self.batches[batch_index]].sum())

    def micro_batches(self, batch_index: int, rank: int, processes: int, accumulation: int) -> Iterator[list[int]]:
        """One process's micro-batches from global batch `batch_index` on, `accumulation` of them per batch."""
        for batch in self.batches[batch_index:]:
            pieces = np.array_split(batch, processes * accumulation)
            for piece in pieces[rank * accumulation : (rank + 1) * accumulation]:
                yield piece.tolist() or [EMPTY]


def plan_epoch(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    tokens_per_batch: int,
    seed: int,
    epoch: int,
    weights: np.ndarray | None = None,
) -> EpochPlan:
    """
    The batches of one epoch. They depend on the arguments alone, so a resumed run sees the same ones.

    Args:
        weights: (pairs,), how often the epoch has each pair; a fraction is the probability of one more. None: once.
    """
    generator = np.random.default_rng([seed, epoch])
    rows = np.arange(len(target_lengths))
    if weights is not None:
        rows = np.repeat(rows, np.floor(weights + generator.random(len(weights))).astype(int))
    batches = plan_batches(source_lengths[rows], target_lengths[rows], tokens_per_batch, generator)
    return EpochPlan([rows[batch] for batch in batches], target_lengths)


# -- a batch as tensors ------------------------------------------------------------------------------------------------


class PairCollator:
    """Pads the pairs of a batch to the longest."""

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, pairs: list[Pair]) -> dict[str, torch.Tensor]:
        """
        Returns input_ids and attention_mask (1: attend), (batch_size, source_length); position_ids (1, source_length),
        shared by all pairs since padding is on the right; labels (batch_size, target_length), -100 where padded.
        """
        sources, targets = zip(*pairs, strict=True)
        input_ids = self._pad(sources, self.pad_token_id)
        return {
            "input_ids": input_ids,
            "attention_mask": self._pad([np.ones(len(source), dtype=np.int64) for source in sources], 0),
            "position_ids": torch.arange(input_ids.shape[1])[None],
            "labels": self._pad(targets, IGNORE_INDEX),
        }

    def _pad(self, sequences: Sequence[Ids], value: int) -> torch.Tensor:
        """(batch_size, longest), padded on the right."""
        padded = np.full((len(sequences), max(map(len, sequences))), value)
        for row, sequence in zip(padded, sequences, strict=True):
            row[: len(sequence)] = sequence
        return torch.from_numpy(padded)


class BinCollator:
    """
    Lays the pairs of a batch into bins: rows of a fixed length that hold several whole pairs each. On a GPU, attention
    over a few long rows is faster than over many short ones, and batches come in few shapes.

    Args:
        rows: the number of rows is rounded up to a multiple of this; longer rows count for several.
    """

    # A row has the smallest multiple of this length that whole copies of the longest sentence fill to four fifths.
    length = 128

    def __init__(self, pad_token_id: int, rows: int = 1):
        self.pad_token_id, self.rows = pad_token_id, rows

    def __call__(self, pairs: list[Pair]) -> dict[str, torch.Tensor]:
        """
        Returns input_ids, segment_ids (which pair of its row each token belongs to, from 1 on; 0: padding), labels
        (-100 where padded) and decoder_segment_ids, (rows, length) each.
        """
        lengths = [(len(source), len(target)) for source, target in pairs]
        longest = max(map(max, lengths))
        size = self.length * next(
            n for n in itertools.count(1) if self.length * n // longest * longest >= _FULL * self.length * n
        )
        bins = fill_bins(lengths, size)
        multiple = max(1, self.rows * self.length // size)
        order = [index for members in bins for index in members]
        rows = np.repeat(np.arange(len(bins)), list(map(len, bins)))
        numbers = np.concatenate([np.arange(1, len(members) + 1) for members in bins])  # of each pair in its row
        # At least two rows: torch.compile would make a graph of its own for a single row.
        shape, found = (max(2, -(-len(bins) // multiple) * multiple), size), {}
        for side, (name, segments, padding) in enumerate(
            (("input_ids", "segment_ids", self.pad_token_id), ("labels", "decoder_segment_ids", IGNORE_INDEX))
        ):
            counts = np.array([lengths[index][side] for index in order])
            in_row = np.bincount(rows, counts).astype(np.int64)
            # Tokens in the order of rows, each offset by the beginning of its row.
            places = np.arange(counts.sum()) + np.repeat((rows * size) - (in_row.cumsum() - in_row)[rows], counts)
            found[name], found[segments] = np.full(shape, padding), np.zeros(shape, dtype=np.int64)
            found[name].flat[places] = np.concatenate([pairs[index][side] for index in order])
            found[segments].flat[places] = np.repeat(numbers, counts)
        return {name: torch.from_numpy(array) for name, array in found.items()}


Collator = PairCollator | BinCollator


@dataclass
class PieceCollator:
    """
    Cuts micro-batches into pieces of similar lengths, always equally many, and pads each. For pairs whose lengths were
    not known when batches were planned: a few that are twice as long would make all others as long.
    """

    collate: PairCollator

    def __call__(self, pairs: list[Pair]) -> list[dict[str, torch.Tensor]]:
        longest = np.array([max(map(len, pair)) for pair in pairs])
        order = np.argsort(longest, kind="stable")
        found = []
        for piece in np.split(order, cuts_by_length(longest[order], _PIECES)):
            source, target = pairs[order[0]]
            nothing = source, np.full_like(target, IGNORE_INDEX)  # all processes make equally many passes
            found.append(self.collate([pairs[index] for index in piece] or [nothing]))
        return found


def cuts_by_length(lengths: np.ndarray, pieces: int) -> list[int]:
    """
    Where to cut sequences so that, padded to the longest of their piece, they have the fewest tokens together.

    Args:
        lengths: (sequences,), sorted.

    Returns:
        The first sequences of all pieces but the first. Pieces at the end may be empty.
    """
    ends = np.append(np.flatnonzero(np.diff(lengths)) + 1, len(lengths))  # of those of one length
    starts, sizes = np.append(0, ends[:-1]), lengths[ends - 1]
    # Of a piece that begins with the sequences of one length, and ends with those of another, (first, last).
    costs = np.where(starts[:, None] < ends, (ends - starts[:, None]) * sizes, np.inf)
    least = costs[0]
    chosen = []
    for _ in range(min(pieces, len(ends)) - 1):
        sums = least[:-1, None] + costs[1:]  # (last of the pieces before, last of this one)
        chosen.append(np.argmin(sums, axis=0))
        least = sums.min(axis=0)
    cuts, last = [len(lengths)] * (pieces - 1 - len(chosen)), len(ends) - 1
    for before in reversed(chosen):
        last = int(before[last])
        cuts.insert(0, int(ends[last]))
    return cuts


def fill_bins(lengths: list[tuple[int, int]], size: int) -> list[list[int]]:
    """
    First fit, the longest pairs first: put each pair into the first of the open bins that has room for it.

    Args:
        lengths: (source length, target length) of the pairs, at most `size` each.
        size: of a bin, in source and in target tokens.

    Returns:
        For each bin the indices of its pairs.
    """
    shortest = min(map(max, lengths))
    bins: list[list[int]] = []
    open_bins: list[list[int]] = []  # those with room for another pair: number, room for source and for target
    for index in sorted(range(len(lengths)), key=lambda index: -max(lengths[index])):
        source, target = lengths[index]
        place = next((room for room in open_bins if room[1] >= source and room[2] >= target), None)
        if place is None:
            place = [len(bins), size, size]
            bins.append([])
            open_bins.append(place)
        bins[place[0]].append(index)
        place[1:] = place[1] - source, place[2] - target
        if min(place[1:]) < shortest:
            open_bins.remove(place)
    return bins


# -- loading -----------------------------------------------------------------------------------------------------------


class _Pairs(torch.utils.data.Dataset):
    def __init__(self, dataset: Dataset):
        self.dataset = dataset.select_columns(["input_ids", "labels"]).with_format("arrow")

    def __getitems__(self, indices: list[int]) -> list[Pair]:
        table = self.dataset[[0] if indices == [EMPTY] else indices]
        sides = []
        for column in (table.column(name).combine_chunks() for name in ("input_ids", "labels")):
            ends = np.cumsum(column.value_lengths().to_numpy())
            sides.append(np.split(column.flatten().to_numpy(), ends[:-1]))
        if indices == [EMPTY]:
            sides[1] = [np.full_like(sides[1][0], IGNORE_INDEX)]
        return list(zip(*sides, strict=True))

    def __len__(self) -> int:
        return len(self.dataset)


@dataclass
class AugmentedPairs(torch.utils.data.Dataset):
    """
    Pairs that are changed and tokenized whenever they are drawn. A pair that would become empty or too long stays as it
    is.

    Args:
        texts: the pairs before they were tokenized.
        dataset: the tokenized pairs; their `index` is the row in `texts`.
    """

    texts: Dataset
    dataset: Dataset
    tokenizer: PairTokenizer
    augment: Augmenter

    def __post_init__(self):
        self.unchanged, self.rows = _Pairs(self.dataset), np.asarray(self.dataset.with_format("numpy")["index"][:])

    def __getitems__(self, drawn: list[tuple[int, int]]) -> list[Pair]:
        """The pairs at these (epoch, index)."""
        indices = [index for _, index in drawn]
        pairs = self.unchanged.__getitems__(indices)
        if indices == [EMPTY]:
            return pairs
        rows = self.rows[indices].tolist()
        texts = self.texts[rows]
        places = [(epoch, row) for (epoch, _), row in zip(drawn, rows, strict=True)]
        changed = self.augment(texts, places)
        differing = [
            place
            for place in range(len(drawn))
            if any(changed[side][place] != texts[side][place] for side in (SOURCE, TARGET))
        ]
        if differing:
            columns = {name: [changed[name][place] for place in differing] for name in texts}
            tokens = self.tokenizer(columns, differing, [places[place] for place in differing])
            for place, *pair in zip(tokens["index"], tokens["input_ids"], tokens["labels"], strict=True):
                pairs[place] = tuple(pair)
        return pairs


def make_loader(
    dataset: Dataset | AugmentedPairs,
    micro_batches: Iterable[list[Any]],
    collate: Collator | PieceCollator,
    num_workers: int = 0,
    pin: bool = False,
) -> DataLoader:
    """A DataLoader over one process's micro-batches: lists of indices or, for augmented pairs, of (epoch, index)."""
    return DataLoader(
        dataset if isinstance(dataset, AugmentedPairs) else _Pairs(dataset),
        batch_sampler=micro_batches,
        collate_fn=collate,
        pin_memory=pin,
        # Each iterator draws a seed for its workers. Without this generator it would use the one of dropout, and a run
        # resumed within an epoch would draw once more than an uninterrupted one.
        generator=torch.Generator().manual_seed(0),
        **worker_options(num_workers),
    )


def worker_options(count: int) -> dict[str, Any]:
    """DataLoader arguments for this many workers, which ignore signals: the training process ends them."""
    if count:
        _kill_workers_at_exit()
    return {"num_workers": count, "worker_init_fn": _ignore_signals}


def _ignore_signals(worker: int) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@cache
def _kill_workers_at_exit() -> None:
    """Workers end with their iterator; if it is interrupted, multiprocessing would wait for them forever."""

    def kill() -> None:
        for child in multiprocessing.active_children():
            if child.daemon:
                child.kill()

    atexit.register(kill)


# -- the batches of a run ----------------------------------------------------------------------------------------------


@dataclass
class BatchShare:
    """One process's share of a global batch, which holds the pairs of one update."""

    # Read and padded while one iterates, which is possible once; workers, and what counts target tokens, do it before.
    micro_batches: Iterator[dict[str, torch.Tensor]]
    count: int  # of micro-batches
    target_tokens: int  # in the whole global batch, not in this share


def counted_share(micro_batches: list[dict[str, torch.Tensor]], accelerator: Accelerator) -> BatchShare:
    """A share whose target tokens are counted over all processes, which must call this together."""
    tokens = sum(int((batch["labels"] != IGNORE_INDEX).sum()) for batch in micro_batches)
    total = accelerator.reduce(torch.tensor(tokens, device=accelerator.device), "sum").item()
    return BatchShare(iter(micro_batches), len(micro_batches), total)


class EpochBatches:
    """
    The global batches of a tokenized data set, planned one epoch at a time. Unlike those of Accelerate's data loaders,
    they do not depend on the number of processes. All processes call every method together.

    Args:
        dataset: the pairs, tokenized.
        weights: by the pairs' `index`, how often an epoch has a pair; None: once.
        augmented: the same pairs, changed in each epoch; None: they stay as they are. Batches are planned by the
            lengths of the unchanged pairs; where they would be padded, they are cut again by the lengths that come out.
    """

    revision = None  # the commit of the data, which only a stream records

    def __init__(
        self,
        dataset: Dataset,
        recipe: Recipe,
        collate: Collator,
        accelerator: Accelerator,
        weights: np.ndarray | None = None,
        augmented: AugmentedPairs | None = None,
    ):
        self.augmented = augmented
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
            # The same in every epoch, since only the sorted lengths decide where batches are cut.
            return epochs * len(self.plan())
        return sum(len(self._plan(epoch)) for epoch in range(epochs))  # pairs are drawn at random

    def fingerprint(self) -> str:
        """Identifies the pairs: a run resumes only if they have not changed."""
        return fingerprint_of(self.dataset)

    def epochs(self) -> float:
        """The number of passes made over the data, which may be a fraction."""
        done = self.next_batch / len(self.plan()) if self.next_batch else 0.0  # at an epoch's start, do not plan it yet
        return round(self.epoch + done, 4)

    def position(self) -> dict[str, Any]:
        """The position of the next batch, the same on all processes, for a checkpoint."""
        return {"epoch": self.epoch, "update": self.next_batch}

    def save_readers(self, folder: Path) -> None:
        """Write nothing into a checkpoint: `position` is complete."""

    def go_to(self, position: dict[str, Any], folder: Path) -> None:
        """Continue from the position in a checkpoint."""
        self.epoch, self.next_batch = position["epoch"], position["update"]

    def iterate(self) -> Iterator[BatchShare]:
        """Yield batches from the current position on, forever."""
        accumulation = self.recipe.optimization.gradient_accumulation_steps
        is_on_gpu = self.accelerator.device.type == "cuda"
        workers = self.recipe.data.num_workers
        if not workers and is_on_gpu:  # which would wait for batches to be laid out: 10 ms for 4,000 tokens
            cores = (os.cpu_count() or 1) // self.accelerator.num_processes
            workers = min(_WORKERS_OF_GPU, max(1, cores - 1))
        drawn = self._micro_batches(self.epoch, self.next_batch)
        micro_batches: Iterator[list[Any]]
        if self.augmented is None:
            micro_batches = (indices for _, indices in drawn)
        else:
            micro_batches = ([(epoch, index) for index in indices] for epoch, indices in drawn)
        collate: Collator | PieceCollator = self.collate
        if self.augmented is not None and isinstance(collate, PairCollator):
            collate = PieceCollator(collate)
        loader = make_loader(self.augmented or self.dataset, micro_batches, collate, workers, is_on_gpu)
        batches: Iterator[Any] = iter(loader)
        if isinstance(collate, PieceCollator):
            batches, accumulation = itertools.chain.from_iterable(batches), accumulation * _PIECES
        while True:
            tokens = self.plan().target_tokens(self.next_batch)
            self.next_batch += 1
            if self.next_batch == len(self.plan()):
                self.epoch, self.next_batch = self.epoch + 1, 0
            share = itertools.islice(batches, accumulation)
            if self.augmented is None:
                yield BatchShare(share, accumulation, tokens)
            else:
                yield counted_share(list(share), self.accelerator)

    def _micro_batches(self, epoch: int, batch_index: int) -> Iterator[tuple[int, list[int]]]:
        """This process's micro-batches from a global batch on, forever, each with its epoch."""
        accelerator, accumulation = self.accelerator, self.recipe.optimization.gradient_accumulation_steps
        while True:
            division = (accelerator.process_index, accelerator.num_processes, accumulation)
            yield from ((epoch, indices) for indices in self._plan(epoch).micro_batches(batch_index, *division))
            epoch, batch_index = epoch + 1, 0


def fingerprint_of(dataset: Dataset) -> str:
    """A hash of all token ids of tokenized pairs."""
    digest = hashlib.sha256()
    for batch in dataset.select_columns(["input_ids", "labels"]).with_format("arrow").iter(10_000):
        for column in batch.columns:
            digest.update(pc.list_value_length(column).to_numpy().tobytes())
            digest.update(column.combine_chunks().flatten().to_numpy().tobytes())
    return digest.hexdigest()

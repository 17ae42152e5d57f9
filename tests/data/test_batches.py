"""Batches stay within the budget, contain every pair once, and are the same for any number of processes."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from datasets import Dataset

from modeling_scratch.data.batches import (
    EMPTY,
    BinCollator,
    PairCollator,
    PieceCollator,
    cuts_by_length,
    fill_bins,
    make_loader,
    plan_batches,
    plan_epoch,
)

RANDOM = np.random.default_rng(0)
SOURCE, TARGET = RANDOM.integers(2, 40, 500), RANDOM.integers(2, 40, 500)


def test_batches_are_within_budget_and_contain_every_pair_once():
    batches = plan_batches(SOURCE, TARGET, 200, np.random.default_rng(1))
    for batch in batches:
        assert len(batch) * max(SOURCE[batch].max(), TARGET[batch].max()) <= 200
    assert sorted(np.concatenate(batches)) == list(range(500))


def test_batches_have_little_padding():
    batches = plan_batches(SOURCE, TARGET, 400, np.random.default_rng(1))
    longest = np.maximum(SOURCE, TARGET)
    padded = sum(len(batch) * longest[batch].max() for batch in batches)
    assert longest.sum() / padded > 0.95


def test_batches_depend_only_on_the_seed_and_the_epoch():
    def batches(seed, epoch):
        return [batch.tolist() for batch in plan_epoch(SOURCE, TARGET, 200, seed, epoch).batches]

    assert batches(0, 0) == batches(0, 0)
    assert batches(0, 0) != batches(0, 1)
    assert batches(0, 0) != batches(1, 0)
    assert len(batches(0, 0)) == len(batches(0, 1)) == len(batches(1, 7))


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 1), (1, 3), (2, 1), (3, 2), (64, 1)])
def test_any_number_of_processes_and_micro_batches_share_the_same_batches(processes, accumulation):
    plan = plan_epoch(SOURCE, TARGET, 200, 0, 0)
    shares = [list(plan.micro_batches(0, rank, processes, accumulation)) for rank in range(processes)]
    assert {len(share) for share in shares} == {len(plan) * accumulation}
    for update, batch in enumerate(plan.batches):
        pieces = [share[update * accumulation : (update + 1) * accumulation] for share in shares]
        indices = [index for rank in pieces for piece in rank for index in piece if index != EMPTY]
        assert indices == batch.tolist()
        assert plan.target_tokens(update) == TARGET[batch].sum()


@pytest.mark.parametrize(
    "lengths", [[3], [2, 2, 2], [1, 9], [2, 2, 3, 8, 8, 9, 20], [1, 2, 4, 8, 16, 32], [5, 5, 6, 6]]
)
def test_pieces_have_the_least_padding(lengths):
    def padded(cuts):
        return sum(len(piece) * piece[-1] for piece in np.split(np.array(lengths), cuts) if len(piece))

    cuts = cuts_by_length(np.array(lengths), 3)
    assert padded(cuts) == min(map(padded, combinations_with_replacement(range(len(lengths) + 1), 2)))


@pytest.mark.parametrize("count", [1, 2, 40])
def test_three_pieces_hold_every_pair_once(count):
    """Also where a process has nothing to do."""
    pairs = [(np.arange(2, 2 + one), np.arange(2, 2 + other)) for one, other in zip(SOURCE, TARGET, strict=True)]
    pieces = PieceCollator(PairCollator(0))(pairs[:count])
    assert len(pieces) == 3
    found = [
        ((source != 0).sum().item(), (target != -100).sum().item())
        for piece in pieces
        for source, target in zip(piece["input_ids"], piece["labels"], strict=True)
    ]
    expected = list(zip(SOURCE[:count].tolist(), TARGET[:count].tolist(), strict=True))
    assert sorted(pair for pair in found if pair[1]) == sorted(expected)
    nothing = [(pairs[0][0], np.full(3, -100))]
    assert all((piece["labels"] == -100).all() for piece in PieceCollator(PairCollator(0))(nothing))


def test_the_weight_of_a_pair_is_its_mean_number_of_copies_in_an_epoch():
    weights = np.repeat([1.0, 0.25, 3.0, 1.5], 125)
    epochs = [np.bincount(np.concatenate(_weighted(epoch, weights).batches), minlength=500) for epoch in range(200)]
    assert {tuple(counts[:125]) for counts in epochs} == {(1,) * 125}
    assert {tuple(counts[250:375]) for counts in epochs} == {(3,) * 125}
    drawn, one_or_two = np.array(epochs)[:, 125:250], np.array(epochs)[:, 375:]
    assert (set(drawn.flat), set(one_or_two.flat)) == ({0, 1}, {1, 2})
    # The mean of 200 draws of each pair is within five standard errors.
    assert np.abs(drawn.mean(axis=0) - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 200)
    assert np.abs(one_or_two.mean(axis=0) - 1.5).max() < 5 * np.sqrt(0.25 / 200)
    plan = _weighted(0, weights)
    assert sum(map(plan.target_tokens, range(len(plan)))) == (epochs[0] * TARGET).sum()
    for batch in plan.batches:
        assert len(batch) * max(SOURCE[batch].max(), TARGET[batch].max()) <= 200


def _weighted(epoch, weights):
    return plan_epoch(SOURCE, TARGET, 200, 0, epoch, weights)


def test_resuming_yields_the_rest_of_the_epoch():
    plan = plan_epoch(SOURCE, TARGET, 200, 0, 3)
    assert list(plan.micro_batches(5, 1, 2, 2)) == list(plan.micro_batches(0, 1, 2, 2))[10:]


def test_the_loader_pads_and_masks_and_makes_a_batch_without_labels_of_an_empty_share():
    dataset = Dataset.from_dict({"input_ids": [[5, 2], [6, 7, 2]], "labels": [[8, 9, 2], [2]]})
    full, empty = list(make_loader(dataset, [[0, 1], [EMPTY]], PairCollator(4)))
    assert full["input_ids"].tolist() == [[5, 2, 4], [6, 7, 2]]
    assert full["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert full["labels"].tolist() == [[8, 9, 2], [2, -100, -100]]
    assert (empty["labels"] == -100).all()
    assert empty["input_ids"].shape[0] == 1


def test_the_loader_leaves_the_global_random_state_unchanged():
    dataset = Dataset.from_dict({"input_ids": [[2]], "labels": [[2]]})
    before = torch.get_rng_state()
    list(make_loader(dataset, [[0]], PairCollator(0)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("collate", [PairCollator(0), BinCollator(0)])
def test_collators_return_int64(collate):
    batch = collate([([1, 2], np.array([3, 2], dtype=np.int32))])
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_bins_are_full_and_contain_every_pair_once():
    lengths = list(zip(SOURCE.tolist(), TARGET.tolist(), strict=True))
    bins = fill_bins(lengths, 128)
    assert sorted(index for members in bins for index in members) == list(range(500))
    totals = np.array([[sum(lengths[index][side] for index in members) for side in (0, 1)] for members in bins])
    assert totals.max() <= 128
    assert totals.max(axis=1).mean() > 0.9 * 128


def test_bins_contain_whole_pairs_and_are_as_long_as_needed():
    pairs = [(RANDOM.integers(4, 99, s), RANDOM.integers(4, 99, t)) for s, t in zip(SOURCE, TARGET, strict=True)]
    batch = BinCollator(0, rows=7)(pairs)
    rows, length = batch["input_ids"].shape
    assert (rows % 7, length) == (0, 128)
    sides = (("input_ids", "segment_ids", 0), ("labels", "decoder_segment_ids", -100))
    found = []
    for row in range(rows):
        count = max(int(batch[segments][row].max()) for _, segments, _ in sides)
        for number in range(1, count + 1):
            own = [batch[name][row][batch[segments][row] == number].tolist() for name, segments, _ in sides]
            found.append(tuple(map(tuple, own)))
    assert sorted(found) == sorted((tuple(source.tolist()), tuple(target.tolist())) for source, target in pairs)
    for name, segments, padding in sides:
        assert (batch[name][batch[segments] == 0] == padding).all()
        begins = batch[segments][:, 1:] - batch[segments][:, :-1]
        assert set(begins[batch[segments][:, 1:] > 0].tolist()) == {0, 1}  # tokens of a pair are adjacent
    # The longest sentence may fill at most four fifths of a longer row, and there are at least two rows.
    shapes = [tuple(BinCollator(0)([([5] * length, [6])])["labels"].shape) for length in (64, 65, 120, 129)]
    assert shapes == [(2, 128), (2, 384), (2, 128), (2, 640)]

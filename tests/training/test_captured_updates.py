"""
Captured updates: the weights of plain ones, and what happens where they would differ. Here CUDA graphs are stand-ins on
the CPU; those of a GPU are tested in tests/gpu.
"""

import logging
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from conftest import SHALLOW
from cuda_graphs import capture_on_cpu

from modeling_scratch.data.batches import BatchShare, BinCollator
from modeling_scratch.model import masking, position_embeddings
from modeling_scratch.recipe.schema import OptimizationSection
from modeling_scratch.training import captured_updates, fused_loss
from modeling_scratch.training.captured_updates import CapturedTrainingStep, may_capture
from modeling_scratch.training.fast_layers import use_fast_layers
from modeling_scratch.training.step import StepResult, TrainingStep

ATEN = torch.ops.aten
KINDS = {"adamw": {}, "muon": {"optimizer": "muon"}}


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    """Nobody looks at values on the way."""
    for module in (masking, position_embeddings, fused_loss):
        monkeypatch.setattr(module, "can_look_at", lambda tensor: False)


@pytest.fixture
def trained(make_model):
    """A function that makes updates of a new model by a class, and returns what makes them and their results."""

    def train(
        kind: type[TrainingStep] = CapturedTrainingStep, updates: int = 8, rows: tuple[int, ...] = (2, 3), **options
    ) -> tuple[TrainingStep, list[StepResult]]:
        torch.manual_seed(0)
        model = make_model(dropout=0.1, **SHALLOW)
        use_fast_layers(model)
        step = kind(Accelerator(cpu=True), model, OptimizationSection(max_steps=1, **options))
        step.model.train()
        found = []
        for number in range(updates):
            sizes = range(rows[number % len(rows)], rows[number % len(rows)] + 2)  # of its two micro-batches
            lengths = torch.randint(2, 9, (2, 3)).tolist()
            batches = [
                BinCollator(0, rows=size)([(list(range(4, 4 + a)), list(range(5, 5 + a))) for a in row])
                for size, row in zip(sizes, lengths, strict=True)
            ]
            tokens = sum(int((batch["labels"] >= 0).sum()) for batch in batches)
            found.append(step(BatchShare(iter(batches), len(batches), tokens), 1e-3 * (number + 1)))
        return step, found

    return train


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_captured_updates_are_plain_ones(options, trained, monkeypatch):
    """Bit for bit, with dropout, rates that change, and two shapes. Comparing them with plain ones leaves no trace."""
    made = capture_on_cpu(monkeypatch)
    step, found = trained(**options)
    assert [graph.replays for graph in made] == [4] * 4  # passes and step of each shape; once to compare
    drawn = torch.rand(())
    monkeypatch.setattr(captured_updates, "_MOST_SHAPES", 0)
    plain, expected = trained(**options)
    assert torch.rand(()) == drawn
    assert len(made) == 4
    assert found == expected
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(step.model.state_dict()[name], weight), name
    usual, results = trained(TrainingStep, **options)  # by a rate and a number of tokens that are numbers
    assert [result.loss for result in found] == pytest.approx([result.loss for result in results], rel=1e-4)
    for name, weight in usual.model.state_dict().items():
        if not name.endswith("k_proj.bias"):  # softmax does not see them: their gradients are nothing but rounding
            torch.testing.assert_close(step.model.state_dict()[name], weight, rtol=1e-3, atol=1e-4)


def without(operation, which: int = 0):
    """Drops the operation of this name that is in this place."""

    def change(operations):
        places = [place for place, (found, *_) in enumerate(operations) if found.overloadpacket is operation]
        return [kept for place, kept in enumerate(operations) if place not in places[which : which + 1]]

    return change


def with_stale_ids(operations):
    """Embeds the ids that the input held when it was captured."""
    stale = {ATEN.embedding: lambda weight, ids, *rest: (weight, torch.zeros_like(ids), *rest)}
    return [
        (found, stale.get(found.overloadpacket, lambda *args: args)(*args), kwargs, result)
        for found, args, kwargs, result in operations
    ]


FAULTS = {
    "a product of the passes is lost": without(ATEN.mm, 2),
    "the optimizer's step is lost": without(ATEN._fused_adamw_),
    "the sums keep those of the last update": without(ATEN.zero_),
    "ids are stale": with_stale_ids,
}


@pytest.mark.parametrize("change", FAULTS.values(), ids=FAULTS)
def test_updates_go_on_plainly_where_captured_ones_differ(change, trained, monkeypatch, caplog):
    made = capture_on_cpu(monkeypatch, change)
    step, found = trained()
    assert [graph.replays for graph in made] == [1, 1]  # to compare them
    monkeypatch.setattr(captured_updates, "_MOST_SHAPES", 0)
    plain, expected = trained()
    assert found == expected
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(step.model.state_dict()[name], weight), name
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["no updates are captured, which is slower: here they differ from plain ones"]


def test_too_little_memory(trained, monkeypatch, caplog):
    """For three times that of a plain update, and twice that of weights and states."""
    made = capture_on_cpu(monkeypatch)
    step, _ = trained(updates=1)
    states = 3 * sum(parameter.nbytes for parameter in step.model.parameters()) + 4 * len(step.optimizer.state)
    needed = 3 * 1000 + 2 * states
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1000)
    for free, captured in ((needed - 1, 0), (needed, 4)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 2**40))
        trained()
        assert len(made) == captured
    assert caplog.text.count("an update is not captured, which is slower: the GPU has 0.0 GiB beside the model") == 1


def test_few_shapes_are_captured(trained, monkeypatch):
    """Those that come back first. Shapes that come once take no place from others."""
    made = capture_on_cpu(monkeypatch)
    monkeypatch.setattr(captured_updates, "_MOST_SHAPES", 2)
    step, _ = trained(rows=(2, 3, 4, 5, 5, 2, 6, 6, 5, 2), updates=10)
    assert sorted(key[0][0] for key in step.captured) == [2, 5]
    assert [graph.replays for graph in made] == [3] * 4


def test_updates_of_a_model_with_hooks_are_not_captured(make_model):
    """In a replay, no hook would run."""
    gpu = SimpleNamespace(
        device=torch.device("cuda"), num_processes=1, distributed_type=DistributedType.NO, mixed_precision="no"
    )
    model = make_model()
    assert may_capture(gpu, model)
    model.model.encoder.layers[0].self_attn.q_proj.register_forward_hook(lambda *_: None)
    assert not may_capture(gpu, model)

"""The loss equals its definition, and the fused loss equals the plain one, gradients included."""

import copy

import pytest
import torch
from torch import nn

from modeling_scratch.training import fused_loss as loss_module
from modeling_scratch.training.fused_loss import (
    TrainingLoss,
    cross_entropy_sum,
    fused_cross_entropy,
    linear_cross_entropy_sum,
)


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    labels = torch.randint(0, 23, (3, 5))
    labels[0, 3:] = -100
    return torch.randn(3, 5, 8, dtype=torch.float64), labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_equals_its_definition(inputs, smoothing):
    states, labels = inputs
    logits = states @ torch.randn(8, 23, dtype=torch.float64)
    total = 0.0
    for row, label in zip(logits.flatten(0, 1), labels.flatten(), strict=True):
        if label != -100:
            target = torch.full((23,), smoothing / 23, dtype=torch.float64)
            target[label] += 1 - smoothing
            total -= (target * (row - row.exp().sum().log())).sum()
    torch.testing.assert_close(cross_entropy_sum(logits, labels, smoothing), total, rtol=0, atol=1e-10)


@pytest.mark.parametrize("reads_labels", [False, True])
@pytest.mark.parametrize("rows", [3, 1024])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_fused_loss_equals_the_plain_one(inputs, smoothing, bias, rows, reads_labels, monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK_ROWS", rows)
    monkeypatch.setattr(loss_module, "can_look_at", lambda labels: reads_labels)
    states, labels = inputs
    head = nn.Linear(8, 23, bias=bias).double()
    results = []
    for fused in (False, True):
        leaf = states.clone().requires_grad_()
        head.zero_grad()
        if fused:
            total, plain = linear_cross_entropy_sum(leaf, head, labels, smoothing)
            assert not plain.requires_grad
        else:
            total, plain = (cross_entropy_sum(head(leaf), labels, each) for each in (smoothing, 0.0))
        (total / 7).backward()
        gradients = [leaf.grad, *(parameter.grad.clone() for parameter in head.parameters())]
        results.append([total.detach(), plain.detach(), *gradients])
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_mixed_precision_the_fused_loss_is_as_exact_as_the_plain_one(dtype, smoothing):
    torch.manual_seed(0)
    head, states, labels = nn.Linear(16, 3000), torch.randn(4, 40, 16), torch.randint(0, 3000, (4, 40))
    labels[0, 30:] = -100

    def run(loss_sum, wide=False):
        leaf = (states.double() if wide else states.clone()).requires_grad_()
        projection = copy.deepcopy(head).to(leaf.dtype)
        with torch.autocast("cpu", dtype, enabled=not wide):
            total = loss_sum(leaf, projection)
        (1024 * total / 149).backward()  # as a gradient scaler does
        gradients = [leaf.grad, *(parameter.grad for parameter in projection.parameters())]
        assert wide or all(gradient.dtype == torch.float32 for gradient in gradients)
        return [total.detach(), *gradients]

    def plain(leaf, projection):
        return cross_entropy_sum(projection(leaf), labels, smoothing)

    expected = run(plain, wide=True)
    found = run(lambda leaf, projection: linear_cross_entropy_sum(leaf, projection, labels, smoothing)[0])
    assert found[0].item() == pytest.approx(expected[0].item(), rel=1e-3)
    for fused, narrow, exact in zip(found[1:], run(plain)[1:], expected[1:], strict=True):
        assert (fused - exact).norm() <= 1.5 * (narrow - exact).norm()


@pytest.mark.parametrize("wanted", [("states",), ("weight",), ("bias",), ("states", "bias")])
def test_only_the_gradients_that_are_needed_are_computed(wanted, inputs, monkeypatch):
    """For example, LoRA freezes the head."""
    states, labels = inputs
    head, products = nn.Linear(8, 23).double(), []
    leaves = {"states": states.clone(), "weight": head.weight, "bias": head.bias}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in wanted)
    needed = [leaves[name] for name in wanted]
    expected = torch.autograd.grad(cross_entropy_sum(head(leaves["states"]), labels), needed)
    for owner, name in ((torch, "mm"), (torch, "addmm"), (torch.Tensor, "addmm_")):
        product = getattr(owner, name)
        counted = lambda *args, product=product, **options: products.append(1) or product(*args, **options)  # noqa: E731
        monkeypatch.setattr(owner, name, counted)
    linear_cross_entropy_sum(leaves["states"], head, labels)[0].backward()
    assert len(products) == 1 + ("states" in wanted) + ("weight" in wanted)
    assert {name for name, leaf in leaves.items() if leaf.grad is not None} == set(wanted)
    torch.testing.assert_close([leaf.grad for leaf in needed], list(expected), rtol=0, atol=1e-10)


def test_evaluation_computes_no_gradients(inputs, monkeypatch):
    states, labels = inputs
    head, made = nn.Linear(8, 23).double(), []
    monkeypatch.setattr(torch, "zeros_like", lambda *args, **kwargs: made.append(args))
    with torch.no_grad():
        linear_cross_entropy_sum(states, head, labels, 0.1)
    assert not made


@pytest.mark.parametrize("gap", [2.0, 7.0, 9.0])
def test_a_confident_prediction_keeps_its_gradient_in_bf16(gap):
    """In bfloat16 a probability of 0.9985 is 1, and its gradient would be 0."""
    head = nn.Linear(4, 100)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()[7] = gap
    states = torch.zeros(1, 3, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        total, plain = linear_cross_entropy_sum(states, head, torch.full((1, 3), 7))
    total.backward()
    assert plain == total
    missing = 3 * (1 - torch.softmax(head.bias.double(), 0)[7]).item()
    assert head.bias.grad[7].item() == pytest.approx(-missing, rel=0.01)
    assert total.item() == pytest.approx(3 * -torch.log_softmax(head.bias.double(), 0)[7].item(), rel=0.01)


def test_the_loss_of_extreme_logits_is_finite():
    head = nn.Linear(2, 3, bias=False)
    nn.init.constant_(head.weight, 0)
    with torch.no_grad():
        head.weight[0, 0] = 1e4
    states = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    total, _ = linear_cross_entropy_sum(states, head, torch.tensor([[1]]), 0.1)
    total.backward()
    assert total.item() == pytest.approx(0.9 * 1e4 + 0.1 * 2e4 / 3)
    assert torch.isfinite(states.grad).all()


def test_a_batch_without_labels_has_a_loss_of_zero(make_model):
    model = make_model()
    labels = torch.full((2, 4), -100)
    for fused_loss in (None, fused_cross_entropy):
        loss = model(input_ids=torch.ones(2, 3, dtype=torch.long), labels=labels, fused_loss=fused_loss).loss
        assert loss.item() == 0.0
        loss.backward()
        assert all(p.grad is None or torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())


def test_the_loss_is_the_mean_or_the_sum_over_num_items_in_batch(make_model):
    model = make_model()
    inputs = {"input_ids": torch.tensor([[5, 6, 2]]), "labels": torch.tensor([[7, 8, 9, 2]])}
    mean, total = model(**inputs).loss, model(**inputs, num_items_in_batch=1).loss
    torch.testing.assert_close(mean * 4, total)
    torch.testing.assert_close(model(**inputs, num_items_in_batch=8, fused_loss=fused_cross_entropy).loss * 8, total)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_smoothed_loss_comes_with_the_cross_entropy(wrapped, make_model):
    model = make_model()
    if wrapped:  # as by an adapter
        model.lm_head.forward = model.lm_head.forward
    inputs = {"input_ids": torch.tensor([[5, 6, 2]] * 2), "labels": torch.tensor([[7, 8, 9, 2]] * 2)}
    loss, cross_entropy = model(**inputs, fused_loss=TrainingLoss(0.1), num_items_in_batch=8).loss
    plain = model(**inputs)
    torch.testing.assert_close(cross_entropy, plain.loss)
    torch.testing.assert_close(loss, cross_entropy_sum(plain.logits, inputs["labels"], 0.1) / 8)

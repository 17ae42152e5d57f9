"""The model computes on a GPU what it computes on a CPU: outputs, gradients, losses, searches, compiled layers."""

import pytest
import torch
from conftest import CHOICES, every_choice, padded
from search_cases import check_random_cases
from torch._dynamo.utils import counters

from modeling_scratch.data.batches import BinCollator
from modeling_scratch.training import fused_loss as loss
from modeling_scratch.training.compilation import compile_layers, example_batch

pytest_plugins = ["search_fixtures"]
MODERN = "rotary, rms, gated"


@pytest.fixture(autouse=True)
def plain_float32():
    """Runs, which may come before in the same process, set TF32."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(precision)


def batch_of(sentences, device="cuda", length=9):
    ids, mask = padded(sentences, length)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def passed(model, batch, scale=1.0) -> dict[str, torch.Tensor]:
    """The logits, the loss and all gradients of a forward and backward pass; `scale` is that of the loss in fp16."""
    model.zero_grad()
    output = model(**batch)
    (output.loss * scale).backward()
    gradients = {name: weight.grad / scale for name, weight in model.named_parameters() if weight.grad is not None}
    found = {"logits": output.logits, "loss": output.loss, **gradients}
    return {name: tensor.detach().double().cpu() for name, tensor in found.items()}


@every_choice
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_outputs_and_gradients_are_those_of_the_cpu(fields, attention, make_model, sentences):
    model = make_model(**fields).double()
    model.set_attn_implementation(attention)
    expected = passed(model, batch_of(sentences, "cpu"))
    torch.testing.assert_close(passed(model.cuda(), batch_of(sentences)), expected, rtol=1e-9, atol=1e-9)


@every_choice
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_differs_by_rounding(fields, dtype, make_model, sentences):
    """
    Without padding too, where a kernel for causal attention without a mask takes over. Not with ReLU: at its kink a
    rounding error turns a whole gradient on or off.
    """
    model, epsilon = make_model(**{"activation_function": "gelu"} | fields).double(), torch.finfo(dtype).eps
    for batch in (batch_of(sentences), batch_of([torch.arange(4, 13)] * 3)):
        expected = passed(model.double().cuda(), batch)
        with torch.autocast("cuda", dtype):
            found = passed(model.float(), batch, scale=2.0**10)
        for part in ({"logits"}, {"loss"}, expected.keys() - {"logits", "loss"}):
            own, other = (torch.cat([each[name].flatten() for name in sorted(part)]) for each in (found, expected))
            assert (own - other).norm() <= 8 * epsilon * other.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_in_chunks_is_that_of_all_logits(dtype, smoothing, monkeypatch):
    """Compared with float64. 700 rows of 1,000 tokens, in two chunks."""
    monkeypatch.setattr(loss, "LOGITS_OF_GPU", 600_000)
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 1000).cuda().double()
    hidden = torch.randn(7, 100, 64, device="cuda", dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 1000, (7, 100), device="cuda")
    labels[:, 90:] = -100
    expected = loss.cross_entropy_sum(head(hidden), labels, smoothing)
    gradients = torch.autograd.grad(expected, (hidden, head.weight, head.bias))
    head, narrow = head.to(torch.promote_types(dtype, torch.float32)), dtype in (torch.bfloat16, torch.float16)
    states = hidden.detach().to(head.weight.dtype).requires_grad_()
    with torch.autocast("cuda", dtype if narrow else torch.bfloat16, enabled=narrow):
        found, plain = loss.linear_cross_entropy_sum(states, head, labels, smoothing)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2 * torch.finfo(dtype).eps)
    assert found.item() == pytest.approx(expected.item(), rel=tolerance)
    assert plain.item() == pytest.approx(loss.cross_entropy_sum(head(states), labels).item(), rel=tolerance)
    for own, other in zip(torch.autograd.grad(found, (states, head.weight, head.bias)), gradients, strict=True):
        assert (own.double() - other).norm() <= tolerance * other.norm()


@pytest.mark.parametrize("seed", range(2))
def test_our_own_search_gives_the_tokens_of_the_inherited_one(seed, make_model, monkeypatch, loops):
    check_random_cases(30, 10_000 * (seed + 1), make_model, monkeypatch, loops, "cuda")


@pytest.mark.parametrize("name", ["default", MODERN])
def test_compiled_layers_compute_what_eager_ones_do(name, make_model, sentences):
    """Each kind of layer compiled once, for all batches of bins."""
    model = make_model(**CHOICES[name], dropout=0.0).cuda().train()
    torch._dynamo.reset()
    counters.clear()
    compile_layers(model)
    passed(model, example_batch(model, torch.device("cuda")))
    for rows in (1, 2, 3):
        pairs = [(sentence.tolist(), sentence.tolist()) for sentence in sentences] * 20
        batch = {name: tensor.cuda() for name, tensor in BinCollator(0, rows)(pairs[: 20 * rows]).items()}
        found, expected = passed(model.train(), batch), passed(model.eval(), batch)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    torch._dynamo.reset()

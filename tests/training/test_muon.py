"""Muon equals torch.optim.Muon for the layers' matrices and AdamW for the rest."""

import copy

import pytest
import torch

from modeling_scratch.recipe.schema import OptimizationSection
from modeling_scratch.training.optimization import MOMENTUM, make_optimizer, orthogonalized

GENERATOR = torch.Generator().manual_seed(0)
OPTIONS = {"max_steps": 1, "optimizer": "muon", "learning_rate": 3e-3, "weight_decay": 0.1}


@pytest.mark.parametrize("shape", [(32, 32), (64, 32), (32, 64)])
def test_updates_are_nearly_orthogonal(shape):
    matrices = torch.randn(3, *shape, generator=GENERATOR, dtype=torch.float64)
    found = torch.linalg.svdvals(orthogonalized(matrices))
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    assert 0.3 < found.min() < found.max() < 1.3
    cosine = (orthogonalized(matrices) * (u @ vh)).sum((1, 2)) / (u @ vh).norm(dim=(1, 2)) / found.norm(dim=1)
    assert cosine.min() > 0.97


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_are_updated_as_by_torch_and_the_rest_as_by_adamw(make_model, tied):
    model, other = (make_model(tie_word_embeddings=tied, lm_head_bias=True) for _ in range(2))
    other.load_state_dict(model.state_dict())
    optimizer = make_optimizer(model, OptimizationSection(**OPTIONS), "bf16")
    names = {name for name, each in other.named_parameters() if name.endswith("proj.weight")}
    theirs = {name: each for name, each in other.named_parameters()}
    muon = torch.optim.Muon(
        [theirs[name] for name in sorted(names)],
        lr=3e-3,
        weight_decay=0.1,
        momentum=MOMENTUM,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = [{"params": [each for name, each in theirs.items() if name not in names], "weight_decay": 0.0}]
    if not tied:
        rest[0]["params"] = [each for name, each in theirs.items() if name not in names and name != "lm_head.weight"]
        rest.append({"params": [theirs["lm_head.weight"]], "weight_decay": 0.1})
    adamw = torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
    for _ in range(4):
        for name, each in model.named_parameters():
            each.grad = torch.randn(each.shape, generator=GENERATOR)
            theirs[name].grad = each.grad.clone()
        optimizer.step()
        muon.step()
        adamw.step()
    for name, each in model.named_parameters():
        # Batched products in bf16 add in another order, which changes updates by some 1 %.
        tolerance = 5e-4 if name in names else 1e-6
        torch.testing.assert_close(each, theirs[name], rtol=0, atol=tolerance, msg=name)


def test_its_state_is_saved_and_loaded(make_model):
    model, other = make_model(), make_model()
    first, second = (make_optimizer(each, OptimizationSection(**OPTIONS)) for each in (model, other))

    def step(optimizer, model, seed):
        generator = torch.Generator().manual_seed(seed)
        for each in model.parameters():
            each.grad = torch.randn(each.shape, generator=generator)
        optimizer.step()

    step(first, model, 1)
    other.load_state_dict(model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # a copy, since loading shares the tensors
    step(first, model, 2)
    step(second, other, 2)
    for name, each in model.named_parameters():
        assert torch.equal(each, other.state_dict()[name]), name


def test_parameters_without_a_gradient_do_not_change(make_model):
    model = make_model()
    before = {name: each.clone() for name, each in model.named_parameters()}
    optimizer = make_optimizer(model, OptimizationSection(**OPTIONS))
    chosen = model.model.encoder.layers[0].self_attn.q_proj.weight
    chosen.grad = torch.ones_like(chosen)
    optimizer.step()
    changed = {name for name, each in model.named_parameters() if not torch.equal(each, before[name])}
    assert changed == {"model.encoder.layers.0.self_attn.q_proj.weight"}


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_a_learning_rate_in_a_tensor_gives_the_same_updates(make_model, kind):
    """On a GPU, captured updates read it; equal to the rounding of float32."""
    models = [make_model() for _ in range(2)]
    section, rate = OptimizationSection(**OPTIONS | {"optimizer": kind}), torch.zeros(())
    plain, by_tensor = make_optimizer(models[0], section), make_optimizer(models[1], section)
    for step in range(1, 6):
        rate.fill_(1e-3 * step)
        torch.manual_seed(step)
        gradients = [torch.randn_like(parameter) for parameter in models[0].parameters()]
        for model, optimizer, value in zip(models, (plain, by_tensor), (1e-3 * step, rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = value
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=1e-6, atol=1e-7)

"""Precision: the machine's own by default, the recipe's or the launcher's choice, the same on resume."""

import pytest
import torch
from conftest import quick_run, read_metrics

from modeling_scratch.runs import precision

LAUNCHER = "ACCELERATE_MIXED_PRECISION"


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains without a launcher, on a machine that has bf16 or has not, and returns the precision in the record."""
    monkeypatch.delenv(LAUNCHER)

    def run(*options: str, has_bf16: bool, **flags) -> str:
        monkeypatch.setattr(precision, "multiplies_in_bf16", lambda: has_bf16)
        folder = quick_run(tmp_path / "run", *options, **flags)
        return read_metrics(folder, "run")[-1]["mixed_precision"]

    return run


@pytest.mark.parametrize(("has_bf16", "expected"), [(True, "bf16"), (False, "no")])
def test_by_default_it_is_what_the_machine_multiplies_in(train, has_bf16, expected, capsys):
    assert train("optimization.max_steps=2", has_bf16=has_bf16) == expected
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("precision: ")]
    assert said.split()[1].strip(";") == {"no": "float32"}.get(expected, expected)


@pytest.mark.parametrize(("chosen", "expected"), [("float32", "no"), ("bf16", "bf16")])
def test_the_recipe_decides(train, chosen, expected):
    assert train("optimization.max_steps=2", f"precision={chosen}", has_bf16=chosen == "float32") == expected


def test_a_launcher_decides(train, monkeypatch, capsys):
    monkeypatch.setenv(LAUNCHER, "no")
    assert train("optimization.max_steps=2", "precision=bf16", has_bf16=True) == "no"
    assert "warning: precision: no, the launcher's, and not the recipe's bf16" in capsys.readouterr().err


@pytest.mark.parametrize("began", [True, False])
def test_a_resumed_run_keeps_it_on_another_machine(train, began):
    before = train("optimization.max_steps=2", has_bf16=began)
    assert train("optimization.max_steps=4", has_bf16=not began, resume=True) == before


def test_instructions_of_the_processor(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, expected in (("avx512_bf16", True), ("amx_bf16", True), ("avx512_f", False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda name=name: {name: True, "avx2": True})
        assert precision.multiplies_in_bf16() is expected


@pytest.mark.parametrize("has_it", [True, False])
def test_a_gpu_that_emulates_bf16_does_not_count(has_it, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_it)
    assert precision.multiplies_in_bf16() is has_it

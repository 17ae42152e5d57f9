"""The precision of training: chosen by the machine, the recipe or the launcher, and kept when a run resumes."""

import logging

import pytest
import torch
from conftest import quick_run, read_metrics

from modeling_scratch.recipe import CONFIGURATION_FOLDER
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.training import setup

LAUNCHER = "ACCELERATE_MIXED_PRECISION"


@pytest.mark.parametrize(
    ("launcher", "options", "has_bf16", "expected", "logged"),
    [
        (None, [], True, "bf16", "precision: bf16,"),
        (None, [], False, "no", "precision: float32 "),
        (None, ["precision=float32"], True, "no", ""),
        (None, ["precision=bf16"], False, "bf16", ""),
        ("no", ["precision=bf16"], True, None, "launcher"),  # whose variable Accelerate reads
    ],
)
def test_the_launcher_decides_or_the_recipe_or_the_machine(
    launcher, options, has_bf16, expected, logged, monkeypatch, caplog
):
    monkeypatch.delenv(LAUNCHER)
    if launcher is not None:
        monkeypatch.setenv(LAUNCHER, launcher)
    monkeypatch.setattr(setup, "is_faster_in_bf16", lambda: has_bf16)
    with caplog.at_level(logging.INFO, "modeling_scratch"):
        chosen = setup.choose_precision(load_recipe(CONFIGURATION_FOLDER / "recipes" / "embedded.yaml", options))
    assert chosen == expected
    assert logged in caplog.text


def test_a_resumed_run_keeps_its_precision_on_another_machine(tmp_path, monkeypatch):
    monkeypatch.delenv(LAUNCHER)
    for has_bf16, updates in ((True, 1), (False, 2)):
        monkeypatch.setattr(setup, "is_faster_in_bf16", lambda has_bf16=has_bf16: has_bf16)
        run = quick_run(tmp_path / "run", f"optimization.max_steps={updates}", resume=updates == 2)
    assert [record["mixed_precision"] for record in read_metrics(run, "run")] == ["bf16", "bf16"]


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ("avx512_f", False),
        ("avx512_f avx512_bf16", True),  # Cooper Lake
        ("avx512_f avx512_bf16 sse4a", True),  # Zen 4
        ("avx512_f avx512_bf16 avx512_fp16 amx_bf16", True),  # Sapphire Rapids
        ("avx512_f avx512_bf16 avx512_fp16", False),  # the same without AMX, in a virtual machine
        ("avx512_f avx512_bf16 avx512_fp16 sse4a", True),
    ],
)
def test_a_cpu_needs_fast_bf16_instructions(instructions, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions.split(), True))
    assert setup.is_faster_in_bf16() is expected


@pytest.mark.parametrize("has_it", [True, False])
def test_a_gpu_needs_native_bf16(has_it, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_it)
    assert setup.is_faster_in_bf16() is has_it

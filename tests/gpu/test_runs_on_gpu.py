"""Runs on a GPU: the losses of the same run on a CPU, resumed exactly, launched as documented, served."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import (
    ROOT,
    SMALL_RUN,
    few_sentences,
    killed_run,
    quick_run,
    read_metrics,
    run_evaluation,
    run_training,
    train_losses,
)
from forked import as_one_of_nodes, port_of_launchers
from safetensors.torch import load_file
from services import post, running
from transformers import AutoModelForSeq2SeqLM
from waiting import LONGEST

from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.apps.translate.workers import worker_count
from modeling_scratch.inference.translate import Translator
from modeling_scratch.model.translations import best_texts
from modeling_scratch.run.folder import SCALER, RunFolder
from modeling_scratch.run.progress import Progress, read_progress
from modeling_scratch.training import compilation, train
from modeling_scratch.training.step import TrainingStep

PLAIN = ["model.overrides.dropout=0.0", "precision=float32", "compile=false"]


def progress(run: Path) -> Progress:
    return read_progress(RunFolder(run).checkpoints.newest())


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Here the recipe chooses the precision."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """The losses of a run on the CPU with these overrides."""

    @cache
    def run(*overrides: str) -> list[float]:
        folder = tmp_path_factory.mktemp("cpu") / "run"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ACCELERATE_USE_CPU", "true")
            quick_run(folder, *PLAIN, *overrides)
        assert progress(folder).device == "cpu"
        assert len(train_losses(folder)) == 20
        return train_losses(folder)

    return run


def assert_same_weights(first: Path, second: Path) -> None:
    """
    But for the order of sums. Not of the biases of keys: softmax does not see them, so their gradients are nothing but
    rounding, which Adam scales up to whole steps.
    """
    weights = [load_file(folder / "model.safetensors") for folder in (first, second)]
    seen = [{name: weight for name, weight in some.items() if not name.endswith("k_proj.bias")} for some in weights]
    torch.testing.assert_close(*seen, rtol=0, atol=1e-3)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["optimization.gradient_accumulation_steps=3"],
        ["optimization.optimizer=muon", "checkpoints.average_last=2"],
        ["data.num_workers=2"],
        ["data.streaming=true", "data.num_workers=2"],
        ["tokenizer.shared=false"],
        ["model.config=modern"],
    ],
    ids=str,
)
def test_the_losses_are_those_of_the_cpu(overrides, on_cpu, tmp_path):
    """But for rounding: products are in TF32."""
    run = quick_run(tmp_path / "run", *PLAIN, *overrides)
    assert progress(run).device == "cuda"
    assert train_losses(run) == pytest.approx(on_cpu(*overrides), abs=5e-3)
    assert read_metrics(run, "test")[-1]["final"]
    AutoModelForSeq2SeqLM.from_pretrained(run, trust_remote_code=True)


@pytest.mark.parametrize("tokens", [None, 1000], ids=["short", "long"])
def test_by_default_training_is_in_bf16_and_compiled_if_the_run_is_long(tokens, on_cpu, tmp_path, monkeypatch):
    if tokens is not None:
        monkeypatch.setattr(compilation, "MANY_TOKENS", tokens)
    run = quick_run(tmp_path / "run", "model.overrides.dropout=0.0")
    assert (progress(run).precision, progress(run).compiled) == ("bf16", tokens is not None)
    assert train_losses(run) == pytest.approx(on_cpu(), abs=3e-2)


@pytest.mark.parametrize("compiled", ["false", "true"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(
    "overrides", [[], ["optimization.optimizer=muon", "optimization.gradient_accumulation_steps=2"]], ids=str
)
def test_captured_updates_are_plain_ones(overrides, precision, compiled, tmp_path, monkeypatch, capsys):
    """With dropout, whose random numbers must be the same. They pass the run's own comparison too."""
    options = ["model.overrides.dropout=0.3", f"precision={precision}", f"compile={compiled}", *overrides]
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replays.append(graph) or replay(graph))
    captured = quick_run(tmp_path / "captured", *options)
    said = capsys.readouterr().err
    assert "updates are captured, " in said
    assert "updates are captured, which is slower" not in said  # "no updates", or "no more"
    assert len(replays) > 20
    replays.clear()
    monkeypatch.setattr(train, "make_training_step", TrainingStep)
    plain = quick_run(tmp_path / "plain", *options)
    assert not replays
    difference = 1e-3 if precision == "float32" else 3e-2
    assert train_losses(captured) == pytest.approx(train_losses(plain), abs=difference)
    if precision == "float32":
        assert_same_weights(captured, plain)


def test_training_in_fp16_scales_gradients(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    run = quick_run(tmp_path / "run", "compile=false")
    assert progress(run).precision == "fp16"
    assert (RunFolder(run).checkpoints.newest() / SCALER).exists()
    assert train_losses(run)[-1] < train_losses(run)[0] - 0.5
    assert all(torch.isfinite(each).all() for each in load_file(run / "model.safetensors").values())


def test_lack_of_memory_says_what_needs_less(tmp_path, fails):
    """640 MiB are enough for the model, but not for all pairs at once."""
    wide = ["model.overrides={d_model: 512, encoder_ffn_dim: 2048, encoder_layers: 2, decoder_layers: 2}"]
    torch.cuda.empty_cache()
    allowed = (torch.cuda.memory_reserved() + 640 * 2**20) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(allowed)
    try:
        line = fails(tmp_path / "run", *PLAIN, *wide, "optimization.tokens_per_batch=20000")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "error: out of memory on cuda" in line
    assert "set optimization.gradient_accumulation_steps=2, which changes no batch" in line


def test_a_dry_run_times_updates(tmp_path, capsys):
    run_training(*SMALL_RUN, *few_sentences(), f"output_dir={tmp_path / 'run'}", dry_run=True)
    assert "updates timed on this machine" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


# -- resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", ["false", "true"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_killed_run_resumes_with_the_same_dropout(compiled, precision, tmp_path, capsys):
    options = ["model.overrides.dropout=0.3", f"precision={precision}", f"compile={compiled}"]
    whole = quick_run(tmp_path / "whole", *options)
    resumed = quick_run(killed_run(15, tmp_path / "run", *options), *options, resume=True)
    assert f"resuming from {RunFolder(resumed).checkpoints.path(10)}" in capsys.readouterr().err
    assert train_losses(resumed) == pytest.approx(train_losses(whole), abs=1e-3)
    assert_same_weights(resumed, whole)


@pytest.mark.parametrize("first", ["cpu", "cuda"])
def test_a_run_resumes_on_another_kind_of_device(first, on_cpu, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", str(first == "cpu").lower())
    killed_run(15, tmp_path / "run", *PLAIN)
    monkeypatch.setenv("ACCELERATE_USE_CPU", str(first != "cpu").lower())
    quick_run(tmp_path / "run", *PLAIN, resume=True)
    assert progress(tmp_path / "run").device == {"cpu": "cuda", "cuda": "cpu"}[first]
    assert train_losses(tmp_path / "run") == pytest.approx(on_cpu(), abs=5e-3)


# -- launchers ---------------------------------------------------------------------------------------------------------

LAUNCH = ["-m", "accelerate.commands.launch", "--mixed_precision", "no", "--config_file"]
# Two processes that share a GPU: NCCL refuses them, unless it takes them for processes of two machines.
TWO_MACHINES = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def run_on_machines(command: list[str], count: int, folder: Path, *overrides: str) -> Path:
    """The run of a launcher on each of `count` supposed machines, over NCCL."""
    port, launchers = port_of_launchers(), []
    for rank in range(count):
        place = as_one_of_nodes(rank, count, port) if count > 1 else ["--num_processes", "1"]
        environment = {**TWO_MACHINES, "NCCL_HOSTID": f"machine-{rank}"} if count > 1 else {}
        launchers.append(launched([*command, *place], folder, f"stderr-{rank}", *overrides, **environment))
    return ended(launchers, folder)


def launched(command: list[str], folder: Path, log: str, *overrides: str, **environment: str) -> subprocess.Popen:
    arguments = [sys.executable, *command, "train.py", *SMALL_RUN, *PLAIN, *few_sentences(), f"output_dir={folder}"]
    with open(folder.parent / log, "w") as said:
        return subprocess.Popen([*arguments, *overrides], cwd=ROOT, env={**os.environ, **environment}, stderr=said)


def ended(launchers: list[subprocess.Popen], folder: Path) -> Path:
    """The run's folder, once its launchers have ended well."""
    try:
        codes = [launcher.wait(LONGEST) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()  # and with it its processes
    assert not any(codes), "".join(file.read_text() for file in sorted(folder.parent.glob("stderr-*")))
    return folder


@pytest.mark.parametrize("config", ["ddp", "fsdp"])
@pytest.mark.parametrize("count", [1, 2])
def test_launched_processes_train_the_same_model(config, count, on_cpu, tmp_path):
    run = run_on_machines([*LAUNCH, f"configuration/accelerate/{config}.yaml"], count, tmp_path / "run")
    assert (progress(run).processes, progress(run).device) == (count, "cuda")
    assert train_losses(run) == pytest.approx(on_cpu(), abs=5e-3)
    AutoModelForSeq2SeqLM.from_pretrained(run, trust_remote_code=True)


@pytest.mark.parametrize("config", ["ddp", "fsdp"])
def test_two_processes_train_in_bf16_and_compiled(config, on_cpu, tmp_path):
    command = [*LAUNCH, f"configuration/accelerate/{config}.yaml", "--mixed_precision", "bf16"]
    run = run_on_machines(command, 2, tmp_path / "run", "precision=auto", "compile=true")
    assert (progress(run).precision, progress(run).compiled) == ("bf16", True)
    assert train_losses(run) == pytest.approx(on_cpu(), abs=5e-2)


def test_torchrun_trains_in_one_process(on_cpu, tmp_path):
    command = ["-m", "torch.distributed.run", "--nproc_per_node", "1"]
    run = ended([launched(command, tmp_path / "run", "stderr-0")], tmp_path / "run")
    assert train_losses(run) == pytest.approx(on_cpu(), abs=5e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
@pytest.mark.parametrize("config", ["ddp", "fsdp"])
def test_two_gpus_train_the_same_model(config, on_cpu, tmp_path):
    command = [*LAUNCH, f"configuration/accelerate/{config}.yaml", "--num_processes", "2"]
    run = ended([launched(command, tmp_path / "run", "stderr-0")], tmp_path / "run")
    assert (progress(run).processes, progress(run).device) == (2, "cuda")
    assert train_losses(run) == pytest.approx(on_cpu(), abs=5e-3)


# -- using a model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained_on_gpu(tmp_path_factory):
    return quick_run(tmp_path_factory.mktemp("gpu") / "run", *PLAIN, "optimization.max_steps=200")


def test_translations_are_those_of_the_cpu(trained_on_gpu):
    (stem,) = [each.partition("=")[2] for each in few_sentences() if each.startswith("data.test_files")]
    sentences = Path(f"{stem}.en").read_text().splitlines()
    translator = Translator.load([str(trained_on_gpu)])
    assert translator.model.double().device.type == "cuda"
    found = best_texts(translator.translate(sentences, num_beams=3))
    translator.model.cpu()
    expected = best_texts(translator.translate(sentences, num_beams=3))
    assert len(set(expected)) > 5
    assert found == expected


def test_evaluation_scores_as_the_run_did(trained_on_gpu, capsys):
    run_evaluation(str(trained_on_gpu))
    scores = read_metrics(trained_on_gpu, "test")[-1]
    assert f"BLEU {scores['bleu']:.2f}" in capsys.readouterr().out


def test_the_service_translates_on_the_gpu(trained_on_gpu):
    direction = load_direction(f"en:de={trained_on_gpu}", load_torch_engine)
    assert direction.engine.model.device.type == "cuda"
    assert worker_count(None, direction.engine.can_fork, cores=2) == 0  # the service translates itself
    with running(Service(Directions([direction]), Limits())) as url:
        status, answer = post(f"{url}/translate", {"q": "The cat sleeps.", "source": "en", "target": "de"})
    assert (status, bool(answer["translatedText"])) == (200, True)

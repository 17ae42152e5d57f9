"""
The functions that tests run in forked processes (forked.py): they train, score, and fail in ways that need a process.
"""

import atexit
import json
import os
import signal
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.apps.experiments import work_folder
from modeling_scratch.apps.experiments.improve import translate_by
from modeling_scratch.apps.experiments.work_folder import ShardedTranslation
from modeling_scratch.commands import cli, improve, train
from modeling_scratch.data.batches import worker_options
from modeling_scratch.inference.translate import Translator
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.run import curves, folder
from modeling_scratch.run.processes import StopRequest, on_all
from modeling_scratch.training import setup
from modeling_scratch.training.compilation import compile_layers, example_batch
from modeling_scratch.training.fused_loss import fused_cross_entropy
from modeling_scratch.training.scoring import score_model


def no_picture(metrics: list[dict], path: Path) -> None:
    """Replaces plot_curves, which takes as long as the updates of a small run."""
    path.touch()


def train_one(*overrides: str, **options) -> None:
    with patch.object(curves, "plot_curves", no_picture):
        train.main(list(overrides), **options)


def improve_one(run: str, output: str, options: dict) -> None:
    torch.set_default_dtype(torch.float64)
    with patch.object(curves, "plot_curves", no_picture):
        improve.main(Path(run), output=Path(output), engine="torch", **options)


def train_all(runs: list[dict]) -> None:
    """
    Train runs one after another, sharded as on GPUs or not. Each has `overrides`, and optionally `resume`,
    `resume_from`, `sharded`, `precision`, `float64` and `scale`.
    """
    for run in runs:
        _set_up(run.get("sharded", False), run.get("precision", "no"), run.get("float64", False), run.get("scale"))
        with (
            patch.object(cli, "wait_for_threads", lambda: None),
            patch.object(Accelerator, "backward", _backward_of_a_loss_that_is_not_rounded),
        ):
            train_one(*run["overrides"], resume=run.get("resume", False), resume_from=run.get("resume_from"))
    cli.wait_for_threads()


def _set_up(sharded: bool, precision: str, float64: bool, scale: float | None) -> None:
    """Let Accelerate use FSDP on gloo: without GPUs it would use DDP."""
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    os.environ["ACCELERATE_USE_CPU"] = str(not sharded).lower()
    os.environ["ACCELERATE_USE_FSDP"] = str(sharded).lower()
    os.environ["ACCELERATE_MIXED_PRECISION"] = precision
    torch.set_default_dtype(torch.float64 if float64 else torch.float32)
    gloo = lambda *arguments: ("gloo", DistributedType.MULTI_GPU)  # noqa: E731
    PartialState._prepare_backend = gloo if sharded else _prepare_backend
    setup.Accelerator = partial(_make_accelerator, sharded, scale)


def _backward_of_a_loss_that_is_not_rounded(self, loss: torch.Tensor, **options) -> None:
    assert loss.dtype == torch.get_default_dtype(), loss.dtype
    _backward(self, loss, **options)


_backward = Accelerator.backward
_prepare_backend = PartialState._prepare_backend


def _make_accelerator(sharded: bool, scale: float | None, **options) -> Accelerator:
    accelerator = Accelerator(**options | {"cpu": not sharded})
    if scale is not None:  # Accelerate has float16 only on GPUs
        accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=scale)
    return accelerator


def score_into(file: str, folder: str) -> None:
    """Score a run's folder on its test split; the main process writes the result."""
    accelerator = setup.make_accelerator()
    result = score_model(load_recipe(Path(folder) / "recipe.yaml"), [folder], ["test"], accelerator)["test"]
    if accelerator.is_main_process:
        Path(file).write_text(json.dumps(result))
    cli.wait_for_threads()


def wait_for_one_that_hangs() -> None:
    """The main process waits for one that hangs, with a short timeout once both are there."""
    accelerator = setup.make_accelerator()
    accelerator.wait_for_everyone()
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    with cli.one_line_errors(False):
        if not accelerator.is_main_process:
            signal.pause()
        accelerator.wait_for_everyone()


def lock_folder(path: str, locked: str) -> None:
    """Lock the folder of a run, and wait to be killed."""
    with patch.object(folder, "_SECONDS_TO_LOCK", 0.1), cli.one_line_errors(False):
        run = folder.RunFolder(path)
        run.lock()
        Path(locked).touch()
        signal.pause()


def fail_on_the_second(error: str) -> None:
    """Fail on the second process; each process writes the exception that it gets to its own file."""
    accelerator = setup.make_accelerator()

    def write_to_disk() -> None:
        if accelerator.process_index == 1:
            raise OSError("disk full")

    try:
        on_all(accelerator, write_to_disk)
    except Exception as found:
        Path(f"{error}-{accelerator.process_index}").write_text(f"{type(found).__name__}: {found}")
    cli.wait_for_threads()


def leave_a_data_worker() -> None:
    """End as an interpreter does, while a data worker is still running."""
    iterator = iter(DataLoader([1, 2, 3], **worker_options(1)))
    next(iterator)
    sys.modules["kept"] = iterator  # still referenced, as after an exception
    atexit._run_exitfuncs()  # forked processes do not run them


def count_graphs(file: str) -> None:
    """Write the number of graphs that are traced for a compiled model in DDP, and of those after DDP has split them."""
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    shape = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024}
    model = ScratchForConditionalGeneration(ScratchConfig(vocab_size=61, d_model=256, **shape)).train()
    wrapped = DistributedDataParallel(model)  # its first bucket, of 1 MiB, is smaller than a layer
    given = []
    compile_layers(model, backend=lambda graph, inputs: given.append(graph) or graph)
    wrapped(**example_batch(model, torch.device("cpu")), fused_loss=fused_cross_entropy).loss.backward()
    Path(file).write_text(json.dumps([counters["stats"]["unique_graphs"], len(given)]))


def translate_in_shards(folder: str, shards: str, sentences: list[str], size: int) -> None:
    """Translate sentences in shards, and append the number of sentences of each call to a file."""

    translate = Translator.translate

    def noted(self, part, tokens=None, **options):
        if tokens is None:  # not a call by itself
            with Path(f"{shards}.calls").open("a") as file:
                file.write(f"{len(part)}\n")
        return translate(self, part, tokens, **options)

    accelerator = setup.make_accelerator()
    with patch.object(work_folder, "SHARD", size), patch.object(Translator, "translate", noted):
        translation = ShardedTranslation(Path(shards), sentences, "translating")
        recipe = load_recipe(Path(folder) / "recipe.yaml")
        translate_by(recipe, translation, accelerator, StopRequest(), "torch")
    cli.wait_for_threads()

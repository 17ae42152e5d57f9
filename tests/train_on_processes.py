"""
Runs of train.py one after another on the processes of one launcher, sharded as Accelerate does it on GPUs, or not; not
a test itself. The argument is a JSON file: for each run its `overrides` and, if need be, `resume`, `resume_from`,
`sharded`, `precision`, `float64`, `scale`. Without a GPU Accelerate takes FSDP for DDP: here it is told that the
processes, of gloo, have devices of their own.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from modeling_scratch import cli
from modeling_scratch.commands import train
from modeling_scratch.runs import processes
from modeling_scratch.training import log as run_log
from modeling_scratch.training.step import TrainingStep

own_forward = TrainingStep.forward
prepare_backend = PartialState._prepare_backend


def make_accelerator(sharded: bool, scale: float | None, **options) -> Accelerator:
    accelerator = Accelerator(**options | {"cpu": not sharded})
    if scale is not None:  # Accelerate has float16 on GPUs alone
        accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=scale)
    return accelerator


def forward(step, batch: dict[str, torch.Tensor], target_tokens: int) -> torch.Tensor:
    """The forward pass of TrainingStep, whose losses are never rounded to 16 bits."""
    loss = own_forward(step, batch, target_tokens)
    assert loss.dtype == torch.get_default_dtype(), loss.dtype
    return loss


def set_up(sharded: bool, precision: str, float64: bool, scale: float | None) -> None:
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()
    os.environ["ACCELERATE_USE_FSDP"] = str(sharded).lower()
    os.environ["ACCELERATE_MIXED_PRECISION"] = precision
    torch.set_default_dtype(torch.float64 if float64 else torch.float32)
    gloo = lambda *arguments: ("gloo", DistributedType.MULTI_GPU)  # noqa: E731
    PartialState._prepare_backend = gloo if sharded else prepare_backend
    processes.Accelerator = partial(make_accelerator, sharded, scale)


if __name__ == "__main__":
    TrainingStep.forward = forward
    run_log.plot_curves = lambda *arguments: None  # which takes as long as a run here
    wait_for_threads, cli.wait_for_threads = cli.wait_for_threads, lambda: None
    for run in json.loads(Path(sys.argv[1]).read_text()):
        set_up(run.get("sharded", True), run.get("precision", "no"), run.get("float64", False), run.get("scale"))
        try:
            train.main(run["overrides"], resume=run.get("resume", False), resume_from=run.get("resume_from"))
        except SystemExit as end:
            print(f"exit code {end.code}", file=sys.stderr)
            if end.code != 2:
                raise
    wait_for_threads()

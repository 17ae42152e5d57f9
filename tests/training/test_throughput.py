"""The operations of an update, against PyTorch's own count, and the share of a GPU's peak that they are."""

import pytest
import torch
from accelerate import Accelerator
from conftest import every_choice
from torch.utils.flop_counter import FlopCounterMode

from modeling_scratch.run.log import RunLog
from modeling_scratch.run.progress import Progress
from modeling_scratch.training.throughput import operations_per_target_token, peak_of


@every_choice
def test_operations_are_those_that_pytorch_counts(fields, make_model):
    model = make_model(**fields, vocab_size=61).train()
    model.set_attn_implementation("eager")
    source, target = torch.randint(4, 61, (3, 9)), torch.randint(4, 61, (3, 7))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=source, labels=target).loss.backward()
    lengths = (torch.full((3,), each.shape[1]).numpy() for each in (source, target))
    counted = counter.get_total_flops() / target.numel()
    assert operations_per_target_token(model, *lengths) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(
    ("gpu", "precision", "teraflops"),
    [
        ("NVIDIA H200", "bf16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 80GB HBM3", "no", 494.5),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA L4", "bf16", 121),
        ("Tesla T4", "fp16", 65),
        ("Tesla T4", "no", None),
        ("NVIDIA GeForce GTX 1080", "fp16", None),
    ],
)
def test_the_peak_of_a_gpu(gpu, precision, teraflops):
    peak = peak_of(gpu, has_tf32="T4" not in gpu, precision=precision)
    assert peak == (None if teraflops is None else teraflops * 1e12)


def test_the_log_names_the_share_of_this_process(tmp_path):
    """Not of the one that it resumes, which may have had another GPU."""
    progress = Progress(target_tokens=1000, seconds=100.0)
    log = RunLog(Accelerator(cpu=True), tmp_path, progress, None, 10, utilization_per_token=0.001)
    progress.target_tokens, progress.seconds = 3000, 110.0
    assert log.loss_and_speed(1.0) == "loss 1.000, 27 target tokens/s (20% of the GPU's peak)"

"""
How much of a GPU's arithmetic training uses: model FLOPs utilization, MFU (Chowdhery et al. 2022, appendix B,
https://arxiv.org/abs/2204.02311).
"""

import re

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel

from ..data.tokenizer import pair_lengths

# Operations a second of dense matrix products in bf16, in fp16 where a GPU has no bf16, from NVIDIA's data sheets. The
# first name that is found in a GPU's counts.
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100": 125e12,
    "T4": 65e12,
}


def peak_of(gpu: str, has_tf32: bool, precision: str) -> float | None:
    """
    Operations a second of a GPU at its best; None if unknown.

    Args:
        gpu: its name, such as NVIDIA A100-SXM4-80GB.
        has_tf32: whether it computes float32 products in TF32, which GPUs do at half the speed of bf16.
        precision: "no" (float32), "bf16" or "fp16".
    """
    peak = next((peak for name, peak in PEAKS.items() if re.search(rf"\b{name}\b", gpu)), None)
    if re.search(r"MIG|Laptop", gpu):  # a part of a GPU, or one with less power
        return None
    if peak is None or (precision == "no" and not has_tf32):
        return None
    return peak / 2 if precision == "no" else peak


def operations_per_target_token(
    model: PreTrainedModel, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> float:
    """
    Floating-point operations of an update's matrix products for each target token of such pairs: 2 in the forward pass
    for each weight and token that it is multiplied by, and twice as many in the backward pass. Padding and what is
    computed twice do not count.

    Args:
        source_lengths, target_lengths: (pairs,), in tokens.
    """
    source, target = int(source_lengths.sum()), int(target_lengths.sum())
    total, width = weights_in(model.lm_head) * target, model.config.d_model
    for layer in model.model.encoder.layer_sequence():
        total += weights_in(layer) * source + 2 * width * int(
            (source_lengths**2).sum()
        )  # and both products of attention
    for layer in model.model.decoder.layer_sequence():
        of_source = weights_in(layer.cross_attn.k_proj) + weights_in(layer.cross_attn.v_proj)
        total += (weights_in(layer) - of_source) * target + of_source * source
        total += 2 * width * int((target_lengths**2).sum() + (source_lengths * target_lengths).sum())
    return 3 * 2 * total / target


def weights_in(module: nn.Module) -> int:
    """The number of weights in a module's linear layers."""
    return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))


def utilization_per_token(model: PreTrainedModel, validation: Dataset, accelerator: Accelerator) -> float | None:
    """
    The utilization of all GPUs at one target token a second, estimated from the lengths of the validation
    pairs; None on other devices and unknown GPUs.

    Args:
        model: not wrapped.
        validation: the validation pairs, tokenized.
    """
    device = accelerator.device
    if device.type != "cuda":
        return None
    has_tf32 = torch.cuda.get_device_capability(device) >= (8, 0)
    peak = peak_of(torch.cuda.get_device_name(device), has_tf32, accelerator.mixed_precision)
    if peak is None:
        return None
    return operations_per_target_token(model, *pair_lengths(validation)) / (peak * accelerator.num_processes)

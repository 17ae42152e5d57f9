"""Choose the precision of matrix products: bf16 where the hardware is faster in it, float32 elsewhere."""

import logging
import os
from pathlib import Path

import torch

from ..model.fast_cpu import is_amd_cpu
from ..recipe.schema import Recipe
from .metrics_file import read_metrics

logger = logging.getLogger(__name__)

_OF_LAUNCHER = "ACCELERATE_MIXED_PRECISION"  # set by `accelerate launch`, and read by Accelerate
_AS_ACCELERATE_NAMES_IT = {"float32": "no", "bf16": "bf16"}
_AS_PEOPLE_NAME_IT = {"no": "float32", "bf16": "bf16 (weights, updates and losses in float32)"}


def is_faster_in_bf16() -> bool:
    """Whether this machine's GPU, or else its CPU, multiplies faster in bf16 than in float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("avx512_bf16") and not capabilities.get("amx_bf16"):
        # Intel's processors with AVX512-FP16 have AMX, which a virtual machine may hide, leaving AVX512-BF16 with
        # half the speed of float32. AMD's processors are faster in bf16.
        return is_amd_cpu() or not capabilities.get("avx512_fp16")
    return bool(capabilities.get("amx_bf16"))


def choose_precision(recipe: Recipe, before: Path | None = None) -> str | None:
    """
    Choose and log a run's precision, as Accelerate names it; None if the launcher has chosen.

    Args:
        before: the folder of a run; `auto` then is the precision that it trained in last.
    """
    launched = os.environ.get(_OF_LAUNCHER)
    if launched is not None:
        if recipe.precision != "auto" and _AS_ACCELERATE_NAMES_IT[recipe.precision] != launched:
            logger.warning(f"precision: {launched}, the launcher's, and not the recipe's {recipe.precision}")
        return None
    if recipe.precision != "auto":
        return _AS_ACCELERATE_NAMES_IT[recipe.precision]
    records = [] if before is None else read_metrics(before)
    kept = next((each["mixed_precision"] for each in reversed(records) if "mixed_precision" in each), None)
    chosen = kept or ("bf16" if is_faster_in_bf16() else "no")
    why = "as the run trained before" if kept else "precision=float32 and precision=bf16 override this"
    logger.info(f"precision: {_AS_PEOPLE_NAME_IT.get(chosen, chosen)}; {why}")
    return chosen

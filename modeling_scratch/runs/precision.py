"""Choose the precision of matrix products: bf16 where the hardware supports it, float32 elsewhere."""

import logging
import os

import torch

from ..recipe.schema import Recipe
from .folder import RunFolder

logger = logging.getLogger(__name__)

_OF_LAUNCHER = "ACCELERATE_MIXED_PRECISION"  # set by `accelerate launch`, and read by Accelerate
_AS_ACCELERATE_NAMES_IT = {"float32": "no", "bf16": "bf16"}
_AS_PEOPLE_NAME_IT = {"no": "float32", "bf16": "bf16 (weights, updates and losses in float32)"}


def multiplies_in_bf16() -> bool:
    """Whether this machine's GPU, or else its CPU, has instructions for bf16 products."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def choose_precision(recipe: Recipe, resumes: bool) -> str | None:
    """
    Choose and log a run's precision, as Accelerate names it; None if the launcher has chosen.

    Args:
        resumes: whether to resume the run in the recipe's folder; `auto` then keeps the precision it trained in last.
    """
    launched = os.environ.get(_OF_LAUNCHER)
    if launched is not None:
        if recipe.precision != "auto" and _AS_ACCELERATE_NAMES_IT[recipe.precision] != launched:
            logger.warning(f"precision: {launched}, the launcher's, and not the recipe's {recipe.precision}")
        return None
    if recipe.precision != "auto":
        return _AS_ACCELERATE_NAMES_IT[recipe.precision]
    before = RunFolder(recipe.output_dir).precision() if resumes else None
    chosen = before or ("bf16" if multiplies_in_bf16() else "no")
    why = "as the run trained before" if before else "precision=float32 and precision=bf16 override this"
    logger.info(f"precision: {_AS_PEOPLE_NAME_IT.get(chosen, chosen)}; {why}")
    return chosen

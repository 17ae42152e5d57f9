"""Convert weights from and to other codebases."""

from .marian import from_marian, to_marian
from .torch_transformer import from_torch, to_torch

__all__ = ["from_marian", "from_torch", "to_marian", "to_torch"]

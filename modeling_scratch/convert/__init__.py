"""Convert weights from and to other codebases."""

from .marian import from_marian, to_marian
from .torch_reading import from_torch
from .torch_transformer import to_torch

__all__ = ["from_marian", "from_torch", "to_marian", "to_torch"]

"""Convert weights from and to other codebases."""

from .ctranslate2 import to_ctranslate2
from .marian import from_marian, to_marian
from .torch_transformer import from_torch, to_torch

__all__ = ["from_marian", "from_torch", "to_ctranslate2", "to_marian", "to_torch"]

"""
The Transformer of "Attention Is All You Need" as a Hugging Face model, and the tools to train and share it.

Importing a class from here registers the model with the Auto classes, so a checkpoint of type `scratch` loads without
`trust_remote_code`. `save_pretrained` also copies the model's code, for loading where this package is not installed.
"""

from typing import TYPE_CHECKING

from . import model

if TYPE_CHECKING:
    from .model import *  # noqa: F403

__version__ = "0.2.0"

__all__ = model.__all__


def __getattr__(name: str):
    """Import a public name on first use: help must not wait for torch, which commands set up before they import it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(model, name)

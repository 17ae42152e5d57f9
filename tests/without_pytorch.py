"""What runs without PyTorch."""

import os

from conftest import ROOT


def without_pytorch(folder) -> dict[str, str]:
    """An environment in which PyTorch and Transformers cannot be imported."""
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text("raise AssertionError('imported')")
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}

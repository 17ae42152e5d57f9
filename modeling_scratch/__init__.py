"""
The Transformer of "Attention Is All You Need" as a Hugging Face model, and the tools to train and share it.

Importing this package registers the model with the Auto classes, so a checkpoint of type `scratch` loads without
`trust_remote_code`. `save_pretrained` also copies the model's code, for loading where this package is not installed.
"""

import os
import re
import signal
import sys
from io import TextIOWrapper
from pathlib import Path

__version__ = "0.2.0"

__all__ = [
    "ScratchConfig",
    "ScratchEncoderModel",
    "ScratchForConditionalGeneration",
    "ScratchModel",
    "ScratchPreTrainedModel",
    "ScratchTranslationPipeline",
]

_ROOT = Path(__file__).resolve().parents[1]
# How many turns a waiting thread of PyTorch spins before it gives up its core. By default (300,000), two trainings on
# the same cores all but stop each other; with too few, one alone spends its time falling asleep and waking up
# (docs/lab/performance.md, Beside another training).
SPIN_COUNT = "5000"


def _is_command() -> bool:
    """Whether this process is one of the project's commands, in which case torch is not imported yet."""
    started = Path(*sys.argv[:1])
    if started.name == "-m":  # Python is looking for the module
        return re.search(rf" -\w*m ?{__name__}(?:[. ]|$)", " ".join(sys.orig_argv)) is not None
    if started.name == "scratch":  # perhaps another project's
        return started.is_file() and f"{__name__}.__main__" in started.read_text(errors="replace")
    return started.resolve() in (_ROOT / "train.py", _ROOT / "hub_upload.py")


def escape_what_output_lacks() -> None:
    """Escape what the encoding of standard output lacks: a text may not fit the locale, or a name not be UTF-8."""
    for stream in (sys.stdout, sys.stderr):  # Python's own standard error is like this already
        if isinstance(stream, TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


def __getattr__(name: str):
    """Import a public name on first use, since commands do not import the model at start-up."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import model

    return getattr(model, name)


if _is_command():
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # By default, oneDNN caches 1,024 kernels. Batches have more shapes than that, so it would keep making kernels anew,
    # in ever more memory.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    escape_what_output_lacks()  # of `--help` too
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that Ctrl-C during the imports prints no traceback
else:
    from .model import (
        ScratchConfig,
        ScratchEncoderModel,
        ScratchForConditionalGeneration,
        ScratchModel,
        ScratchPreTrainedModel,
        ScratchTranslationPipeline,
    )

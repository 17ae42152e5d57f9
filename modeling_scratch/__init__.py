"""
The Transformer of "Attention Is All You Need" as a Hugging Face model, and the tools to train and share it.

Importing this package registers the model with the Auto classes, so a checkpoint of type `scratch` loads without
`trust_remote_code`. `save_pretrained` also copies the model's code, for loading where this package is not installed.
"""

import os
import re
import signal
import sys
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


def _is_command() -> bool:
    """Whether this process is one of the project's commands, in which case torch is not imported yet."""
    started = Path(*sys.argv[:1])
    if started.name == "-m":  # Python is looking for the module
        return re.search(rf" -\w*m ?{__name__}(?:[. ]|$)", " ".join(sys.orig_argv)) is not None
    if started.name == "scratch":  # perhaps another project's
        return started.is_file() and f"{__name__}.__main__" in started.read_text(errors="replace")
    return started.resolve() in (_ROOT / "train.py", _ROOT / "hub_upload.py")


def _spin_count(processor: Path = Path("/proc/cpuinfo")) -> str | None:
    """
    How many turns a waiting PyTorch thread should spin before it gives up its core; None: the default. By default, two
    runs on the same cores all but stop each other; with too few turns, a run alone spends its time falling asleep and
    waking up. Measured on AMD's and Intel's processors (docs/performance.md).
    """
    try:
        with processor.open() as file:
            described = file.read(500)  # the first core is enough
    except OSError:  # not Linux
        return None
    if "AuthenticAMD" in described:
        return "2000"
    return "16000" if "GenuineIntel" in described else None


def __getattr__(name: str):
    """Import a public name on first use, since commands do not import the model at start-up."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import model

    return getattr(model, name)


if _is_command():
    if "OMP_WAIT_POLICY" not in os.environ and (_spins := _spin_count()):
        os.environ.setdefault("GOMP_SPINCOUNT", _spins)
    # By default, oneDNN caches 1,024 kernels. Batches have more shapes than that, so it would keep making kernels anew,
    # in ever more memory.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that Ctrl-C during the imports prints no traceback
    if sys.stderr is None:  # closed, as by `2>&-`
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
else:
    from .model import (
        ScratchConfig,
        ScratchEncoderModel,
        ScratchForConditionalGeneration,
        ScratchModel,
        ScratchPreTrainedModel,
        ScratchTranslationPipeline,
    )

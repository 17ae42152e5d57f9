"""
The Transformer of "Attention Is All You Need" as a Hugging Face model, and the tools to train and share it.

Importing this package registers the model with the Auto classes, so that a checkpoint of type `scratch` loads without
`trust_remote_code`. `save_pretrained` copies the model's code too, so that a checkpoint loads where this package is not
installed.
"""

import os
import signal
import sys
from pathlib import Path

if (started := Path(*sys.argv[:1])).name in ("-m", "scratch") or started.resolve() in (
    Path(__file__).resolve().parents[1] / "train.py",
    Path(__file__).resolve().parents[1] / "hub_upload.py",
):  # this is one of the project's commands, and torch is not imported yet
    if "OMP_WAIT_POLICY" not in os.environ:
        # How long a thread waits busily for others, about 0.2 ms, before it lets another process have its core. By
        # default it waits so long that two trainings on the same cores all but stop each other.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # By default oneDNN keeps 1,024 kernels. Batches have more shapes: it would make kernels anew, in ever more memory.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that Ctrl-C during the imports prints no traceback

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForTextEncoding

from .model.configuration_scratch import ScratchConfig
from .model.modeling_scratch import (
    ScratchEncoderModel,
    ScratchForConditionalGeneration,
    ScratchModel,
    ScratchPreTrainedModel,
)
from .model.translation_pipeline import ScratchTranslationPipeline

__version__ = "0.1.0"

AutoConfig.register(ScratchConfig.model_type, ScratchConfig, exist_ok=True)
AutoModel.register(ScratchConfig, ScratchModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(ScratchConfig, ScratchForConditionalGeneration, exist_ok=True)
AutoModelForTextEncoding.register(ScratchConfig, ScratchEncoderModel, exist_ok=True)

# Makes save_pretrained copy the code beside the weights.
ScratchConfig.register_for_auto_class("AutoConfig")
ScratchModel.register_for_auto_class("AutoModel")
ScratchForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
ScratchEncoderModel.register_for_auto_class("AutoModelForTextEncoding")

__all__ = [
    "ScratchConfig",
    "ScratchEncoderModel",
    "ScratchForConditionalGeneration",
    "ScratchModel",
    "ScratchPreTrainedModel",
    "ScratchTranslationPipeline",
]

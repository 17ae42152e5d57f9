"""
The model and its pipeline: the files that travel with every checkpoint. Importing a class from here registers the model
with the Auto classes; importing a module of this package imports no more than it needs.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_scratch import ScratchConfig
    from .modeling_scratch import ScratchEncoderModel, ScratchForConditionalGeneration, ScratchModel
    from .stacks import ScratchPreTrainedModel
    from .translation_pipeline import ScratchTranslationPipeline

__all__ = [
    "ScratchConfig",
    "ScratchEncoderModel",
    "ScratchForConditionalGeneration",
    "ScratchModel",
    "ScratchPreTrainedModel",
    "ScratchTranslationPipeline",
]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForTextEncoding

    from . import modeling_scratch, stacks
    from .configuration_scratch import ScratchConfig

    AutoConfig.register(ScratchConfig.model_type, ScratchConfig, exist_ok=True)
    # Of several classes, Transformers takes the one that the config's `architectures` names, else the first.
    parts = (modeling_scratch.ScratchEncoderModel, stacks.ScratchEncoder, stacks.ScratchDecoder)
    AutoModel.register(ScratchConfig, (modeling_scratch.ScratchModel, *parts), exist_ok=True)
    AutoModelForSeq2SeqLM.register(ScratchConfig, modeling_scratch.ScratchForConditionalGeneration, exist_ok=True)
    AutoModelForTextEncoding.register(ScratchConfig, parts[:2], exist_ok=True)
    found = {exported: getattr(modeling_scratch, exported) for exported in __all__}
    globals().update(found)
    return found[name]

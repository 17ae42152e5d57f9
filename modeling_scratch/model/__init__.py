"""
The model and its pipeline: the files that travel with every checkpoint. Importing them registers the model with the
Auto classes.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForTextEncoding

from .configuration_scratch import ScratchConfig
from .modeling_scratch import ScratchEncoderModel, ScratchForConditionalGeneration, ScratchModel, ScratchPreTrainedModel
from .translation_pipeline import ScratchTranslationPipeline

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

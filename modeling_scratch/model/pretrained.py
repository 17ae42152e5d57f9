"""The base class of the models: how weights are initialized, tied and resized."""

from dataclasses import fields

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.modeling_utils import PreTrainedModel

from .configuration_scratch import ScratchConfig

# What the installed release calls the key/value cache in the arguments and outputs of models: past_key_values up to
# Transformers 5.23, cache from 5.24 on. This project's models take both.
CACHE_NAME = "cache" if "cache" in {field.name for field in fields(Seq2SeqLMOutput)} else "past_key_values"


def are_different(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Whether two weights are separate and have different values. Quantized and sharded weights are not compared."""
    if first is second or not all(each is not None and type(each.data) is torch.Tensor for each in (first, second)):
        return False
    return first.shape != second.shape or not (first.is_meta or torch.equal(first, second.to(first.device)))


class ScratchPreTrainedModel(PreTrainedModel):
    """Base class of every Scratch model, encoder and decoder included."""

    config: ScratchConfig
    config_class = ScratchConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ScratchEncoderLayer", "ScratchDecoderLayer"]
    _supports_sdpa = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # The `init` functions do not touch weights that were loaded from a checkpoint.
        std = self.config.init_std
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight) if std is None else init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5 if std is None else std)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)

    def tied_weights(self) -> dict[str, str]:
        """{name: name of the weight it is tied to}, as the config says."""
        return {}

    def record_ties(self) -> None:
        """
        Let the config say which weights are tied: adapters that were merged (PEFT's modules_to_save) may have replaced
        one of two, and tying would overwrite it with the other.
        """
        self._tied_weights_keys, self.all_tied_weights_keys = self.tied_weights(), self.tied_weights()

    def save_pretrained(self, *args, **kwargs) -> None:
        """The inherited method, with a config that says which weights are tied."""
        self.record_ties()
        super().save_pretrained(*args, **kwargs)

    def post_init(self) -> None:
        self._tied_weights_keys = self.tied_weights()
        super().post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # If tie_word_embeddings is False, the inherited method unties everything, the shared embedding included.
        return super().get_expanded_tied_weights_keys(all_submodels=True) if all_submodels else self.tied_weights()

    def tie_weights(self, *args, **kwargs) -> None:
        super().tie_weights(*args, **kwargs)
        # Transformers 5.3 leaves the tied weights of remote code on the meta device.
        for tied, original in self.tied_weights().items():
            weight = self.get_parameter(original)
            if self.get_parameter(tied).is_meta and not weight.is_meta:
                module, _, name = tied.rpartition(".")
                setattr(self.get_submodule(module), name, weight)

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Embedding:
        """
        The inherited method, for models with a single embedding.

        Raises:
            ValueError: source and target have separate embeddings.
        """
        self.record_ties()
        if self.config.is_encoder_decoder and not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "resize_token_embeddings resizes one embedding, but share_encoder_decoder_embeddings is False: this "
                "model has two; build a model with the sizes you want and copy the weights"
            )
        embedding = super().resize_token_embeddings(*args, **kwargs)
        self.config.vocab_size = embedding.num_embeddings
        if self.config.share_encoder_decoder_embeddings and self.config.decoder_vocab_size is not None:
            self.config.decoder_vocab_size = embedding.num_embeddings
        return embedding

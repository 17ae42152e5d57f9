"""What every Scratch model has in common: weights initialised, tied, resized and shared; what Transformers asks."""

from pathlib import Path

import torch
from huggingface_hub import CommitInfo
from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel

from .configuration_scratch import ScratchConfig
from .push_to_hub import facts_in_memory, push_model


class ScratchPreTrainedModel(PreTrainedModel):
    """The base class of every Scratch model, those inside others included."""

    config: ScratchConfig
    config_class = ScratchConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ScratchEncoderLayer", "ScratchDecoderLayer"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # The `init` functions leave alone what a checkpoint has filled.
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
        """{target: source} for the weights that are one, as the config has it: here those of the models inside."""
        inner = [(name, child) for name, child in self.named_children() if isinstance(child, ScratchPreTrainedModel)]
        return {f"{name}.{to}": f"{name}.{of}" for name, child in inner for to, of in child.tied_weights().items()}

    def post_init(self) -> None:
        self._tied_weights_keys = self.tied_weights()
        super().post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # The inherited method unties everything when tie_word_embeddings is False, the shared embedding included.
        return super().get_expanded_tied_weights_keys(all_submodels=True) if all_submodels else self.tied_weights()

    def tie_weights(self, *args, **kwargs) -> None:
        super().tie_weights(*args, **kwargs)
        # Transformers 5.3 leaves the tied weights of code that came with a checkpoint without memory.
        for target, source in self.tied_weights().items():
            weight = self.get_parameter(source)
            if self.get_parameter(target).is_meta and not weight.is_meta:
                module, _, name = target.rpartition(".")
                setattr(self.get_submodule(module), name, weight)

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Embedding:
        """
        As of every model, where there is one embedding.

        Raises:
            ValueError: source and target have embeddings of their own.
        """
        if self.config.is_encoder_decoder and not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "resize_token_embeddings resizes one embedding, and share_encoder_decoder_embeddings is False: this "
                "model has two; make a model with the sizes wanted, and copy the weights"
            )
        embedding = super().resize_token_embeddings(*args, **kwargs)
        if self.config.decoder_vocab_size is not None:
            self.config.decoder_vocab_size = embedding.num_embeddings
        return embedding

    def save_pretrained(self, save_directory: str | Path, *args, push_to_hub: bool = False, **kwargs) -> None:
        """As of every model; `push_to_hub` pushes by the method of that name, with its card."""
        options = ("repo_id", "commit_message", "private", "revision", "create_pr")
        options = {name: kwargs.pop(name) for name in options if push_to_hub and name in kwargs}
        super().save_pretrained(save_directory, *args, **kwargs)
        if push_to_hub and kwargs.get("is_main_process", True):
            self.push_to_hub(options.pop("repo_id", Path(save_directory).name), token=kwargs.get("token"), **options)

    def push_to_hub(
        self, repo_id: str, *, max_shard_size: int | str = "50GB", tags: str | list[str] | None = None, **options
    ) -> CommitInfo:
        """
        As of every model, in one commit and with a card that says what the config says. A card that is there stays.

        Args:
            options: as the inherited method takes them: commit_message, private, token, revision, create_pr and so on.
        """
        tags = [*(self.model_tags or []), *([tags] if isinstance(tags, str) else tags or [])]
        return push_model(
            lambda folder: self.save_pretrained(folder, max_shard_size=max_shard_size),
            facts_in_memory(self),
            repo_id,
            tags=tags,
            **options,
        )

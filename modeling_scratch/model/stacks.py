"""The base class of the models; the encoder and the decoder (section 3.1): embeddings, layers and the final norm."""

import math
from dataclasses import fields

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions, Seq2SeqLMOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple

from .configuration_scratch import ScratchConfig, config_of_part
from .layers import ScratchDecoderLayer, ScratchEncoderLayer, ScratchLayer, build_norm
from .masking import (
    as_bias,
    causal_mask,
    check_mask,
    check_segments,
    count_positions,
    is_all_attended,
    own_segment,
    positions_in_segments,
    source_bias,
)
from .position_embeddings import POSITION_EMBEDDINGS

# What the installed release calls the key/value cache in the arguments and outputs of models: past_key_values up to
# Transformers 5.23, cache from 5.24 on. This project's models take both.
CACHE_NAME = "cache" if "cache" in {field.name for field in fields(Seq2SeqLMOutput)} else "past_key_values"


def are_different(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Whether two weights are separate and have different values. Quantized and sharded weights are not compared."""
    if first is second or not all(type(getattr(weight, "data", None)) is torch.Tensor for weight in (first, second)):
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

    def note_ties(self) -> None:
        """
        Let the config say which weights are tied: adapters that were merged (PEFT's modules_to_save) may have replaced
        one of two, and tying would overwrite it with the other.
        """
        self._tied_weights_keys, self.all_tied_weights_keys = self.tied_weights(), self.tied_weights()

    def save_pretrained(self, *args, **kwargs) -> None:
        """The inherited method, with a config that says which weights are tied."""
        self.note_ties()
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
        self.note_ties()
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


class ScratchStack(ScratchPreTrainedModel):
    """Base class of encoder and decoder: embedding, positions, layers, final norm."""

    ids_name: str  # what a whole model calls the input_ids of this stack
    _auto_class = "AutoModel"
    _fsdp_plan = {"layers.*": "free_full_weight"}  # a whole model finds it as "encoder.layers.*" and so on

    def __init__(
        self,
        config: ScratchConfig,
        vocab_size: int,
        num_heads: int,
        depth: int,
        layer_class: type[ScratchLayer],
        final_norm: bool,
    ):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_positions = POSITION_EMBEDDINGS[config.position_embedding_type](config, num_heads)
        self.dropout = nn.Dropout(config.dropout)
        self.depth = depth
        # To make one layer differ, give it a changed copy of the config. With shared weights there is a single layer.
        self.layers = nn.ModuleList(layer_class(config) for _ in range(1 if config.share_layers else depth))
        self.layer_norm = build_norm(config) if final_norm else nn.Identity()
        self.gradient_checkpointing = False

    def save_pretrained(self, *args, **kwargs) -> None:
        """The inherited method, with a config of this stack's own: that of the whole model sends AutoModel to it."""
        whole = self.config
        self.config = config_of_part(whole, f"stacks.{type(self).__name__}")
        try:
            super().save_pretrained(*args, **kwargs)
        finally:
            self.config = whole

    def layer_sequence(self) -> list[nn.Module]:
        """The layers in the order in which they run: with shared weights, one layer `depth` times."""
        return list(self.layers) * (self.depth if self.config.share_layers else 1)

    def embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """
        Scaled token embeddings, (batch_size, sequence_length, d_model) (section 3.4). `inputs_embeds` are expected
        unscaled, as `embed_tokens` returns them.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            embeds = self.ids_name.replace("input_ids", "inputs_embeds")
            raise ValueError(f"give exactly one of {self.ids_name} and {embeds}: got {given}")
        if inputs_embeds is None:
            if input_ids.ndim != 2 or input_ids.is_floating_point() or input_ids.shape[1] == 0:
                raise ValueError(
                    f"{self.ids_name} has shape {tuple(input_ids.shape)} and {input_ids.dtype}; it must be integers "
                    "(batch_size, sequence_length), with at least one token"
                )
            try:
                inputs_embeds = self.embed_tokens(input_ids)
            except IndexError:  # only the CPU raises it
                least, most, rows = input_ids.min().item(), input_ids.max().item(), self.embed_tokens.num_embeddings
                raise ValueError(
                    f"{self.ids_name} holds ids from {least} to {most}; they must be in [0, {rows}), the vocabulary. "
                    "Does the tokenizer belong to this model?"
                ) from None
        elif inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != self.config.d_model:
            needed = f"(batch_size, sequence_length, d_model ({self.config.d_model}))"
            raise ValueError(f"inputs_embeds has shape {tuple(inputs_embeds.shape)}; it must be {needed}")
        return inputs_embeds * self.embed_scale

    @staticmethod
    def positions(given: torch.Tensor | None, counted: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """The positions of these tokens: those given by the caller, or else the last ones counted."""
        batch_size, length = hidden_states.shape[:2]
        if given is not None and given.shape not in ((1, length), (batch_size, length)):
            raise ValueError(f"position_ids has shape {tuple(given.shape)}; these inputs need ({batch_size}, {length})")
        return counted[:, -length:] if given is None else given


class ScratchEncoder(ScratchStack):
    """A stack of encoder layers."""

    ids_name = "input_ids"

    def __init__(self, config: ScratchConfig):
        sizes = (config.vocab_size, config.encoder_attention_heads, config.encoder_layers)
        super().__init__(config, *sizes, ScratchEncoderLayer, final_norm=config.final_norm is True)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        segment_ids: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """
        Args:
            input_ids: (batch_size, source_length).
            attention_mask: (batch_size, source_length), where nonzero attends; or (batch_size, 1 or heads, 1 or
                source_length, source_length), which is added to the scores if it is float.
            inputs_embeds: (batch_size, source_length, d_model), instead of input_ids.
            position_ids: (batch_size, source_length); None: counted from a 2-D mask.
            output_attentions, output_hidden_states: also return those of every layer.
            segment_ids: (batch_size, source_length), in place of a mask, where a row holds several sentences: the
                number of each token's sentence; 0 for padding.

        Returns:
            last_hidden_state: (batch_size, source_length, d_model).
        """
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        hidden_states = self.embed(input_ids, inputs_embeds)
        if segment_ids is not None:
            check_segments("segment_ids", segment_ids, hidden_states, attention_mask)
            attention_mask = own_segment(segment_ids, segment_ids)
            position_ids = positions_in_segments(segment_ids) if position_ids is None else position_ids
        mask = source_bias(attention_mask, hidden_states, hidden_states.dtype)
        counted = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]
        if attention_mask is not None and attention_mask.ndim == 2:
            counted = count_positions(attention_mask)
        position_ids = self.positions(position_ids, counted, hidden_states)
        bias = self.embed_positions.bias(hidden_states, position_ids, position_ids)
        if bias is not None:
            mask = bias if mask is None else mask + bias
        rotation = self.embed_positions.rotation(hidden_states, position_ids)
        hidden_states = self.dropout(self.embed_positions.add(hidden_states, position_ids))  # section 5.4
        implementation = "eager" if output_attentions else config._attn_implementation
        states, attentions = [], []
        for layer in self.layer_sequence():
            if output_hidden_states:
                states.append(hidden_states)
            hidden_states, weights = layer(hidden_states, mask, rotation, implementation)
            attentions.append(weights)
        hidden_states = self.layer_norm(hidden_states)
        return BaseModelOutput(
            last_hidden_state=hidden_states,
            hidden_states=(*states, hidden_states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )


class ScratchDecoder(ScratchStack):
    """A stack of decoder layers."""

    ids_name = "decoder_input_ids"

    def __init__(self, config: ScratchConfig):
        sizes = (config.target_vocab_size, config.decoder_attention_heads, config.decoder_layers)
        super().__init__(config, *sizes, ScratchDecoderLayer, final_norm=config.final_norm in (True, "decoder"))
        self.post_init()

    def open_cache(self, given: Cache | None, use_cache: bool | None) -> tuple[Cache | None, bool]:
        """The cache that the layers append to, and whether to return it."""
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:  # layers run twice, but must not append twice
            use_cache = False
            if given is not None:
                raise ValueError("in training, gradient checkpointing cannot use a key/value cache; call eval() first")
        cache = DynamicCache() if given is None and use_cache else given
        if cache is not None and not hasattr(cache, "self_attention_cache"):
            cache = EncoderDecoderCache(cache, DynamicCache())
        return cache, use_cache

    def self_attention_bias(
        self,
        attention_mask: torch.Tensor | None,
        hidden_states: torch.Tensor,
        position_ids: torch.Tensor | None,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The bias for self-attention (None: its causal flag suffices), and the positions of the queries."""
        (batch_size, length), device = hidden_states.shape[:2], hidden_states.device
        # The cache of our own beam search (see SearchCache) says itself which tokens each beam attends to; no mask or
        # positions are given. Other caches have no bias.
        if getattr(past_key_values, "bias", None) is not None:
            bias, queries = past_key_values.bias, torch.full((1, 1), past_key_values.length, device=device)
            if self.embed_positions.has_bias:
                bias = bias + self.embed_positions.bias(hidden_states, queries, past_key_values.positions)
            return bias, queries
        past_length, static_length = 0, None
        if past_key_values is not None:
            past_length = past_key_values.get_seq_length()
            layers = getattr(past_key_values.self_attention_cache, "layers", None)
            static_length = getattr(layers[0], "max_cache_len", None) if layers else None
        # All slots of a static cache are keys, the empty ones too.
        key_length = past_length + length if static_length is None else static_length
        is_4d = attention_mask is not None and attention_mask.ndim == 4
        if attention_mask is not None:
            expected = key_length if is_4d or static_length is None else None
            check_mask("decoder_attention_mask", attention_mask, batch_size, expected)
        padding = None if attention_mask is None or is_4d or is_all_attended(attention_mask) else attention_mask
        if padding is None:
            counted = (torch.arange(length, device=device) + past_length)[None]
        else:
            counted = count_positions(padding)
        queries = self.positions(position_ids, counted, hidden_states)
        # `ScratchAttention` hides later positions by a flag where nothing else is hidden or added.
        flag_suffices = static_length is None and (length == 1 or not past_length)
        if is_4d:
            mask = attention_mask
        elif padding is None and flag_suffices and not self.embed_positions.has_bias:
            mask = None
        else:
            mask = causal_mask(padding, length, key_length, past_length, device)
        bias = as_bias(mask, hidden_states.dtype)
        if self.embed_positions.has_bias:
            if position_ids is not None and key_length == length:
                keys = position_ids
            else:
                keys = torch.arange(key_length, device=device)[None]
                if padding is not None:
                    keys = nn.functional.pad(counted, (0, key_length - counted.shape[1]))
                keys = keys + (queries[:, -1:] - counted[:, -1:])  # shifted as the caller's positions are
            bias = bias + self.embed_positions.bias(hidden_states, queries, keys)
        return bias, queries

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        cache: Cache | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """
        Args:
            input_ids: (batch_size, target_length); with a cache, only the new tokens.
            attention_mask: (batch_size, past_length + target_length), where nonzero attends; or 4-D, which is then the
                whole mask, causality included, and is added to the scores if it is float. Never inferred from the ids.
            encoder_hidden_states: (batch_size, source_length, d_model).
            encoder_attention_mask: (batch_size, source_length), or 4-D.
            past_key_values, or cache: the key/value cache of earlier steps.
            inputs_embeds: (batch_size, target_length, d_model), instead of input_ids.
            position_ids: (batch_size, target_length); None: counted from the mask.
            use_cache: return the cache for the next step.
            output_attentions, output_hidden_states: also return those of every layer.

        Returns:
            last_hidden_state: (batch_size, target_length, d_model), and the cache.
        """
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        hidden_states = self.embed(input_ids, inputs_embeds)
        cache, use_cache = self.open_cache(cache if past_key_values is None else past_key_values, use_cache)
        cross_bias = source_bias(encoder_attention_mask, encoder_hidden_states, hidden_states.dtype)
        self_bias, position_ids = self.self_attention_bias(attention_mask, hidden_states, position_ids, cache)
        rotation = self.embed_positions.rotation(hidden_states, position_ids)
        hidden_states = self.dropout(self.embed_positions.add(hidden_states, position_ids))  # section 5.4
        implementation = "eager" if output_attentions else config._attn_implementation
        states, attentions, cross_attentions = [], [], []
        for layer_idx, layer in enumerate(self.layer_sequence()):
            if output_hidden_states:
                states.append(hidden_states)
            inputs = (hidden_states, encoder_hidden_states, self_bias, cross_bias, rotation)
            options = {"past_key_values": cache, "layer_idx": layer_idx, "implementation": implementation}
            hidden_states, weights, cross_weights = layer(*inputs, **options)
            attentions.append(weights)
            cross_attentions.append(cross_weights)
        hidden_states = self.layer_norm(hidden_states)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states,
            hidden_states=(*states, hidden_states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
            cross_attentions=tuple(cross_attentions) if output_attentions else None,
            **{CACHE_NAME: cache if use_cache else None},
        )

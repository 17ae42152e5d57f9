"""The encoder and the decoder (section 3.1): embeddings, positions, layers and the final norm."""

import math

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import can_return_tuple

from .configuration_scratch import ScratchConfig
from .fast_cpu import ScratchDropout
from .layers import ScratchDecoderLayer, ScratchEncoderLayer, ScratchLayer, build_norm
from .masking import as_bias, causal_bias, check_mask, count_positions, is_all_attended
from .position_embeddings import POSITION_EMBEDDINGS
from .pretrained import ScratchPreTrainedModel


class ScratchStack(ScratchPreTrainedModel):
    """What encoder and decoder share: embedding, positions, layers, final norm."""

    ids_name: str  # the argument that holds its tokens
    _fsdp_plan = {"layers.*": "free_full_weight"}  # found by the models around as "encoder.layers.*", and so on

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
        self.num_heads = num_heads
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_positions = POSITION_EMBEDDINGS[config.position_embedding_type](config, num_heads)
        self.dropout = ScratchDropout(config.dropout)
        self.depth = depth
        self.layers = nn.ModuleList(layer_class(config) for _ in range(1 if config.share_layers else depth))
        self.layer_norm = build_norm(config) if final_norm else nn.Identity()
        self.gradient_checkpointing = False

    def record_all(self, output_attentions: bool | None, output_hidden_states: bool | None) -> tuple[bool, bool]:
        """Whether to return every layer's attention weights and hidden states: as given, or as the config has it."""
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return bool(output_attentions), bool(output_hidden_states)

    def layers_in_turn(self) -> list[nn.Module]:
        """As many as the stack is deep; where they share their weights, one layer again and again."""
        return list(self.layers) * (self.depth if self.config.share_layers else 1)

    def embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """
        Scaled token embeddings, (batch_size, sequence_length, d_model) (section 3.4). `inputs_embeds` are taken
        unscaled, as `embed_tokens` gives them.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ValueError(
                f"give exactly one of input_ids and inputs_embeds to the {type(self).__name__}: got {given}"
            )
        if inputs_embeds is None:
            if input_ids.ndim != 2 or input_ids.is_floating_point() or input_ids.shape[1] == 0:
                raise ValueError(
                    f"{self.ids_name} has shape {tuple(input_ids.shape)} and {input_ids.dtype}; it must be integers "
                    "(batch_size, sequence_length), with at least one token"
                )
            try:
                inputs_embeds = self.embed_tokens(input_ids)
            except IndexError:  # as the CPU raises it
                least, most, rows = input_ids.min().item(), input_ids.max().item(), self.embed_tokens.num_embeddings
                raise ValueError(
                    f"{self.ids_name} holds ids from {least} to {most}; they must be in [0, {rows}), the vocabulary. "
                    "Does the tokenizer belong to this model?"
                ) from None
        elif inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != self.config.d_model:
            raise ValueError(
                f"inputs_embeds of the {type(self).__name__} has shape {tuple(inputs_embeds.shape)}; it must be "
                f"(batch_size, sequence_length, d_model ({self.config.d_model}))"
            )
        return inputs_embeds * self.embed_scale

    def positions(
        self, position_ids: torch.Tensor | None, counted: torch.Tensor, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        """The positions as given, or the last of those that were counted: (batch_size or 1, sequence_length)."""
        batch_size, length = hidden_states.shape[:2]
        if position_ids is None:
            return counted[:, -length:]
        if position_ids.ndim != 2 or position_ids.shape[0] not in (1, batch_size) or position_ids.shape[1] != length:
            raise ValueError(
                f"position_ids of the {type(self).__name__} has shape {tuple(position_ids.shape)}; these inputs need "
                f"({batch_size}, {length})"
            )
        return position_ids


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
        **kwargs,
    ) -> BaseModelOutput:
        """
        Args:
            input_ids: (batch_size, source_length).
            attention_mask: (batch_size, source_length), where what is not 0 attends; or (batch_size, 1 or heads, 1 or
                source_length, source_length), of which a float is added to the scores.
            inputs_embeds: (batch_size, source_length, d_model), instead of input_ids.
            position_ids: (batch_size, source_length); counted from a mask of two dimensions if None.
            output_attentions, output_hidden_states: return those of every layer too.

        Returns:
            last_hidden_state: (batch_size, source_length, d_model).
        """
        output_attentions, output_hidden_states = self.record_all(output_attentions, output_hidden_states)
        hidden_states = self.embed(input_ids, inputs_embeds)
        batch_size, length = hidden_states.shape[:2]
        counted = torch.arange(length, device=hidden_states.device)[None]
        if attention_mask is not None:
            check_mask("attention_mask", attention_mask, batch_size, self.num_heads, length, length)
            if attention_mask.ndim == 2:
                counted = count_positions(attention_mask)
        position_ids = self.positions(position_ids, counted, hidden_states)
        mask = as_bias(attention_mask, hidden_states.dtype)
        bias = self.embed_positions.bias(hidden_states, position_ids, position_ids)
        if bias is not None:
            mask = bias if mask is None else mask + bias
        rotation = self.embed_positions.rotation(hidden_states, position_ids)
        hidden_states = self.dropout(self.embed_positions.add(hidden_states, position_ids))
        implementation = "eager" if output_attentions else self.config._attn_implementation
        states, attentions = [], []
        for layer in self.layers_in_turn():
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

    def make_cache(self, past_key_values: Cache | None, use_cache: bool) -> Cache | None:
        """The cache as given, one for the source's keys and values beside it if need be; or a new one if wanted."""
        if past_key_values is None and not use_cache:
            return None
        if past_key_values is None:
            past_key_values = DynamicCache()
        if hasattr(past_key_values, "self_attention_cache"):
            return past_key_values
        return EncoderDecoderCache(past_key_values, DynamicCache())

    def self_attention_mask(
        self,
        attention_mask: torch.Tensor | None,
        hidden_states: torch.Tensor,
        position_ids: torch.Tensor | None,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The mask as attention takes it (None: its causal flag says it all), and the positions of the queries."""
        (batch_size, length), device = hidden_states.shape[:2], hidden_states.device
        past_length, room = 0, None
        if past_key_values is not None:
            past_length = past_key_values.get_seq_length()
            layers = getattr(past_key_values.self_attention_cache, "layers", None)
            room = getattr(layers[0], "max_cache_len", None) if layers else None  # of a static cache, whose places are
        key_length = past_length + length if room is None else room  # all keys, those still empty too
        is_square = attention_mask is not None and attention_mask.ndim == 4
        if attention_mask is not None:
            known = key_length if is_square or room is None else None
            check_mask("decoder_attention_mask", attention_mask, batch_size, self.num_heads, length, known)
        if attention_mask is not None and not is_square and is_all_attended(attention_mask):
            attention_mask = None
        if attention_mask is None or is_square:
            counted = (torch.arange(length, device=device) + past_length)[None]
        else:
            counted = count_positions(attention_mask)
        given, position_ids = position_ids, self.positions(position_ids, counted, hidden_states)
        bias = None
        if self.embed_positions.has_bias:
            if attention_mask is None or is_square:
                keys = torch.arange(key_length, device=device)[None]
            else:
                keys = nn.functional.pad(counted, (0, key_length - counted.shape[1]))
            keys = keys + (position_ids[:, -1:] - counted[:, -1:])  # of one counting with the queries
            is_whole = given is not None and room is None and not past_length
            bias = self.embed_positions.bias(hidden_states, position_ids, given if is_whole else keys)
        flag_suffices = room is None and (length == 1 or not past_length)
        if is_square:
            mask = as_bias(attention_mask, hidden_states.dtype)
        elif attention_mask is None and bias is None and flag_suffices:
            mask = None
        else:
            mask = causal_bias(attention_mask, length, key_length, past_length, hidden_states.dtype, device)
        return (mask if bias is None else mask + bias), position_ids

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
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """
        Args:
            input_ids: (batch_size, target_length): with a cache, the tokens that are new.
            attention_mask: (batch_size, past_length + target_length), where what is not 0 attends; or 4-D and then the
                whole mask, causality included, of which a float is added to the scores. Never inferred from the ids.
            encoder_hidden_states: (batch_size, source_length, d_model).
            encoder_attention_mask: (batch_size, source_length), or 4-D.
            past_key_values: keys and values of earlier steps.
            inputs_embeds: (batch_size, target_length, d_model), instead of input_ids.
            position_ids: (batch_size, target_length); counted from the mask if None.
            use_cache: return the cache for the next step.
            output_attentions, output_hidden_states: return those of every layer too.

        Returns:
            last_hidden_state: (batch_size, target_length, d_model), and the cache.
        """
        if encoder_hidden_states is None:
            raise ValueError("the decoder needs encoder_hidden_states, (batch_size, source_length, d_model)")
        output_attentions, output_hidden_states = self.record_all(output_attentions, output_hidden_states)
        use_cache = self.config.use_cache if use_cache is None else use_cache
        hidden_states = self.embed(input_ids, inputs_embeds)
        batch_size, length = hidden_states.shape[:2]
        past_key_values = self.make_cache(past_key_values, use_cache)
        # In our own search the beams of a sentence, rows that follow one another, share its encoded source.
        sentences = batch_size // getattr(past_key_values, "beams", 1)
        if encoder_hidden_states.shape[0] != sentences or encoder_hidden_states.shape[-1] != self.config.d_model:
            raise ValueError(
                f"encoder_hidden_states has shape {tuple(encoder_hidden_states.shape)}; this target needs "
                f"({sentences}, source_length, {self.config.d_model})"
            )
        mask, position_ids = self.self_attention_mask(attention_mask, hidden_states, position_ids, past_key_values)
        if encoder_attention_mask is not None:
            sizes = (sentences, self.num_heads, length, encoder_hidden_states.shape[1])
            check_mask("attention_mask", encoder_attention_mask, *sizes)
        encoder_attention_mask = as_bias(encoder_attention_mask, hidden_states.dtype)
        rotation = self.embed_positions.rotation(hidden_states, position_ids)
        hidden_states = self.dropout(self.embed_positions.add(hidden_states, position_ids))
        implementation = "eager" if output_attentions else self.config._attn_implementation
        states, attentions, cross_attentions = [], [], []
        for layer_idx, layer in enumerate(self.layers_in_turn()):
            if output_hidden_states:
                states.append(hidden_states)
            hidden_states, weights, cross_weights = layer(
                hidden_states,
                encoder_hidden_states,
                mask,
                encoder_attention_mask,
                rotation,
                past_key_values=past_key_values,
                layer_idx=layer_idx,
                implementation=implementation,
            )
            attentions.append(weights)
            cross_attentions.append(cross_weights)
        hidden_states = self.layer_norm(hidden_states)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=(*states, hidden_states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
            cross_attentions=tuple(cross_attentions) if output_attentions else None,
        )

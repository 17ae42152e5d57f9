"""The encoder and the decoder (section 3.1): embeddings, positions, layers and the final norm."""

import math

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention import ScratchCrossAttention, ScratchSelfAttention
from .configuration_scratch import ScratchConfig
from .dropout import ScratchDropout
from .layers import ScratchDecoderLayer, ScratchEncoderLayer, ScratchLayer, build_norm
from .masking import as_bias, bidirectional_mask, causal_mask, check_mask, count_positions
from .position_embeddings import LearnedPositionEmbedding, ScratchRotaryEmbedding, SinusoidalPositionEmbedding
from .vocabulary import check_ids


class ScratchPreTrainedModel(PreTrainedModel):
    """Weight initialisation, tying, and what Transformers wants to know about every Scratch model."""

    config: ScratchConfig
    config_class = ScratchConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ScratchEncoderLayer", "ScratchDecoderLayer"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
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
        else:
            super()._init_weights(module)  # norms and rotary frequencies

    def _tied_weights(self) -> dict[str, str]:
        """{target: source} for this model's own weights, as its config has it."""
        return {}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # The inherited method unties everything when tie_word_embeddings is False, the shared embedding included.
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return self._tied_weights()


class ScratchStack(ScratchPreTrainedModel):
    """What encoder and decoder share: embedding, positions, layers, final norm."""

    _fsdp_plan = {"layers.*": "free_full_weight"}  # found by the models around as "encoder.layers.*", and so on

    def __init__(self, config: ScratchConfig, stack_config: ScratchConfig, layers: list[ScratchLayer]):
        """stack_config: `config` as this stack sees it, its vocabulary and heads under the generic names."""
        super().__init__(config)
        self.embed_tokens = nn.Embedding(stack_config.vocab_size, config.d_model)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.rotary_emb = self.embed_positions = None
        if config.position_embedding_type == "rotary":
            self.rotary_emb = ScratchRotaryEmbedding(stack_config)
        elif config.position_embedding_type == "learned":
            self.embed_positions = LearnedPositionEmbedding(config.max_position_embeddings, config.d_model)
        else:
            self.embed_positions = SinusoidalPositionEmbedding(config.d_model)
        self.dropout = ScratchDropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.layer_norm = build_norm(config) if config.final_norm else nn.Identity()
        self.gradient_checkpointing = False

    def embed(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, check: bool = True
    ) -> torch.Tensor:
        """
        Scaled token embeddings, (batch_size, sequence_length, d_model) (section 3.4). `inputs_embeds` are taken
        unscaled, as `embed_tokens` gives them. check: raise ValueError for ids that the vocabulary has not.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ValueError(
                f"give exactly one of input_ids and inputs_embeds to the {type(self).__name__}: got {given}"
            )
        if inputs_embeds is None:
            if check:
                check_ids(self.ids_name, input_ids, self.rows(self.config))
            inputs_embeds = self.embed_tokens(input_ids)
        elif inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != self.config.d_model:
            raise ValueError(
                f"inputs_embeds of the {type(self).__name__} has shape {tuple(inputs_embeds.shape)}; it must be "
                f"(batch_size, sequence_length, d_model ({self.config.d_model}))"
            )
        return inputs_embeds * self.embed_scale

    def place(
        self,
        position_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        hidden_states: torch.Tensor,
        past_length: int | torch.Tensor,
    ) -> torch.Tensor:
        """The positions as given, or counted from the mask: (batch_size or 1, sequence_length)."""
        batch_size, length = hidden_states.shape[:2]
        if position_ids is None:
            return count_positions(attention_mask, length, past_length, hidden_states.device)
        if position_ids.ndim != 2 or position_ids.shape[0] not in (1, batch_size) or position_ids.shape[1] != length:
            raise ValueError(
                f"position_ids of the {type(self).__name__} has shape {tuple(position_ids.shape)}; these inputs need "
                f"({batch_size}, {length})"
            )
        return position_ids

    def locate(
        self, hidden_states: torch.Tensor, position_ids: torch.Tensor, past_length: int | torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
        """
        Add positions to the embeddings, or, rotary, make the angles that attention needs; then dropout (section 5.4).
        """
        if self.rotary_emb is not None:
            return self.dropout(hidden_states), self.rotary_emb(hidden_states, position_ids)
        return self.dropout(hidden_states + self.embed_positions(position_ids, hidden_states.dtype)), None


class ScratchEncoder(ScratchStack):
    """A stack of encoder layers."""

    ids_name = "input_ids"
    rows = staticmethod(lambda config: config.vocab_size)  # ids that there are; what wraps the embedding may not know

    _can_record_outputs = {"hidden_states": ScratchEncoderLayer, "attentions": ScratchSelfAttention}

    def __init__(self, config: ScratchConfig):
        layers = [ScratchEncoderLayer(config, layer_idx) for layer_idx in range(config.encoder_layers)]
        super().__init__(config, config, layers)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """
        Args:
            input_ids: (batch_size, source_length).
            attention_mask: (batch_size, source_length) or (batch_size, 1 or heads, source_length, source_length);
                True or 1 attends, a float is added to the scores.
            inputs_embeds: (batch_size, source_length, d_model), instead of input_ids.
            position_ids: (batch_size, source_length); counted from the mask if None.

        Returns:
            last_hidden_state: (batch_size, source_length, d_model).
        """
        hidden_states = self.embed(input_ids, inputs_embeds)
        batch_size, length = hidden_states.shape[:2]
        check_mask("attention_mask", attention_mask, batch_size, self.config.encoder_attention_heads, length, length)
        attention_mask = as_bias(attention_mask)
        position_ids = self.place(position_ids, attention_mask, hidden_states, 0)
        mask = bidirectional_mask(self.config, hidden_states, attention_mask)
        hidden_states, position_embeddings = self.locate(hidden_states, position_ids, 0)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, position_embeddings, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class ScratchDecoder(ScratchStack):
    """A stack of decoder layers."""

    ids_name = "decoder_input_ids"
    rows = staticmethod(lambda config: config.target_vocab_size)

    _can_record_outputs = {
        "hidden_states": ScratchDecoderLayer,
        "attentions": ScratchSelfAttention,
        "cross_attentions": ScratchCrossAttention,
    }

    def __init__(self, config: ScratchConfig):
        layers = [ScratchDecoderLayer(config, layer_idx) for layer_idx in range(config.decoder_layers)]
        super().__init__(config, config.get_text_config(decoder=True), layers)
        self.post_init()

    def make_cache(self, past_key_values: Cache | None, use_cache: bool | None) -> EncoderDecoderCache | None:
        """The cache as given, one for the source's keys and values beside it if need be; or a new one if wanted."""
        if isinstance(past_key_values, EncoderDecoderCache) or (past_key_values is None and not use_cache):
            return past_key_values
        config = self.config.get_text_config(decoder=True)
        if past_key_values is None:
            past_key_values = DynamicCache(config=config)
        return EncoderDecoderCache(past_key_values, DynamicCache(config=config))

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """
        Args:
            input_ids: (batch_size, target_length): with a cache, the tokens that are new.
            attention_mask: (batch_size, past_length + target_length), or 4-D and then the whole mask, causality
                included; True or 1 attends, a float is added to the scores. Never inferred from the ids.
            encoder_hidden_states: (batch_size, source_length, d_model).
            encoder_attention_mask: (batch_size, source_length), or 4-D.
            past_key_values: keys and values of earlier steps.
            inputs_embeds: (batch_size, target_length, d_model), instead of input_ids.
            position_ids: (batch_size, target_length); counted from the mask if None.
            use_cache: return the cache for the next step.

        Returns:
            last_hidden_state: (batch_size, target_length, d_model), and the cache.
        """
        if encoder_hidden_states is None:
            raise ValueError("the decoder needs encoder_hidden_states, (batch_size, source_length, d_model)")
        hidden_states = self.embed(input_ids, inputs_embeds)
        batch_size, length = hidden_states.shape[:2]
        if encoder_hidden_states.shape[0] != batch_size or encoder_hidden_states.shape[-1] != self.config.d_model:
            raise ValueError(
                f"encoder_hidden_states has shape {tuple(encoder_hidden_states.shape)}; this target needs "
                f"({batch_size}, source_length, {self.config.d_model})"
            )
        past_key_values = self.make_cache(past_key_values, use_cache)
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        total_length = past_length + length if isinstance(past_length, int) else None
        heads, has_room = self.config.decoder_attention_heads, getattr(past_key_values, "is_compileable", False)
        check_mask("decoder_attention_mask", attention_mask, batch_size, heads, length, total_length, has_room)
        check_mask("attention_mask", encoder_attention_mask, batch_size, heads, length, encoder_hidden_states.shape[1])
        attention_mask, encoder_attention_mask = as_bias(attention_mask), as_bias(encoder_attention_mask)
        position_ids = self.place(position_ids, attention_mask, hidden_states, past_length)
        self_attention_mask = causal_mask(self.config, hidden_states, attention_mask, past_key_values)
        cross_attention_mask = bidirectional_mask(
            self.config, hidden_states, encoder_attention_mask, encoder_hidden_states
        )
        hidden_states, position_embeddings = self.locate(hidden_states, position_ids, past_length)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                self_attention_mask,
                cross_attention_mask,
                position_embeddings,
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states),
            past_key_values=past_key_values if use_cache else None,
        )

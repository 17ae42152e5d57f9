"""The encoder-decoder Transformer of "Attention Is All You Need": its two stacks and the models that users load."""

import math

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention import ScratchCrossAttention, ScratchSelfAttention
from .configuration_scratch import ScratchConfig
from .dropout import ScratchDropout
from .layers import ScratchDecoderLayer, ScratchEncoderLayer, ScratchLayer, build_norm
from .loss import IGNORE_INDEX, cross_entropy_sum, linear_cross_entropy_sum, target_token_count
from .masking import bidirectional_mask, causal_mask, check_mask, count_positions
from .position_embeddings import LearnedPositionEmbedding, ScratchRotaryEmbedding, SinusoidalPositionEmbedding


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """
    What the decoder reads to predict `labels` (section 3.1: "the output embeddings are offset by one position").

    Args:
        labels: (batch_size, target_length); -100 is read as padding.

    Returns:
        (batch_size, target_length).
    """
    shifted = labels.new_empty(labels.shape)
    shifted[:, 1:] = labels[:, :-1]
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill_(shifted == IGNORE_INDEX, pad_token_id)


class ScratchPreTrainedModel(PreTrainedModel):
    """Weight initialisation, tying, and what Transformers wants to know about every Scratch model."""

    config: ScratchConfig
    config_class = ScratchConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ScratchEncoderLayer", "ScratchDecoderLayer"]
    _supports_sdpa = True
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

    def __init__(self, config: ScratchConfig, vocab_size: int, num_heads: int, layers: list[ScratchLayer]):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.rotary_emb = self.embed_positions = None
        if config.position_embedding_type == "rotary":
            self.rotary_emb = ScratchRotaryEmbedding(config, num_heads)
        elif config.position_embedding_type == "learned":
            self.embed_positions = LearnedPositionEmbedding(config.max_position_embeddings, config.d_model)
        else:
            self.embed_positions = SinusoidalPositionEmbedding(config.d_model)
        self.dropout = ScratchDropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.layer_norm = build_norm(config) if config.final_norm else nn.Identity()
        self.gradient_checkpointing = False

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
            inputs_embeds = self.embed_tokens(input_ids)
        return inputs_embeds * self.embed_scale

    def locate(
        self, hidden_states: torch.Tensor, position_ids: torch.Tensor, past_length: int | torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
        """
        Add positions to the embeddings, or, rotary, make the angles that attention needs; then dropout (section 5.4).
        """
        if self.rotary_emb is not None:
            return self.dropout(hidden_states), self.rotary_emb(position_ids, hidden_states.dtype)
        limit, length = self.config.max_position_embeddings, past_length + hidden_states.shape[1]
        if self.config.position_embedding_type == "learned" and isinstance(past_length, int) and length > limit:
            raise ValueError(
                f"the sequence has {length} tokens, but learned positions end at max_position_embeddings ({limit})"
            )
        return self.dropout(hidden_states + self.embed_positions(position_ids, hidden_states.dtype)), None


class ScratchEncoder(ScratchStack):
    """A stack of encoder layers."""

    _can_record_outputs = {"hidden_states": ScratchEncoderLayer, "attentions": ScratchSelfAttention}

    def __init__(self, config: ScratchConfig):
        layers = [ScratchEncoderLayer(config, layer_idx) for layer_idx in range(config.encoder_layers)]
        super().__init__(config, config.vocab_size, config.encoder_attention_heads, layers)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **kwargs,
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
        check_mask("attention_mask", attention_mask, batch_size, length)
        if position_ids is None:
            position_ids = count_positions(attention_mask, length, 0, hidden_states.device)
        mask = bidirectional_mask(self.config, hidden_states, attention_mask)
        hidden_states, position_embeddings = self.locate(hidden_states, position_ids, 0)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, position_embeddings, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class ScratchDecoder(ScratchStack):
    """A stack of decoder layers."""

    _can_record_outputs = {
        "hidden_states": ScratchDecoderLayer,
        "attentions": ScratchSelfAttention,
        "cross_attentions": ScratchCrossAttention,
    }

    def __init__(self, config: ScratchConfig):
        layers = [ScratchDecoderLayer(config, layer_idx) for layer_idx in range(config.decoder_layers)]
        super().__init__(config, config.target_vocab_size, config.decoder_attention_heads, layers)
        self.post_init()

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
        **kwargs,
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
        if use_cache and past_key_values is None:
            decoder_config = self.config.get_text_config(decoder=True)
            past_key_values = EncoderDecoderCache(
                DynamicCache(config=decoder_config), DynamicCache(config=decoder_config)
            )
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        total_length = past_length + length if isinstance(past_length, int) else None
        check_mask("decoder_attention_mask", attention_mask, batch_size, total_length)
        check_mask("attention_mask", encoder_attention_mask, batch_size, encoder_hidden_states.shape[1])
        if position_ids is None:
            position_ids = count_positions(attention_mask, length, past_length, hidden_states.device)
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


class ScratchModel(ScratchPreTrainedModel):
    """Encoder and decoder without the output projection."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: ScratchConfig):
        super().__init__(config)
        self.encoder = ScratchEncoder(config)
        self.decoder = ScratchDecoder(config)
        self.post_init()

    def _tied_weights(self) -> dict[str, str]:
        return dict(self._tied_weights_keys) if self.config.share_encoder_decoder_embeddings else {}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> Seq2SeqModelOutput:
        """
        Args:
            input_ids: (batch_size, source_length); inputs_embeds, position_ids as in ScratchEncoder.
            attention_mask: (batch_size, source_length) or (batch_size, 1 or heads, 1, source_length): what encoder and
                decoder attend to of the source.
            decoder_input_ids: (batch_size, target_length); what begins with decoder_ as in ScratchDecoder.
            encoder_outputs: the encoder's output from an earlier call, instead of what the encoder would read.
            past_key_values, use_cache: as in ScratchDecoder.

        Returns:
            last_hidden_state: (batch_size, target_length, d_model), the cache, and the encoder's states.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds=inputs_embeds, position_ids=position_ids, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if attention_mask is not None and attention_mask.ndim == 4 and attention_mask.shape[2] != 1:
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)}: with a row for each source token it says "
                "nothing of the decoder's attention to the source; give the encoder's output as encoder_outputs, and "
                "here a mask (batch_size, source_length) or (batch_size, 1 or heads, 1, source_length)"
            )
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs.last_hidden_state,
            attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            position_ids=decoder_position_ids,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class ScratchForConditionalGeneration(ScratchPreTrainedModel, GenerationMixin):
    """The translator: encoder, decoder, output projection (section 3.4), loss, and `generate()`."""

    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}

    def __init__(self, config: ScratchConfig):
        super().__init__(config)
        self.model = ScratchModel(config)
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=config.lm_head_bias)
        self.post_init()

    def _tied_weights(self) -> dict[str, str]:
        if not self.config.tie_word_embeddings:
            return {}
        # Named by the end of the chain: a target that is itself somebody's target would keep its old weight.
        side = "encoder" if self.config.share_encoder_decoder_embeddings else "decoder"
        return {"lm_head.weight": f"model.{side}.embed_tokens.weight"}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """See `shift_tokens_right`; DataCollatorForSeq2Seq calls this."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs) -> dict:
        # A static cache turns the decoder's mask into a 4-D one, from which positions can no longer be counted.
        mask = kwargs.get("decoder_attention_mask")
        if mask is not None and mask.ndim == 2 and kwargs.get("decoder_position_ids") is None:
            kwargs["decoder_position_ids"] = count_positions(mask, mask.shape[1], 0, mask.device)
        return super().prepare_inputs_for_generation(input_ids, **kwargs)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool = False,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """
        Args:
            labels: (batch_size, target_length), aligned with the logits; -100 is ignored. The decoder's input is made
                from them if it is not given.
            label_smoothing: in [0, 1), see `cross_entropy_sum`.
            num_items_in_batch: what the summed loss is divided by; None: the labels that count here.
            skip_logits: with labels, compute the loss without storing logits, and return None for them.
            The others as in ScratchModel.

        Returns:
            loss, if labels were given; logits (batch_size, target_length, target vocabulary); the rest as ScratchModel.
        """
        if labels is not None:
            use_cache = False if use_cache is None else use_cache
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            past_key_values,
            inputs_embeds,
            decoder_inputs_embeds,
            position_ids,
            decoder_position_ids,
            use_cache,
            **kwargs,
        )
        if skip_logits and labels is not None:
            logits = None
            loss = linear_cross_entropy_sum(outputs.last_hidden_state, self.lm_head, labels, label_smoothing)
        else:
            logits = self.lm_head(outputs.last_hidden_state)
            loss = None if labels is None else cross_entropy_sum(logits, labels, label_smoothing)
        if loss is not None:
            loss = loss / (target_token_count(labels) if num_items_in_batch is None else num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )


__all__ = ["ScratchForConditionalGeneration", "ScratchModel", "ScratchPreTrainedModel"]

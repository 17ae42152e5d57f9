"""The models that users load: the encoder alone, encoder and decoder, and the translator."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_scratch import ScratchConfig
from .decoder_steps import is_hooked, known
from .decoding import ScratchDecoding
from .loss import IGNORE_INDEX, cross_entropy_sum, linear_cross_entropy_sum, target_token_count
from .stacks import ScratchDecoder, ScratchEncoder, ScratchPreTrainedModel
from .vocabulary import ResizableVocabularies, check_ids

if TYPE_CHECKING:
    # Not needed here. But a saved model takes along the files that its own names in imports, and config.json says that
    # the pipeline is among them: so it is, whoever saves the model.
    from .translation_pipeline import ScratchTranslationPipeline  # noqa: F401

# How each model was loaded. No attribute of theirs: whoever pickles a model must not pass on a token.
_HUB_OPTIONS: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """
    What the decoder reads to predict `labels` (section 3.1: "the output embeddings are offset by one position").

    Args:
        labels: (batch_size, target_length); -100 is read as padding.

    Returns:
        (batch_size, target_length).
    """
    if pad_token_id is None or decoder_start_token_id is None:
        raise ValueError(
            "the decoder's input cannot be made from labels: pad_token_id and decoder_start_token_id are "
            f"{pad_token_id} and {decoder_start_token_id} in the config; set them, or give decoder_input_ids"
        )
    shifted = labels.new_empty(labels.shape)
    shifted[:, 1:] = labels[:, :-1]
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill_(shifted == IGNORE_INDEX, pad_token_id)


class ScratchEncoderModel(ScratchPreTrainedModel):
    """The encoder alone, as from a full checkpoint: sentences in, a vector for each token out."""

    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^lm_head\."]

    def __init__(self, config: ScratchConfig):
        config = copy.deepcopy(config)
        config.is_encoder_decoder = False  # what asks this expects a decoder's outputs
        super().__init__(config)
        self.encoder = ScratchEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value

    def _resize_token_embeddings(self, *args, **kwargs) -> nn.Embedding:
        embedding = super()._resize_token_embeddings(*args, **kwargs)
        if self.config.share_encoder_decoder_embeddings and self.config.decoder_vocab_size is not None:
            self.config.decoder_vocab_size = embedding.num_embeddings
        return embedding

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """As ScratchEncoder."""
        return self.encoder(input_ids, attention_mask, inputs_embeds=inputs_embeds, position_ids=position_ids, **kwargs)


@known
class ScratchModel(ResizableVocabularies, ScratchPreTrainedModel):
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
        **kwargs: Unpack[TransformersKwargs],
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
                input_ids,
                attention_mask,
                inputs_embeds=inputs_embeds,
                position_ids=position_ids,
                use_cache=False,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            given = isinstance(encoder_outputs, Mapping)
            encoder_outputs = BaseModelOutput(**encoder_outputs) if given else BaseModelOutput(*encoder_outputs)
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


@known
class ScratchForConditionalGeneration(ResizableVocabularies, ScratchPreTrainedModel, ScratchDecoding, GenerationMixin):
    """The translator: encoder, decoder, output projection (section 3.4), loss, and `generate()`."""

    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}

    def __init__(self, config: ScratchConfig):
        super().__init__(config)
        self.model = ScratchModel(config)
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, **kwargs):
        """As of every model, and remember from which revision it is: see `hub_options`."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        options = ("cache_dir", "local_files_only", "revision", "subfolder", "token")
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        _HUB_OPTIONS[model] = {name: kwargs[name] for name in options if kwargs.get(name)}
        return loaded

    @property
    def hub_options(self) -> dict[str, Any]:
        """What `from_pretrained` needs, to find more of what `name_or_path` holds: the target's tokenizer."""
        return _HUB_OPTIONS.get(self, {})

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

    def save_pretrained(self, *args, **kwargs) -> None:
        """As of every model. Merging adapters can leave `tie_word_embeddings` False where the weights are still one."""
        if self.lm_head.weight is getattr(self.get_decoder().embed_tokens, "weight", None):
            self.config.tie_word_embeddings = True
        super().save_pretrained(*args, **kwargs)

    # With two vocabularies, what GenerationMixin reads as the vocabulary's size must be the target's.

    def _with_target_config(self) -> "ScratchForConditionalGeneration":
        """A view of this model, on the same modules, whose config is the decoder's: other threads use this one's."""
        view = object.__new__(type(self))  # copy.copy would build a model anew where FSDP has sharded it
        view.__dict__.update(self.__dict__)
        view.config = self.config.get_text_config(decoder=True)
        return view

    def compute_transition_scores(self, *args, **kwargs) -> torch.Tensor:
        """As of every model that generates."""
        return GenerationMixin.compute_transition_scores(self._with_target_config(), *args, **kwargs)

    def _get_candidate_generator(self, *args, **kwargs):
        return GenerationMixin._get_candidate_generator(self._with_target_config(), *args, **kwargs)

    def _get_logits_processor(self, *args, **kwargs):
        return GenerationMixin._get_logits_processor(self._with_target_config(), *args, **kwargs)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """See `shift_tokens_right`; DataCollatorForSeq2Seq calls this."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

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
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """
        Args:
            labels: (batch_size, target_length), aligned with the logits; -100 is ignored. The decoder's input is made
                from them if it is not given.
            num_items_in_batch: what the summed loss is divided by; None: the labels that count here.
            skip_logits: with labels, compute the loss without storing logits, and return None for them.
            label_smoothing: 0.0 if not given; in [0, 1), see `cross_entropy_sum`. Not in the signature, because Trainer
                takes every parameter with "label" in its name for a column that evaluation data must have.
            The others as in ScratchModel.

        Returns:
            loss, if labels were given; logits (batch_size, target_length, target vocabulary); the rest as ScratchModel.
        """
        label_smoothing = kwargs.pop("label_smoothing", 0.0)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be in [0, 1)")
        if labels is not None:
            check_ids("labels", labels, self.config.target_vocab_size, ignored=IGNORE_INDEX)
            labels = labels.long()
            target = decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids
            if target is not None and target.shape[:2] != labels.shape:
                raise ValueError(
                    f"labels has shape {tuple(labels.shape)}, and the decoder's input {tuple(target.shape[:2])}: they "
                    "must be aligned"
                )
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
        # A head that something has wrapped, hooked or patched must be called.
        plain = type(self.lm_head) is nn.Linear and not is_hooked(self.lm_head)
        if skip_logits and labels is not None and plain:
            logits = None
            loss = linear_cross_entropy_sum(outputs.last_hidden_state, self.lm_head, labels, label_smoothing)
        else:
            logits = self.lm_head(outputs.last_hidden_state)
            loss = None if labels is None else cross_entropy_sum(logits, labels, label_smoothing)
            logits = None if skip_logits and labels is not None else logits
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


__all__ = ["ScratchEncoderModel", "ScratchForConditionalGeneration", "ScratchModel", "ScratchPreTrainedModel"]

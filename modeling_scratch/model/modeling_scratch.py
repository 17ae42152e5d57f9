"""The models that users load: the encoder alone, encoder and decoder, and the translator."""

import copy
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils import can_return_tuple, logging

# From a local folder, loaders up to Transformers 5.8 copy the files that this one imports and no others: so it imports
# from each, and offers again what it does not need itself.
from .attention import ScratchCrossAttention, ScratchSelfAttention
from .batched_generation import generate_batch
from .cache import SearchCache
from .configuration_scratch import ScratchConfig
from .fast_cpu import ScratchDropout
from .layers import ScratchDecoderLayer, ScratchEncoderLayer
from .loss import IGNORE_INDEX, cross_entropy_sum, linear_cross_entropy_sum, target_token_count
from .masking import can_look_at, count_positions
from .plain_card import ModelFacts
from .position_embeddings import POSITION_EMBEDDINGS
from .pretrained import ScratchPreTrainedModel
from .push_to_hub import push_model
from .stacks import ScratchDecoder, ScratchEncoder
from .translation_pipeline import ScratchTranslationPipeline

try:
    from .search import search
    from .search_loops import SearchOutput

    why_no_search = ""
except ImportError as error:  # a release of Transformers that lacks what our own search needs
    search = SearchOutput = None
    why_no_search = str(error)

logger = logging.get_logger(__name__)

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


def check_labels(labels: torch.Tensor, vocab_size: int) -> None:
    """Raise ValueError for labels outside [0, vocab_size) other than -100, where looking at them costs nothing."""
    if labels.ndim != 2 or labels.is_floating_point():
        raise ValueError(
            f"labels has shape {tuple(labels.shape)} and {labels.dtype}; it must be integers (batch_size, "
            "target_length)"
        )
    if can_look_at(labels):
        wrong = labels[((labels < 0) | (labels >= vocab_size)) & (labels != IGNORE_INDEX)]
        if wrong.numel():
            raise ValueError(
                f"labels holds {wrong[0].item()}; ids must be in [0, {vocab_size}), the vocabulary, or {IGNORE_INDEX} "
                "where they are to be ignored. Does the tokenizer belong to this model?"
            )


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

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """As ScratchEncoder."""
        return self.encoder(input_ids, attention_mask, inputs_embeds, position_ids, return_dict=True, **kwargs)


class ScratchModel(ScratchPreTrainedModel):
    """Encoder and decoder without the output projection."""

    def __init__(self, config: ScratchConfig):
        super().__init__(config)
        self.encoder = ScratchEncoder(config)
        self.decoder = ScratchDecoder(config)
        self.post_init()

    def tied_weights(self) -> dict[str, str]:
        shared = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        return super().tied_weights() | (shared if self.config.share_encoder_decoder_embeddings else {})

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
        past_key_values: Cache | None = None,
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
            source = (input_ids, attention_mask, inputs_embeds, position_ids)
            encoder_outputs = self.encoder(*source, return_dict=True, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            given = isinstance(encoder_outputs, Mapping)
            encoder_outputs = BaseModelOutput(**encoder_outputs) if given else BaseModelOutput(*encoder_outputs)
        if attention_mask is not None and attention_mask.ndim == 4 and attention_mask.shape[2] != 1:
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)}: with a row for each source token it says "
                "nothing of the decoder's attention to the source; give the encoder's output as encoder_outputs, and "
                "here a mask (batch_size, source_length) or (batch_size, 1 or heads, 1, source_length)"
            )
        target = (decoder_input_ids, decoder_attention_mask, encoder_outputs.last_hidden_state, attention_mask)
        others = (past_key_values, decoder_inputs_embeds, decoder_position_ids, use_cache)
        decoder_outputs = self.decoder(*target, *others, return_dict=True, **kwargs)
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

    def tied_weights(self) -> dict[str, str]:
        tied = super().tied_weights()
        if self.config.tie_word_embeddings:
            # Named by the end of the chain: a target that is itself somebody's target would keep its old weight.
            side = "encoder" if self.config.share_encoder_decoder_embeddings else "decoder"
            tied["lm_head.weight"] = f"model.{side}.embed_tokens.weight"
        return tied

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

    def generate(self, *args, **kwargs):
        """
        As of every model that generates; greedy search, sampling and beam search by this project's own loops, which
        give the same tokens in less time (see `search`).
        """
        # An adapter may prepare inputs of its own, or be another one for each sentence.
        prepare = getattr(self.prepare_inputs_for_generation, "__func__", None)
        is_own = prepare is ScratchForConditionalGeneration.prepare_inputs_for_generation
        if search is None:
            logger.warning_once(f"this release of Transformers takes no loops of ours ({why_no_search}); it is slower")
        if search is None or not is_own or hasattr(self, "peft_config"):
            return super().generate(*args, **kwargs)
        return search(self, super().generate, *args, **kwargs)

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs) -> dict[str, Any]:
        # A static cache turns the decoder's mask into a 4-D one, from which positions can no longer be counted.
        mask = kwargs.get("decoder_attention_mask")
        if mask is not None and mask.ndim == 2 and kwargs.get("decoder_position_ids") is None:
            kwargs["decoder_position_ids"] = count_positions(mask)
        return super().prepare_inputs_for_generation(input_ids, **kwargs)

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
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool = False,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """
        Args:
            labels: (batch_size, target_length), aligned with the logits; -100 is ignored. The decoder's input is made
                from them if it is not given.
            num_items_in_batch: what the summed loss is divided by; None: the labels that count here.
            skip_logits: with labels, compute the loss without storing logits, and return None for them. Reads the
                weight of the output projection and does not call its hooks.
            label_smoothing: 0.0 if not given; in [0, 1), see `cross_entropy_sum`. Not in the signature, because Trainer
                takes every parameter with "label" in its name for a column that evaluation data must have.
            compile_loss: False if not given; with skip_logits, see `linear_cross_entropy_sum`.
            The others as in ScratchModel.

        Returns:
            loss, if labels were given; logits (batch_size, target_length, target vocabulary); the rest as ScratchModel.
        """
        label_smoothing, compile_loss = kwargs.pop("label_smoothing", 0.0), kwargs.pop("compile_loss", False)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be in [0, 1)")
        if labels is not None:
            check_labels(labels, self.config.target_vocab_size)
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
        tokens = (input_ids, attention_mask, decoder_input_ids, decoder_attention_mask)
        others = (inputs_embeds, decoder_inputs_embeds, position_ids, decoder_position_ids, use_cache)
        outputs = self.model(*tokens, encoder_outputs, past_key_values, *others, return_dict=True, **kwargs)
        # What wraps a head or replaces its forward, as adapters and offloading do, must be called.
        is_plain = type(self.lm_head) is nn.Linear and "forward" not in vars(self.lm_head)
        if skip_logits and labels is not None and is_plain:
            logits = None
            states = outputs.last_hidden_state
            loss = linear_cross_entropy_sum(states, self.lm_head, labels, label_smoothing, compile_loss)
        else:
            logits = self.lm_head(outputs.last_hidden_state)
            loss = None if labels is None else cross_entropy_sum(logits, labels, label_smoothing)
            logits = None if skip_logits and labels is not None else logits
        if loss is not None:
            loss = loss / (target_token_count(labels) if num_items_in_batch is None else num_items_in_batch)
        outputs = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **outputs)


__all__ = [
    "POSITION_EMBEDDINGS",
    "ModelFacts",
    "ScratchCrossAttention",
    "ScratchDecoder",
    "ScratchDecoderLayer",
    "ScratchDropout",
    "ScratchEncoder",
    "ScratchEncoderLayer",
    "ScratchEncoderModel",
    "ScratchForConditionalGeneration",
    "ScratchModel",
    "ScratchPreTrainedModel",
    "ScratchSelfAttention",
    "ScratchTranslationPipeline",
    "SearchCache",
    "SearchOutput",
    "generate_batch",
    "push_model",
]

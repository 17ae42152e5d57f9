"""The models that users load: the encoder alone, encoder and decoder, and the translator."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils import can_return_tuple, logging

# When loading from a local folder, Transformers up to 5.8 copies only the files that this file imports. It therefore
# imports all that travel, also those that it does not use (F401).
from .attention import ScratchAttention  # noqa: F401
from .batched_generation import generate_batch  # noqa: F401
from .cache import SearchCache
from .confidence import FILE, Confidence
from .configuration_scratch import ScratchConfig, config_of_part
from .kept_words import KeptWords  # noqa: F401
from .layers import ScratchLayer  # noqa: F401
from .masking import IGNORE_INDEX, begins_segment, check_segments, count_positions, own_segment, positions_in_segments
from .position_embeddings import PositionEmbedding  # noqa: F401
from .sentences import beginnings  # noqa: F401
from .stacks import CACHE_NAME, ScratchDecoder, ScratchEncoder, ScratchPreTrainedModel, are_different
from .text import clean  # noqa: F401
from .translation_pipeline import ScratchTranslationPipeline  # noqa: F401
from .translations import Translation  # noqa: F401

try:
    from .search import (
        beam_search,  # noqa: F401
        sample,  # noqa: F401
        search,
    )
except ImportError as error:
    reason = f"this release of Transformers does not support this project's search loops ({error})"
    logging.get_logger(__name__).warning(f"{reason}: generation is slower")
    search = None

# How each model was loaded. Not an attribute of the model, because a pickled model would then contain the user's token.
_HUB_OPTIONS: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """
    -log p(label), averaged over target tokens.

    Args:
        logits: (batch_size, target_length, V).
        labels: (batch_size, target_length), aligned with the logits; -100 is ignored.
        num_items_in_batch: what to divide the sum by; None: the number of labels here that are not ignored.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.flatten().to(logits.device, torch.int64)
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    total = nn.functional.cross_entropy(logits, labels, reduction="sum")
    return total / divisor(labels, num_items_in_batch)


def divisor(labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor | int:
    """
    What to divide a sum over target tokens by: `num_items_in_batch`, or else the number of labels that are not ignored,
    at least 1 so that a batch without labels has a loss of 0, not NaN.
    """
    return (labels != IGNORE_INDEX).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch


def _refuse_parts(config: ScratchConfig, *names: str) -> None:
    """Raise ValueError for the config of a part of these names, whose checkpoint lacks weights or names others."""
    if {*names} & {saved := (config.architectures or [""])[0]}:
        raise ValueError(f"a {saved} was saved alone, and the rest would be random: load it with that class")


class ScratchEncoderModel(ScratchPreTrainedModel):
    """The encoder alone, which also loads from a full checkpoint: sentences in, a vector per token out."""

    _auto_class = "AutoModelForTextEncoding"
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^lm_head\."]

    def __init__(self, config: ScratchConfig):
        _refuse_parts(config, "ScratchEncoder", "ScratchDecoder")
        config = config_of_part(config, "modeling_scratch.ScratchEncoderModel")
        config.auto_map["AutoModelForTextEncoding"] = config.auto_map["AutoModel"]
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
        """The same as ScratchEncoder."""
        return self.encoder(input_ids, attention_mask, inputs_embeds, position_ids, return_dict=True, **kwargs)


class ScratchModel(ScratchPreTrainedModel):
    """Encoder and decoder without the output projection."""

    _auto_class = "AutoModel"

    def __init__(self, config: ScratchConfig):
        _refuse_parts(config, "ScratchEncoderModel", "ScratchEncoder", "ScratchDecoder")
        super().__init__(config)
        self.encoder = ScratchEncoder(config)
        self.decoder = ScratchDecoder(config)
        self.post_init()

    def tied_weights(self) -> dict[str, str]:
        shared = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        return shared if self.config.share_encoder_decoder_embeddings else {}

    def note_ties(self) -> None:
        first, second = (getattr(stack.embed_tokens, "weight", None) for stack in (self.encoder, self.decoder))
        if self.config.share_encoder_decoder_embeddings and are_different(first, second):
            self.config.share_encoder_decoder_embeddings = False
        super().note_ties()

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
        cache: Cache | None = None,
        segment_ids: torch.Tensor | None = None,
        decoder_segment_ids: torch.Tensor | None = None,
        **kwargs,
    ) -> Seq2SeqModelOutput:
        """
        Args:
            input_ids: (batch_size, source_length).
            attention_mask: (batch_size, source_length) or (batch_size, 1 or heads, 1, source_length): which source
                tokens the encoder and the decoder attend to.
            inputs_embeds, position_ids: as in ScratchEncoder.
            decoder_input_ids: (batch_size, target_length).
            decoder_...: as in ScratchDecoder, without this prefix.
            encoder_outputs: the encoder's output from an earlier call, instead of its inputs.
            past_key_values (or cache), use_cache: as in ScratchDecoder.
            segment_ids, decoder_segment_ids: (batch_size, source_length) and (batch_size, target_length), where a row
                holds several sequences: the number of the pair that each token belongs to, in place of the masks. A
                token attends to its own pair only; 0 is padding, and the tokens of a pair stand together. Positions
                count from the first token of each pair.

        Returns:
            last_hidden_state: (batch_size, target_length, d_model), the cache, and the encoder's states.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            needed = "decoder_input_ids, decoder_inputs_embeds or, in the model with a loss, labels"
            made = "DataCollatorForSeq2Seq(tokenizer, model) makes decoder_input_ids and labels"
            raise ValueError(f"the decoder needs {needed}: got none ({made})")
        if (segment_ids is None) != (decoder_segment_ids is None):
            raise ValueError("segment_ids and decoder_segment_ids come together")
        if encoder_outputs is None:
            encoder_inputs = (input_ids, attention_mask, inputs_embeds, position_ids)
            encoder_outputs = self.encoder(*encoder_inputs, return_dict=True, segment_ids=segment_ids, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            is_mapping = isinstance(encoder_outputs, Mapping)
            encoder_outputs = BaseModelOutput(**encoder_outputs) if is_mapping else BaseModelOutput(*encoder_outputs)
        if segment_ids is None and getattr(attention_mask, "ndim", 0) == 4 and attention_mask.shape[2] != 1:
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)}: with a row for each source token it does not "
                "tell the decoder what to attend to; give the encoder's output as encoder_outputs, and here a mask "
                "(batch_size, source_length) or (batch_size, 1 or heads, 1, source_length)"
            )
        if decoder_segment_ids is not None:
            given = (attention_mask, decoder_attention_mask, past_key_values, cache, use_cache or None)
            check_segments("segment_ids", segment_ids, encoder_outputs.last_hidden_state, *given)
            states = decoder_input_ids[..., None] if decoder_inputs_embeds is None else decoder_inputs_embeds
            check_segments("decoder_segment_ids", decoder_segment_ids, states)
            attention_mask = own_segment(decoder_segment_ids, segment_ids)
            decoder_attention_mask = own_segment(decoder_segment_ids, decoder_segment_ids, is_causal=True)
            if decoder_position_ids is None:
                decoder_position_ids = positions_in_segments(decoder_segment_ids)
            use_cache = False
        decoder_inputs = (decoder_input_ids, decoder_attention_mask, encoder_outputs.last_hidden_state, attention_mask)
        others = (past_key_values, decoder_inputs_embeds, decoder_position_ids, use_cache)
        decoder_outputs = self.decoder(*decoder_inputs, *others, cache=cache, return_dict=True, **kwargs)
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
        )


class ScratchForConditionalGeneration(ScratchPreTrainedModel, GenerationMixin):
    """The translator: encoder, decoder, output projection (section 3.4), loss, and `generate()`."""

    _auto_class = "AutoModelForSeq2SeqLM"
    new_search_cache = SearchCache  # the key/value cache of our own search; an ensemble overrides this

    def __init__(self, config: ScratchConfig):
        super().__init__(config)
        self.model = ScratchModel(config)
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, **kwargs):
        """
        The inherited method, which also remembers where the model came from, see `hub_options`, and gets its
        confidence.json from the Hub into the cache, where `save_pretrained` reads it.
        """
        loaded = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        options = ("cache_dir", "local_files_only", "revision", "subfolder", "token")
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        _HUB_OPTIONS[model] = {name: kwargs[name] for name in options if kwargs.get(name)}
        with suppress(Exception):  # the Hub client and its dependencies raise many types; the model works without
            Confidence.load(model.name_or_path, **model.hub_options)
        return loaded

    @property
    def hub_options(self) -> dict[str, Any]:
        """The options with which `from_pretrained` finds other files of this model, such as the target's tokenizer."""
        return _HUB_OPTIONS.get(self, {})

    def tied_weights(self) -> dict[str, str]:
        tied = {f"model.{name}": f"model.{original}" for name, original in self.model.tied_weights().items()}
        if self.config.tie_word_embeddings:
            # The end of the chain: a weight tied to one that is itself tied would not follow the original.
            side = "encoder" if self.config.share_encoder_decoder_embeddings else "decoder"
            tied["lm_head.weight"] = f"model.{side}.embed_tokens.weight"
        return tied

    def note_ties(self) -> None:
        self.model.note_ties()
        output, embedding = self.lm_head.weight, getattr(self.get_decoder().embed_tokens, "weight", None)
        # Merging adapters can set tie_word_embeddings to False although the weight is still shared.
        if output is embedding:
            self.config.tie_word_embeddings = True
        elif self.config.tie_word_embeddings and are_different(output, embedding):
            self.config.tie_word_embeddings = False
        super().note_ties()

    def save_pretrained(self, save_directory: str | Path, is_main_process: bool = True, *args, **kwargs) -> None:
        """The inherited method, with the confidence.json of the model that this one was loaded from, if it has any."""
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if is_main_process:
            self._save_confidence(save_directory)

    def _upload_modified_files(self, working_dir: str | Path, *args, **kwargs):
        # save_pretrained(push_to_hub=True) uploads what has changed since it was called, before it returns.
        self._save_confidence(working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    def _save_confidence(self, folder: str | Path) -> None:
        confidence = None
        with suppress(OSError, ValueError):  # the model has been removed meanwhile, or its file is damaged
            confidence = Confidence.load(self.name_or_path, **self.hub_options | {"local_files_only": True})
        if confidence is not None:
            (Path(folder) / FILE).write_text(confidence.text(), encoding="utf-8")

    def generate(self, *args, **kwargs):
        """
        The inherited method. Greedy search, sampling and beam search run in this project's own loops, which
        choose the same tokens, but for rounding, in less time (see `search`).
        """
        if segmented := {"segment_ids", "decoder_segment_ids"} & kwargs.keys():
            raise ValueError(f"generate() takes one sentence a row, so {min(segmented)} cannot be used")
        # The inherited method knows only one of the two names.
        for other_name in {"past_key_values", "cache"} & kwargs.keys() - {CACHE_NAME}:
            kwargs[CACHE_NAME] = kwargs.pop(other_name)
        if self.training and any(getattr(module, "gradient_checkpointing", False) for module in self.modules()):
            kwargs["use_cache"] = False  # checkpointing takes it away, unknown to `generate`
        if kwargs.get("max_length") is not None:  # which a generation config's max_new_tokens would override
            kwargs.setdefault("max_new_tokens", None)
        # An adapter may prepare its own inputs, or differ from sentence to sentence.
        prepare = getattr(self.prepare_inputs_for_generation, "__func__", None)
        is_own = prepare is ScratchForConditionalGeneration.prepare_inputs_for_generation
        if search is None or not is_own or hasattr(self, "peft_config"):
            return super().generate(*args, **kwargs)
        return search(self, super().generate, *args, **kwargs)

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs) -> dict[str, Any]:
        # With a static cache the decoder's mask becomes 4-D, from which positions cannot be counted.
        mask = kwargs.get("decoder_attention_mask")
        if mask is not None and mask.ndim == 2 and kwargs.get("decoder_position_ids") is None:
            kwargs["decoder_position_ids"] = count_positions(mask)
        return super().prepare_inputs_for_generation(input_ids, **kwargs)

    def prepare_decoder_input_ids_from_labels(
        self, labels: torch.Tensor, decoder_segment_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """
        The decoder's input that predicts `labels` (section 3.1: "the output embeddings are offset by one position"),
        (batch_size, target_length); -100 becomes padding. Each segment is offset by itself. DataCollatorForSeq2Seq
        calls this too.
        """
        shifted = labels.new_empty(labels.shape)
        shifted[:, 1:] = labels[:, :-1]
        shifted[:, 0] = self.config.decoder_start_token_id
        if decoder_segment_ids is not None:
            shifted.masked_fill_(begins_segment(decoder_segment_ids), self.config.decoder_start_token_id)
        return shifted.masked_fill_(shifted == IGNORE_INDEX, self.config.pad_token_id)

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
        fused_loss: Callable | None = None,
        cache: Cache | None = None,
        segment_ids: torch.Tensor | None = None,
        decoder_segment_ids: torch.Tensor | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """
        Args (the others as in ScratchModel):
            labels: (batch_size, target_length), aligned with the logits; -100 is ignored. The decoder's input is made
                from them unless it is given.
            num_items_in_batch: divides the summed loss; None: the number of labels here that are not ignored.
            fused_loss: a function of the decoder's states, the output projection, `labels` and `num_items_in_batch`
                whose result, in our training loop a pair of losses, is returned as the loss; no logits are computed.
                None: cross-entropy.

        Returns:
            loss, if labels were given; logits (batch_size, target_length, target vocabulary), or None with a
            fused_loss; the rest as in ScratchModel.
        """
        if labels is not None:
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels, decoder_segment_ids)
            use_cache = False if use_cache is None else use_cache
        tokens = (input_ids, attention_mask, decoder_input_ids, decoder_attention_mask)
        others = (inputs_embeds, decoder_inputs_embeds, position_ids, decoder_position_ids, use_cache, cache)
        others += (segment_ids, decoder_segment_ids)
        outputs = self.model(*tokens, encoder_outputs, past_key_values, *others, return_dict=True, **kwargs)
        states = outputs.last_hidden_state
        if labels is not None and (labels.is_floating_point() or labels.shape != states.shape[:2]):
            given, needed = f"shape {tuple(labels.shape)} and {labels.dtype}", tuple(states.shape[:2])
            raise ValueError(f"labels has {given}; it must be integers {needed}, as the decoder's input")
        if labels is not None and fused_loss is not None:
            logits, loss = None, fused_loss(states, self.lm_head, labels.long(), num_items_in_batch)
        else:
            logits = self.lm_head(states)
            loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        outputs = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **outputs)

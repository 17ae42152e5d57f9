"""Several models that translate together: at each step the mean of their probabilities decides."""

import copy
import json
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..errors import UserError
from ..files import temporary_folder
from ..loading import load_tokenizers, load_translator
from ..model.cache import SearchCache
from ..model.modeling_scratch import search
from ..model.stacks import ScratchPreTrainedModel
from .translate import check_is_scratch

# Fields of the generation config that the search uses, and that comparing tokenizers does not cover.
_TOKENS = ("decoder_start_token_id", "eos_token_id", "pad_token_id")


class EnsembleCache:
    """The key/value caches of all members, which our own search treats as one."""

    def __init__(self, size: int):
        self.members = [SearchCache() for _ in range(size)]

    def get_seq_length(self) -> int:
        return self.members[0].get_seq_length()

    def _call(self, method: Callable, *args) -> None:
        for cache in self.members:
            method(cache, *args)

    def advance(self, new: int) -> None:
        self._call(SearchCache.advance, new)

    def reorder(self, parents: torch.Tensor) -> None:
        self._call(SearchCache.reorder, parents)

    def branch(self, beams: int) -> None:
        self._call(SearchCache.branch, beams)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        self._call(SearchCache.keep_sentences, sentences)


_NOT_OF_ENSEMBLES = {"position_ids", "inputs_embeds", "output_attentions", "output_hidden_states"}  # of `generate`


class EnsembleEncoder(nn.Module):
    """The members' encoders. Their states are concatenated, so that a search can select sentences from one tensor."""

    main_input_name = "input_ids"

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs) -> BaseModelOutput:
        """
        Args:
            input_ids: (batch_size, source_length).
            attention_mask: (batch_size, source_length), where nonzero attends.

        Returns:
            last_hidden_state: (batch_size, source_length, sum of the members' d_model).
        """
        states = [encoder(input_ids, attention_mask).last_hidden_state for encoder in self.encoders]
        return BaseModelOutput(last_hidden_state=torch.cat(states, dim=-1))


class Ensemble(ScratchPreTrainedModel, GenerationMixin):
    """
    Models that translate together. `generate()` works like that of one model whose next-token distribution is the
    arithmetic mean of the members'; each member keeps its own key/value cache. The first member's generation config
    supplies what a call does not set.

    Args:
        members: must share a target vocabulary; all are converted to the widest of their dtypes.
    """

    def __init__(self, members: Sequence[PreTrainedModel]):
        # Only learned positions have a limit.
        learned = [member for member in members if member.config.position_embedding_type == "learned"] or members
        config = copy.deepcopy(learned[0].config)
        config.max_position_embeddings = min(member.config.max_position_embeddings for member in learned)
        super().__init__(config)
        dtype = reduce(torch.promote_types, (member.dtype for member in members))
        # Transformers wraps `to` in a way that hides its type.
        self.members = nn.ModuleList(member.to(dtype) for member in members)  # type: ignore[arg-type]
        self.encoder = EnsembleEncoder([member.get_encoder() for member in members])
        self.generation_config = copy.deepcopy(members[0].generation_config)
        self.train(members[0].training)

    def new_search_cache(self) -> EnsembleCache:
        """The key/value cache of our own search."""
        return EnsembleCache(len(self.members))

    def generate(self, *args, **kwargs) -> torch.Tensor:
        """The inherited method, in our own loops. Where they do not apply, each step decodes the whole target again."""
        inherited = super().generate

        def uncached(*args, **kwargs):  # our loops bring a cache of their own
            return inherited(*args, **kwargs | {"use_cache": False})

        given = {name for name, value in kwargs.items() if value is not None and value is not False}
        if unknown := sorted(given & _NOT_OF_ENSEMBLES):
            raise ValueError(f"{', '.join(unknown)}: an ensemble does not take this")
        return uncached(*args, **kwargs) if search is None else search(self, uncached, *args, **kwargs)

    def save_pretrained(self, *args, **kwargs) -> None:
        """An ensemble is not a checkpoint."""
        raise ValueError("an ensemble cannot be saved; save its members")

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EnsembleCache | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """
        Args:
            input_ids: (batch_size, source_length); not needed with encoder_outputs.
            attention_mask: (batch_size, source_length), or the bias that our own search makes from it.
            decoder_input_ids: (batch_size, target_length); with a cache, only the new tokens.
            encoder_outputs: what an EnsembleEncoder returned.
            past_key_values: the cache of our own search, the only one supported.

        Returns:
            logits: logarithms of the mean probabilities, (batch_size, target_length, target vocabulary), in float32 or
                float64.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        states = encoder_outputs.last_hidden_state.split([member.config.d_model for member in self.members], dim=-1)
        caches = [None] * len(self.members) if past_key_values is None else past_key_values.members
        members = []
        for member, encoded, cache in zip(self.members, states, caches, strict=True):
            logits = member(
                decoder_input_ids=decoder_input_ids,
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
                attention_mask=attention_mask,
                past_key_values=cache,
                use_cache=cache is not None,
            ).logits
            members.append(logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1))
        return Seq2SeqLMOutput(logits=torch.stack(members).logsumexp(dim=0) - math.log(len(members)))


def load_together(
    names: Sequence[str], revisions: Sequence[str | None] | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """
    The Ensemble of the models in folders or on the Hub, or a single one, with the source and target tokenizers.

    Args:
        revisions: a branch, tag or commit of each; None: the default.

    Raises:
        UserError: a model cannot be loaded; or, of several, it is of a different kind, or differs from the first in its
            tokenizers, vocabulary or special tokens.
    """
    options = [{"revision": revision} for revision in revisions or [None] * len(names)]
    if len(names) == 1:
        source, target = load_tokenizers(names[0], **options[0])
        return load_translator(names[0], **options[0]), source, target
    for name, chosen in zip(names, options, strict=True):
        check_is_scratch(name, **chosen)
    # Compared before weights are loaded, or downloaded.
    tokenizers = [load_tokenizers(name, **chosen) for name, chosen in zip(names, options, strict=True)]
    sides = ("source tokenizer", "target tokenizer")
    _check_equal(names, [dict(zip(sides, map(_content, pair), strict=True)) for pair in tokenizers])
    members = [load_translator(name, **chosen) for name, chosen in zip(names, options, strict=True)]
    _check_equal(names, [_tokens(member) for member in members])
    return Ensemble(members), *tokenizers[0]


def _check_equal(names: Sequence[str], found: Sequence[dict[str, Any]]) -> None:
    """Raise UserError if what was found for a model differs from what was found for the first."""
    first, known = names[0], found[0]
    for name, values in zip(names[1:], found[1:], strict=True):
        for what, value in values.items():
            if value != known[what]:
                is_number = isinstance(value, int)
                differs = (
                    f"is {value}, but that of {first} is {known[what]}" if is_number else f"is not that of {first}"
                )
                raise UserError(f"{name}: its {what} {differs}; the models of an ensemble need the same")


def _content(tokenizer: PreTrainedTokenizerBase) -> tuple:
    """What identifies a tokenizer, wherever it was loaded from."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        last_call = dict.fromkeys(("truncation", "padding"))
        return json.loads(backend.to_str()) | last_call, tokenizer.special_tokens_map
    with temporary_folder() as folder:
        tokenizer.save_vocabulary(str(folder))
        return {path.name: path.read_bytes() for path in folder.iterdir()}, tokenizer.special_tokens_map


def _tokens(model: PreTrainedModel) -> dict[str, Any]:
    """What members must agree on besides their tokenizers."""
    special = {token: getattr(model.generation_config, token) for token in _TOKENS}
    return {"target vocabulary": model.config.target_vocab_size, **special}

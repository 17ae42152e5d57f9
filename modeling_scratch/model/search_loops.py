"""
Greedy search, sampling, and what our search loops share. The loops give the same tokens as Transformers', but faster.

They compare only the best continuations of each sentence, share one cache among its beams (see `SearchCache`), and
remove finished sentences from the batch. Each step is the model's own forward pass.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.generation import (
    GenerateEncoderDecoderOutput,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput

from .masking import as_bias

# Stopping criteria and logits processors that treat each row independently. With any other, which may identify rows by
# their index, finished sentences stay in the batch.
_ROWWISE = {"EosTokenCriteria", "MaxLengthCriteria", "MaxTimeCriteria", "StopStringCriteria"}
_ROWWISE |= {"MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "RepetitionPenaltyLogitsProcessor"}
_ROWWISE |= {"NoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"}
_ROWWISE |= {"ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor"}
_ROWWISE |= {"ExponentialDecayLengthPenalty", "LogitNormalization", "SuppressTokensLogitsProcessor"}
_ROWWISE |= {"SuppressTokensAtBeginLogitsProcessor"}
# The share of the batch that must be finished before it is removed, because removal copies the caches of the rest.
_SHARE_THAT_LEAVES = 0.125


@dataclass
class SearchOutput(GenerateEncoderDecoderOutput):
    """
    Adds log_probabilities, (batch_size,): the natural logarithm of each sequence's probability under the model, the end
    token included.
    """

    log_probabilities: torch.FloatTensor | None = None


class Decoder:
    """
    Steps the model through a search, token by token.

    Args:
        states: the encoded sources, (sentences, source_length, d_model).
        attention_mask: over the source, (sentences, source_length); None: attend to everything.
        beams: rows per sentence; they are consecutive and start out identical.
        share_slots: rows may continue one another, as in beam search, and so share the target's keys and values too.
    """

    def __init__(
        self,
        model: nn.Module,
        states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        beams: int,
        share_slots: bool,
    ):
        self.model, self.beams, self.share_slots = model, beams, share_slots
        self.cache = model.new_search_cache()
        self.encoded = BaseModelOutput(last_hidden_state=states)
        self.mask = as_bias(attention_mask, states.dtype)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """
        Args:
            tokens: (rows, length), all tokens so far.

        Returns:
            The logits of the next token, (rows, vocabulary), in float32.
        """
        past_length = self.cache.get_seq_length()
        new = tokens[:, past_length:] if past_length else tokens[:: self.beams]
        outputs = self.model(
            decoder_input_ids=new,
            encoder_outputs=self.encoded,
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
            output_attentions=False,
            output_hidden_states=False,
            return_dict=True,
        )
        self.cache.advance(new.shape[1])
        logits = outputs.logits[:, -1].float()
        if past_length or self.beams == 1:
            return logits
        self.cache.branch(self.beams, self.share_slots)
        return logits.repeat_interleave(self.beams, dim=0)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Keep only these sentences."""
        self.cache.keep_sentences(sentences)
        self.encoded = BaseModelOutput(last_hidden_state=self.encoded.last_hidden_state.index_select(0, sentences))
        self.mask = None if self.mask is None else self.mask.index_select(0, sentences)


def is_of_transformers(each: Any) -> bool:
    """Whether a stopping criterion or logits processor comes from Transformers."""
    return type(each).__module__.startswith("transformers.")


def is_rowwise(each: Any) -> bool:
    """Whether a criterion or processor treats rows independently; a custom one says so in an attribute `is_rowwise`."""
    if isinstance(getattr(each, "prompt_ignore_length", None), torch.Tensor):  # one for each row
        return False
    return getattr(each, "is_rowwise", False) or (is_of_transformers(each) and type(each).__name__ in _ROWWISE)


def end_tokens(config: GenerationConfig) -> list[int]:
    """The end tokens of a generation config, which may hold a number, a list or a tensor."""
    return [] if config.eos_token_id is None else torch.as_tensor(config.eos_token_id).flatten().tolist()


def is_worth_removing(finished: int, batch_size: int) -> bool:
    """Whether enough sentences have finished to remove them from the batch."""
    return finished >= max(1, _SHARE_THAT_LEAVES * batch_size)


def sample(
    decoder: Decoder,
    input_ids: torch.Tensor,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
) -> torch.Tensor | SearchOutput:
    """Greedy search and sampling, as in GenerationMixin. input_ids: (batch_size, length)."""
    search = _Sampling(decoder, input_ids, processors, criteria, config)
    while True:
        search.step()
        finished = int(search.done.sum())
        if finished == len(search.done):
            return search.result()
        if search.may_leave and is_worth_removing(finished, len(search.done)):
            search.remove_finished()


class _Sampling:
    """The state of greedy search or sampling: the rows still in the batch, and those that have left it."""

    def __init__(self, decoder, input_ids, processors, criteria, config):
        self.decoder, self.processors, self.criteria, self.config = decoder, processors, criteria, config
        eos, self.returns_dict = end_tokens(config), config.return_dict_in_generate
        self.pad = config.pad_token_id if config.pad_token_id is None else int(config.pad_token_id)
        if self.pad is None and eos:
            self.pad = eos[0]
        self.scores = [] if self.returns_dict and config.output_scores else None
        self.logits = [] if self.returns_dict and config.output_logits else None
        self.fills = any(hasattr(criterion, "eos_token_id") for criterion in criteria)  # pads finished rows
        self.may_leave = (
            self.fills
            and self.pad is not None
            and self.scores is None
            and self.logits is None
            and not config.do_sample
            and all(map(is_rowwise, [*criteria, *processors]))
        )
        self.sequences, self.batch_size = input_ids, len(input_ids)
        self.rows = torch.arange(len(input_ids), device=input_ids.device)  # indices in the original batch
        self.done = torch.zeros_like(self.rows, dtype=torch.bool)
        self.log_probs = torch.zeros_like(self.rows, dtype=torch.float32)
        self.left: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # rows, sequences, log_probs

    def step(self) -> None:
        """Choose and append the next token of every row."""
        logits = self.decoder(self.sequences)
        # A copy, because some processors modify their input.
        model_logits = logits.clone() if self.returns_dict and self.processors else logits
        ranked = self.processors(self.sequences, logits)
        if self.config.do_sample:
            chosen = torch.multinomial(ranked.softmax(dim=-1), num_samples=1).squeeze(1)
        else:
            chosen = ranked.argmax(dim=-1)
        if self.scores is not None:
            self.scores.append(ranked)
        if self.logits is not None:
            self.logits.append(logits)
        if self.returns_dict:
            added = model_logits.gather(1, chosen[:, None]).squeeze(1) - model_logits.logsumexp(dim=-1)
            self.log_probs += added.masked_fill(self.done, 0.0)
        if self.fills:
            chosen = torch.where(self.done, self.pad, chosen)
        self.sequences = torch.cat([self.sequences, chosen[:, None]], dim=1)
        self.done = self.done | self.criteria(self.sequences, None if self.scores is None else tuple(self.scores))

    def remove_finished(self) -> None:
        """Take the finished rows out of the batch."""
        self.left.append((self.rows[self.done], self.sequences[self.done], self.log_probs[self.done]))
        stay = (~self.done).nonzero().squeeze(1)
        self.decoder.keep_sentences(stay)
        self.rows, self.sequences = self.rows[stay], self.sequences[stay]
        self.log_probs, self.done = self.log_probs[stay], self.done[stay]

    def result(self) -> torch.Tensor | SearchOutput:
        """All rows in their original order."""
        sequences, log_probs = self.sequences, self.log_probs
        if self.left:
            sequences = self.sequences.new_full((self.batch_size, self.sequences.shape[1]), self.pad)
            log_probs = self.log_probs.new_zeros(self.batch_size)
            for rows, tokens, values in [*self.left, (self.rows, self.sequences, self.log_probs)]:
                sequences[rows, : tokens.shape[1]], log_probs[rows] = tokens, values
        if not self.returns_dict:
            return sequences
        return SearchOutput(
            sequences=sequences,
            scores=None if self.scores is None else tuple(self.scores),
            logits=None if self.logits is None else tuple(self.logits),
            log_probabilities=log_probs,
        )

"""
Greedy search, sampling, and what our search loops share. The loops choose as Transformers' do, but faster.

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

from .fast_cpu import best_tokens
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
    """

    def __init__(self, model: nn.Module, states: torch.Tensor, attention_mask: torch.Tensor | None, beams: int):
        self.model, self.beams, self.cache = model, beams, model.new_search_cache()
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
        self.cache.branch(self.beams)
        return logits.repeat_interleave(self.beams, dim=0)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Keep only these sentences."""
        self.cache.keep_sentences(sentences)
        self.encoded = BaseModelOutput(last_hidden_state=self.encoded.last_hidden_state.index_select(0, sentences))
        self.mask = None if self.mask is None else self.mask.index_select(0, sentences)


def is_of_transformers(each: Any) -> bool:
    """Whether a stopping criterion or logits processor comes from Transformers."""
    return type(each).__module__.startswith("transformers.")


def is_named(each: Any, names: set[str]) -> bool:
    """
    Whether a criterion or processor is one of these classes of Transformers. They are not imported, since our search
    must not depend on whether a release has them.
    """
    return is_of_transformers(each) and type(each).__name__ in names


def is_rowwise(each: Any) -> bool:
    """Whether a criterion or processor treats rows independently; a custom one says so in an attribute `is_rowwise`."""
    if isinstance(getattr(each, "prompt_ignore_length", None), torch.Tensor):  # one for each row
        return False
    return getattr(each, "is_rowwise", False) or is_named(each, _ROWWISE)


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
    returns_dict, ends = config.return_dict_in_generate, end_tokens(config)
    scores = [] if returns_dict and config.output_scores else None
    all_logits = [] if returns_dict and config.output_logits else None
    pad = next((int(each) for each in (config.pad_token_id, *ends) if each is not None), None)
    fills = any(hasattr(criterion, "eos_token_id") for criterion in criteria)  # pads finished rows
    may_leave = fills and pad is not None and scores is None and all_logits is None and not config.do_sample
    may_leave = may_leave and all(map(is_rowwise, [*criteria, *processors]))

    sequences, rows = input_ids, torch.arange(len(input_ids), device=input_ids.device)  # those still in the batch
    done = torch.zeros_like(rows, dtype=torch.bool)
    log_probs = torch.zeros_like(rows, dtype=torch.float32)
    left: list[tuple[torch.Tensor, torch.Tensor]] = []  # rows that have left the batch, and their sequences
    while True:
        logits = decoder(sequences)
        # A copy, because some processors modify their input.
        model_logits = logits.clone() if returns_dict and processors else logits
        ranked = processors(sequences, logits)
        if config.do_sample:
            chosen = torch.multinomial(ranked.softmax(dim=-1), num_samples=1).squeeze(1)
        else:
            chosen = best_tokens(ranked)
        if scores is not None:
            scores.append(ranked)
        if all_logits is not None:
            all_logits.append(logits)
        if returns_dict:
            added = model_logits.gather(1, chosen[:, None]).squeeze(1) - model_logits.logsumexp(dim=-1)
            log_probs[rows] += added.masked_fill(done, 0.0)
        if fills:
            chosen = torch.where(done, pad, chosen)
        sequences = torch.cat([sequences, chosen[:, None]], dim=1)
        done = done | criteria(sequences, None if scores is None else tuple(scores))
        finished = int(done.sum())
        if finished == len(rows):
            break
        if may_leave and is_worth_removing(finished, len(rows)):
            left.append((rows[done], sequences[done]))
            stay = (~done).nonzero().squeeze(1)
            decoder.keep_sentences(stay)
            rows, sequences, done = rows[stay], sequences[stay], done[stay]
    if left:
        sequences = put_back([*left, (rows, sequences)], pad)
    if not returns_dict:
        return sequences
    return SearchOutput(
        sequences=sequences,
        scores=None if scores is None else tuple(scores),
        logits=None if all_logits is None else tuple(all_logits),
        log_probabilities=log_probs,
    )


def put_back(parts: list[tuple[torch.Tensor, torch.Tensor]], fill: float) -> torch.Tensor:
    """The values of all parts, (rows, values) each, in the order of their rows; shorter values are padded."""
    width = max(values.shape[-1] for _, values in parts)
    values = [nn.functional.pad(values, (0, width - values.shape[-1]), value=fill) for _, values in parts]
    return torch.cat(values)[torch.cat([rows for rows, _ in parts]).argsort()]

"""
The loops of greedy search, sampling and beam search: the tokens of Transformers' own, in less time.

Only the best tokens of each beam are compared, the beams of a sentence share one copy of the source's keys and values
(see `SearchCache`), and sentences that are done leave the batch. Each step is the model's own forward pass.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput

from .cache import SearchCache
from .fast_cpu import best_tokens
from .masking import as_bias

# Criteria and processors that judge each row by itself: with others, which may know rows by their numbers, none leaves.
_ROWWISE = {"EosTokenCriteria", "MaxLengthCriteria", "MaxTimeCriteria", "StopStringCriteria"}
_ROWWISE |= {"MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "RepetitionPenaltyLogitsProcessor"}
_ROWWISE |= {"NoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"}
_ROWWISE |= {"ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor"}
_ROWWISE |= {"ExponentialDecayLengthPenalty", "LogitNormalization", "SuppressTokensLogitsProcessor"}
_ROWWISE |= {"SuppressTokensAtBeginLogitsProcessor"}
# So many of the batch must be done before the others are moved together: to move them costs a copy of the caches.
_SHARE_THAT_LEAVES = 0.25
_FAR = -1e9  # what Transformers adds to the score of what must not be chosen


@dataclass
class SearchOutput(GenerateEncoderDecoderOutput):
    """
    Adds log_probabilities, (batch_size,): the natural logarithm of the probability that the model itself gives to each
    sequence, its end included.
    """

    log_probabilities: torch.FloatTensor | None = None


@dataclass
class BeamSearchOutput(GenerateBeamEncoderDecoderOutput):
    """Adds log_probabilities, as SearchOutput."""

    log_probabilities: torch.FloatTensor | None = None


class Decoder:
    """
    The model one token after another.

    Args:
        states: the encoded sources, (sentences, source_length, d_model).
        attention_mask: over the source, (sentences, source_length), or None: everything.
        beams: rows a sentence, which follow one another and are alike at first.
    """

    def __init__(self, model: nn.Module, states: torch.Tensor, attention_mask: torch.Tensor | None, beams: int):
        self.model, self.beams, self.cache = model, beams, SearchCache()
        self.encoded = BaseModelOutput(last_hidden_state=states)
        self.mask = as_bias(attention_mask, states.dtype)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """
        (rows, length) so far to the logits of what comes next, (rows, vocabulary), in float32.
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
        self.cache.spread(self.beams)
        return logits.repeat_interleave(self.beams, dim=0)

    def keep(self, sentences: torch.Tensor) -> None:
        """Go on with these sentences alone, whose rows have been moved."""
        self.cache.keep(sentences)
        self.encoded = BaseModelOutput(last_hidden_state=self.encoded.last_hidden_state.index_select(0, sentences))
        self.mask = None if self.mask is None else self.mask.index_select(0, sentences)


def is_of_transformers(each: Any) -> bool:
    """Whether a criterion or processor is one of Transformers' own."""
    return type(each).__module__.startswith("transformers.")


def _is_rowwise(each: Any) -> bool:
    """Whether a criterion or processor judges each row by itself; others say so by an attribute `is_rowwise`."""
    return getattr(each, "is_rowwise", False) or (is_of_transformers(each) and type(each).__name__ in _ROWWISE)


def _end_tokens(config) -> list[int]:
    """From a number, a list of them, or a tensor."""
    return [] if config.eos_token_id is None else torch.as_tensor(config.eos_token_id).flatten().tolist()


def sample(decoder: Decoder, input_ids: torch.Tensor, processors, criteria, config, streamer):
    """Greedy search and sampling, as GenerationMixin has them. input_ids: (batch_size, length)."""
    eos, returns_dict = _end_tokens(config), config.return_dict_in_generate
    pad = config.pad_token_id if config.pad_token_id is None else int(config.pad_token_id)
    pad = eos[0] if pad is None and eos else pad
    scores = [] if returns_dict and config.output_scores else None
    raw = [] if returns_dict and config.output_logits else None
    fills = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
    may_leave = fills and pad is not None and scores is None and raw is None and not (config.do_sample or streamer)
    may_leave = may_leave and all(map(_is_rowwise, [*criteria, *processors]))
    sequences, rows = input_ids, torch.arange(len(input_ids), device=input_ids.device)
    done = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    log_probs = torch.zeros(len(rows), device=rows.device)
    left: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # rows of the batch, tokens, log_probs
    while True:
        logits = decoder(sequences)
        of_model = logits.clone() if returns_dict and processors else logits  # some processors write into what they get
        ranked = processors(sequences, logits)
        if config.do_sample:
            chosen = torch.multinomial(ranked.softmax(dim=-1), num_samples=1).squeeze(1)
        else:
            chosen = ranked.argmax(dim=-1)
        if scores is not None:
            scores.append(ranked)
        if raw is not None:
            raw.append(logits)
        if returns_dict:
            said = of_model.gather(1, chosen[:, None]).squeeze(1) - of_model.logsumexp(dim=-1)
            log_probs += said.masked_fill(done, 0.0)
        if fills:
            chosen = torch.where(done, pad, chosen)
        sequences = torch.cat([sequences, chosen[:, None]], dim=1)
        if streamer is not None:
            streamer.put(chosen.cpu())
        done = done | criteria(sequences, None if scores is None else tuple(scores))
        number = int(done.sum())
        if number == len(done):
            break
        if may_leave and number >= max(1, _SHARE_THAT_LEAVES * len(done)):
            left.append((rows[done], sequences[done], log_probs[done]))
            stay = (~done).nonzero().squeeze(1)
            decoder.cache.move(stay)
            decoder.keep(stay)
            rows, sequences, log_probs, done = rows[stay], sequences[stay], log_probs[stay], done[stay]
    if streamer is not None:
        streamer.end()
    if left:
        found, found_log_probs = sequences.new_full((len(input_ids), sequences.shape[1]), pad), log_probs
        log_probs = log_probs.new_zeros(len(input_ids))
        for places, tokens, each in [*left, (rows, sequences, found_log_probs)]:
            found[places, : tokens.shape[1]], log_probs[places] = tokens, each
        sequences = found
    if not returns_dict:
        return sequences
    optional = {"scores": None if scores is None else tuple(scores), "logits": None if raw is None else tuple(raw)}
    return SearchOutput(sequences=sequences, **optional, log_probabilities=log_probs)


# Several hypotheses a sentence, by name: tokens (sentences, hypotheses, length); rows, of the batch, that each token
# was found in, (sentences, hypotheses, new length); scores; log_probs, by the model; and is_done, of finished ones.
Hypotheses = dict[str, torch.Tensor]


def _pick(hypotheses: Hypotheses, index: torch.Tensor) -> Hypotheses:
    """index: (sentences, chosen)."""
    deep = index[..., None]
    return {
        name: value.gather(1, index if value.ndim == 2 else deep.expand(-1, -1, value.shape[2]))
        for name, value in hypotheses.items()
    }


def _lengthen(values: torch.Tensor, last: torch.Tensor | int) -> torch.Tensor:
    """(sentences, hypotheses, length) and (sentences, hypotheses) to length + 1."""
    if isinstance(last, int):
        return nn.functional.pad(values, (0, 1), value=last)
    return torch.cat([values, last[..., None]], dim=2)


def beam_search(decoder: Decoder, input_ids: torch.Tensor, processors, criteria, config):
    """Beam search, as GenerationMixin has it. input_ids: (sentences * beams, length)."""
    device, returns_dict = input_ids.device, config.return_dict_in_generate
    beams, early, penalty, start = config.num_beams, config.early_stopping, config.length_penalty, input_ids.shape[1]
    size = len(input_ids) // beams
    eos = _end_tokens(config)
    keep = max(2, 1 + len(eos)) * beams  # one more than may end at once, so that as many as there are beams go on
    may_finish = torch.arange(keep, device=device) < beams
    fill = int(config.pad_token_id or eos[0]) if eos else -1
    scores = [] if returns_dict and config.output_scores else None
    raw = [] if returns_dict and config.output_logits else None
    may_leave = scores is None and raw is None and all(map(_is_rowwise, [*criteria, *processors]))
    may_reuse = all(map(is_of_transformers, processors))  # memory of all steps, since fresh memory is slow to touch

    zeros = torch.zeros(size, beams, device=device)
    running = {
        "tokens": input_ids.unflatten(0, (size, beams)),
        "rows": input_ids.new_zeros(size, beams, 0),
        "scores": zeros.index_fill(1, torch.arange(1, beams, device=device), _FAR),  # beams are alike at first
        "log_probs": zeros,
    }
    finished = running | {"scores": zeros + _FAR, "is_done": zeros.bool()}
    can_improve = torch.ones(size, 1, dtype=torch.bool, device=device)
    sentences = torch.arange(size, device=device)  # those that are still in the batch
    left: list[tuple[torch.Tensor, Hypotheses]] = []
    room = None
    while True:
        tokens = running["tokens"].flatten(0, 1)
        logits = decoder(tokens)
        if room is None or not may_reuse:
            room = torch.empty_like(logits)
        log_probs = ranked = torch.log_softmax(logits, dim=-1, out=room[: len(logits)])
        if processors:
            normaliser = logits[:, :1] - log_probs[:, :1]
            ranked = processors(tokens, log_probs)
        if scores is not None:
            scores.append(ranked.clone())
        if raw is not None:
            raw.append(logits)

        # The best continuations of each sentence, (size, keep).
        values, candidates = best_tokens(ranked, min(keep, ranked.shape[1]))  # (size * beams, width)
        width = candidates.shape[1]
        best, places = (values.unflatten(0, (size, beams)) + running["scores"][..., None]).flatten(1).topk(keep)
        parents = places // width
        chosen = candidates.view(size, -1).gather(1, places)
        grown = _pick(running, parents)
        if processors:
            of_model = (logits.gather(1, candidates) - normaliser).view(size, -1).gather(1, places)
            grown["log_probs"] = grown["log_probs"] + of_model
        else:
            grown["log_probs"] = best
        grown["tokens"] = _lengthen(grown["tokens"], chosen)
        grown["rows"] = _lengthen(grown["rows"], parents + sentences[:, None] * beams)
        length = grown["rows"].shape[2]
        hits = criteria(grown["tokens"].flatten(0, 1), None if scores is None else tuple(scores)).view(size, keep)

        # Those that go on: the best that have not ended.
        going = best + hits.float() * _FAR
        order = going.topk(beams).indices
        running = _pick(grown | {"scores": going}, order)
        moved = (parents.gather(1, order) + torch.arange(size, device=device)[:, None] * beams).flatten()

        # Those that have ended, if they are among the best, beside those that had ended before.
        ended = hits & may_finish
        full = finished["is_done"].all(dim=1, keepdim=True) & (early is True)
        final = best / length**penalty
        final = final + full.float() * _FAR + (~can_improve).float() * _FAR + (~ended).float() * _FAR
        ending = grown | {"scores": final, "is_done": ended}
        finished["tokens"], finished["rows"] = _lengthen(finished["tokens"], fill), _lengthen(finished["rows"], -1)
        merged = {name: torch.cat([finished[name], ending[name]], dim=1) for name in finished}
        finished = _pick(merged, merged["scores"].topk(beams).indices)

        # A sentence is done if none of its beams can become better than the worst that it has finished.
        longest = config.max_length - start if early == "never" and penalty > 0.0 else length
        possible = running["scores"][:, :1] / longest**penalty
        worst = torch.where(finished["is_done"], finished["scores"].amin(dim=1, keepdim=True), _FAR)
        can_improve = can_improve & (possible > worst).any(dim=1, keepdim=True)
        all_done = finished["is_done"].all(dim=1) if early is True else torch.zeros_like(sentences, dtype=torch.bool)
        done = ~can_improve.squeeze(1) | all_done
        if may_leave:
            is_last = bool(done.all() or hits.all())
        else:  # the steps are counted: exactly where GenerationMixin ends
            is_last = bool(not can_improve.any() or all_done.all() or hits.all())
        if is_last:
            break
        if may_leave and done.sum() >= max(1, _SHARE_THAT_LEAVES * size):
            left.append((sentences[done], {name: value[done] for name, value in finished.items()}))
            stay = (~done).nonzero().squeeze(1)
            moved = moved.view(size, beams)[stay].flatten()
            running = {name: value[stay] for name, value in running.items()}
            finished = {name: value[stay] for name, value in finished.items()}
            sentences, can_improve, size = sentences[stay], can_improve[stay], len(stay)
            decoder.cache.move(moved)
            decoder.keep(stay)
        else:
            decoder.cache.move(moved)

    left.append((sentences, finished))
    kept, total = config.num_return_sequences, sum(len(places) for places, _ in left)
    generated = max(int((each["rows"][:, :kept] >= 0).sum(dim=2).max()) for _, each in left)
    result = {
        "tokens": input_ids.new_full((total, kept, start + generated), fill),
        "rows": input_ids.new_full((total, kept, generated), -1),
        "scores": zeros.new_zeros(total, kept),
        "log_probs": zeros.new_zeros(total, kept),
    }
    for places, each in left:
        for name, value in result.items():
            part = each[name][:, :kept, : value.shape[2]] if value.ndim == 3 else each[name][:, :kept]
            value[(places, ..., slice(part.shape[2])) if value.ndim == 3 else places] = part
    result = {name: value.flatten(0, 1) for name, value in result.items()}
    if not returns_dict:
        return result["tokens"]
    return BeamSearchOutput(
        sequences=result["tokens"],
        sequences_scores=None if scores is None else result["scores"],
        scores=None if scores is None else tuple(scores),
        logits=None if raw is None else tuple(raw),
        beam_indices=result["rows"].int(),
        log_probabilities=result["log_probs"],
    )

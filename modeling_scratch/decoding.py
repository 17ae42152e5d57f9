"""
Greedy and beam search for `generate()` as GenerationMixin has them, faster: only the best tokens of each beam are
compared, the source's keys and values are not moved when beams change places, and sentences that are done leave the
batch.
"""

from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import (
    EosTokenCriteria,
    GenerationMixin,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)
from transformers.modeling_outputs import BaseModelOutput

from .decoder_steps import DecoderSteps, can_step
from .masking import count_positions

# What `generate` hands to the model in plain search; where it was given anything else, the inherited loops run.
_PLAIN_INPUTS = {"encoder_outputs", "attention_mask", "past_key_values", "use_cache"}
# So many of the batch must be done before the others are moved together: to move them costs a copy of the caches.
_SHARE_THAT_LEAVES = 0.25
# Criteria that judge each row by itself: others may remember which row is which, so that none leaves.
_ROWWISE = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria, StopStringCriteria)
_BLOCK = 64  # tokens of the vocabulary whose largest logit is compared first


def best_tokens(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `torch.topk`, several times faster on the CPU for a large vocabulary: the best tokens are in the blocks with the
    largest maxima.

    Args:
        scores: (rows, vocabulary).

    Returns:
        The largest scores, descending, and their tokens, (rows, count) each.
    """
    rows, vocabulary = scores.shape
    blocks = vocabulary // _BLOCK
    if blocks <= 2 * count or scores.device.type != "cpu":
        return scores.topk(count)
    blocked = scores[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK))
    chosen = blocked.amax(dim=2).topk(count).indices  # (rows, count)
    candidates = blocked.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)  # (rows, count * _BLOCK)
    tokens = (chosen[..., None] * _BLOCK + torch.arange(_BLOCK, device="cpu")).flatten(1)
    rest = torch.arange(blocks * _BLOCK, vocabulary, device="cpu").expand(rows, -1)
    candidates, tokens = torch.cat([candidates, scores[:, blocks * _BLOCK :]], dim=1), torch.cat([tokens, rest], dim=1)
    values, places = candidates.topk(count)
    return values, tokens.gather(1, places)


def _rows_of(sentences: torch.Tensor, beams: int) -> torch.Tensor:
    return (sentences[:, None] * beams + torch.arange(beams, device=sentences.device)).flatten()


class ScratchDecoding(GenerationMixin):
    """
    The two loops. What they do not know (sampling, processors, scores, other caches, a model that something has
    changed) the inherited ones do.
    """

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs) -> dict[str, Any]:
        # A static cache turns the decoder's mask into a 4-D one, from which positions can no longer be counted.
        mask = kwargs.get("decoder_attention_mask")
        if mask is not None and mask.ndim == 2 and kwargs.get("decoder_position_ids") is None:
            kwargs["decoder_position_ids"] = count_positions(mask, mask.shape[1], 0, mask.device)
        return super().prepare_inputs_for_generation(input_ids, **kwargs)

    def _reorder_cache(self, past_key_values: EncoderDecoderCache, beam_idx: torch.Tensor) -> EncoderDecoderCache:
        """Beams change places within a sentence, and those of one sentence have one source."""
        past_key_values.self_attention_cache.reorder_cache(beam_idx)
        return past_key_values

    def _is_plain(
        self,
        input_ids: torch.Tensor,
        config: GenerationConfig,
        processors: LogitsProcessorList,
        synced_gpus: bool,
        kwargs: dict[str, Any],
    ) -> bool:
        """Whether the loops below do what the inherited ones would, with arguments as those have them."""
        cache, states, mask = (kwargs.get(name) for name in ("past_key_values", "encoder_outputs", "attention_mask"))
        # An adapter that prepends to what the model reads changes this method of the instance.
        prepare = getattr(self.prepare_inputs_for_generation, "__func__", None)
        return (
            not (config.do_sample or config.return_dict_in_generate or processors or synced_gpus)
            and config.prefill_chunk_size is None
            and config.cache_implementation in (None, "dynamic")
            and not config.low_memory
            and bool(kwargs.get("use_cache"))
            and {name for name, value in kwargs.items() if value is not None and value is not False} <= _PLAIN_INPUTS
            and type(cache) is EncoderDecoderCache
            and type(cache.self_attention_cache) is type(cache.cross_attention_cache) is DynamicCache
            and not (cache.get_seq_length() or getattr(cache, "_is_user_defined", False))
            and isinstance(states, BaseModelOutput)
            and len(states.last_hidden_state) == len(input_ids)
            and (mask is None or (mask.shape == states.last_hidden_state.shape[:2] and not mask.is_floating_point()))
            and prepare is ScratchDecoding.prepare_inputs_for_generation
            and can_step(self)
        )

    def _leave_at(self, criteria: StoppingCriteriaList, rows: int) -> float:
        """So many of the rows must be done before they leave."""
        rowwise = all(type(each) in _ROWWISE or getattr(each, "is_rowwise", False) for each in criteria)
        return max(1.0, _SHARE_THAT_LEAVES * rows) if rowwise else float("inf")

    def _steps(self, kwargs: dict[str, Any], beams: int) -> DecoderSteps:
        states, mask = kwargs["encoder_outputs"].last_hidden_state, kwargs.get("attention_mask")
        return DecoderSteps(self, states[::beams], None if mask is None else mask[::beams], beams)

    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs,
    ):
        """Greedy search; sampling is inherited. Arguments and result as GenerationMixin has them."""
        inputs = input_ids, generation_config, logits_processor, synced_gpus, model_kwargs
        if streamer is not None or generation_config.is_assistant or not self._is_plain(*inputs):
            return super()._sample(
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus=synced_gpus,
                streamer=streamer,
                **model_kwargs,
            )
        steps, pad, sequences = self._steps(model_kwargs, 1), generation_config._pad_token_tensor, input_ids
        ends = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
        finished: list[tuple[torch.Tensor, torch.Tensor]] = []  # rows of the batch, and their tokens
        rows = torch.arange(len(input_ids), device=input_ids.device)
        done = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        tokens = input_ids
        while True:
            chosen = steps(tokens).float().argmax(dim=-1)
            if ends and pad is not None:
                chosen = torch.where(done, pad, chosen)
            sequences = torch.cat([sequences, chosen[:, None]], dim=1)
            done = done | stopping_criteria(sequences, None)
            number = int(done.sum())
            if number == len(done):
                break
            # Without an end token, what a stop string has ended goes on until all are done.
            if ends and pad is not None and number >= self._leave_at(stopping_criteria, len(done)):
                finished.append((rows[done], sequences[done]))
                stay = (~done).nonzero().squeeze(1)
                steps.move(stay)
                steps.keep(stay)
                rows, sequences, done = rows[stay], sequences[stay], done[stay]
            tokens = sequences[:, -1:]
        if not finished:
            return sequences
        result = sequences.new_full((len(input_ids), sequences.shape[1]), int(pad))
        for places, found in [*finished, (rows, sequences)]:
            result[places, : found.shape[1]] = found
        return result

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs,
    ):
        """Beam search. Arguments and result as GenerationMixin has them, whose steps these are."""
        if not self._is_plain(input_ids, generation_config, logits_processor, synced_gpus, model_kwargs):
            return super()._beam_search(
                input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, **model_kwargs
            )
        config, device = generation_config, input_ids.device
        beams, early, penalty = config.num_beams, config.early_stopping, config.length_penalty
        start = length = input_ids.shape[1]
        size = len(input_ids) // beams
        pad, eos = config._pad_token_tensor, config._eos_token_tensor
        # One more than may end at once, so that as many as there are beams go on.
        keep = max(2, 1 + (0 if eos is None else len(eos))) * beams
        may_finish = torch.arange(keep, device=device) < beams
        fill = (pad or eos[0]) if eos is not None else -1

        running = torch.full((size, beams, config.max_length), int(fill), dtype=torch.long, device=device)
        running[:, :, :start] = input_ids.unflatten(0, (size, beams))
        running_scores = torch.zeros(size, beams, device=device)
        running_scores[:, 1:] = -1e9  # the beams of a sentence are alike at first
        running_indices = torch.full((size, beams, config.max_length - start), -1, dtype=torch.int32, device=device)
        sequences, indices = running.clone(), running_indices.clone()
        scores = torch.full((size, beams), -1e9, device=device)
        is_finished = torch.zeros(size, beams, dtype=torch.bool, device=device)
        can_improve = torch.ones(size, 1, dtype=torch.bool, device=device)

        rows = torch.arange(size, device=device)  # sentences that are still in the batch
        found_sequences, found_indices = sequences.clone(), indices.clone()
        steps, tokens, room = self._steps(model_kwargs, beams), input_ids, None
        while True:
            logits = steps(tokens).float()
            room = torch.empty_like(logits) if room is None else room  # of all steps: fresh memory is slow to touch
            log_probs = torch.log_softmax(logits, dim=-1, out=room[: len(logits)])
            values, candidates = best_tokens(log_probs, min(keep, log_probs.shape[1]))  # (size * beams, keep)
            width = candidates.shape[1]
            totals = (values.unflatten(0, (size, beams)) + running_scores[..., None]).flatten(1)
            topk_scores, topk_running, topk_indices = self._get_top_k_continuations(
                accumulated_log_probs=totals,
                running_sequences=running,
                running_beam_indices=running_indices,
                cur_len=length,
                decoder_prompt_len=start,
                do_sample=False,
                beams_to_keep=keep,
                num_beams=beams,
                batch_size=size,
            )
            # It takes places among the candidates for tokens.
            places = topk_indices[:, :, length - start].long() * width + topk_running[:, :, length]
            topk_running[:, :, length] = candidates.flatten()[places]
            hits = stopping_criteria(topk_running[:, :, : length + 1].flatten(0, 1), None).unflatten(0, (size, keep))
            running, running_scores, running_indices = self._get_running_beams_for_next_iteration(
                topk_log_probs=topk_scores,
                topk_running_sequences=topk_running,
                topk_running_beam_indices=topk_indices,
                next_token_hits_stopping_criteria=hits,
                num_beams=beams,
            )
            sequences, scores, indices, is_finished = self._update_finished_beams(
                sequences=sequences,
                topk_running_sequences=topk_running,
                beam_scores=scores,
                topk_log_probs=topk_scores,
                beam_indices=indices,
                topk_running_beam_indices=topk_indices,
                is_early_stop_heuristic_unsatisfied=can_improve,
                is_sent_finished=is_finished,
                next_token_hits_stopping_criteria=hits,
                top_num_beam_mask=may_finish,
                num_beams=beams,
                cur_len=length,
                decoder_prompt_len=start,
                length_penalty=penalty,
                early_stopping=early,
            )
            beam_idx = running_indices[:, :, length - start].flatten()
            length += 1
            can_improve = self._check_early_stop_heuristic(
                is_early_stop_heuristic_unsatisfied=can_improve,
                running_beam_scores=running_scores,
                beam_scores=scores,
                is_sent_finished=is_finished,
                cur_len=length,
                max_length=config.max_length,
                decoder_prompt_len=start,
                early_stopping=early,
                length_penalty=penalty,
            )
            # Nothing can change any more in what is done: a worse hypothesis does not replace a better one.
            done = ~can_improve.squeeze(1) | (is_finished.all(dim=1) if early is True else False)
            is_last, leave = bool(done.all() or hits.all()), done.sum() >= self._leave_at(stopping_criteria, size)
            if is_last or leave:
                found_sequences[rows], found_indices[rows] = sequences, indices
            if is_last:
                break
            if leave:
                stay = (~done).nonzero().squeeze(1)
                steps.move(beam_idx.index_select(0, _rows_of(stay, beams)))
                steps.keep(stay)
                rows, size = rows[stay], len(stay)
                running, running_scores, running_indices = running[stay], running_scores[stay], running_indices[stay]
                sequences, scores, indices = sequences[stay], scores[stay], indices[stay]
                is_finished, can_improve = is_finished[stay], can_improve[stay]
            else:
                steps.move(beam_idx)
            tokens = running[:, :, length - 1].flatten()[:, None]

        kept = config.num_return_sequences
        generated = int((found_indices[:, :kept] >= 0).sum(dim=2).max())  # by the longest hypothesis
        return found_sequences[:, :kept, : start + generated].flatten(0, 1)

"""
Our own search loops: greedy search, sampling and beam search that choose as Transformers' do, but faster.

`ScratchForConditionalGeneration.generate` calls `search` at the end of this file, which decides whether these loops
support the arguments. If so, it calls Transformers' `generate`, which prepares config, processors, criteria and the
encoded source, and hands them to `_run` (its argument custom_generate). `_run` calls `sample` or `beam_search`; both
step the model with a `Decoder`. Otherwise Transformers' `generate` runs its own loops.
"""

import copy
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.generation import (
    GenerateBeamEncoderDecoderOutput,
    GenerateEncoderDecoderOutput,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from .batched_generation import setting_of
from .masking import as_bias

logger = logging.get_logger(__name__)

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
        bias: over the source, (sentences, 1, 1, source_length); None: attend to everything.
        beams: rows per sentence; they are consecutive and start out identical.
    """

    def __init__(self, model: nn.Module, states: torch.Tensor, bias: torch.Tensor | None, beams: int):
        self.model, self.beams, self.cache = model, beams, model.new_search_cache()
        self.states, self.bias = states, bias

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """
        Args:
            tokens: (rows, length), all tokens so far.

        Returns:
            The logits of the next token, (rows, vocabulary), in float32.
        """
        past_length = self.cache.get_seq_length()
        new = tokens[:, past_length:] if past_length else tokens[:: self.beams]
        logits = self.model(
            decoder_input_ids=new,
            encoder_outputs=BaseModelOutput(last_hidden_state=self.states),
            attention_mask=self.bias,
            past_key_values=self.cache,
            use_cache=True,
            output_attentions=False,
            output_hidden_states=False,
            return_dict=True,
        ).logits[:, -1]
        logits = logits.float()
        self.cache.advance(new.shape[1])
        if past_length or self.beams == 1:
            return logits
        self.cache.branch(self.beams)
        return logits.repeat_interleave(self.beams, dim=0)

    def reorder(self, parents: torch.Tensor) -> None:
        """Beam i of each sentence continues the sentence's previous beam `parents[sentence, i]` with a new token."""
        self.cache.reorder(parents)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Keep only these sentences."""
        self.cache.keep_sentences(sentences)
        self.states = self.states.index_select(0, sentences)
        self.bias = None if self.bias is None else self.bias.index_select(0, sentences)


def is_named(rule: Any, names: set[str]) -> bool:
    """
    Whether a stopping criterion or logits processor is one of these classes of Transformers. They are not imported,
    since our search must not depend on whether a release has them.
    """
    return type(rule).__module__.startswith("transformers.") and type(rule).__name__ in names


def is_rowwise(rule: Any) -> bool:
    """Whether a criterion or processor treats rows independently; a custom one says so in an attribute `is_rowwise`."""
    if isinstance(getattr(rule, "prompt_ignore_length", None), torch.Tensor):  # one for each row
        return False
    return getattr(rule, "is_rowwise", False) or is_named(rule, _ROWWISE)


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
    pad = next((int(token) for token in (config.pad_token_id, *ends) if token is not None), None)
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
            chosen = ranked.argmax(dim=-1)
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


_ELEMENTS = 2**18  # scores that beam search processes at a time on a CPU, where touching fresh memory is slow
_FAR = -1e9  # what Transformers adds to the score of a hypothesis that must not be chosen

# Several hypotheses per sentence: tokens, (sentences, hypotheses, length); rows, the batch row that each token extends,
# (sentences, hypotheses, new tokens); scores and log_probs (under the model), (sentences, hypotheses); for finished
# hypotheses also is_done, (sentences, hypotheses).
Hypotheses = dict[str, torch.Tensor]


@dataclass
class BeamSearchOutput(GenerateBeamEncoderDecoderOutput):
    """Adds log_probabilities, as in SearchOutput."""

    log_probabilities: torch.FloatTensor | None = None


def _pick(hypotheses: Hypotheses, index: torch.Tensor) -> Hypotheses:
    """The hypotheses of each sentence that `index`, (sentences, picked), selects."""
    deep = index[..., None]
    return {
        name: value.gather(1, index if value.ndim == 2 else deep.expand(-1, -1, value.shape[2]))
        for name, value in hypotheses.items()
    }


def _append(values: torch.Tensor, last: torch.Tensor | int) -> torch.Tensor:
    """Append one element per hypothesis: (sentences, hypotheses, length) to length + 1."""
    if isinstance(last, int):
        return nn.functional.pad(values, (0, 1), value=last)
    return torch.cat([values, last[..., None]], dim=2)


def _split_banned(processors: LogitsProcessorList, vocabulary: int) -> tuple[list[int], LogitsProcessorList]:
    """
    The tokens that the first processor bans, if it does nothing else, and the other processors. Every OPUS-MT model has
    such a processor. It adds a tensor as large as the logits, which takes up to a sixth of the search.
    """
    if processors and is_named(processors[0], {"NoBadWordsLogitsProcessor"}):
        sequences = list(getattr(processors[0], "sequence_bias", ()))
        if sequences and all(len(tokens) == 1 and tokens[0] < vocabulary for tokens in sequences):
            return [token for (token,) in sequences], LogitsProcessorList(processors[1:])
    return [], processors


def beam_search(
    decoder: Decoder,
    input_ids: torch.Tensor,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
) -> torch.Tensor | BeamSearchOutput:
    """Beam search, as in GenerationMixin. input_ids: (sentences * beams, length)."""
    search = _BeamSearch(decoder, input_ids, processors, criteria, config)
    while True:
        continuations, ended, parents = search.extend()
        parents = search.select_running(continuations, ended, parents)
        search.collect_finished(continuations, ended)
        done, is_last = search.find_done(ended)
        if is_last:
            return search.result()
        search.next_step(parents, done)


class _BeamSearch:
    """
    The state of a beam search: `size` sentences still in the batch, each with `beams` running and as many finished
    hypotheses.
    """

    def __init__(self, decoder, input_ids, processors, criteria, config):
        self.decoder, self.criteria, self.config = decoder, criteria, config
        self.beams, self.prompt_length, device = config.num_beams, input_ids.shape[1], input_ids.device
        banned, self.processors = _split_banned(processors, decoder.model.config.target_vocab_size)
        self.banned = torch.tensor(banned, dtype=torch.long, device=device)
        self.size = len(input_ids) // self.beams
        eos = end_tokens(config)
        # Enough continuations that at least `beams` of them have not ended.
        self.width = max(2, 1 + len(eos)) * self.beams
        self.may_finish = torch.arange(self.width, device=device) < self.beams
        self.fill = int(config.pad_token_id or eos[0]) if eos else -1
        self.scores = [] if config.return_dict_in_generate and config.output_scores else None
        self.logits = [] if config.return_dict_in_generate and config.output_logits else None
        self.may_leave = self.scores is None and self.logits is None and all(map(is_rowwise, [*criteria, *processors]))

        zeros = torch.zeros(self.size, self.beams, dtype=torch.float32, device=device)
        self.running: Hypotheses = {
            "tokens": input_ids.unflatten(0, (self.size, self.beams)),
            "rows": input_ids.new_zeros(self.size, self.beams, 0),
            # The beams start out identical, so only the first may be continued.
            "scores": zeros.index_fill(1, torch.arange(1, self.beams, device=device), _FAR),
            "log_probs": zeros,
        }
        self.finished: Hypotheses = self.running | {"scores": zeros + _FAR, "log_probs": zeros - torch.inf}
        self.finished["is_done"] = zeros.bool()
        self.can_improve = torch.ones(self.size, 1, dtype=torch.bool, device=device)
        self.sentences = torch.arange(self.size, device=device)  # indices of those still in the batch
        self.left: list[tuple[torch.Tensor, Hypotheses]] = []

    def extend(self) -> tuple[Hypotheses, torch.Tensor, torch.Tensor]:
        """
        One decoding step.

        Returns:
            The `width` best continuations of each sentence; whether each has ended; and the beam that each extends,
            (size, width).
        """
        tokens = self.running["tokens"].flatten(0, 1)
        logits = self.decoder(tokens)
        if self.logits is not None:
            self.logits.append(logits)
        in_parts = self.may_leave and logits.device.type == "cpu"
        rows = max(1, _ELEMENTS // logits.shape[1]) if in_parts else len(logits)
        parts = map(self.rank, tokens.split(rows), logits.split(rows))
        # The best tokens of each beam, (size, beams, most), and among them those of all beams, (size, width).
        added, found = (torch.cat(part).unflatten(0, (self.size, self.beams)) for part in zip(*parts, strict=True))
        best, places = (self.running["scores"][..., None] + added).flatten(1).topk(self.width)
        parents, chosen = places // added.shape[2], found.flatten(1).gather(1, places)
        continuations = _pick(self.running, parents) | {"scores": best, "log_probs": best}
        if self.processors and self.config.return_dict_in_generate:  # then the search's own scores are not the model's
            extended = parents + torch.arange(self.size, device=parents.device)[:, None] * self.beams  # rows
            by_model = logits[extended, chosen] - logits.logsumexp(dim=-1)[extended]
            continuations["log_probs"] = self.running["log_probs"].gather(1, parents) + by_model
        continuations["tokens"] = _append(continuations["tokens"], chosen)
        continuations["rows"] = _append(continuations["rows"], parents + self.sentences[:, None] * self.beams)
        scores = None if self.scores is None else tuple(self.scores)
        ended = self.criteria(continuations["tokens"].flatten(0, 1), scores).view(self.size, self.width)
        return continuations, ended, parents

    def rank(self, tokens: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The processed scores of the best next tokens of some rows, and these tokens, (rows, most) each."""
        log_probs = logits.log_softmax(dim=-1)
        if len(self.banned):
            log_probs[:, self.banned] = -torch.inf
        ranked = self.processors(tokens, log_probs) if self.processors else log_probs
        if self.scores is not None:
            self.scores.append(ranked.clone())
        return ranked.topk(min(self.width, ranked.shape[1]))

    def select_running(self, continuations: Hypotheses, ended: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Continue the best hypotheses that have not ended. Returns the beam that each extends, (size, beams)."""
        scores = continuations["scores"] + ended.float() * _FAR
        order = scores.topk(self.beams).indices
        self.running = _pick(continuations | {"scores": scores}, order)
        return parents.gather(1, order)

    def collect_finished(self, continuations: Hypotheses, ended: torch.Tensor) -> None:
        """Keep the best finished hypotheses, from earlier steps and from the `beams` best continuations of this one."""
        ended = ended & self.may_finish
        is_full = self.finished["is_done"].all(dim=1, keepdim=True) & (self.config.early_stopping is True)
        scores = continuations["scores"] / continuations["rows"].shape[2] ** self.config.length_penalty
        # Added up as in GenerationMixin, so that ties between hypotheses that must not be chosen are broken alike.
        scores = scores + is_full.float() * _FAR + (~self.can_improve).float() * _FAR + (~ended).float() * _FAR
        is_none = ~ended | (continuations["scores"] <= _FAR / 2)  # of what must not be chosen, but fills up the beams
        log_probs = continuations["log_probs"].masked_fill(is_none, -torch.inf)
        new = continuations | {"scores": scores, "is_done": ended, "log_probs": log_probs}
        self.finished["tokens"] = _append(self.finished["tokens"], self.fill)
        self.finished["rows"] = _append(self.finished["rows"], -1)
        merged = {name: torch.cat([value, new[name]], dim=1) for name, value in self.finished.items()}
        self.finished = _pick(merged, merged["scores"].topk(self.beams).indices)

    def find_done(self, ended: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """
        Which sentences are done, because no beam can beat their worst finished hypothesis or, with early stopping,
        because they have enough finished ones; and whether the search ends.
        """
        early, penalty = self.config.early_stopping, self.config.length_penalty
        length = self.running["rows"].shape[2]
        if early == "never" and penalty > 0.0:
            length = self.config.max_length - self.prompt_length
        possible = self.running["scores"][:, :1] / length**penalty
        is_done = self.finished["is_done"]
        worst = torch.where(is_done, self.finished["scores"].amin(dim=1, keepdim=True), _FAR)
        self.can_improve = self.can_improve & (possible > worst).any(dim=1, keepdim=True)
        is_full = is_done.all(dim=1) if early is True else torch.zeros_like(self.sentences, dtype=torch.bool)
        done = ~self.can_improve.squeeze(1) | is_full
        if self.may_leave:
            return done, bool(done.all() or ended.all())
        # If scores or logits are returned, or a criterion or processor is not row-wise, stop exactly where
        # GenerationMixin stops.
        return done, bool(not self.can_improve.any() or is_full.all() or ended.all())

    def next_step(self, parents: torch.Tensor, done: torch.Tensor) -> None:
        """Remove the sentences that are done, if that pays, and reorder the cache for the running hypotheses."""
        if self.may_leave and is_worth_removing(int(done.sum()), self.size):
            self.left.append((self.sentences[done], {name: value[done] for name, value in self.finished.items()}))
            stay = (~done).nonzero().squeeze(1)
            self.decoder.keep_sentences(stay)
            self.running = {name: value[stay] for name, value in self.running.items()}
            self.finished = {name: value[stay] for name, value in self.finished.items()}
            self.sentences, self.can_improve, self.size = self.sentences[stay], self.can_improve[stay], len(stay)
            parents = parents[stay]
        self.decoder.reorder(parents)

    def result(self) -> torch.Tensor | BeamSearchOutput:
        """The best finished hypotheses of all sentences, in the original order."""
        parts, kept = [*self.left, (self.sentences, self.finished)], self.config.num_return_sequences
        result = {
            name: put_back([(sentences, found[name][:, :kept]) for sentences, found in parts], fill).flatten(0, 1)
            for name, fill in (("tokens", self.fill), ("rows", -1), ("scores", 0.0), ("log_probs", 0.0))
        }
        generated = int((result["rows"] >= 0).sum(dim=1).max())
        result["tokens"] = result["tokens"][:, : self.prompt_length + generated]
        if not self.config.return_dict_in_generate:
            return result["tokens"]
        return BeamSearchOutput(
            sequences=result["tokens"],
            sequences_scores=None if self.scores is None else result["scores"],
            scores=None if self.scores is None else tuple(self.scores),
            logits=None if self.logits is None else tuple(self.logits),
            beam_indices=result["rows"][:, :generated].int(),
            log_probabilities=result["log_probs"],
        )


# Arguments of `generate` that our loops support, in addition to the fields of a GenerationConfig.
_ARGUMENTS = {"inputs", "input_ids", "inputs_embeds", "attention_mask", "position_ids", "encoder_outputs"}
_ARGUMENTS |= {"decoder_input_ids", "generation_config", "logits_processor", "stopping_criteria", "synced_gpus"}
_ARGUMENTS |= {"prefix_allowed_tokens_fn", "tokenizer", "trust_remote_code"}
# Fields of a GenerationConfig that our loops do not support.
_UNSUPPORTED = ("output_attentions", "output_hidden_states", "low_memory", "token_healing", "is_assistant")
_UNSUPPORTED += ("prompt_lookup_num_tokens", "penalty_alpha", "dola_layers", "constraints", "force_words_ids")
_MODES = ("greedy_search", "sample", "beam_search")


class _Unsupported(Exception):
    """Transformers' loops must run instead. The message, if any, says what this release lacks."""


def search(model: nn.Module, inherited: Callable, *args, **kwargs):
    """
    Generate with our own loops if they support these arguments, else as `inherited` does.

    Args:
        model: a ScratchForConditionalGeneration.
        inherited: the `generate` of GenerationMixin.
    """
    kwargs.pop("labels", None)  # from Seq2SeqTrainer; `generate` does not use them
    if not _is_supported(model, args, kwargs):
        return inherited(*args, **kwargs)
    ours = {name: value for name, value in kwargs.items() if name != "custom_generate"}
    if encoded := ours.get("encoder_outputs"):  # a copy, because `generate` expands its tensors in place
        ours["encoder_outputs"] = BaseModelOutput(*encoded) if isinstance(encoded, tuple) else copy.copy(encoded)
    has_config = len(args) > 1 or kwargs.get("generation_config")  # to which `generate` wants no argument added
    if not has_config and setting_of(model, kwargs, "cache_implementation") is None:
        ours["use_cache"] = False  # our loops have a cache of their own
    tokenizer, stop_strings = ours.pop("tokenizer", None), ours.pop("stop_strings", None)
    if stop_strings:  # `generate` makes this criterion only for its own loops
        criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)
        ours["stopping_criteria"] = StoppingCriteriaList([*(kwargs.get("stopping_criteria") or []), criterion])
    try:
        if "custom_generate" not in inspect.signature(GenerationMixin.generate).parameters:
            raise _Unsupported("custom_generate missing")
        return inherited(*args, **ours, custom_generate=_run)  # prepares its arguments, then calls `_run`
    except _Unsupported as reason:
        if str(reason):
            logger.warning_once(
                f"this release of Transformers does not support this project's search loops ({reason}): generation is "
                "slower"
            )
        return inherited(*args, **kwargs)


def _is_distributed() -> bool:
    """Whether there is a process group, even of a single process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_supported(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether our loops do what `generate` with these arguments asks for."""
    given = {"generation_config": args[1] if len(args) > 1 else None} | kwargs
    setting = partial(setting_of, model, given)
    wanted = {name for name, value in kwargs.items() if value is not None and value is not False}
    if _is_distributed() and kwargs.get("synced_gpus") is None and torch.distributed.get_world_size() > 1:
        return False  # the processes of a sharded model must take the same steps
    # Stop strings cannot be taken out of a config, and `generate` would look for them without a tokenizer.
    stops_by_argument = kwargs.get("stop_strings") and kwargs.get("tokenizer")
    stops_by_config = setting_of(model, given | {"stop_strings": None}, "stop_strings")
    return bool(
        len(args) <= 2
        and not kwargs.get("synced_gpus")
        and all(name in _ARGUMENTS or hasattr(model.generation_config, name) for name in wanted)
        and not any(setting(name) for name in _UNSUPPORTED)
        and setting("cache_implementation") in (None, "dynamic")
        and setting("use_cache") is not False
        and not (setting("do_sample") and (setting("num_beams") or 1) > 1)
        and len(set(getattr(model, "hf_device_map", {}).values())) <= 1  # one index selects from all layers' caches
        and not model.training  # gradient checkpointing disables the cache in training mode
        and not stops_by_config
        and (stops_by_argument or not kwargs.get("stop_strings"))
    )


def _run(model: nn.Module, input_ids: torch.Tensor, *args, **prepared):
    """The `custom_generate` that `generate` calls with everything it has prepared."""
    names = ("logits_processor", "stopping_criteria", "generation_config", "encoder_outputs")
    if missing := [name for name in names if prepared.get(name) is None]:
        raise _Unsupported(f"{', '.join(missing)} missing")
    if not len(input_ids):
        raise ValueError("there is nothing to generate from: the batch has no rows")
    processors, criteria, config, encoded = (prepared[name] for name in names)
    states, mask = encoded["last_hidden_state"], prepared.get("attention_mask")
    if config.get_generation_mode().value not in _MODES or len(states) != len(input_ids):
        raise _Unsupported
    if mask is not None and mask.shape != states.shape[:2]:  # rows of a 4-D mask may be shared, so not be selected
        raise _Unsupported
    beams = config.num_beams or 1
    bias = as_bias(None if mask is None else mask[::beams], states.dtype)
    # Inference mode saves an eighth of the time of small steps. Custom processors and sharded models cannot handle its
    # tensors, and may replace parameters during the search; callers get ordinary tensors, cloned outside it.
    is_plain = all(map(_is_known, [*criteria, *processors])) and not _is_distributed()
    with torch.inference_mode() if is_plain else nullcontext():
        decoder = Decoder(model, states[::beams], bias, beams)
        if beams > 1:
            found = beam_search(decoder, input_ids, processors, criteria, config)
        else:
            found = sample(decoder, input_ids, processors, criteria, config)
    return _clone(found)


def _is_known(rule: Any) -> bool:
    """Whether a criterion or processor is of Transformers or of this package, so that it leaves the model alone."""
    return type(rule).__module__.partition(".")[0] in ("transformers", __name__.partition(".")[0])


def _clone(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return found.clone()
    if isinstance(found, tuple):
        return tuple(map(_clone, found))
    return type(found)(**{name: _clone(value) for name, value in found.items()})

"""Beam search, with the same hypotheses as Transformers' loop but faster (see search_loops.py)."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers.generation import (
    GenerateBeamEncoderDecoderOutput,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from .fast_cpu import best_continuations, best_tokens
from .search_loops import Decoder, end_tokens, is_named, is_of_transformers, is_rowwise, is_worth_removing, put_back

_ELEMENTS = 2**18  # given to logits processors at a time; more only if a single sentence's beams have more
# Logits processors that return what they are given, except at one step. There they allocate as much as any other.
_AT_ONE_STEP = {"ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"}
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
        records = self.scores is not None or self.logits is not None
        self.may_leave = not records and all(map(is_rowwise, [*criteria, *processors]))
        # Then a processor gets a few sentences at a time: it allocates tensors of the logits' size, and touching fresh
        # memory is slow.
        self.in_parts = self.may_leave and device.type == "cpu"
        self.in_parts = self.in_parts and not all(is_named(each, _AT_ONE_STEP) for each in self.processors)
        # One buffer for all steps, since touching fresh memory is slow; but custom processors might keep what they get.
        self.may_reuse_buffer = all(map(is_of_transformers, processors))
        self.buffer: torch.Tensor | None = None

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
        if self.buffer is None or not self.may_reuse_buffer:
            self.buffer = torch.empty_like(logits)
        log_probs = torch.log_softmax(logits, dim=-1, out=self.buffer[: len(logits)])
        scores_by_model = self.processors and self.config.return_dict_in_generate  # processors change the search's own
        if scores_by_model:
            # Before a processor modifies log_probs. Of the best token, which the model cannot have banned.
            top = best_tokens(logits)[:, None]
            normalizer = logits.gather(1, top) - log_probs.gather(1, top)
        if len(self.banned):
            log_probs[:, self.banned] -= torch.inf
        best, places = self.rank(tokens, log_probs)  # (size, width)
        if self.logits is not None:
            self.logits.append(logits)
        parents, chosen = places // logits.shape[1], places % logits.shape[1]
        continuations = _pick(self.running, parents) | {"scores": best}
        if scores_by_model:
            by_sentence = logits.unflatten(0, (self.size, self.beams)).flatten(1)
            by_model = by_sentence.gather(1, places) - normalizer.view(self.size, -1).gather(1, parents)
            continuations["log_probs"] = continuations["log_probs"] + by_model
        else:
            continuations["log_probs"] = best
        continuations["tokens"] = _append(continuations["tokens"], chosen)
        continuations["rows"] = _append(continuations["rows"], parents + self.sentences[:, None] * self.beams)
        scores = None if self.scores is None else tuple(self.scores)
        ended = self.criteria(continuations["tokens"].flatten(0, 1), scores).view(self.size, self.width)
        return continuations, ended, parents

    def rank(self, tokens: torch.Tensor, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The `width` best sums of a beam's score and its processed `log_probs`, and their places."""
        few = max(1, _ELEMENTS // (self.beams * log_probs.shape[1]))
        sentences = few if self.in_parts else self.size
        parts, rows = [], sentences * self.beams
        parts_of_all = (tokens.split(rows), log_probs.split(rows), self.running["scores"].split(sentences))
        for some_tokens, some, scores in zip(*parts_of_all, strict=True):
            ranked = self.processors(some_tokens, some) if self.processors else some
            if self.scores is not None:
                self.scores.append(ranked.clone())
            parts.append(best_continuations(ranked.unflatten(0, scores.shape), scores, self.width))
        return tuple(torch.cat(part) for part in zip(*parts, strict=True)) if len(parts) > 1 else parts[0]

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
        # If steps are recorded, or a criterion or processor is not row-wise, stop exactly where GenerationMixin stops.
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
        self.decoder.cache.reorder(parents)

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

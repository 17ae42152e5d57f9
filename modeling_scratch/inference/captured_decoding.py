"""
Decoding steps captured as CUDA graphs and replayed: a step has a hundred kernels or more, which a host takes longer to
launch than a GPU to run.

This has not run on a GPU yet; on a CPU, stand-ins for CUDA graphs are tested. It is therefore off unless
`capture_decoding` is called, and the first search by each captured step makes every step both ways and compares them.
"""

import logging
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import UserError
from ..model import ScratchForConditionalGeneration  # registers the model with the Auto classes
from ..model.search import Decoder, next_logits
from ..model.stacks import ScratchPreTrainedModel

logger = logging.getLogger(__name__)

_DEVICES = {"cuda"}  # where steps are captured
# Sizes are rounded up, so that few shapes occur: rows to powers of two; lengths of sources and numbers of steps to
# these times a power of two. Steps of a search that may take more of them are not captured: a cache has room for all.
_LEAST_SOURCE, _LEAST_STEPS, _MOST_STEPS = 16, 32, 256
_MOST_SHAPES = 8  # of which captured steps are kept; the one that was not used for longest makes room
# By how much, relative to the largest logit, a captured step may differ from a plain one. Rounding makes less of a
# difference, also where products are in bfloat16; a wrong token, position or cache makes more.
_TOLERANCE = 0.05
_CAPTURING = threading.Lock()  # CUDA allows one capture at a time in a process


def capture_decoding(model: PreTrainedModel) -> None:
    """
    Have `model.generate()` capture its decoding steps on a GPU, once for each shape of batch, and replay them. The
    values of weights may change afterwards; call this again after any other change to the model, such as new layers or
    hooks.

    Raises:
        UserError: the model is an ensemble, runs other code than this package's, or is not on a GPU.
    """
    if model.device.type not in _DEVICES:
        what = f"on the {model.device.type}"
    elif isinstance(model, ScratchForConditionalGeneration):
        vars(model)["faster_decoder"] = _CapturedSteps().decoder
        return
    elif isinstance(model, ScratchPreTrainedModel):
        what = "an ensemble"
    else:
        what = f"of other code, {type(model).__module__}; load one of this project without trust_remote_code"
    raise UserError(f"decoding steps are captured for one model on a GPU; this one is {what}")


class _FixedLayers:
    """
    Keys and values of one kind of attention in all layers, (sentences, heads, slots, head_dim) each, whose tensors keep
    their place. Self-attention writes those of the next token to `slots`; cross-attention writes all of them.
    """

    def __init__(self, size: int, slots: torch.Tensor | None = None):
        self.size, self.slots = size, slots
        self.layers: list[SimpleNamespace] = []  # with `keys` and `values`

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values, (sentences, heads, new slots, head_dim) each. Returns those of all slots."""
        if layer_idx == len(self.layers):
            shape = (*key.shape[:2], self.size, key.shape[3])
            self.layers.append(SimpleNamespace(keys=key.new_zeros(shape), values=value.new_zeros(shape)))
        layer = self.layers[layer_idx]
        for states, new in ((layer.keys, key), (layer.values, value)):
            if self.slots is None:
                states.copy_(new)
            else:
                states.index_copy_(2, self.slots, new)
        return layer.keys, layer.values


class FixedCache:
    """
    A SearchCache whose tensors keep their size and place, so that a step can be captured. The beams of a sentence share
    it in the same way, with a slot per step and beam, but no slot is dropped.

    Args:
        steps: the most target tokens.
        bias: of the model's dtype; its device is that of the cache.
    """

    def __init__(self, sentences: int, beams: int, source_length: int, steps: int, bias: torch.Tensor):
        self.beams, device = beams, bias.device
        self.beam, self.slot = torch.arange(beams, device=device), torch.arange(steps * beams, device=device)
        self.position = torch.zeros(1, 1, dtype=torch.long, device=device)  # of the next token
        self.slots = self.beam.clone()  # of the next tokens
        self.positions = (self.slot // beams)[None]  # of the token in each slot, (1, slots)
        # (sentences, 1, beams, slots): 0 where the slot's token belongs to the beam, else the dtype's minimum.
        self.bias = bias.new_empty(sentences, 1, beams, len(self.slot))
        self.self_attention_cache = _FixedLayers(len(self.slot), self.slots)
        self.cross_attention_cache = _FixedLayers(source_length)
        self.is_updated: dict[int, bool] = {}

    def query_positions(self) -> torch.Tensor:
        """The position of the next token, the same in all rows: (1, 1)."""
        return self.position

    def begin(self) -> None:
        """Begin a search."""
        for layer in self.self_attention_cache.layers:  # hidden values are added with weight 0, and 0 times NaN is NaN
            layer.keys.zero_()
            layer.values.zero_()
        self.bias.fill_(torch.finfo(self.bias.dtype).min)
        self.position.zero_()
        self.slots.copy_(self.beam)

    def open_step(self, parents: torch.Tensor, is_first: bool) -> None:
        """
        Beam i of each sentence continues the sentence's previous beam `parents[sentence, i]` with a new token. The
        first step also reads the source.
        """
        if self.beams > 1:
            self.bias.copy_(self.bias.gather(2, parents[:, None, :, None].expand(self.bias.shape)))
        self.bias.masked_fill_(self.slot == self.slots[:, None], 0.0)
        if is_first:
            self.is_updated.clear()

    def close_step(self) -> None:
        """Every layer has seen the new tokens."""
        self.position += 1
        self.slots += self.beams


class _CapturedStep:
    """
    The decoding step of a model for one shape; the first of a search also projects the source's states. The tensors
    that it reads keep their place.

    Args:
        sentences: rows of the source.
        beams: rows of the target for each row of the source.
        steps: the most target tokens.
    """

    def __init__(self, model: Any, sentences: int, beams: int, source_length: int, steps: int):
        self.model, device, dtype = model, model.device, model.dtype
        self.tokens = torch.zeros(sentences * beams, 1, dtype=torch.long, device=device)
        self.own = torch.arange(beams, device=device).repeat(sentences, 1)
        self.parents = self.own.clone()
        self.states = torch.zeros(sentences, source_length, model.config.d_model, dtype=dtype, device=device)
        self.bias = torch.zeros(sentences, 1, 1, source_length, dtype=dtype, device=device)
        self.cache = FixedCache(sentences, beams, source_length, steps, self.bias)
        self.is_checked = False  # against plain steps, throughout a search
        self.cache.begin()
        for is_first in (True, False):  # libraries set themselves up when they are first called
            self._compute(is_first)
        # The first step and the later ones, each with its logits, in one memory: no other result outlives a step.
        self.captured: dict[bool, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        pool = torch.cuda.graph_pool_handle()
        for is_first in (True, False):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):  # others may use the device
                logits = self._compute(is_first)
            self.captured[is_first] = graph, logits

    def begin(self, states: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Begin a search. The arguments are those of a Decoder, of at most as many sentences and source tokens."""
        sentences, length = states.shape[:2]
        self.states.zero_()
        self.states[:sentences, :length] = states
        self.bias.fill_(torch.finfo(self.bias.dtype).min)
        self.bias[:sentences, :, :, :length] = 0.0 if bias is None else bias
        self.bias[sentences:] = 0.0  # rows that nobody reads
        self.parents.copy_(self.own)
        self.cache.begin()

    def replay(self, is_first: bool) -> torch.Tensor:
        """
        Read the tokens and parents, and in the first step the states and their bias. Returns the logits, (rows,
        vocabulary), until the next step.
        """
        graph, logits = self.captured[is_first]
        graph.replay()
        return logits

    def _compute(self, is_first: bool) -> torch.Tensor:
        kind = self.tokens.device.type
        self.cache.open_step(self.parents, is_first)
        # The weights that autocast has narrowed do not live as long as a captured step, so it must not reuse them.
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):
            logits = next_logits(self.model, self.tokens, self.states, self.bias, self.cache)
        self.cache.close_step()
        return logits


class _CapturedSteps:
    """The captured steps of a model, by shape. Each thread and each CUDA stream has its own."""

    def __init__(self):
        self.by_shape: OrderedDict[tuple, _CapturedStep] = OrderedDict()
        self.is_refused = False  # capturing failed, or captured steps were wrong

    def __reduce__(self):  # a copy of the model captures steps of its own
        return _CapturedSteps, ()

    def decoder(self, plain: Decoder, max_length: int) -> "Decoder | CapturedDecoder":
        """What steps through a search of at most `max_length` tokens, by captured steps or the plain ones."""
        # Outside inference mode there are custom processors, which may replace weights.
        if self.is_refused or max_length > _MOST_STEPS or not torch.is_inference_mode_enabled():
            return plain
        model, (sentences, length), device = plain.model, plain.states.shape[:2], plain.states.device
        steps = _rounded(max_length, _LEAST_STEPS)
        sizes = (_rounded(sentences, 1), plain.beams, _rounded(length, _LEAST_SOURCE), steps)
        autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        user = threading.get_ident(), torch.cuda.current_stream(device)
        shape, by_shape = (*sizes, model.dtype, device, *autocast, *user), self.by_shape
        with _CAPTURING, torch.cuda.device_of(plain.states):
            if shape not in by_shape:
                try:
                    by_shape[shape] = _CapturedStep(model, *sizes)
                except RuntimeError as error:  # too little memory, or a model that cannot be captured
                    self.refuse(str(error))
                    return plain
            by_shape.move_to_end(shape)
            if len(by_shape) > _MOST_SHAPES:
                by_shape.popitem(last=False)
            return CapturedDecoder(self, by_shape[shape], plain)

    def refuse(self, reason: str) -> None:
        """Capture nothing from now on."""
        logger.warning(f"decoding steps are not captured, which is slower: {reason}")
        self.is_refused = True
        self.by_shape = OrderedDict()


def _rounded(number: int, least: int) -> int:
    """The least of `least`, least * 2, least * 4, ... that is not smaller."""
    while least < number:
        least *= 2
    return least


class CapturedDecoder:
    """
    Steps a model through a search like `plain`, by captured steps. The first search by these makes each step in both
    ways, and goes on with `plain` alone if they differ.
    """

    def __init__(self, steps: _CapturedSteps, step: _CapturedStep, plain: Decoder):
        self.steps, self.model, self.beams = steps, plain.model, plain.beams
        self.step: _CapturedStep | None = step
        self.plain: Decoder | None = None if step.is_checked else plain
        step.begin(plain.states, plain.bias)
        self.length = 0  # tokens that the captured step has seen
        self._keep(torch.arange(len(plain.states), device=plain.states.device))

    def _keep(self, sentences: torch.Tensor) -> None:
        """Go on with these of the captured step's sentences."""
        beam = torch.arange(self.beams, device=sentences.device)
        self.sentences, self.rows = sentences, (sentences[:, None] * self.beams + beam).flatten()

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """
        Args:
            tokens: (rows, length), all tokens so far.

        Returns:
            The logits of the next token, (rows, vocabulary), in float32.
        """
        expected = None if self.plain is None else self.plain(tokens)
        if self.step is None:
            return expected
        while self.length < tokens.shape[1]:
            new = tokens[:, self.length, None].to(self.step.tokens.dtype)
            self.step.tokens.index_copy_(0, self.rows, new)
            logits = self.step.replay(self.length == 0)
            self.length += 1
        logits = logits.index_select(0, self.rows).float()
        if expected is None:
            return logits
        if _agree(logits, expected):
            self.step.is_checked |= self.length > 1  # its first step, and those after it
        else:
            self.step = None
            self.steps.refuse("here they differ from plain ones")
        return expected

    def reorder(self, parents: torch.Tensor) -> None:
        """Beam i of each sentence continues the sentence's previous beam `parents[sentence, i]`."""
        if self.plain is not None:
            self.plain.reorder(parents)
        if self.step is not None:
            self.step.parents.index_copy_(0, self.sentences, parents)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Keep only these sentences. The rows of the others stay in the captured step."""
        if self.plain is not None:
            self.plain.keep_sentences(sentences)
        self._keep(self.sentences[sentences])


def _agree(logits: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether logits, (rows, vocabulary), are close, and the best tokens the same where none is nearly as good."""
    tolerance = _TOLERANCE * expected.abs().amax()
    best = expected.topk(2, dim=1)
    is_clear = best.values[:, 0] - best.values[:, 1] > 2 * tolerance
    is_same = logits.argmax(dim=1) == best.indices[:, 0]
    return bool(((logits - expected).abs().amax() <= tolerance) & (is_same | ~is_clear).all())

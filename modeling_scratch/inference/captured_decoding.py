"""
Decoding steps recorded as CUDA graphs: a step has a hundred kernels or more, which a host takes longer to launch than a
GPU to run.

This has not been run on a GPU, only its parts on a CPU. It is therefore off unless `capture_decoding` is called, and
the first search with each recording makes every step both ways and compares them.
"""

import logging
import threading
from collections import OrderedDict
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import UserError
from ..model.cache import SearchCache
from ..model.search import Decoder, next_logits

logger = logging.getLogger(__name__)

_DEVICES = {"cuda"}  # where steps are recorded
# Sizes are rounded up, so that few shapes occur: rows to powers of two; lengths of sources and numbers of steps to
# these times a power of two. A search that may take more steps is not recorded, since a cache has room for all.
_LEAST_SOURCE, _LEAST_STEPS, _MOST_STEPS = 16, 32, 256
_MOST_SHAPES = 8  # that a model's recordings have; the one that was not used for longest makes room
# By how much, relative to the largest logit, a recorded step may differ from a plain one. Rounding makes less of a
# difference, also where products are in bfloat16; a wrong token, position or cache makes more.
_TOLERANCE = 0.05
_CAPTURE = threading.Lock()  # CUDA allows one capture at a time in a process


def capture_decoding(model: PreTrainedModel) -> None:
    """
    Have `model.generate()` record its decoding steps on a GPU, one recording for each shape of batch, and replay them.
    The values of weights may change afterwards; call this again after any other change to the model, such as new layers
    or hooks.

    Raises:
        UserError: the model is an ensemble, or not on a GPU.
    """
    if model.device.type not in _DEVICES or model.new_search_cache is not SearchCache:
        what = "an ensemble" if model.device.type in _DEVICES else f"on the {model.device.type}"
        raise UserError(f"decoding steps are recorded for one model on a GPU; this one is {what}")
    vars(model)["faster_decoder"] = _CapturedSteps().decoder


class _FixedLayers:
    """
    Keys and values of one kind of attention in all layers, (sentences, heads, slots, head_dim) each, whose tensors keep
    their place. Self-attention writes those of the next token to `slots`; cross-attention writes all of them.
    """

    def __init__(self, size: int, slots: torch.Tensor | None = None):
        self.size, self.slots = size, slots
        self.layers: list[Any] = []

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values, (sentences, heads, new slots, head_dim) each. Returns those of all slots."""
        if layer_idx == len(self.layers):
            with torch.inference_mode(False), torch.no_grad():  # so that they may be written to in any mode
                shape = (*key.shape[:2], self.size, key.shape[3])
                self.layers.append(_Layer(*(torch.zeros(shape, dtype=key.dtype, device=key.device) for _ in "kv")))
        layer = self.layers[layer_idx]
        for mine, new in ((layer.keys, key), (layer.values, value)):
            if self.slots is None:
                mine.copy_(new)
            else:
                mine.index_copy_(2, self.slots, new)
        return layer.keys, layer.values


class _Layer:
    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        self.keys, self.values = keys, values


class FixedCache:
    """
    A SearchCache whose tensors keep their size and place, so that a step can be recorded. The beams of a sentence share
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
    that it reads and writes keep their place. Until `record`, the step runs as it is.

    Args:
        sentences: rows of the source.
        beams: rows of the target for each.
        steps: the most target tokens.
    """

    def __init__(self, model: PreTrainedModel, sentences: int, beams: int, source_length: int, steps: int):
        device, dtype = model.device, model.dtype
        with torch.inference_mode(False), torch.no_grad():  # so that they may be written to in any mode
            self.tokens = torch.zeros(sentences * beams, 1, dtype=torch.long, device=device)
            self.own = torch.arange(beams, device=device).repeat(sentences, 1)
            self.parents = self.own.clone()
            self.states = torch.zeros(sentences, source_length, model.config.d_model, dtype=dtype, device=device)
            self.bias = torch.zeros(sentences, 1, 1, source_length, dtype=dtype, device=device)
            self.cache = FixedCache(sentences, beams, source_length, steps, self.bias)
        self.logits: torch.Tensor | None = None
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.is_checked = False  # against plain steps, throughout a search
        self.user: ReferenceType[CapturedDecoder] | None = None  # the last one
        self.stream: Any = None  # of its steps

    def step(self, model: nn.Module, is_first: bool) -> None:
        """Read the tokens and parents, and in the first step the states and their bias; write the logits."""
        if is_first in self.graphs:
            self.graphs[is_first].replay()
            return
        kind = self.tokens.device.type
        self.cache.open_step(self.parents, is_first)
        # The weights that autocast has narrowed do not live as long as a recorded step, so it must not reuse them.
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):
            logits = next_logits(model, self.tokens, self.states, self.bias, self.cache)
        if self.logits is None:
            with torch.inference_mode(False), torch.no_grad():
                self.logits = torch.empty(logits.shape, device=logits.device)  # in float32
        self.logits.copy_(logits)
        self.cache.close_step()

    def record(self, model: nn.Module) -> None:
        """Record the first step and the later ones."""
        device = self.states.device
        if device.type != "cuda":  # in tests
            return
        with _CAPTURE, torch.cuda.device(device):
            self.cache.begin()
            for is_first in (True, False):  # libraries set themselves up when they are first called
                self.step(model, is_first)
            graphs: dict[bool, torch.cuda.CUDAGraph] = {}
            pool = torch.cuda.graph_pool_handle()  # of both, since nothing in it outlives a step
            for is_first in (True, False):
                graph = torch.cuda.CUDAGraph()
                # Other threads may use the device meanwhile.
                with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
                    self.step(model, is_first)
                graphs[is_first] = graph
        self.graphs = graphs


class _CapturedSteps:
    """The recordings of a model, by shape."""

    def __init__(self):
        self.lock = threading.Lock()
        self.by_shape: OrderedDict[tuple, _CapturedStep] = OrderedDict()
        self.is_refused = False  # recording failed, or recorded steps were wrong

    def decoder(self, plain: Decoder, max_length: int) -> "Decoder | CapturedDecoder":
        """What steps through a search of at most `max_length` tokens, by recorded steps or the plain ones."""
        if max_length > _MOST_STEPS:
            return plain
        model, (sentences, length), kind = plain.model, plain.states.shape[:2], plain.states.device.type
        steps = _rounded(max_length, _LEAST_STEPS)
        sizes = (_rounded(sentences, 1), plain.beams, _rounded(length, _LEAST_SOURCE), steps)
        autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        with self.lock:
            recording = self._find(model, sizes, (*sizes, model.dtype, model.device, *autocast))
            if recording is None or (recording.user is not None and recording.user() is not None):
                return plain
            decoder = CapturedDecoder(self, recording, plain)
            recording.user = ref(decoder)
            return decoder

    def _find(self, model: Any, sizes: tuple[int, int, int, int], shape: tuple) -> "_CapturedStep | None":
        """The recording of these sizes; None if nothing can be recorded."""
        if self.is_refused:
            return None
        if shape not in self.by_shape:
            try:
                recording = _CapturedStep(model, *sizes)
                recording.record(model)
            except RuntimeError as error:  # too little memory, or a model that cannot be recorded
                self.refuse(str(error))
                return None
            self.by_shape[shape] = recording
            if len(self.by_shape) > _MOST_SHAPES:
                self.by_shape.popitem(last=False)
        self.by_shape.move_to_end(shape)
        return self.by_shape[shape]

    def __reduce__(self):  # a copy of the model makes recordings of its own
        return _CapturedSteps, ()

    def refuse(self, reason: str) -> None:
        """Record nothing from now on."""
        logger.warning(f"decoding steps are not recorded, which is slower: {reason}")
        self.is_refused = True
        self.by_shape.clear()


def _rounded(number: int, least: int) -> int:
    """The least of `least`, least * 2, least * 4, ... that is not smaller."""
    while least < number:
        least *= 2
    return least


class CapturedDecoder:
    """
    Steps a model through a search like `plain`, by recorded steps. The first search with a recording makes each step in
    both ways, and goes on with `plain` alone if they differ.
    """

    def __init__(self, recordings: _CapturedSteps, recording: _CapturedStep, plain: Decoder):
        self.recordings, self.model, self.beams = recordings, plain.model, plain.beams
        self.recording: _CapturedStep | None = recording
        self.plain: Decoder | None = None if recording.is_checked else plain
        (sentences, length), device = plain.states.shape[:2], plain.states.device
        if device.type == "cuda":
            stream = torch.cuda.current_stream(device)
            if recording.stream is not None:
                stream.wait_stream(recording.stream)
            recording.stream = stream
        recording.states.zero_()
        recording.states[:sentences, :length] = plain.states
        recording.bias.fill_(torch.finfo(recording.bias.dtype).min)
        recording.bias[:sentences, :, :, :length] = 0.0 if plain.bias is None else plain.bias
        recording.bias[sentences:] = 0.0  # rows that nobody reads
        recording.parents.copy_(recording.own)
        recording.cache.begin()
        self.length = 0  # tokens that the recording has seen
        self.sentences = torch.arange(sentences, device=device)  # those still in the batch, by row
        self.rows = self._rows()

    def _rows(self) -> torch.Tensor:
        beam = torch.arange(self.beams, device=self.sentences.device)
        return (self.sentences[:, None] * self.beams + beam).flatten()

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """
        Args:
            tokens: (rows, length), all tokens so far.

        Returns:
            The logits of the next token, (rows, vocabulary), in float32.
        """
        expected = None if self.plain is None else self.plain(tokens)
        if self.recording is None:
            return expected
        while self.length < tokens.shape[1]:
            new = tokens[:, self.length, None].to(self.recording.tokens.dtype)
            self.recording.tokens.index_copy_(0, self.rows, new)
            self.recording.step(self.model, self.length == 0)
            self.length += 1
        logits = self.recording.logits.index_select(0, self.rows)
        if expected is None:
            return logits
        if _agree(logits, expected):
            self.recording.is_checked |= self.length > 1  # its first step, and those after it
        else:
            self.recording = None
            self.recordings.refuse("here they differ from plain ones")
        return expected

    def reorder(self, parents: torch.Tensor) -> None:
        """Beam i of each sentence continues the sentence's previous beam `parents[sentence, i]`."""
        if self.plain is not None:
            self.plain.reorder(parents)
        if self.recording is not None:
            self.recording.parents.index_copy_(0, self.sentences, parents)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Keep only these sentences. The rows of the others stay in the recorded step."""
        if self.plain is not None:
            self.plain.keep_sentences(sentences)
        self.sentences = self.sentences[sentences]
        self.rows = self._rows()


def _agree(logits: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether logits, (rows, vocabulary), are close, and the best tokens the same where none is nearly as good."""
    tolerance = _TOLERANCE * expected.abs().amax()
    best = expected.topk(2, dim=1)
    is_clear = best.values[:, 0] - best.values[:, 1] > 2 * tolerance
    is_same = logits.argmax(dim=1) == best.indices[:, 0]
    return bool(((logits - expected).abs().amax() <= tolerance) & (is_same | ~is_clear).all())

"""
The encoder and decoding steps recorded as CUDA graphs: each has a hundred kernels or more, which a host takes longer to
launch than a GPU to run.
"""

import itertools
import operator
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from .cache import FixedCache, SearchCache
from .masking import as_bias

logger = logging.get_logger(__name__)

_DEVICES = {"cuda"}  # where steps are recorded
# Sizes are rounded up, so that few shapes occur: rows to powers of two; lengths of sources to these times a power of
# two; numbers of steps to these times a power of `_GROWTH`.
_LEAST_SOURCE, _LEAST_STEPS, _GROWTH = 16, 32, 4
# A model keeps recordings of so many shapes, and they take about this share of the device's memory at most.
_MOST_SHAPES, _SHARE_OF_MEMORY = 16, 1 / 8
# Modules of other packages may do in a step what cannot be recorded.
_PACKAGES = {"torch", "transformers", __name__.partition(".")[0]}
_SIMPLE = (int, float, str, dict, PreTrainedConfig)  # attributes that do not refer to the model
_CAPTURE = threading.Lock()  # CUDA allows one capture at a time in a process
_STREAMS: dict[torch.device, Any] = {}  # on which steps are captured: libraries reserve memory for each stream


def next_logits(
    model: nn.Module, tokens: torch.Tensor, states: torch.Tensor, bias: torch.Tensor | None, cache: Any
) -> torch.Tensor:
    """
    A decoding step.

    Args:
        tokens: the new ones, (rows, new tokens).
        states: the encoded sources, (sentences, source_length, d_model).
        bias: over the source, (sentences, 1, 1, source_length); None: attend to everything.
        cache: a SearchCache or a FixedCache.

    Returns:
        The logits after the last token, (rows, vocabulary).
    """
    return model(
        decoder_input_ids=tokens,
        encoder_outputs=BaseModelOutput(last_hidden_state=states),
        attention_mask=bias,
        past_key_values=cache,
        use_cache=True,
        output_attentions=False,
        output_hidden_states=False,
        return_dict=True,
    ).logits[:, -1]


def encode(model: nn.Module, source: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """The encoded source, (sentences, source_length, d_model); both arguments are (sentences, source_length)."""
    return model.get_encoder()(input_ids=source, attention_mask=attention_mask, return_dict=True).last_hidden_state


class _Recording:
    """
    The decoding step of a model for one shape, the first of which encodes the source. The tensors that it reads and
    writes keep their place. Until `record`, the step runs as it is.

    Args:
        sentences: rows of the source.
        beams: rows of the target for each.
        steps: the most target tokens.
    """

    def __init__(self, model: nn.Module, sentences: int, beams: int, source_length: int, steps: int):
        self.sentences, self.beams, self.source_length, self.steps = sentences, beams, source_length, steps
        device, dtype = model.device, model.dtype
        with torch.inference_mode(False), torch.no_grad():  # so that they may be written to in any mode
            self.tokens = torch.zeros(sentences * beams, 1, dtype=torch.long, device=device)
            self.own = torch.arange(beams, device=device).repeat(sentences, 1)
            self.parents = self.own.clone()
            self.source = torch.zeros(sentences, source_length, dtype=torch.long, device=device)
            self.attended = torch.zeros_like(self.source)
            self.states = torch.zeros(*self.source.shape, model.config.d_model, dtype=dtype, device=device)
            self.bias = torch.zeros(sentences, 1, 1, source_length, dtype=dtype, device=device)
            self.cache = FixedCache(sentences, beams, source_length, steps, self.bias)
            self.cache.begin()
        self.size = 0  # in bytes, roughly; of those that are kept
        self.logits: torch.Tensor | None = None
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.in_use = threading.Lock()
        self.finished: Any = None  # the event that ends its last search

    def step(self, model: nn.Module, is_first: bool) -> None:
        """Read the tokens and parents, write the logits. The first step also reads the source and what is attended."""
        if is_first in self.graphs:
            self.graphs[is_first].replay()
            return
        kind = self.tokens.device.type
        self.cache.open_step(self.parents, is_first)
        # The weights that autocast has narrowed do not live as long as a recorded step, so it must not reuse them.
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):
            if is_first:
                self.states.copy_(encode(model, self.source, self.attended))
                self.bias.copy_(as_bias(self.attended[:, None, None], self.bias.dtype))
            logits = next_logits(model, self.tokens, self.states, self.bias, self.cache)
        if self.logits is None:
            with torch.inference_mode(False), torch.no_grad():
                self.logits = torch.empty(logits.shape, device=logits.device)
        self.logits.copy_(logits)
        self.cache.close_step()

    def record(self, model: nn.Module) -> None:
        """Record the first step and the later ones."""
        device = self.source.device
        if device.type != "cuda":  # in tests
            return
        with _CAPTURE, torch.cuda.device(device):
            # Libraries set themselves up when they are first called. Not on the stream of captures: they have memory of
            # their own for each stream, which a recorded step may be using in another thread.
            for is_first in (True, False):
                self.step(model, is_first)
            stream = _STREAMS.setdefault(device, torch.cuda.Stream(device))
            graphs: dict[bool, torch.cuda.CUDAGraph] = {}
            for is_first in (True, False):
                graph = torch.cuda.CUDAGraph()
                # Both share memory, since nothing in it outlives a step. Other threads may use the device.
                options = {"pool": graphs[True].pool()} if graphs else {}
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local", **options):
                    self.step(model, is_first)
                graphs[is_first] = graph
        self.graphs = graphs


class _Snapshot:
    """
    What a recorded step depends on besides the values of weights: where they are, the modules, and their attributes.

    `is_plain`: steps may be recorded. They must not if a module is of another package, if it has hooks, a compiled call
    or any other function of its own, or if a weight is of a class of its own. Nothing of such a model is kept.
    """

    def __init__(self, model: nn.Module):
        modules = [each for each in model.modules() if each is not model]  # the model must not be kept alive
        attributes = [(vars(each), list(vars(each).values())) for each in (model, *modules)]
        values = [value for _, values in attributes for value in values]
        inside = [(each, list(each.values())) for each in values if isinstance(each, dict)]
        parts = [part for _, parts in inside for part in parts]  # weights, modules, hooks
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        kinds = [type(each) for each in (model, *modules)]
        # Activations of Transformers hold the function that they call.
        ours = [_package(kind) != "transformers" for kind in kinds]
        owned = [values for (_, values), is_ours in zip(attributes, ours, strict=True) if is_ours]
        self.is_plain = (
            all(_package(kind) in _PACKAGES for kind in kinds)
            and all(type(each) in (nn.Parameter, torch.Tensor) for each in tensors)
            and not any(map(_is_function, itertools.chain(parts, *owned)))
        )
        if not self.is_plain:
            return
        self.modules, self.kinds, self.tensors = modules, kinds, tensors
        self.empty = [each for each, parts in inside if not parts]  # such as those of hooks
        self.inside = [(each, parts) for each, parts in inside if parts]
        self.attributes = [(own, list(map(id, values))) for own, values in attributes]
        # So that their ids stay theirs. Other values might refer to the model.
        self.kept = [value for value in values if isinstance(value, _SIMPLE)]
        self.places = self._places()
        self.configs = list({id(each): each for each in values if isinstance(each, PreTrainedConfig)}.values())
        self.settings = list(map(repr, map(vars, self.configs)))

    def is_current(self, model: nn.Module) -> bool:
        """Whether nothing has changed."""
        return (
            self.is_plain
            and self.kinds == [type(each) for each in (model, *self.modules)]
            and all(list(map(id, own.values())) == ids for own, ids in self.attributes)
            and not any(self.empty)
            and all(_are_the_same(each.values(), parts) for each, parts in self.inside)
            and self.places == self._places()
            and self.settings == list(map(repr, map(vars, self.configs)))
        )

    def _places(self) -> list[tuple]:
        return [(each.data_ptr(), each.dtype) for each in self.tensors]


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module | type)


def _are_the_same(values: Collection[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and all(map(operator.is_, values, others))


def _numerics(kind: str) -> tuple:
    """The settings of PyTorch that decide which kernels compute a step on this kind of device."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set in PyTorch's newer way
        precision = None
    cuda = torch.backends.cuda
    kernels = (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled())
    autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return *autocast, precision, torch.are_deterministic_algorithms_enabled(), *kernels


class _Recordings:
    """The recordings of a model, by shape; None for a shape that has been met once, or that cannot be recorded."""

    def __init__(self):
        self.lock = threading.Lock()
        self.snapshot: _Snapshot | None = None
        self.by_shape: OrderedDict[tuple, _Recording | None] = OrderedDict()
        self.refused: set[tuple] = set()  # for lack of memory
        self.refuses_all = False

    def borrow(self, model: nn.Module, sizes: tuple[int, int, int, int], at_once: bool = False) -> _Recording | None:
        """
        The recording of these sizes (see _Recording), whose lock `in_use` is then held. None if another search has it,
        if it would be too large, at the first use of these sizes, or if steps of this model must not be recorded.

        Args:
            at_once: record at the first use. For a search that has begun, during which the model does not change.
        """
        shape = (*sizes, model.dtype, model.device, *_numerics(model.device.type))
        with self.lock:
            if not at_once and (self.snapshot is None or not self.snapshot.is_current(model)):
                self.snapshot = _Snapshot(model)
                self.by_shape.clear()
                self.refused.clear()
                self.refuses_all = False
            is_plain = (at_once or self.snapshot.is_plain) and not self.refuses_all
            is_new = shape not in self.by_shape
            recording = self.by_shape.setdefault(shape, None)
            self.by_shape.move_to_end(shape)
            if not is_plain or (is_new and not at_once) or shape in self.refused:
                return None
            if recording is None:
                size = _size(model, *sizes)
                if not self._make_room(size, model.device):
                    return None
                try:
                    recording = _Recording(model, *sizes)
                    recording.record(model)
                    recording.size = size
                except RuntimeError as error:
                    self.refused.add(shape)
                    self.refuses_all = not isinstance(error, torch.OutOfMemoryError)
                    logger.warning_once(f"decoding steps are not recorded, which is slower: {error}")
                    return None
                self.by_shape[shape] = recording
            return recording if recording.in_use.acquire(blocking=False) else None

    def _make_room(self, size: int, device: torch.device) -> bool:
        """Drop recordings, the least recently used first, until one more of this size may be kept."""
        total = free = float("inf")
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if size > min(_SHARE_OF_MEMORY * total, free / 4):
            return False
        kept = {shape: each.size for shape, each in self.by_shape.items() if each is not None}
        while len(kept) >= _MOST_SHAPES or sum(kept.values()) + size > _SHARE_OF_MEMORY * total:
            shape = next(iter(kept))
            del kept[shape], self.by_shape[shape]
        return True


def _size(model: nn.Module, sentences: int, beams: int, source_length: int, steps: int) -> int:
    """Bytes of a recording, roughly: keys and values, logits with a copy of them, and what the encoder needs."""
    config, number = model.config, model.dtype.itemsize
    keys = 2 * config.decoder_layers * config.d_model * sentences * (steps * beams + source_length)
    encoder = sentences * source_length * (4 * config.d_model + config.encoder_ffn_dim)
    logits = sentences * beams * config.target_vocab_size
    return (keys + encoder) * number + logits * (4 + 2 * number)


_ALL: WeakKeyDictionary[nn.Module, _Recordings] = WeakKeyDictionary()


def drop_recordings(model: nn.Module) -> None:
    """Free the memory of a model's recorded steps."""
    _ALL.pop(model, None)


def _rounded(number: int, least: int, factor: int) -> int:
    """The least of `least`, least * factor, least * factor^2, ... that is not smaller."""
    while least < number:
        least *= factor
    return least


class RecordedDecoder:
    """
    Steps the model through a search like the Decoder of `search.py`, by recorded steps. `close` it after the search.

    Args:
        recording: borrowed.
        source: token ids, (sentences, source_length).
        attention_mask: of the same shape, where nonzero attends.
    """

    def __init__(
        self,
        model: nn.Module,
        recording: _Recording,
        source: torch.Tensor,
        attention_mask: torch.Tensor,
        beams: int,
    ):
        self.model, self.recording, self.beams = model, recording, beams
        config, (sentences, length), device = model.config, source.shape, source.device
        # The most tokens that a step may see.
        self.limit = config.max_position_embeddings if config.position_embedding_type == "learned" else float("inf")
        if recording.finished is not None:
            torch.cuda.current_stream(device).wait_event(recording.finished)
        recording.source.zero_()
        recording.source[:sentences, :length] = source
        recording.attended.zero_()
        recording.attended[:sentences, :length] = attention_mask != 0
        recording.parents.copy_(recording.own)
        recording.cache.begin()
        self.length = 0  # tokens that the model has seen
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
        while self.length < tokens.shape[1]:
            if self.length == self.recording.steps:
                self._grow()
            new = tokens[:, self.length, None].to(self.recording.tokens.dtype)
            self.recording.tokens.index_copy_(0, self.rows, new)
            self.recording.step(self.model, self.length == 0)
            self.length += 1
        assert self.recording.logits is not None
        return self.recording.logits.index_select(0, self.rows)

    def reorder(self, parents: torch.Tensor) -> None:
        """Beam i of each sentence continues the sentence's previous beam `parents[sentence, i]`."""
        self.recording.parents.index_copy_(0, self.sentences, parents)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Keep only these sentences. The rows of the others stay in the recorded step."""
        self.sentences = self.sentences[sentences]
        self.rows = self._rows()

    def close(self) -> None:
        """Let other searches have the recording."""
        self._leave(self.recording)

    @staticmethod
    def _leave(recording: _Recording) -> None:
        device = recording.source.device
        if device.type == "cuda":
            recording.finished = torch.cuda.current_stream(device).record_event()
        recording.in_use.release()

    def _grow(self) -> None:
        """Continue with a recording of more steps, or, if none can be had, with steps that are not recorded."""
        old = self.recording
        sizes = (old.sentences, self.beams, old.source_length, old.steps * _GROWTH)
        new = _ALL.setdefault(self.model, _Recordings()).borrow(self.model, sizes, at_once=True)
        if new is None:
            new = _Recording(self.model, *sizes[:3], old.steps * 2)
            new.in_use.acquire()
        for name in ("states", "bias", "parents"):
            getattr(new, name).copy_(getattr(old, name))
        new.cache.continue_from(old.cache)
        self.recording = new
        self._leave(old)


def may_be_recorded(model: nn.Module) -> bool:
    """Whether searches with this model are recorded at all."""
    return model.device.type in _DEVICES and model.new_search_cache is SearchCache


def recorded_decoder(
    model: nn.Module, source: torch.Tensor, attention_mask: torch.Tensor, beams: int
) -> RecordedDecoder | None:
    """A RecordedDecoder (see there for the arguments), if one can be had."""
    sentences, length = source.shape
    sizes = (
        _rounded(sentences, 1, 2),
        beams,
        _rounded(length, _LEAST_SOURCE, 2),
        _rounded(length, _LEAST_STEPS, _GROWTH),
    )
    recording = _ALL.setdefault(model, _Recordings()).borrow(model, sizes)
    if recording is None:
        return None
    try:
        return RecordedDecoder(model, recording, source, attention_mask, beams)
    except BaseException:
        recording.in_use.release()
        raise

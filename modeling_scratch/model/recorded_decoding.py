"""
Decoding steps recorded as CUDA graphs: a step has a hundred kernels or more, which a host takes longer to launch than a
GPU to run.
"""

import operator
import threading
from collections import OrderedDict
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from .cache import FixedCache, SearchCache

_DEVICES = {"cuda"}  # where steps are recorded
# Sizes are rounded up, so that few shapes occur: rows to powers of two; lengths of sources to these times a power of
# two; numbers of steps to these times a power of `_GROWTH`.
_LEAST_SOURCE, _LEAST_STEPS, _GROWTH = 16, 32, 4
# Recordings are kept for so many shapes of a model, and may take this share of the device's memory.
_MOST_SHAPES, _SHARE_OF_MEMORY = 16, 1 / 8
_SIMPLE = (bool, int, float, str, type(None))
_PACKAGES = {"torch", "transformers", __name__.partition(".")[0]}


class _Recording:
    """
    The decoding step of a model for one shape. The tensors that it reads and writes keep their place.

    Args:
        sentences: rows of the source.
        beams: rows of the target for each.
        steps: the most target tokens.
        states: encoded sources; the recording takes their dtype and device.
    """

    def __init__(
        self, model: nn.Module, sentences: int, beams: int, source_length: int, steps: int, states: torch.Tensor
    ):
        self.sentences, self.beams, self.source_length, self.steps = sentences, beams, source_length, steps
        device, rows, config = states.device, sentences * beams, model.config
        # Bytes of the keys and values, which take most of the memory. They are made in the first step.
        slots = sentences * (steps * beams + source_length)
        self.size = 2 * config.decoder_layers * slots * config.d_model * states.element_size()
        with torch.inference_mode(False), torch.no_grad():  # so that they may be written to in any mode
            self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
            self.own = torch.arange(beams, device=device).repeat(sentences, 1)
            self.parents = self.own.clone()
            self.states = states.new_zeros(sentences, source_length, states.shape[2])
            self.mask = states.new_zeros(sentences, 1, 1, source_length)
            self.logits = torch.zeros(rows, config.target_vocab_size, device=device)
            self.cache = FixedCache(sentences, beams, source_length, steps, self.mask)
            self.cache.begin()
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.is_busy = False

    def step(self, model: nn.Module, is_first: bool) -> None:
        """Read the tokens and parents, write the logits. The first step also reads the source."""
        if is_first in self.graphs:
            self.graphs[is_first].replay()
            return
        self.cache.open_step(self.parents, is_first)
        with _autocast_without_cache(self.tokens.device.type):
            outputs = model(
                decoder_input_ids=self.tokens,
                encoder_outputs=BaseModelOutput(last_hidden_state=self.states),
                attention_mask=self.mask,
                past_key_values=self.cache,
                use_cache=True,
                output_attentions=False,
                output_hidden_states=False,
                return_dict=True,
            )
        self.logits.copy_(outputs.logits[:, -1])
        self.cache.close_step()

    def record(self, model: nn.Module) -> None:
        """Record the first step and the later ones."""
        device = self.states.device
        if device.type != "cuda":  # in tests: the same steps, without graphs
            return
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(stream):
            for is_first in (True, False):  # libraries set themselves up when they are first called
                self.step(model, is_first)
            graphs = {}
            for is_first in (True, False):
                graphs[is_first] = torch.cuda.CUDAGraph()
                # Other threads may use the device meanwhile.
                with torch.cuda.graph(graphs[is_first], stream=stream, capture_error_mode="thread_local"):
                    self.step(model, is_first)
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graphs = graphs


def _autocast_without_cache(device_type: str):
    """Autocast as it is, but for its cache of narrowed weights, which does not live as long as a recorded step."""
    if not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, torch.get_autocast_dtype(device_type), cache_enabled=False)


class _Recordings:
    """The recordings of a model, by shape; None for a shape that has been met once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.snapshot: _Snapshot | None = None
        self.by_shape: OrderedDict[tuple, _Recording | None] = OrderedDict()

    def borrow(
        self, model: nn.Module, sizes: tuple[int, int, int, int], states: torch.Tensor, at_once: bool
    ) -> _Recording | None:
        """
        The recording of these sizes (see _Recording), from their second use on or `at_once`; None as well if another
        search has it, or if it would be too large.
        """
        shape = (*sizes, states.dtype, states.device)
        with self.lock:
            is_new = shape not in self.by_shape
            recording = self.by_shape.setdefault(shape, None)
            self.by_shape.move_to_end(shape)
            if is_new and not at_once:
                return None
            if recording is None:
                recording = _Recording(model, *sizes, states)
                if not self.make_room(recording.size, states.device):
                    return None
                recording.record(model)
                self.by_shape[shape] = recording
            if recording.is_busy:
                return None
            recording.is_busy = True
            return recording

    def are_of(self, model: nn.Module) -> bool:
        """Whether the model's steps may be recorded. Drops the recordings if it has changed since."""
        with self.lock:
            if self.snapshot is None or not self.snapshot.is_current(model):
                self.snapshot = _Snapshot(model)
                self.by_shape.clear()
            return self.snapshot.is_plain

    def make_room(self, size: int, device: torch.device) -> bool:
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


_ALL: WeakKeyDictionary[nn.Module, _Recordings] = WeakKeyDictionary()


def _rounded(number: int, least: int, factor: int) -> int:
    """The least of `least`, least * factor, least * factor^2, ... that is not smaller."""
    while least < number:
        least *= factor
    return least


class _Snapshot:
    """
    What a recorded step depends on besides the values of weights: where they are, the modules, and their settings.

    `is_plain`: the step may be recorded. It must not if a module is not of PyTorch, of Transformers or of this package,
    or has hooks or a forward method of its own, or if a weight is of a class of its own.
    """

    def __init__(self, model: nn.Module):
        encoder = set(model.get_encoder().modules())
        # Without the model itself, which must not be kept alive.
        self.modules = [each for each in model.modules() if each not in encoder and each is not model]
        self.kinds = [type(each) for each in (model, *self.modules)]
        self.attributes = [(vars(each), list(vars(each).values())) for each in (model, *self.modules)]
        values = [value for _, values in self.attributes for value in values]
        self.inside = [(each, list(each.values())) for each in values if isinstance(each, dict)]
        parts = [part for _, parts in self.inside for part in parts]  # weights, modules, hooks
        self.tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        self.places = self._places()
        self.configs = list({id(each): each for each in values if isinstance(each, PreTrainedConfig)}.values())
        self.settings = self._settings()
        self.is_plain = (
            all(kind.__module__.partition(".")[0] in _PACKAGES for kind in self.kinds)
            and not any("forward" in own for own, _ in self.attributes)
            and all(type(each) in (nn.Parameter, torch.Tensor) for each in self.tensors)
            and not any(callable(part) and not isinstance(part, nn.Module) for part in parts)  # hooks
        )

    def is_current(self, model: nn.Module) -> bool:
        """Whether nothing has changed."""
        return (
            self.kinds == [type(each) for each in (model, *self.modules)]
            and all(_are_the_same(own.values(), values) for own, values in self.attributes)
            and all(_are_the_same(each.values(), parts) for each, parts in self.inside)
            and self.places == self._places()
            and self.settings == self._settings()
        )

    def _places(self) -> list[tuple]:
        return [(each.data_ptr(), each.dtype) for each in self.tensors]

    def _settings(self) -> list[Any]:
        autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in sorted(_DEVICES)]
        return [*autocast, *(repr(vars(config)) for config in self.configs)]


def _are_the_same(values: Collection[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and all(map(operator.is_, values, others))


class RecordedDecoder:
    """
    Steps the model through a search like the Decoder of `search.py`, by recorded steps. `close` it after the search.

    Args:
        states: the encoded sources, (sentences, source_length, d_model).
        bias: over the source, (sentences, 1, 1, source_length); None: attend to everything.
    """

    def __init__(
        self, model: nn.Module, recording: _Recording, states: torch.Tensor, bias: torch.Tensor | None, beams: int
    ):
        self.model, self.recording, self.beams = model, recording, beams
        sentences, length = states.shape[:2]
        recording.states.zero_()
        recording.states[:sentences, :length] = states
        recording.mask.zero_()
        recording.mask[:sentences, ..., length:] = torch.finfo(states.dtype).min
        if bias is not None:
            recording.mask[:sentences, ..., :length] = bias
        recording.parents.copy_(recording.own)
        recording.cache.begin()
        self.length = 0  # tokens that the model has seen
        self.sentences = torch.arange(sentences, device=states.device)  # those still in the batch, by row
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
            self.recording.tokens.index_copy_(0, self.rows, tokens[:, self.length, None])
            self.recording.step(self.model, self.length == 0)
            self.length += 1
        return self.recording.logits.index_select(0, self.rows)

    def reorder(self, parents: torch.Tensor) -> None:
        """Beam i of each sentence continues the sentence's previous beam `parents[sentence, i]`."""
        self.recording.parents.index_copy_(0, self.sentences, parents)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Keep only these sentences. The rows of the others stay, since a GPU takes hardly less time without them."""
        self.sentences = self.sentences[sentences]
        self.rows = self._rows()

    def close(self) -> None:
        """Let other searches have the recording."""
        self.recording.is_busy = False

    def _grow(self) -> None:
        """Continue with a recording of more steps, or one that is not recorded if none can be had."""
        old = self.recording
        sizes = (old.sentences, self.beams, old.source_length, old.steps * _GROWTH)
        new = _ALL[self.model].borrow(self.model, sizes, old.states, at_once=True)
        if new is None:
            new = _Recording(self.model, *sizes, old.states)
        for name in ("states", "mask", "parents"):
            getattr(new, name).copy_(getattr(old, name))
        new.cache.continue_from(old.cache)
        self.recording, old.is_busy = new, False


def recorded_decoder(
    model: nn.Module, states: torch.Tensor, bias: torch.Tensor | None, beams: int
) -> RecordedDecoder | None:
    """A RecordedDecoder (see there for the arguments) where steps are recorded and one can be had."""
    if states.device.type not in _DEVICES or model.new_search_cache is not SearchCache:
        return None
    sentences, length = states.shape[:2]
    rows, source_length = _rounded(sentences, 1, 2), _rounded(length, _LEAST_SOURCE, 2)
    sizes = (rows, beams, source_length, _rounded(length, _LEAST_STEPS, _GROWTH))
    recordings = _ALL.setdefault(model, _Recordings())
    recording = recordings.borrow(model, sizes, states, at_once=False) if recordings.are_of(model) else None
    return None if recording is None else RecordedDecoder(model, recording, states, bias, beams)

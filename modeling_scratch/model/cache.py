"""The decoder's keys and values during our own search: grown in place, moved by index, one source for all its beams."""

import torch

_ROOM = 16  # places by which the target's keys and values grow


class _Layer:
    """
    The keys and values of one attention, (rows, heads, places, head_dim): as many as a target has room for, or those of
    the source.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        self.keys, self.values = keys, values
        self.spare: list[torch.Tensor] = []  # what keys and values are moved to, in turn

    def grow(self, places: int) -> None:
        missing = places - self.keys.shape[2]
        if missing > 0:
            room = self.keys.new_empty(*self.keys.shape[:2], missing + _ROOM, self.keys.shape[3])
            self.keys, self.values = (torch.cat([states, room], dim=2) for states in (self.keys, self.values))
            self.spare = []

    def move(self, rows: torch.Tensor) -> None:
        if not self.spare or len(self.spare[0]) != len(rows):
            self.spare = [states.new_empty(len(rows), *states.shape[1:]) for states in (self.keys, self.values)]
        for states, spare in zip((self.keys, self.values), self.spare, strict=True):
            torch.index_select(states, 0, rows, out=spare)
        (self.keys, self.values), self.spare = self.spare, [self.keys, self.values]


class _Cache:
    """Answers `update`, as Transformers' caches do."""

    def __init__(self):
        self.length = 0  # places that are filled, of the target
        self.layers: list[_Layer] = []

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """key, value: (rows, heads, new, head_dim). Returns those of all places, (rows, heads, length, head_dim)."""
        if layer_idx == len(self.layers):
            self.layers.append(_Layer(key, value))
            return key, value
        layer, end = self.layers[layer_idx], self.length + key.shape[2]
        layer.grow(end)
        layer.keys[:, :, self.length : end], layer.values[:, :, self.length : end] = key, value
        return layer.keys[:, :, :end], layer.values[:, :, :end]


class SearchCache:
    """
    Takes the place of Transformers' EncoderDecoderCache in the decoder's forward pass, which asks for these names.
    Depends on nothing of Transformers, so that no release of it can change what our own search does.
    """

    def __init__(self):
        self.beams = 1  # rows of the decoder a sentence; the source's keys and values are kept once for all of them
        self.self_attention_cache, self.cross_attention_cache = _Cache(), _Cache()
        self.is_updated: dict[int, bool] = {}

    def get_seq_length(self) -> int:
        """Target tokens that every layer has seen."""
        return self.self_attention_cache.length

    def advance(self, new: int) -> None:
        """Every layer has seen `new` more tokens."""
        self.self_attention_cache.length += new

    def move(self, rows: torch.Tensor) -> None:
        """Row i takes over what row `rows[i]` has seen; both are of one sentence, unless `keep` follows."""
        for layer in self.self_attention_cache.layers:
            layer.move(rows)

    def spread(self, beams: int) -> None:
        """Go on with so many rows a sentence, which begin alike."""
        keys = self.self_attention_cache.layers[0].keys
        self.move(torch.arange(len(keys), device=keys.device).repeat_interleave(beams))
        self.beams = beams

    def keep(self, sentences: torch.Tensor) -> None:
        """Go on with these sentences alone."""
        for layer in self.cross_attention_cache.layers:
            layer.keys, layer.values = (each.index_select(0, sentences) for each in (layer.keys, layer.values))

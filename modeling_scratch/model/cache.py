"""The key/value cache of our own search: grown in place, reordered by index, one source for all beams of a sentence."""

import torch

_GROWTH = 16  # slots added when a target's keys and values run out of room


class _LayerCache:
    """
    Keys and values of one attention layer, (rows, heads, slots, head_dim) each. For self-attention there are as many
    slots as have been allocated; for cross-attention, one per source token.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        self.keys, self.values = keys, values
        self.spare: list[torch.Tensor] = []  # buffers that `reorder` writes to, swapped with keys and values

    def reserve(self, slots: int) -> None:
        """Allocate room for at least this many slots."""
        missing = slots - self.keys.shape[2]
        if missing > 0:
            room = self.keys.new_empty(*self.keys.shape[:2], missing + _GROWTH, self.keys.shape[3])
            self.keys, self.values = (torch.cat([states, room], dim=2) for states in (self.keys, self.values))
            self.spare = []

    def reorder(self, rows: torch.Tensor) -> None:
        """Row i becomes the previous row `rows[i]`."""
        if not self.spare or len(self.spare[0]) != len(rows):
            self.spare = [states.new_empty(len(rows), *states.shape[1:]) for states in (self.keys, self.values)]
        for states, spare in zip((self.keys, self.values), self.spare, strict=True):
            torch.index_select(states, 0, rows, out=spare)
        (self.keys, self.values), self.spare = self.spare, [self.keys, self.values]


class _AttentionCache:
    """The cached keys and values of all layers of one kind of attention. `update` works as in Transformers' caches."""

    def __init__(self):
        self.length = 0  # slots filled in every layer
        self.layers: list[_LayerCache] = []

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Append keys and values, (rows, heads, new tokens, head_dim) each, to a layer.

        Returns:
            All keys and values of the layer so far, (rows, heads, length, head_dim) each.
        """
        if layer_idx == len(self.layers):
            self.layers.append(_LayerCache(key, value))
            return key, value
        layer, end = self.layers[layer_idx], self.length + key.shape[2]
        layer.reserve(end)
        layer.keys[:, :, self.length : end], layer.values[:, :, self.length : end] = key, value
        return layer.keys[:, :, :end], layer.values[:, :, :end]


class SearchCache:
    """
    Stands in for Transformers' EncoderDecoderCache, with the attributes that the decoder's forward pass reads. It uses
    nothing from Transformers, so that no release can change what our own search does.
    """

    def __init__(self):
        self.beams = 1  # decoder rows per sentence; they share one copy of the source's keys and values
        self.self_attention_cache, self.cross_attention_cache = _AttentionCache(), _AttentionCache()
        self.is_updated: dict[int, bool] = {}

    def get_seq_length(self) -> int:
        """The number of target tokens that every layer has seen."""
        return self.self_attention_cache.length

    def advance(self, new: int) -> None:
        """Record that every layer has seen `new` more tokens."""
        self.self_attention_cache.length += new

    def reorder(self, rows: torch.Tensor) -> None:
        """Row i continues the previous row `rows[i]`, of the same sentence unless `keep_sentences` follows."""
        for layer in self.self_attention_cache.layers:
            layer.reorder(rows)

    def repeat_for_beams(self, beams: int) -> None:
        """Continue with this many identical rows per sentence."""
        keys = self.self_attention_cache.layers[0].keys
        self.reorder(torch.arange(len(keys), device=keys.device).repeat_interleave(beams))
        self.beams = beams

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Drop the source's keys and values of all other sentences."""
        for layer in self.cross_attention_cache.layers:
            layer.keys, layer.values = (states.index_select(0, sentences) for states in (layer.keys, layer.values))

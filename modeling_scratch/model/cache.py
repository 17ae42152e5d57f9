"""The key/value cache of our own search: grown in place, and shared by all beams of a sentence."""

from collections.abc import Callable

import torch

# Steps to make room for when a layer's keys and values have none left, and after which hidden slots are dropped.
_GROWTH = 16


class _LayerCache:
    """
    Keys and values of one attention layer, (sentences, heads, slots, head_dim) each. For self-attention there are as
    many slots as have been allocated; for cross-attention, one per source token.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        self.keys, self.values = keys, values

    def change(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace keys and values by a function of them."""
        self.keys, self.values = function(self.keys), function(self.values)


class _AttentionCache:
    """The cached keys and values of all layers of one kind of attention. `update` works as in Transformers' caches."""

    def __init__(self):
        self.filled = 0  # slots, in every layer
        self.layers: list[_LayerCache] = []

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Append keys and values, (sentences, heads, new slots, head_dim) each, to a layer.

        Returns:
            All keys and values of the layer so far, (sentences, heads, slots, head_dim) each.
        """
        if layer_idx == len(self.layers):
            self.layers.append(_LayerCache(key, value))
            return key, value
        layer, new, end = self.layers[layer_idx], key.shape[2], self.filled + key.shape[2]
        if end > layer.keys.shape[2]:
            room = key.new_empty(*key.shape[:2], end - layer.keys.shape[2] + _GROWTH * new, key.shape[3])
            layer.change(lambda states: torch.cat([states, room], dim=2))
        layer.keys[:, :, self.filled : end], layer.values[:, :, self.filled : end] = key, value
        return layer.keys[:, :, :end], layer.values[:, :, :end]


class SearchCache:
    """
    Stands in for Transformers' EncoderDecoderCache, with the attributes that the decoder's forward pass reads. It uses
    nothing from Transformers, so that no release can change what our own search does.

    The beams of a sentence share one copy of the source's keys and values, and one set of slots for the target's: each
    step adds a slot per beam, and `bias` hides from each beam the slots that hold no token of its own. Reordering the
    beams then moves no keys and values.

    For example, two beams extend the start token by A and B, then both continue the second of these, by C and D. In the
    step that reads C and D, where - stands for the dtype's minimum:

        token in the slot   start  A  B  C  D
        positions             0    1  1  2  2
        bias of beam 0        0    -  0  0  -
        bias of beam 1        0    -  0  -  0

    No beam attends to A any more, so its slot will be dropped.
    """

    def __init__(self):
        self.beams = 1  # consecutive decoder rows of a sentence, which share keys and values
        self.length = 0  # target tokens that every layer has seen
        self.self_attention_cache, self.cross_attention_cache = _AttentionCache(), _AttentionCache()
        self.is_updated: dict[int, bool] = {}
        # With several beams: the bias of the next step, (sentences, 1, beams, slots), including the slots of its
        # tokens; the part for those slots, always the same, (1, 1, beams, beams); and the position of the token in each
        # slot, (sentences, slots).
        self.bias: torch.Tensor | None = None
        self.bias_of_new_slots: torch.Tensor | None = None
        self.positions: torch.Tensor | None = None

    def get_seq_length(self) -> int:
        """The number of target tokens that every layer has seen."""
        return self.length

    def advance(self, new: int) -> None:
        """Count `new` more tokens of every row, which every layer has seen."""
        self.length += new
        self.self_attention_cache.filled += new * self.beams

    def branch(self, beams: int) -> None:
        """Continue with this many rows per sentence, so far identical. Call `reorder` before each step."""
        keys, self.beams = self.self_attention_cache.layers[0].keys, beams
        self.bias = keys.new_zeros(len(keys), 1, beams, self.length)
        hidden = torch.full_like(self.bias[:1, :, :, :1], torch.finfo(keys.dtype).min)
        self.bias_of_new_slots = hidden.repeat(1, 1, 1, beams)
        self.bias_of_new_slots.diagonal(dim1=2, dim2=3).zero_()
        self.positions = torch.arange(self.length, device=keys.device).expand(len(keys), -1)

    def reorder(self, parents: torch.Tensor) -> None:
        """Beam i of each sentence continues the sentence's previous beam `parents[sentence, i]` with a new token."""
        rows = parents + torch.arange(len(parents), device=parents.device)[:, None] * self.beams
        self.bias = self.bias.flatten(0, 2).index_select(0, rows.flatten()).view(self.bias.shape)
        if self.length % _GROWTH == 0:
            self._drop_hidden_slots()
        self.bias = torch.cat([self.bias, self.bias_of_new_slots.expand(len(self.bias), -1, -1, -1)], dim=3)
        self.positions = torch.nn.functional.pad(self.positions, (0, self.beams), value=self.length)

    def _drop_hidden_slots(self) -> None:
        """Drop slots that no beam attends to, as many as every sentence can spare."""
        in_use = (self.bias == 0).any(dim=2).squeeze(1)  # (sentences, slots)
        kept = int(in_use.sum(dim=1).max())
        slots = in_use.byte().argsort(dim=1, descending=True, stable=True)[:, :kept]
        self.bias = self.bias.gather(3, slots[:, None, None].expand(-1, -1, self.beams, -1))
        self.positions = self.positions.gather(1, slots)
        self.self_attention_cache.filled = kept

        def kept_of(states: torch.Tensor) -> torch.Tensor:
            return states.gather(2, slots[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3]))

        for layer in self.self_attention_cache.layers:
            layer.change(kept_of)

    def keep_sentences(self, sentences: torch.Tensor) -> None:
        """Keep only these sentences."""
        for layer in (*self.self_attention_cache.layers, *self.cross_attention_cache.layers):
            layer.change(lambda states: states.index_select(0, sentences))
        if self.beams > 1:
            self.bias = self.bias.index_select(0, sentences)
            self.positions = self.positions.index_select(0, sentences)

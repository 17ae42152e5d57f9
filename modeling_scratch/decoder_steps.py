"""
The decoder one token at a time, as generation needs it, with little overhead: packed projections, caches that grow in
place, one copy of the source's keys and values for all beams of a sentence, and oneDNN's matrix products.
"""

import platform
from collections.abc import Callable
from functools import cache

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.nn.modules.module import _has_any_global_hook
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention import ScratchCrossAttention, ScratchSelfAttention
from .dropout import ScratchDropout
from .feed_forward import ScratchFeedForward
from .layers import ScratchDecoderLayer
from .position_embeddings import (
    LearnedPositionEmbedding,
    ScratchRotaryEmbedding,
    SinusoidalPositionEmbedding,
    apply_rotary,
)
from .stacks import ScratchDecoder

_ROOM = 16  # places by which the caches grow
_LARGE = 2**18  # elements of a weight from which on oneDNN's product is worth its start
# Classes whose computation is known here, and their forward passes before anyone could change them.
_KNOWN: dict[type[nn.Module], Callable] = {
    module_class: module_class.forward
    for module_class in (
        *(ScratchDecoder, ScratchDecoderLayer, ScratchSelfAttention, ScratchCrossAttention, ScratchFeedForward),
        *(LearnedPositionEmbedding, ScratchRotaryEmbedding, SinusoidalPositionEmbedding, ScratchDropout),
        *(nn.ModuleList, nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Identity),
    )
}


def known(module_class: type[nn.Module]) -> type[nn.Module]:
    """A decorator: `DecoderSteps` does what this class's forward pass does to the decoder."""
    _KNOWN[module_class] = module_class.forward
    return module_class


def is_hooked(module: nn.Module) -> bool:
    """Whether a call of it, or a backward pass, does more than its class's forward: hooks, or a forward of its own."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks or "forward" in module.__dict__ or _has_any_global_hook())


def _is_untouched(module: nn.Module) -> bool:
    plain = all(type(parameter.data) is torch.Tensor for parameter in module.parameters(recurse=False))
    return plain and not is_hooked(module) and not module.training and module._compiled_call_impl is None


def can_step(model: nn.Module) -> bool:
    """Whether `DecoderSteps` computes what a ScratchForConditionalGeneration's own forward pass does."""
    if model.config._attn_implementation != "sdpa" or ALL_ATTENTION_FUNCTIONS["sdpa"] is not sdpa_attention_forward:
        return False
    if torch.compiler.is_compiling():
        return False
    decoder = model.model.decoder
    modules = [model, model.model, *decoder.modules(), model.lm_head]
    activations = {module for layer in decoder.layers for module in layer.feed_forward.activation.modules()}
    kinds = {type(module) for module in modules if module not in activations}
    return all(kind.forward is _KNOWN.get(kind) for kind in kinds) and all(map(_is_untouched, modules))


@cache
def _onednn() -> Callable | None:
    """oneDNN's product of inputs and a linear layer's weight, as compiled models call it; None where there is none."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    # Not random: to draw would change what a training run draws after its first evaluation.
    inputs, weight, bias = (
        torch.linspace(-1, 1, rows * width, dtype=torch.float32, device="cpu").view(rows, width)
        for rows, width in ((3, 8), (5, 8), (1, 5))
    )
    try:
        product = torch.ops.mkldnn._linear_pointwise
        found = product(inputs, weight, bias[0], "none", [], "")
        return product if torch.allclose(found, inputs @ weight.t() + bias, atol=1e-5) else None
    except (AttributeError, RuntimeError, TypeError):
        return None


def _product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`linear`. Of a few rows and a large weight in float32, the BLAS behind it may take several times as long."""
    suits = weight.numel() >= _LARGE and inputs.dtype == weight.dtype == torch.float32 and inputs.device.type == "cpu"
    changed = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled
    if not suits or changed or _onednn() is None:
        return linear(inputs, weight, bias)
    return _onednn()(inputs, weight, bias, "none", [], "")


class _Layer:
    """A layer with its caches. Keys and values of the target: (rows, heads, room, head_dim)."""

    def __init__(self, layer: ScratchDecoderLayer, states: torch.Tensor, rows: int):
        """states: the encoded sources, (sentences, source_length, d_model)."""
        own, cross = layer.self_attn, layer.cross_attn
        self.layer, self.heads, self.head_dim = layer, own.num_heads, own.head_dim
        projections = [own.q_proj, own.k_proj, own.v_proj]
        self.weight = torch.cat([projection.weight for projection in projections])
        biases = [projection.bias for projection in projections]
        self.bias = None if biases[0] is None else torch.cat(biases)
        self.source = [cross.split_heads(projection(states)) for projection in (cross.k_proj, cross.v_proj)]
        shape = (rows, self.heads, _ROOM, self.head_dim)
        self.past = [states.new_empty(shape, dtype=self.source[0].dtype) for _ in range(2)]
        self.spare = [torch.empty_like(past) for past in self.past]

    def make_room(self, length: int) -> None:
        rows, heads, room, head_dim = self.past[0].shape
        if length > room:
            more = self.past[0].new_empty(rows, heads, length - room + _ROOM, head_dim)
            self.past = [torch.cat([past, more], dim=2) for past in self.past]
            self.spare = [torch.empty_like(past) for past in self.past]

    def move(self, rows: torch.Tensor) -> None:
        """Row i takes over what row `rows[i]` has seen."""
        if len(rows) != len(self.past[0]):
            self.past = [past.index_select(0, rows) for past in self.past]
            self.spare = [torch.empty_like(past) for past in self.past]
            return
        for past, spare in zip(self.past, self.spare, strict=True):
            torch.index_select(past, 0, rows, out=spare)
        self.past, self.spare = self.spare, self.past

    def __call__(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None,
        attends: torch.Tensor | None,
        length: int,
    ) -> torch.Tensor:
        """
        (rows, new, d_model) to the same shape, as ScratchDecoderLayer's forward, of the tokens at place `length` and
        after it. There are several at the beginning alone.
        """
        layer, (rows, new, _) = self.layer, hidden_states.shape
        residual = hidden_states
        inputs = layer.enter(hidden_states, layer.self_attn_layer_norm)
        packed = _product(inputs, self.weight, self.bias).view(rows, new, 3, self.heads, self.head_dim)
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # (rows, heads, new, head_dim) each
        if position_embeddings is not None:
            query, key = apply_rotary(query, position_embeddings), apply_rotary(key, position_embeddings)
        self.make_room(length + new)
        for past, states in zip(self.past, (key, value), strict=True):
            past[:, :, length : length + new] = states
        keys, values = (past[:, :, : length + new] for past in self.past)
        output = scaled_dot_product_attention(query, keys, values, is_causal=new > 1, scale=layer.self_attn.scaling)
        output = output.transpose(1, 2)  # (rows, new, heads, head_dim)
        hidden_states = self._leave(residual, output, layer.self_attn.o_proj, layer.self_attn_layer_norm)

        residual, cross = hidden_states, layer.cross_attn
        inputs = layer.enter(hidden_states, layer.cross_attn_layer_norm)
        # The beams of a sentence are queries to one source: (sentences, heads, beams * new, head_dim).
        sentences = len(self.source[0])
        query = (
            _product(inputs, cross.q_proj.weight, cross.q_proj.bias)
            .view(sentences, rows // sentences * new, self.heads, self.head_dim)
            .transpose(1, 2)
        )
        output = scaled_dot_product_attention(query, *self.source, attn_mask=attends, scale=cross.scaling)
        output = output.transpose(1, 2)  # (sentences, beams * new, heads, head_dim)
        hidden_states = self._leave(residual, output, cross.o_proj, layer.cross_attn_layer_norm)

        residual, norm = hidden_states, layer.feed_forward_layer_norm
        hidden_states = residual + self._feed_forward(layer.enter(hidden_states, norm))
        return hidden_states if layer.pre_norm else norm(hidden_states)

    def _leave(
        self, residual: torch.Tensor, output: torch.Tensor, projection: nn.Linear, norm: nn.Module
    ) -> torch.Tensor:
        hidden_states = residual + _product(output.reshape(residual.shape), projection.weight, projection.bias)
        return hidden_states if self.layer.pre_norm else norm(hidden_states)

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """As ScratchFeedForward's forward."""
        inner = self.layer.feed_forward
        up, gate, down = inner.up_proj, inner.gate_proj, inner.down_proj
        wide = _product(hidden_states, up.weight, up.bias)
        if gate is None:
            wide = inner.activation(wide)
        else:
            wide = inner.activation(_product(hidden_states, gate.weight, gate.bias)) * wide
        return _product(wide, down.weight, down.bias)


class DecoderSteps:
    """
    What a ScratchForConditionalGeneration says to one token after another. See `can_step`.

    Args:
        states: the encoded sources, (sentences, source_length, d_model).
        attention_mask: (sentences, source_length), nonzero attends; None: everything.
        beams: rows a sentence.
    """

    def __init__(self, model: nn.Module, states: torch.Tensor, attention_mask: torch.Tensor | None, beams: int):
        self.model, self.decoder, self.length = model, model.model.decoder, 0
        self.layers = [_Layer(layer, states, len(states) * beams) for layer in self.decoder.layers]
        self.attends = None
        if attention_mask is not None and not bool((attention_mask != 0).all()):
            self.attends = (attention_mask != 0)[:, None, None, :]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """(rows, new) to the logits of what comes next, (rows, vocabulary). `new` is 1 but for what begins."""
        # What `generate` was given to begin with is checked; what the model says has no need of it.
        hidden_states = self.decoder.embed(tokens, None, check=not self.length)
        positions = torch.arange(self.length, self.length + tokens.shape[1], device=tokens.device)[None]
        hidden_states, position_embeddings = self.decoder.locate(hidden_states, positions, self.length)
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_embeddings, self.attends, self.length)
        self.length += tokens.shape[1]
        head = self.model.lm_head
        return _product(self.decoder.layer_norm(hidden_states[:, -1]), head.weight, head.bias)

    def move(self, rows: torch.Tensor) -> None:
        """Row i takes over what row `rows[i]` has seen; both are of one sentence, unless `keep` follows."""
        for layer in self.layers:
            layer.move(rows)

    def keep(self, sentences: torch.Tensor) -> None:
        """Go on with these sentences alone."""
        for layer in self.layers:
            layer.source = [each.index_select(0, sentences) for each in layer.source]
        if self.attends is not None:
            self.attends = self.attends.index_select(0, sentences)

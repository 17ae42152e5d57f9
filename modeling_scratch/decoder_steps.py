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

from .attention import ScratchCrossAttention, ScratchSelfAttention
from .dropout import ScratchDropout
from .feed_forward import ScratchFeedForward
from .layers import ScratchDecoderLayer
from .position_embeddings import apply_rotary
from .stacks import ScratchDecoder

_ROOM = 16  # places by which the caches grow
_LARGE = 2**18  # elements of a weight from which on oneDNN's product is worth its start
# Modules whose computation is known here. Whatever is wrapped, adapted, quantised or hooked is called as it is instead.
_KNOWN = {
    ScratchDecoderLayer,
    ScratchSelfAttention,
    ScratchCrossAttention,
    ScratchFeedForward,
    ScratchDropout,
    nn.Linear,
    nn.LayerNorm,
    nn.RMSNorm,
}


def is_hooked(module: nn.Module) -> bool:
    """Whether a call of it does more than its class's forward: hooks, or a forward of its own."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _is_untouched(module: nn.Module) -> bool:
    plain = all(type(parameter.data) is torch.Tensor for parameter in module.parameters(recurse=False))
    return plain and not is_hooked(module) and not module.training and module._compiled_call_impl is None


def can_step(model: nn.Module) -> bool:
    """Whether `DecoderSteps` computes what a ScratchForConditionalGeneration's own forward pass does."""
    from .modeling_scratch import ScratchForConditionalGeneration, ScratchModel  # which import this file

    if model.config._attn_implementation != "sdpa" or torch.compiler.is_compiling():
        return False
    decoder = model.model.decoder
    around = {model: ScratchForConditionalGeneration, model.model: ScratchModel, decoder: ScratchDecoder}
    if any(type(module).forward is not known.forward for module, known in around.items()):
        return False
    activations = {module for layer in decoder.layers for module in layer.feed_forward.activation.modules()}
    inner = [module for layer in decoder.layers for module in layer.modules()]
    known = all(type(module) in _KNOWN for module in inner if module not in activations)
    return known and all(map(_is_untouched, [*inner, *around, decoder.layers]))


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
        if length > self.past[0].shape[2]:
            self.past = [torch.cat([past, torch.empty_like(past[:, :, :_ROOM])], dim=2) for past in self.past]
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
        """(rows, 1, d_model) to the same shape, as ScratchDecoderLayer's forward, of the token at place `length`."""
        layer, rows = self.layer, len(hidden_states)
        residual = hidden_states
        inputs = layer.enter(hidden_states, layer.self_attn_layer_norm)
        packed = _product(inputs, self.weight, self.bias).view(rows, 3, self.heads, 1, self.head_dim)
        query, key, value = packed.unbind(1)  # (rows, heads, 1, head_dim) each
        if position_embeddings is not None:
            query, key = apply_rotary(query, position_embeddings), apply_rotary(key, position_embeddings)
        self.make_room(length + 1)
        for past, new in zip(self.past, (key, value), strict=True):
            past[:, :, length : length + 1] = new
        keys, values = (past[:, :, : length + 1] for past in self.past)
        output = scaled_dot_product_attention(query, keys, values, scale=layer.self_attn.scaling)
        hidden_states = self._leave(residual, output, layer.self_attn.o_proj, layer.self_attn_layer_norm)

        residual, cross = hidden_states, layer.cross_attn
        inputs = layer.enter(hidden_states, layer.cross_attn_layer_norm)
        # The beams of a sentence are queries to one source: (sentences, heads, beams, head_dim).
        sentences = len(self.source[0])
        query = (
            _product(inputs, cross.q_proj.weight, cross.q_proj.bias)
            .view(sentences, rows // sentences, self.heads, self.head_dim)
            .transpose(1, 2)
        )
        output = scaled_dot_product_attention(query, *self.source, attn_mask=attends, scale=cross.scaling)
        output = output.transpose(1, 2)  # (sentences, beams, heads, head_dim)
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
        self.has_plain_head = type(model.lm_head) is nn.Linear and _is_untouched(model.lm_head)
        self.attends = None
        if attention_mask is not None and not bool((attention_mask != 0).all()):
            self.attends = (attention_mask != 0)[:, None, None, :]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """(rows, new_tokens) to the logits of what comes next, (rows, vocabulary)."""
        # What `generate` was given to begin with is checked; what the model says has no need of it.
        embedded = self.decoder.embed(tokens, None, check=not self.length)
        for place in range(tokens.shape[1]):
            hidden_states = self._step(embedded[:, place : place + 1])
        return self._logits(self.decoder.layer_norm(hidden_states)[:, -1])

    def _step(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The embedding of one more token, (rows, 1, d_model), to what the last layer makes of it."""
        position = torch.tensor([[self.length]], device=hidden_states.device)
        hidden_states, position_embeddings = self.decoder.locate(hidden_states, position, self.length)
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_embeddings, self.attends, self.length)
        self.length += 1
        return hidden_states

    def _logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(rows, d_model) to (rows, vocabulary)."""
        head = self.model.lm_head
        return _product(hidden_states, head.weight, head.bias) if self.has_plain_head else head(hidden_states)

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

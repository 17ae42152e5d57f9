"""
A translator as two ONNX graphs, for runtimes without PyTorch: one encodes a sentence, the other computes one step of
decoding, with cached keys and values.
"""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from ...model import ScratchForConditionalGeneration
from .generation_settings import SearchSettings

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
_SMALL = 1024  # matrices with fewer elements are not worth quantizing


class OnnxEncoder(nn.Module):
    """Encodes sentences and projects them to the keys and values of cross-attention."""

    def __init__(self, model: ScratchForConditionalGeneration):
        super().__init__()
        self.encoder, self.decoder = model.model.encoder, model.model.decoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """
        Args:
            input_ids: (1, source_length); (sentences, source_length) with a mask.
            attention_mask: (sentences, source_length), 1 for tokens and 0 for padding.

        Returns:
            Keys and values of cross-attention, (2 * decoder_layers, sentences, heads, source_length, head_dim): each
            layer's keys, followed by its values.
        """
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        found = []
        for layer in self.decoder.layer_sequence():
            attention = layer.cross_attn
            found += [attention.split_heads(project(states)) for project in (attention.k_proj, attention.v_proj)]
        return torch.stack(found)


class _StepCache:
    """The decoder's cache in an ONNX graph: reads past keys and values from tensors, and collects the new ones."""

    def __init__(self, past: Sequence[torch.Tensor], source: Sequence[torch.Tensor]):
        self.past, self.collected = past, []
        self.is_updated = dict.fromkeys(range(len(source) // 2), True)
        pairs = zip(source[::2], source[1::2], strict=True)
        self.cross_attention_cache = SimpleNamespace(layers=[SimpleNamespace(keys=k, values=v) for k, v in pairs])
        self.self_attention_cache = self

    def get_seq_length(self) -> int:
        """The number of target tokens before this step."""
        return self.past[0].shape[2]

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As in Transformers' caches."""
        past = self.past[2 * layer_idx : 2 * layer_idx + 2]
        grown = tuple(torch.cat(both, dim=2) for both in zip(past, (key, value), strict=True))
        self.collected += grown
        return grown


class OnnxDecoder(nn.Module):
    """One step of decoding for several hypotheses of a sentence, with the weights of cross-attention."""

    def __init__(self, model: ScratchForConditionalGeneration):
        super().__init__()
        self.decoder, self.lm_head = model.model.decoder, model.lm_head

    def forward(
        self, input_ids: torch.Tensor, past: torch.Tensor, source: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        Args:
            input_ids: the last token of each hypothesis, (hypotheses, 1).
            past: keys and values of self-attention, (2 * decoder_layers, hypotheses, heads, past_length, head_dim).
            source: the output of `OnnxEncoder`, (2 * decoder_layers, 1, heads, source_length, head_dim).

        Returns:
            Log-probabilities of the next token, (hypotheses, vocabulary); `past` with the new token; and the weights of
            cross-attention, (decoder_layers, hypotheses, heads, source_length).
        """
        logits, present, weights = self.step(input_ids, past.unbind(), source.unbind())
        return torch.log_softmax(logits, dim=-1), torch.stack(present), torch.stack(weights)

    def step(
        self,
        input_ids: torch.Tensor,
        past: Sequence[torch.Tensor],
        source: Sequence[torch.Tensor],
        source_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """
        Args:
            input_ids: the last token of each row, (rows, 1).
            past: each layer's keys, followed by its values, (rows, heads, past_length, head_dim) each.
            source: the same for cross-attention, (rows or 1, heads, source_length, head_dim) each.
            source_mask: (rows, source_length), 1 for tokens and 0 for padding.

        Returns:
            Logits of the next token, (rows, vocabulary); `past` with the new token; and each layer's weights of
            cross-attention, (rows, heads, source_length).
        """
        cache = _StepCache(past, source)
        # The decoder reads only the shape of the encoder's states, since it already has their keys and values.
        shape = (input_ids.shape[0], source[0].shape[2], self.decoder.config.d_model)
        outputs = self.decoder(
            input_ids=input_ids,
            encoder_hidden_states=source[0].new_zeros(1, 1, 1).expand(shape),
            encoder_attention_mask=source_mask,
            past_key_values=cache,
            use_cache=True,
            output_attentions=True,
        )
        logits = self.lm_head(outputs.last_hidden_state[:, -1])
        return logits, cache.collected, [layer[:, :, -1] for layer in outputs.cross_attentions]


@torch.no_grad()
def export_onnx(model: ScratchForConditionalGeneration, folder: Path) -> None:
    """Write the ONNX graphs of a float32 model to a folder."""
    config = model.config
    layers, heads = 2 * config.decoder_layers, config.decoder_attention_heads
    size = config.d_model // heads
    hypotheses, past, source = (torch.export.Dim(name) for name in ("hypotheses", "past_length", "source_length"))
    # Example sizes must differ from each other and from 1, or the exporter takes them to be equal or constant.
    write_onnx(
        OnnxEncoder(model),
        folder / ENCODER,
        {"input_ids": torch.zeros(1, 5, dtype=torch.long)},
        ["source"],
        [{1: source}],
    )
    write_onnx(
        OnnxDecoder(model),
        folder / DECODER,
        {
            "input_ids": torch.zeros(3, 1, dtype=torch.long),
            "past": torch.zeros(layers, 3, heads, 4, size),
            "source": torch.zeros(layers, 1, heads, 5, size),
        },
        ["log_probs", "present", "weights"],
        [{0: hypotheses}, {1: hypotheses, 3: past}, {3: source}],
    )


def write_onnx(
    module: nn.Module,
    path: Path,
    inputs: dict[str, torch.Tensor],
    outputs: list[str],
    dynamic: list[dict[int, torch.export.Dim] | tuple[dict[int, torch.export.Dim], ...]],
) -> None:
    """
    Export a module to an ONNX file.

    Args:
        inputs: an example of each input, by its name.
        outputs: the names of the outputs.
        dynamic: the dynamic dimensions of each argument of `forward`; a tuple of them for `*arguments`.
    """
    # The exporter needs both; an extra of this package installs them.
    import onnx
    import onnxscript  # noqa: F401

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of missing packages that are not needed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            path,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=tuple(dynamic),
        )
    model = onnx.load(path)
    for noted in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        noted.ClearField("metadata_props")  # paths of source files on this machine
        noted.ClearField("doc_string")
    model.graph.ClearField("value_info")
    onnx.save(model, path)


def quantize_weights(path: Path) -> None:
    """
    Store the matrices of an ONNX graph in 8 bits, with one scale per row or per column, whichever is more accurate. The
    computation stays in float32: each matrix is stored as a product of constants, which runtimes compute when they load
    the graph. A DequantizeLinear would run at each step by default (ONNX Runtime 1.30).
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(path)
    expand = []
    for stored in list(model.graph.initializer):
        values = numpy_helper.to_array(stored)
        if values.ndim != 2 or values.dtype != np.float32 or values.size < _SMALL:
            continue
        integers, scales, _ = min((_rounded(values, axis) for axis in (0, 1)), key=lambda result: result[-1])
        integer, wide, scale = (f"{stored.name}.{part}" for part in ("int8", "wide", "scale"))
        model.graph.initializer.remove(stored)
        model.graph.initializer.extend(map(numpy_helper.from_array, (integers, scales), (integer, scale)))
        expand.append(helper.make_node("Cast", [integer], [wide], to=TensorProto.FLOAT))
        expand.append(helper.make_node("Mul", [wide, scale], [stored.name]))
    nodes = [*expand, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _rounded(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, float]:
    """A matrix as int8, the scales of its rows (axis 0) or columns (axis 1), and the sum of squared errors."""
    scales = np.abs(values).max(axis=1 - axis, keepdims=True).clip(min=1e-12) / 127
    integers = np.rint(values / scales).astype(np.int8)
    return integers, scales, float(np.square(integers * scales - values).sum())


class OnnxScorer:
    """Scores given targets with the ONNX graphs, to compare them with the model."""

    names = (ENCODER, DECODER)

    def __init__(self, folder: Path, search: SearchSettings):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
            for name in self.names
        )
        self.start_token, self.end_token = search.start, search.ends[0]

    def __call__(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each target, and of the end token after it."""
        return [self._score(*pair) for pair in zip(sources, targets, strict=True)]

    def _score(self, source: list[int], target: list[int]) -> list[float]:
        (read,) = self.encoder.run(None, {"input_ids": np.array([source], dtype=np.int64)})
        layers, _, heads, _, size = read.shape
        past, found = np.zeros((layers, 1, heads, 0, size), dtype=read.dtype), []
        for token, following in zip([self.start_token, *target], [*target, self.end_token], strict=True):
            inputs = {"input_ids": np.array([[token]]), "past": past, "source": read}
            log_probs, past, _ = self.decoder.run(None, inputs)
            found.append(float(log_probs[0, following]))
        return found

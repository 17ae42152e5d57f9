"""
A translator as two ONNX graphs that transformers.js runs as if they were a BART model's: they take batches, their
tensors have BART's names, and the decoder's cache has one tensor for each layer's keys and one for its values.
"""

from pathlib import Path

import numpy as np
import torch

from ..model.modeling_scratch import ScratchForConditionalGeneration
from .generation_settings import SearchSettings
from .onnx_graphs import DecoderGraph, EncoderGraph, OnnxScorer, write_graph

ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"


class BatchEncoderGraph(EncoderGraph):
    """Encodes padded sentences. The batch dimension comes first, as transformers.js expects of any encoder output."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """
        Args:
            input_ids, attention_mask: (sentences, source_length).

        Returns:
            Keys and values of cross-attention, (sentences, 2 * decoder_layers, heads, source_length, head_dim).
        """
        return super().forward(input_ids, attention_mask).transpose(0, 1)


class BatchDecoderGraph(DecoderGraph):
    """
    One greedy step for several sentences. transformers.js continues until all rows end at the same step, so a row that
    has ended repeats its end token.
    """

    def __init__(self, model: ScratchForConditionalGeneration, ends: list[int]):
        super().__init__(model)
        is_end = torch.zeros(model.config.target_vocab_size, dtype=torch.bool)
        is_end[ends] = True
        self.register_buffer("is_end", is_end)

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        *past: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """
        Args:
            input_ids: the last token of each row, (rows, 1).
            encoder_attention_mask: (rows, source_length).
            encoder_hidden_states: what the encoder's graph returned.
            past: each layer's keys, followed by its values, (rows, heads, past_length, head_dim) each.

        Returns:
            Logits of the next token, (rows, 1, vocabulary), and `past` with the new token.
        """
        logits, present, _ = self.step(input_ids, past, encoder_hidden_states.unbind(1), encoder_attention_mask)
        is_later = torch.arange(past[0].shape[2] + 1)[-1:] > 0  # the start token may be an end token
        has_ended = self.is_end[input_ids] & is_later  # (rows, 1)
        logits = logits.masked_fill(has_ended & ~self.is_end, torch.finfo(logits.dtype).min)
        return logits[:, None], *present


def cache_names(prefix: str, layers: int) -> list[str]:
    """The names of the decoder's cache tensors, with the prefix of inputs (past_key_values) or outputs (present)."""
    return [f"{prefix}.{layer}.decoder.{each}" for layer in range(layers) for each in ("key", "value")]


@torch.no_grad()
def export_transformersjs_graphs(model: ScratchForConditionalGeneration, folder: Path, search: SearchSettings) -> None:
    """Write both graphs of a float32 model to a folder."""
    config = model.config
    heads, size = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
    layers = config.decoder_layers
    # transformers.js begins with a cache in which batch_size is known and every other named size is 0.
    rows, past, source = map(torch.export.Dim, ("batch_size", "past_sequence_length", "encoder_sequence_length"))
    # Example sizes must differ from each other and from 1, or the exporter takes them to be equal or constant.
    ids, mask = torch.zeros(3, 5, dtype=torch.long), torch.ones(3, 5, dtype=torch.long)
    write_graph(
        BatchEncoderGraph(model),
        folder / ENCODER,
        {"input_ids": ids, "attention_mask": mask},
        ["last_hidden_state"],
        [{0: rows, 1: source}] * 2,
    )
    inputs = {
        "input_ids": ids[:, :1],
        "encoder_attention_mask": mask,
        "encoder_hidden_states": torch.zeros(3, 2 * layers, heads, 5, size),
    }
    cache = {name: torch.zeros(3, heads, 4, size) for name in cache_names("past_key_values", layers)}
    write_graph(
        BatchDecoderGraph(model, search.ends),
        folder / DECODER,
        inputs | cache,
        ["logits", *cache_names("present", layers)],
        [{0: rows}, {0: rows, 1: source}, {0: rows, 3: source}, ({0: rows, 2: past},) * len(cache)],
    )


class TransformersjsScorer(OnnxScorer):
    """Scores given tokens with these graphs."""

    names = (ENCODER, DECODER)

    def _score(self, source: list[int], target: list[int]) -> list[float]:
        ids, found = np.array([source]), []
        mask = np.ones_like(ids)
        (read,) = self.encoder.run(None, {"input_ids": ids, "attention_mask": mask})
        names = cache_names("past_key_values", read.shape[1] // 2)
        cache = [np.zeros((1, read.shape[2], 0, read.shape[4]), dtype=read.dtype)] * len(names)
        for token, following in zip([self.start_token, *target], [*target, self.end_token], strict=True):
            inputs = {"input_ids": np.array([[token]]), "encoder_attention_mask": mask, "encoder_hidden_states": read}
            logits, *cache = self.decoder.run(None, inputs | dict(zip(names, cache, strict=True)))
            found.append(float(torch.from_numpy(logits[0, 0]).log_softmax(dim=-1)[following]))
        return found

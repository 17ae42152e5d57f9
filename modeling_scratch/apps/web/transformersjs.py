"""
Exports a model as a folder that transformers.js loads.

transformers.js runs the two ONNX graphs as it would those of a BART model. They take batches, their inputs and outputs
are named as BART's, and the decoder's cache has one tensor for each layer's keys and another for its values.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.utils import yaml_dump

from ...errors import UserError
from ...files import read_json
from ...hub.allowed_files import CARD
from ...hub.card import license_of
from ...languages import language_codes
from ...model import ScratchForConditionalGeneration
from ...model.configuration_scratch import TRANSLATION, ScratchConfig, task_of
from ..convert.checking import load_model, verify_scores
from ..convert.generation_settings import SearchSettings
from ..convert.onnx import OnnxDecoder, OnnxEncoder, OnnxScorer, quantize_weights, write_onnx
from .described import title_of_model
from .export import exported_search
from .run_facts import examples_of, records_of
from .tokenizers import write_tokenizers

logger = logging.getLogger(__name__)

_ONNX = "onnx"
ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
_WHERE = "a folder for transformers.js"
_CONFIG_FIELDS = ("is_encoder_decoder", "vocab_size", "d_model", "encoder_layers", "decoder_layers")
_CONFIG_FIELDS += ("encoder_attention_heads", "decoder_attention_heads", "max_position_embeddings")
_CONFIG_FIELDS += ("bos_token_id", "pad_token_id")


@torch.no_grad()
def export_transformersjs(name: str, folder: Path) -> float:
    """
    Write a model to a new folder, with 32-bit and with 8-bit weights.

    Args:
        name: a model folder or Hub name.

    Returns:
        The largest difference between the log-probabilities of the ONNX graphs and those of the model.

    Raises:
        UserError: the model has two tokenizers, or one without tokenizer.json, or the results in ONNX differ from the
            model's.
    """
    model = load_model(name, ScratchConfig.model_type).float().eval()
    folder.mkdir()
    two, languages, _ = write_tokenizers(name, folder, _WHERE)
    if two:
        raise UserError(
            f"{name} has a tokenizer for each side, but transformers.js supports only one; export a page instead "
            "(scratch export web) or train with tokenizer.shared: true"
        )
    search = exported_search(model, name, _WHERE, keeps_phrases=True)
    if search.num_beams > 1:
        logger.warning(f"transformers.js has no beam search; it decodes greedily, not with {search.num_beams} beams")
    onnx = folder / _ONNX
    onnx.mkdir()
    export_transformersjs_onnx(model, onnx, search)
    difference = verify_scores(model, TransformersjsScorer(onnx, search))
    for file in (ENCODER, DECODER):
        quantized = onnx / file.replace(".onnx", "_quantized.onnx")
        shutil.copyfile(onnx / file, quantized)
        quantize_weights(quantized)
    _write_json(folder / "config.json", _config(model.config, search))
    _write_json(folder / "generation_config.json", _generation_config(search))
    reserved = read_json(folder / "tokenizer_config.json").get("reserved", 0)
    card = card_of_folder(name, languages, search, task_of(model.config), reserved)
    (folder / CARD).write_text(card, encoding="utf-8")
    return difference


def _config(config: ScratchConfig, search: SearchSettings) -> dict:
    """The config for transformers.js: sizes, and a model type that it knows as an encoder-decoder."""
    fields = {field: getattr(config, field) for field in _CONFIG_FIELDS}
    return {"model_type": "bart", **fields, "decoder_start_token_id": search.start, "eos_token_id": search.ends}


def _generation_config(search: SearchSettings) -> dict:
    """The generation config, with the search settings that transformers.js supports."""
    settings = {"max_new_tokens": search.longest, "decoder_start_token_id": search.start, "eos_token_id": search.ends}
    settings |= {"min_new_tokens": search.shortest} if search.shortest else {}
    return settings | ({"bad_words_ids": search.banned} if search.banned else {})


def card_of_folder(
    name: str, languages: list[str], search: SearchSettings, task: str = TRANSLATION, reserved: int = 0
) -> str:
    """The folder's README.md, which is its card on the Hub."""
    run = records_of(name)
    metadata: dict[str, Any] = {"library_name": "transformers.js", "pipeline_tag": TRANSLATION}
    title, called = title_of_model(name, languages), "translate"
    if task != TRANSLATION:
        metadata |= {"pipeline_tag": "text-generation", "tags": [task]}
        title, called = title_of_model(name, [], run and run.recipe.data.task), "generate"
    metadata |= {"language": language_codes(languages)} if language_codes(languages) else {}
    license = license_of(Path(name), run)
    metadata |= {"license": license} if license else {}
    example = json.dumps(next(iter(examples_of(run)), "..."), ensure_ascii=False)
    copies = """
The model has learned to copy characters in place of placeholders, addresses and other words that stay as they are: put
the character U+10FF00 in place of the first, U+10FF01 of the second, and so on, and the words back into the output.
"""
    return f"""\
---
{yaml_dump(metadata)}---

# {title}, for transformers.js

```bash
ONNXRUNTIME_NODE_INSTALL=skip npm install @huggingface/transformers  # skip: no GPU libraries, which are elsewhere
```

```js
import {{ pipeline }} from "@huggingface/transformers";
const {called} = await pipeline("{task}", "user/name-onnx", {{ dtype: "fp32" }});
console.log(await {called}({example}, {{ max_new_tokens: {search.longest} }}));
```

`user/name-onnx` is this folder's name on the Hub; in Node.js it can also be a path, such as `./folder`. With
`dtype: "q8"`, transformers.js loads 8-bit weights, a quarter of the size. The model takes one text at a time; pass
several as an array. Leave blank texts out: transformers.js would translate them to something.
{copies if reserved else ""}
This folder is only for [transformers.js](https://huggingface.co/docs/transformers.js). The model is not a BART model:
its `config.json` has this type so that transformers.js runs the ONNX graphs in `{_ONNX}` as an encoder-decoder.
Their `last_hidden_state` contains the keys and values of cross-attention.
"""


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# -- the ONNX graphs ---------------------------------------------------------------------------------------------------


class BatchEncoder(OnnxEncoder):
    """Encodes padded sentences. The batch dimension comes first, as transformers.js expects."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """
        Args:
            input_ids, attention_mask: (sentences, source_length).

        Returns:
            Keys and values of cross-attention, (sentences, 2 * decoder_layers, heads, source_length, head_dim).
        """
        return super().forward(input_ids, attention_mask).transpose(0, 1)


class BatchDecoder(OnnxDecoder):
    """
    One greedy step for several sentences. A row that has ended repeats its end token, since transformers.js continues
    until all rows end in the same step.
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
            encoder_hidden_states: the output of `BatchEncoder`.
            past: each layer's keys, followed by its values, (rows, heads, past_length, head_dim) each.

        Returns:
            Logits of the next token, (rows, 1, vocabulary), and `past` with the new token.
        """
        logits, present, _ = self.step(input_ids, past, encoder_hidden_states.unbind(1), encoder_attention_mask)
        is_later = torch.arange(past[0].shape[2] + 1)[-1:] > 0  # in the first step, the start token may be an end token
        has_ended = self.is_end[input_ids] & is_later  # (rows, 1)
        logits = logits.masked_fill(has_ended & ~self.is_end, torch.finfo(logits.dtype).min)
        return logits[:, None], *present


def cache_names(prefix: str, layers: int) -> list[str]:
    """The names of the decoder's cache tensors. The prefix of inputs is past_key_values, that of outputs present."""
    return [f"{prefix}.{layer}.decoder.{part}" for layer in range(layers) for part in ("key", "value")]


@torch.no_grad()
def export_transformersjs_onnx(model: ScratchForConditionalGeneration, folder: Path, search: SearchSettings) -> None:
    """Write the ONNX graphs of a model in float32 to a folder."""
    config = model.config
    heads, size = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
    layers = config.decoder_layers
    # transformers.js creates the first cache by these names: every size except batch_size is 0.
    rows, past, source = map(torch.export.Dim, ("batch_size", "past_sequence_length", "encoder_sequence_length"))
    # Sizes in the example must differ from each other and from 1; the exporter assumes that equal ones always are.
    ids, mask = torch.zeros(3, 5, dtype=torch.long), torch.ones(3, 5, dtype=torch.long)
    write_onnx(
        BatchEncoder(model),
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
    write_onnx(
        BatchDecoder(model, search.ends),
        folder / DECODER,
        inputs | cache,
        ["logits", *cache_names("present", layers)],
        [{0: rows}, {0: rows, 1: source}, {0: rows, 3: source}, ({0: rows, 2: past},) * len(cache)],
    )


class TransformersjsScorer(OnnxScorer):
    """Scores tokens with the ONNX graphs for transformers.js."""

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

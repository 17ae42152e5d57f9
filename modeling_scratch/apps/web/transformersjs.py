"""Exports a model as a folder that transformers.js loads."""

import json
import logging
import shutil
from pathlib import Path

import torch
from huggingface_hub.utils import yaml_dump

from ...errors import UserError
from ...hub.allowed_files import CARD
from ...hub.card import license_of
from ...languages import language_codes
from ...model.configuration_scratch import ScratchConfig
from ..convert.checking import SearchSettings, load_model, verify_scores
from ..convert.onnx import DECODER, ENCODER, TransformersjsScorer, export_transformersjs_graphs, quantize_weights
from .export import exported_search, title_of_model
from .run_facts import examples_of, records_of
from .tokenizers import write_tokenizers

logger = logging.getLogger(__name__)

_GRAPHS = "onnx"
_WHERE = "a folder for transformers.js"
_CONFIG_FIELDS = ("is_encoder_decoder", "vocab_size", "d_model", "encoder_layers", "decoder_layers")
_CONFIG_FIELDS += ("encoder_attention_heads", "decoder_attention_heads", "max_position_embeddings")
_CONFIG_FIELDS += ("bos_token_id", "pad_token_id")


@torch.no_grad()
def export_transformersjs(name: str, folder: Path) -> None:
    """
    Write a model to a new folder, with both 32-bit and 8-bit weights.

    Args:
        name: a model folder or Hub name.

    Raises:
        UserError: transformers.js cannot run the model: it has two tokenizers or one of another kind, or the graphs'
            results differ from the model's.
    """
    model = load_model(name, ScratchConfig.model_type).float().eval()
    folder.mkdir()
    two, languages = write_tokenizers(name, folder, _WHERE)
    if two:
        raise UserError(
            f"{name} has a tokenizer for each language, and transformers.js reads and writes with the same one; export "
            "a page instead (scratch export web), or train with tokenizer.shared: true"
        )
    search = exported_search(model, name, _WHERE, keeps_phrases=True)
    if search.num_beams > 1:
        logger.warning(f"transformers.js has no beam search: it translates greedily, not with {search.num_beams} beams")
    graphs = folder / _GRAPHS
    graphs.mkdir()
    export_transformersjs_graphs(model, graphs, search)
    verify_scores(model, TransformersjsScorer(graphs, search))
    for graph in (ENCODER, DECODER):
        quantized = graphs / graph.replace(".onnx", "_quantized.onnx")
        shutil.copyfile(graphs / graph, quantized)
        quantize_weights(quantized)
    _write_json(folder / "config.json", _config(model.config, search))
    _write_json(folder / "generation_config.json", _generation_config(search))
    (folder / CARD).write_text(card_of_folder(name, languages, search), encoding="utf-8")


def _config(config: ScratchConfig, search: SearchSettings) -> dict:
    """The config for transformers.js: sizes, and a type that it runs as an encoder-decoder whatever the graphs hold."""
    fields = {field: getattr(config, field) for field in _CONFIG_FIELDS}
    return {"model_type": "bart", **fields, "decoder_start_token_id": search.start, "eos_token_id": search.ends}


def _generation_config(search: SearchSettings) -> dict:
    """The search settings that transformers.js supports."""
    settings = {"max_new_tokens": search.longest, "decoder_start_token_id": search.start, "eos_token_id": search.ends}
    settings |= {"min_new_tokens": search.shortest} if search.shortest else {}
    return settings | ({"bad_words_ids": search.banned} if search.banned else {})


def card_of_folder(name: str, languages: list[str], search: SearchSettings) -> str:
    """The folder's README.md, which is its card on the Hub."""
    run = records_of(name)
    metadata = {"library_name": "transformers.js", "pipeline_tag": "translation"}
    metadata |= {"language": language_codes(languages)} if language_codes(languages) else {}
    license = license_of(Path(name), run)
    metadata |= {"license": license} if license else {}
    example = json.dumps(next(iter(examples_of(run)), "..."), ensure_ascii=False)
    return f"""\
---
{yaml_dump(metadata)}---

# {title_of_model(name, languages)}, for transformers.js

```js
import {{ pipeline }} from "@huggingface/transformers";
const translate = await pipeline("translation", "user/name-onnx", {{ dtype: "fp32" }});
console.log(await translate({example}, {{ max_new_tokens: {search.longest} }}));
```

`user/name-onnx` is where this folder is on the Hub; Node.js also takes its path, such as `./folder`. With `dtype: "q8"`
the weights have 8 bits, a quarter of the size. The model translates a sentence at a time: give several as an array.

This folder is for [transformers.js](https://huggingface.co/docs/transformers.js) alone. The model is no BART: its
`config.json` says so because transformers.js chooses by it how to run the graphs in `{_GRAPHS}`, and their
`last_hidden_state` holds the keys and values that the decoder attends to.
"""


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

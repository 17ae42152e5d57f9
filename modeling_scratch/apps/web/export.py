"""Exports a model as a web page that runs it in the browser: a folder for any static server, or a single file."""

import json
import shutil
from collections.abc import Sequence
from filecmp import cmp
from pathlib import Path
from typing import Any

import torch

from ...errors import UserError, as_user_error
from ...files import temporary_folder
from ...inference.alignments import alignment_heads
from ...loading import load_confidence
from ...model import ScratchForConditionalGeneration
from ...model.confidence import FILE
from ...model.configuration_scratch import TRANSLATION, ScratchConfig, task_of
from ...model.kept_words import in_javascript
from ...model.translation_pipeline import TARGET_FOLDER
from ...recipe import SOURCE, TARGET
from ..convert.checking import load_model, verify_scores
from ..convert.generation_settings import SearchSettings, read_search, warn_of_settings
from ..convert.onnx import DECODER, ENCODER, OnnxScorer, export_onnx, quantize_weights
from .described import describe_origin, read_origin
from .language_table import language_table
from .runtime import FOLDER, MODULES, PACKAGES, WASM, licenses, runtime_files
from .site import page_file, write_folder, write_one_file
from .tokenizers import EXPORTED_FILES, write_tokenizers

_WORKER, _SEARCH, _CONFIDENCE, _TRANSLATOR = "worker.js", "search.js", "confidence.js", "translator.js"
LANGUAGES = "languages.json"
LICENSES = f"{FOLDER}/LICENSES"
# Settings of `generate()` that no export supports, in addition to `NEEDS_GENERATE`.
_LEFT_OUT = ("begin_suppress_tokens", "no_repeat_ngram_size", "repetition_penalty", "renormalize_logits")


def export_page(names: Sequence[str], folder: Path, quantize: bool = False, license: str | None = None) -> float:
    """
    Write the page of one or more models to a new folder. Each model has a folder of its own in it, such as en-de.

    Args:
        names: model folders or Hub names: one for each direction, or a faster one, whose own search is greedy, and a
            better one, whose own search has several beams.
        quantize: store 8-bit weights.
        license: the models'; None: read it from each folder.

    Returns:
        The largest difference between the log-probabilities of the ONNX graphs, in float32, and those of the models.

    Raises:
        UserError: two models of the same direction both search greedily or both with several beams, a tokenizer has no
            tokenizer.json, the results in ONNX differ from the model's, or the runtime cannot be fetched.
    """
    with temporary_folder(folder.parent) as parts:
        described, difference = _write_parts(names, parts, quantize, license)
        write_folder(parts, described, folder)
    return difference


def export_one_file(names: Sequence[str], path: Path, quantize: bool = False) -> float:
    """Write the page of one or more models as a single file, which needs no server. Otherwise as `export_page`."""
    with temporary_folder(path.parent) as parts:
        described, difference = _write_parts(names, parts, quantize)
        write_one_file(parts, described, path)
    return difference


@torch.no_grad()
def _write_parts(
    names: Sequence[str], parts: Path, quantize: bool, license: str | None = None
) -> tuple[dict[str, Any], float]:
    """
    Write the files that the page's code reads to an empty folder. Returns the content of model.json, with the paths of
    the files by the names that the code knows, and the largest difference; see `export_page`.
    """
    models = [load_model(name, ScratchConfig.model_type).float().eval() for name in names]
    shared, written, differences = _write_shared(parts), [], []
    for name, model in zip(names, models, strict=True):
        described, difference = _write_model(name, model, parts, quantize, license, written)
        written.append(described)
        differences.append(difference)
    return {"shared": shared, "directions": _directions(written, parts)}, max(differences)


def _directions(written: list[dict[str, Any]], parts: Path) -> list[dict[str, Any]]:
    """
    A model for each direction. Where there are two, it is the faster one, which names the other as "better"; files that
    are the same in both, such as those of a common tokenizer, are only the faster one's.
    """
    directions = {}
    for model in sorted(written, key=lambda model: model["search"]["numBeams"] > 1):
        faster = directions.setdefault(tuple(model["codes"]), model)
        if faster is model:
            continue
        faster["better"] = model
        for file, path in faster["files"].items():
            if file in model["files"] and cmp(parts / path, parts / model["files"][file], shallow=False):
                model["files"][file] = path
    return [directions[codes] for codes in dict.fromkeys(tuple(model["codes"]) for model in written)]


def _write_model(
    name: str,
    model: ScratchForConditionalGeneration,
    parts: Path,
    quantize: bool,
    license: str | None,
    others: list[dict[str, Any]],
) -> tuple[dict[str, Any], float]:
    """Write a model, after `others`. Returns its part of model.json, and its difference; see `export_page`."""
    folder = parts / "model"
    folder.mkdir()
    two, languages, takes_any_text = write_tokenizers(name, folder, "a page")
    described = describe_model(model, name, languages, quantize, license)
    codes, is_greedy = languages or [SOURCE, TARGET], described["search"]["numBeams"] == 1
    searches = [other["search"]["numBeams"] == 1 for other in others if other["codes"] == codes]
    if is_greedy in searches:
        raise UserError(
            f"{name}: another model goes from {codes[0]} to {codes[1]} too, and both have "
            f"{'greedy search' if is_greedy else 'beam search'}; give one for each direction, or a faster one, with "
            '"num_beams": 1 in its generation_config.json, and a better one, with more beams'
        )
    identity = "-".join([*codes, *(["faster" if is_greedy else "better"] if searches else [])])
    folder = folder.rename(parts / identity)
    export_onnx(model, folder)
    difference = verify_scores(model, OnnxScorer(folder, read_search(model)))
    if quantize:
        for file in (ENCODER, DECODER):
            quantize_weights(folder / file)
    tokenizers = [f"{part}{file}" for part in ("", f"{TARGET_FOLDER}/")[: 2 if two else 1] for file in EXPORTED_FILES]
    needed = [ENCODER, DECODER, *tokenizers, *write_confidence(name, folder, languages)]
    reserved = json.loads((folder / EXPORTED_FILES[1]).read_text(encoding="utf-8")).get("reserved", 0)
    described |= {"id": identity, "codes": codes, "hasTargetTokenizer": two}
    described |= {"takesAnyText": takes_any_text, "reserved": reserved}
    return described | {"files": {file: f"{folder.name}/{file}" for file in needed}}, difference


def _write_shared(parts: Path) -> dict[str, Any]:
    """Write what all models share. Returns its part of model.json."""
    (parts / FOLDER).mkdir()
    for path in runtime_files():
        shutil.copyfile(path, parts / FOLDER / path.name)
    (parts / LICENSES).write_text(licenses(), encoding="utf-8")
    for file in (_WORKER, _SEARCH, _CONFIDENCE, _TRANSLATOR):
        (parts / file).write_text(page_file(file), encoding="utf-8")
    modules = [*(f"{FOLDER}/{module}" for module in MODULES), _SEARCH, _CONFIDENCE, _TRANSLATOR]
    wasm = f"{FOLDER}/{WASM}"
    shared = {"worker": _WORKER, "modules": modules, "wasm": wasm, "licenses": LICENSES}
    return shared | {"files": {file: file for file in (*modules, wasm, LICENSES, _WORKER)}}


def write_confidence(name: str, folder: Path, languages: list[str]) -> list[str]:
    """Write what the page needs for confidence, if the model has any. Returns the names of the files."""
    if (confidence := load_confidence(name)) is None:
        return []
    content = {FILE: confidence.text()}
    if languages and (table := language_table(languages[0])) is not None:
        content[LANGUAGES] = json.dumps(table) + "\n"
    for file, text in content.items():
        (folder / file).write_text(text, encoding="utf-8")
    return list(content)


def describe_model(
    model: ScratchForConditionalGeneration,
    name: str,
    languages: list[str],
    is_quantized: bool,
    license: str | None = None,
) -> dict[str, Any]:
    """
    A model in a page's model.json, without the names of its files.

    Args:
        name: the folder or Hub name of the model.
        languages: tags of source and target; empty: unknown, or there are none.
        license: the model's; None: read it from the folder.

    Raises:
        UserError: the model has no start token or end token, or its generation config names alignment heads that it
            does not have.
    """
    with as_user_error(f"{name}: ", ValueError):
        heads = alignment_heads(model)
    search = exported_search(model, name, "the page", keeps_phrases=False)
    described = describe_origin(name, languages, read_origin(name, model.config, license))
    return described | {
        "longestSource": model.config.max_position_embeddings,
        "startToken": search.start,
        "alignmentHeads": heads,
        "keptWords": in_javascript() if task_of(model.config) == TRANSLATION else None,
        "search": {
            "numBeams": search.num_beams,
            "lengthPenalty": search.length_penalty,
            "earlyStopping": search.early_stopping,
            "minNewTokens": search.shortest,
            "maxNewTokens": search.longest,
            "endTokens": search.ends,
            "suppressedTokens": [token for sequence in search.banned if len(sequence) == 1 for token in sequence],
        },
        "facts": [*described["facts"], *_technical_facts(model, is_quantized)],
    }


def exported_search(
    model: ScratchForConditionalGeneration, name: str, where: str, keeps_phrases: bool
) -> SearchSettings:
    """
    A model's search settings. Logs a warning about settings that the export ignores.

    Args:
        name: the folder or Hub name of the model.
        where: the kind of export, for messages.
        keeps_phrases: whether the export can ban sequences of several tokens.

    Raises:
        UserError: the model has no start token or end token.
    """
    search = read_search(model)
    for field, value in (("eos_token_id", search.ends), ("decoder_start_token_id", search.start)):
        if value is None or value == []:
            raise UserError(f"{name}: {where} needs {field} in the model's config")
    loses_phrases = not keeps_phrases and any(len(sequence) > 1 for sequence in search.banned)
    warn_of_settings(model, [*_LEFT_OUT, *(["bad_words_ids"] if loses_phrases else [])], where)
    return search


def _technical_facts(model: ScratchForConditionalGeneration, is_quantized: bool) -> list[tuple[str, str]]:
    count = sum(parameter.numel() for parameter in model.parameters())
    weights = "8-bit weights" if is_quantized else "32-bit weights"
    return [
        ("Model", f"Transformer with {count:,} parameters, {weights}"),
        ("Runs on", ", ".join(f"{package.name} {package.version} ({package.license})" for package in PACKAGES)),
    ]

"""Exports a model as a page that translates in the browser: a folder for any static server, or a single file."""

import base64
import gzip
import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from ..convert.checking import load_model, verify_scores
from ..convert.generation_settings import read_search
from ..convert.onnx_graphs import DECODER, ENCODER, OnnxScorer, export_graphs, quantize_weights
from ..files import temporary_folder
from ..model.configuration_scratch import ScratchConfig
from ..model.translation_pipeline import TARGET_FOLDER
from .about import describe_model
from .runtime import FOLDER, MODULES, WASM, licenses, runtime_files
from .tokenizers import EXPORTED_FILES, write_tokenizers

PAGE, STYLE, SCRIPT, MODEL = "index.html", "page.css", "page.js", "model.json"
_WORKER, _SEARCH, _TRANSLATOR = "worker.js", "search.js", "translator.js"
LICENSES = f"{FOLDER}/LICENSES"


@torch.no_grad()
def export_page(name: str, folder: Path, quantize: bool = False, license: str | None = None) -> None:
    """
    Write a model's page to a new folder.

    Args:
        name: a model folder or Hub name.
        quantize: store 8-bit weights.
        license: the model's; None: as its folder says.

    Raises:
        UserError: the tokenizer is of another kind, the graphs differ from the model, or the runtime is unavailable.
    """
    model = load_model(name, ScratchConfig.model_type).float().eval()
    runtime = runtime_files()  # first, since fetching them may fail
    folder.mkdir()
    two, languages = write_tokenizers(name, folder, "a page")
    described = describe_model(model, name, languages, quantize, license)
    export_graphs(model, folder)
    verify_scores(model, OnnxScorer(folder, read_search(model)))
    if quantize:
        for graph in (ENCODER, DECODER):
            quantize_weights(folder / graph)
    (folder / FOLDER).mkdir()
    for path in runtime:
        shutil.copyfile(path, folder / FOLDER / path.name)
    (folder / LICENSES).write_text(licenses(), encoding="utf-8")
    page = files(__package__) / "page"
    for file in (PAGE, STYLE, SCRIPT, _WORKER, _SEARCH, _TRANSLATOR):
        (folder / file).write_bytes((page / file).read_bytes())
    tokenizers = [f"{part}{file}" for part in ("", f"{TARGET_FOLDER}/")[: 2 if two else 1] for file in EXPORTED_FILES]
    modules = [*(f"{FOLDER}/{module}" for module in MODULES), _SEARCH, _TRANSLATOR]
    wasm = f"{FOLDER}/{WASM}"
    needed = [*modules, wasm, LICENSES, _WORKER, ENCODER, DECODER, *tokenizers]
    described |= {"hasTargetTokenizer": two, "modules": modules, "wasm": wasm, "licenses": LICENSES, "files": needed}
    described["bytes"] = sum((folder / file).stat().st_size for file in needed)
    (folder / MODEL).write_text(json.dumps(described, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def export_one_file(name: str, path: Path, quantize: bool = False) -> None:
    """Write a model's page as a single file, which needs no server. Arguments and errors as in `export_page`."""
    with temporary_folder(path.parent) as temporary:
        folder = temporary / "page"
        export_page(name, folder, quantize)
        needed = read_described(folder)["files"]
        packed = {file: _packed((folder / file).read_bytes()) for file in (MODEL, *needed)}
        style, script = ((folder / file).read_text(encoding="utf-8") for file in (STYLE, SCRIPT))
        text = (folder / PAGE).read_text(encoding="utf-8")
        replacements = {
            f'<link rel="stylesheet" href="{STYLE}">': f"<style>\n{style}</style>",
            f'<script type="module" src="{SCRIPT}"></script>': (
                f'<script id="files" type="application/json">{json.dumps(packed)}</script>\n'
                f'<script type="module">\n{script}</script>'
            ),
            "script-src 'self'": "script-src 'unsafe-inline'",
            "style-src 'self'": "style-src 'unsafe-inline'",
            "connect-src 'self'; ": "",
        }
        for old, new in replacements.items():
            assert old in text, old
            text = text.replace(old, new, 1)
        path.write_text(text, encoding="utf-8")


def read_described(folder: Path) -> dict[str, Any]:
    """The description of the model in a page's folder; see `describe_model`."""
    return json.loads((folder / MODEL).read_text(encoding="utf-8"))


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()

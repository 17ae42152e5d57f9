"""For tests of exported pages: their translator in Node, and the translations of `generate()`."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from modeling_scratch.apps.web import runtime
from modeling_scratch.loading import load_tokenizers, load_translator

HERE = Path(__file__).parent / "apps" / "web"
# Tests download nothing: `make` puts the runtime into its cache if npm is installed.
HAS_RUNTIME = shutil.which("node") is not None and all(
    (runtime.cache_folder() / Path(name).name).is_file() for package in runtime.PACKAGES for name in package.files
)
needs_runtime = pytest.mark.skipif(not HAS_RUNTIME, reason="needs Node.js, and scratch export runtime to have run once")


def in_node(page: Path, texts=(), cases=()) -> dict:
    """
    Encode and translate with a page's translator.

    Args:
        texts: to encode.
        cases: pairs of a sentence to translate and the options for it.
    """
    # Only V8's baseline compiler: optimizing the runtime would take far longer than these translations.
    return node("--liftoff-only", HERE / "translate.mjs", page, input=json.dumps({"texts": texts, "cases": cases}))


def node(*arguments, **options) -> Any:
    """Run Node.js. Returns the JSON that it prints."""
    done = subprocess.run(["node", *arguments], capture_output=True, text=True, timeout=600, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def until_the_end(row: list[int], ends: list[int]) -> list[int]:
    """A row of tokens without padding."""
    last = next((place for place, token in enumerate(row) if token in ends), len(row))
    return row[: last + 1]


def generated(folder: Path, sentences: list[str], **settings) -> list[list[dict]]:
    """The translations of each sentence by `generate()`, one sentence at a time: tokens and text."""
    model = load_translator(str(folder)).eval()
    source, target = load_tokenizers(str(folder))
    found = []
    for sentence in sentences:
        sequences = model.generate(torch.tensor([source(sentence.strip()).input_ids]), **settings)[:, 1:]
        ends = settings.get("eos_token_id", [model.config.eos_token_id])
        rows = [until_the_end(row, ends) for row in sequences.tolist()]
        texts = target.batch_decode(rows, skip_special_tokens=True)
        found.append([{"tokens": row, "text": text} for row, text in zip(rows, texts, strict=True)])
    return found

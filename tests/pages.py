"""What the tests of exported pages share: running a page's translator in Node, and what `generate()` says."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from modeling_scratch.apps.web import runtime
from modeling_scratch.loading import load_tokenizers, load_translator

HERE = Path(__file__).parent / "apps" / "web"
# The tests fetch nothing: `make` has put the runtime into its cache if there is npm.
HAS_RUNTIME = shutil.which("node") is not None and all(
    (runtime.cache_folder() / Path(name).name).is_file() for package in runtime.PACKAGES for name in package.files
)
needs_runtime = pytest.mark.skipif(not HAS_RUNTIME, reason="needs Node.js, and scratch export runtime to have run once")


def in_node(page: Path, texts=(), cases=()) -> dict:
    """
    Args:
        texts: to encode.
        cases: sentences to translate and the options to do it with.
    """
    # V8's baseline compiler alone: the optimizing one takes far longer over the runtime than these translations do.
    done = subprocess.run(
        ["node", "--liftoff-only", HERE / "translate.mjs", page],
        input=json.dumps({"texts": texts, "cases": cases}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def until_the_end(row: list[int], ends: list[int]) -> list[int]:
    """A row without what fills it up to the length of the longest one."""
    last = next((place for place, token in enumerate(row) if token in ends), len(row))
    return row[: last + 1]


def generated(folder: Path, sentences: list[str], **settings) -> list[list[dict]]:
    """What `generate()` makes of each sentence alone: the tokens and the text of each translation."""
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

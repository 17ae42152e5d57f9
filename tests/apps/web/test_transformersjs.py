"""A folder for transformers.js translates as generate() does, in ONNX Runtime and, if installed, in transformers.js."""

import json
import re
import shutil
import subprocess
from itertools import compress
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import CHOICES, ROOT, SHALLOW, every_choice_and_variant
from pages import generated, node, until_the_end
from search_cases import enliven
from translators import SENTENCES, make_folder, sure_of, two_vocabularies
from typer.testing import CliRunner

from modeling_scratch.apps.convert.generation_settings import read_search
from modeling_scratch.apps.web.transformersjs import (
    DECODER,
    ENCODER,
    cache_names,
    card_of_folder,
    export_transformersjs_onnx,
)
from modeling_scratch.commands.export import app
from modeling_scratch.loading import load_tokenizers, load_translator

HERE = Path(__file__).parent
PACKAGE = ROOT / "node_modules" / "@huggingface" / "transformers"
needs_package = pytest.mark.skipif(
    not PACKAGE.is_dir() or shutil.which("node") is None, reason="needs npm install --no-save @huggingface/transformers"
)


def run(*arguments):
    return CliRunner().invoke(app, ["transformersjs", *map(str, arguments)])


class OnnxGraphs:
    """Both ONNX graphs, run as by transformers.js, whose first cache has sizes from the graph, or 0."""

    def __init__(self, folder: Path):
        self.encoder, self.decoder = (onnxruntime.InferenceSession(folder / name) for name in (ENCODER, DECODER))

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> None:
        (states,) = self.encoder.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
        self.fixed = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
        cache = [past for past in self.decoder.get_inputs() if past.name.startswith("past_key_values.")]
        sizes = {"batch_size": len(ids)}
        shapes = [[size if isinstance(size, int) else sizes.get(size, 0) for size in past.shape] for past in cache]
        self.cache = {past.name: np.zeros(shape, np.float32) for past, shape in zip(cache, shapes, strict=True)}

    def step(self, tokens: np.ndarray) -> np.ndarray:
        layers = len(self.cache) // 2
        logits, *present = self.decoder.run(
            ["logits", *cache_names("present", layers)], {"input_ids": tokens, **self.fixed, **self.cache}
        )
        self.cache = dict(zip(cache_names("past_key_values", layers), present, strict=True))
        return logits[:, -1]


@pytest.mark.slow
@every_choice_and_variant
def test_onnx_graphs_step_as_the_model_does(fields, make_model, tmp_path):
    """A padded batch against uncached forward passes. A row that has ended repeats its end token."""
    model = enliven(make_model(**SHALLOW, **fields), 4)
    export_transformersjs_onnx(model, tmp_path, read_search(model))
    end, graphs = model.config.eos_token_id, OnnxGraphs(tmp_path)
    ids = torch.randint(4, 61, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(9) < torch.tensor([[9], [5]])).long()
    graphs.encode(ids.masked_fill(mask == 0, model.config.pad_token_id).numpy(), mask.numpy())
    targets = torch.tensor([[end, 7, 30, end, end], [1, 40, 8, 50, 9]])  # the first row starts with an end token
    for length in range(1, 6):
        found = torch.from_numpy(graphs.step(targets[:, length - 1 : length].numpy()))
        expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=targets[:, :length]).logits[:, -1]
        if length > 3:
            assert found[0].argmax() == end
        else:
            torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=2e-4)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=2e-4)


# -- the folder --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Rotary positions, RMSNorm, gated; with banned tokens."""
    folder = make_folder(tmp_path_factory.mktemp("models") / "rotary", updates=80, **CHOICES["rotary, rms, gated"])
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text()) | {"suppress_tokens": [44], "bad_words_ids": [[60]], "min_new_tokens": 6}
    path.write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "folder"
    result = run(model, out)
    assert result.exit_code == 0, result.output
    return out, result.output


def in_transformersjs(folder: Path, batches: list[list[str]], dtype: str = "fp32") -> list[dict]:
    task = {"batches": batches, "options": {"max_new_tokens": 20}, "dtype": dtype}
    return node(HERE / "pipeline.mjs", folder, input=json.dumps(task))


@needs_package
@pytest.mark.slow
def test_transformersjs_translates_as_generate_does(model, exported):
    sentences = list(compress(SENTENCES, sure_of(model, SENTENCES, num_beams=1)))
    expected = [best for (best,) in generated(model, sentences, num_beams=1)]
    assert len({output["text"] for output in expected}) > 3
    alone = in_transformersjs(exported[0], [[sentence] for sentence in sentences])
    assert [output["tokens"][0][1:] for output in alone] == [output["tokens"] for output in expected]
    (batch,) = in_transformersjs(exported[0], [sentences])
    assert [until_the_end(row[1:], [2]) for row in batch["tokens"]] == [output["tokens"] for output in expected]
    assert batch["texts"] == [output["text"] for output in expected]


@needs_package
@pytest.mark.slow
def test_8_bit_weights_load_too(exported):
    assert in_transformersjs(exported[0], [SENTENCES], "q8")[0]["texts"][0].strip()


@needs_package
@pytest.mark.slow
def test_the_code_on_the_card_runs(model, exported, tmp_path):
    (lines,) = re.findall(r"```js\n(.*?)```", (exported[0] / "README.md").read_text(), re.DOTALL)
    script = ROOT / "node_modules" / f".{tmp_path.name}.mjs"  # where Node.js finds the package
    script.write_text(lines.replace("user/name-onnx", str(exported[0])))
    try:
        done = subprocess.run(["node", script], capture_output=True, text=True, timeout=600)
    finally:
        script.unlink()
    assert "translation_text" in done.stdout, done.stderr


@pytest.mark.slow
def test_onnx_graphs_translate_as_generate_does(model, exported):
    """Greedy search for a batch of sentences, without transformers.js."""
    source, graphs = load_tokenizers(str(model))[0], OnnxGraphs(exported[0] / "onnx")
    settings = {"num_beams": 1, "suppress_tokens": None, "bad_words_ids": None, "min_new_tokens": None}
    sentences = list(compress(SENTENCES, sure_of(model, SENTENCES, **settings)))
    expected = [best["tokens"] for (best,) in generated(model, sentences, **settings)]
    batch = source(sentences, padding=True, return_tensors="np")
    graphs.encode(batch.input_ids, batch.attention_mask)
    rows = np.ones((len(sentences), 1), dtype=np.int64)
    for _ in range(20):
        rows = np.concatenate([rows, graphs.step(rows[:, -1:]).argmax(axis=-1)[:, None]], axis=1)
    assert [until_the_end(row, [2]) for row in rows[:, 1:].tolist()] == expected


@pytest.mark.slow
def test_the_folder_has_the_files_and_settings_of_transformersjs(exported):
    folder, output = exported
    stems = [f"{part}{size}" for part in ("encoder_model", "decoder_model_merged") for size in ("", "_quantized")]
    names = ["README.md", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    names += [f"onnx/{stem}.onnx" for stem in stems]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(names)
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "max_new_tokens": 20,
        "min_new_tokens": 6,
        "decoder_start_token_id": 1,
        "eos_token_id": [2],
        "bad_words_ids": [[60], [44]],
    }
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["d_model"], config["decoder_attention_heads"]) == ("bart", 32, 2)
    assert "no beam search" in output


def test_the_card_of_a_run_has_license_languages_and_an_example(trained):
    card = card_of_folder(str(trained), ["en", "de"], read_search(load_translator(str(trained))))
    assert card.startswith("---\nlanguage:\n- en\n- de\nlibrary_name: transformers.js\nlicense: apache-2.0\n")
    assert "# English to German, for transformers.js" in card
    assert "Leave blank texts out" in card
    assert re.search(r'translate\("\w.*", { max_new_tokens: \d+ }\)', card)
    assert "U+10FF00" not in card
    search = read_search(load_translator(str(trained)))
    card = card_of_folder(str(trained), ["en", "de"], search, reserved=16)
    assert "put the character U+10FF00 in place" in " ".join(card.split())


def test_two_vocabularies_are_refused(tmp_path):
    result = run(two_vocabularies(), tmp_path / "out")
    assert result.exit_code == 2
    assert "supports only one" in result.output
    assert not list(tmp_path.iterdir())

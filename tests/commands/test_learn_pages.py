"""The code of today on the pages of docs/learn runs as written."""

import csv
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import ROOT, quick_run

from modeling_scratch.__main__ import app
from modeling_scratch.apps.convert import to_marian
from modeling_scratch.loading import load_tokenizers, load_translator
from modeling_scratch.recipe.schema import Recipe
from modeling_scratch.training import curves

LEARN = ROOT / "docs" / "learn"
PAGE, SYMPTOMS = ((LEARN / name).read_text(encoding="utf-8") for name in ("transformers-4.md", "symptoms.md"))
MARIAN = "Helsinki-NLP/opus-mt-en-de"
# Commands train for two updates; those of new models train a small one.
SHORT = ["optimization.max_epochs=null", "optimization.max_steps=2", "evaluation.max_new_tokens=8"]
SMALL = ["model.overrides={d_model: 32, encoder_layers: 1, decoder_layers: 1, dropout: 0}", "tokenizer.vocab_size=400"]
MARIANS_SHAPE = "{d_model: 32, encoder_layers: 1, decoder_layers: 1, norm_position: post, final_norm: false}"


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the content of each block of code that is not introduced as an older library's."""
    found = []
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        introduction = page[: match.start()].strip().rpartition("\n\n")[2]
        if not introduction.startswith(("In Transformers 4", "In Simple Transformers")):
            found.append((match[1], match[2].replace("\\\n", " ")))
    return found


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """A folder with all models and files that the page names."""
    folder = tmp_path_factory.mktemp("learn")
    shutil.copytree(trained, folder / "runs" / "embedded")
    run = quick_run(folder / "start", f"model.overrides={MARIANS_SHAPE}", "optimization.max_steps=2")
    to_marian(load_translator(str(run))).save_pretrained(folder / MARIAN)
    load_tokenizers(str(run))[0].save_pretrained(folder / MARIAN)
    pairs = [{"en": f"The {word} sleeps.", "de": f"Der {word} schläft."} for word in map(str, range(400))]
    for name, rows in {"train": pairs, "validation": pairs[:20], "test": pairs[:20]}.items():
        lines = (json.dumps({"translation": row}) for row in rows)
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("input_text", "target_text"), *(row.values() for row in pairs)])
    for name in ("mine", "general"):
        for language in ("en", "de"):
            text = "".join(f"{row[language]}\n" for row in pairs)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_all_code_of_today_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for language, code in blocks(PAGE):
        if language == "python":
            exec(compile(code, "block", "exec"), {})
            continue
        for line in filter(None, code.split("\n")):
            program, *words = shlex.split(line)
            if program == "scratch":
                if words[0] == "train":
                    words += SHORT + (SMALL if "own-text" in words else [])
                with patch.object(curves, "plot_curves", lambda metrics, path: path.touch()):
                    app(words, standalone_mode=False)
            else:
                line = f"{shlex.quote(sys.executable)} -m modeling_scratch ".join(line.split("scratch "))
                subprocess.run(["bash", "-ec", line], check=True)
    assert {"mine", "out", "tuned", "opus-tuned-marian"} <= {path.name for path in Path().iterdir()}


def test_the_python_code_of_symptoms_shows_them(trained, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "embedded").symlink_to(trained)
    monkeypatch.chdir(tmp_path)
    printed = []
    for code in (code for language, code in blocks(SYMPTOMS) if language == "python"):
        exec(compile(code, "block", "exec"), {})
        printed.append(capsys.readouterr().out)
    nan, padding, vocabulary, ends = printed
    assert nan.split("\n")[0].count("nan") == 4
    assert nan.split("\n")[1].count("0.25") == 4
    with_mask, without = map(float, re.findall(r"tensor\(([\d.e-]+)", padding))
    assert 10 * with_mask < without
    assert "they must be in [0, 400), the vocabulary" in vocabulary
    assert [re.sub("[^, 0-9]", "", line).split(", ")[-2:].count("2") for line in ends.strip().split("\n")] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["none", "no-source"])
def test_a_model_that_gets_nothing_of_the_source_has_one_output_for_all(mistake, trained, monkeypatch):
    monkeypatch.syspath_prepend(LEARN)
    outputs = importlib.import_module("mistakes").main(mistake, str(trained), updates=80)[2]
    assert (len(set(outputs)) == 1) == (mistake == "no-source")


@pytest.mark.slow
def test_the_old_pipeline_of_other_models_is_gone(folder):
    code = f"from transformers import pipeline; pipeline('translation_en_to_de', model={MARIAN!r})"
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert re.search("KeyError: .*translation_en_to_de", result.stderr)


def test_the_keys_that_replace_old_options_exist():
    named = re.findall(r"`([a-z_]+)\.([a-z_]+)[`=]", PAGE)
    assert len(named) > 20
    for section, name in named:
        if section in Recipe.model_fields:
            assert name in Recipe.model_fields[section].annotation.model_fields, f"{section}.{name}"

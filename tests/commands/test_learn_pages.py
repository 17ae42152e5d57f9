"""The pages of docs/learn show what they say (test_code_blocks.py runs all of their code)."""

import importlib
import re
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT, run_training

from modeling_scratch.recipe.schema import Recipe

LEARN = ROOT / "docs" / "learn"
PAGE, SYMPTOMS = ((LEARN / name).read_text(encoding="utf-8") for name in ("transformers-4.md", "symptoms.md"))


def test_the_python_code_of_symptoms_shows_them(trained, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "embedded").symlink_to(trained)
    monkeypatch.chdir(tmp_path)
    printed = []
    for code in re.findall(r"^```python\n(.*?)^```$", SYMPTOMS, flags=re.DOTALL | re.MULTILINE):
        exec(compile(code, "block", "exec"), {})
        printed.append(capsys.readouterr().out)
    nan, padding, vocabulary, ends = printed
    assert nan.split("\n")[0].count("nan") == 4
    assert nan.split("\n")[1].count("0.25") == 4
    with_mask, without = map(float, re.findall(r"tensor\(([\d.e-]+)", padding))
    assert 10 * with_mask < without
    assert "they must be in [0, 418), the vocabulary" in vocabulary
    assert [re.sub("[^, 0-9]", "", line).split(", ")[-2:].count("2") for line in ends.strip().split("\n")] == [1, 2]


# What 100 updates with each mistake show, given the held-out loss, the BLEU and the translations of 100 sentences; and
# of the same model without a mistake.
SHOWN = {
    "padding-in-the-loss": lambda loss, bleu, outputs, without: bleu < without.bleu,
    "no-causal-mask": lambda loss, bleu, outputs, without: sum(not text.strip() for text in outputs) > 50,
    "labels-not-shifted": lambda loss, bleu, outputs, without: loss < without.loss / 4 and bleu < 1,
    "no-source": lambda loss, bleu, outputs, without: len(set(outputs)) == 1,
    "no-positions": lambda loss, bleu, outputs, without: bleu < without.bleu,
    "no-warm-up": lambda loss, bleu, outputs, without: loss > without.loss + 1,
    "lines-out-of-step": lambda loss, bleu, outputs, without: loss > without.loss + 0.5 and bleu < 2,
    "dropout-left-on": lambda loss, bleu, outputs, without: bleu < without.bleu,
}


@pytest.fixture(scope="module")
def mistakes():
    sys.path.insert(0, str(LEARN))
    yield importlib.import_module("mistakes")
    sys.path.remove(str(LEARN))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """A folder with the tokenizer and the shape of the recipe `embedded`."""
    folder = tmp_path_factory.mktemp("runs") / "embedded"
    run_training("optimization.max_epochs=null", "optimization.max_steps=2", f"output_dir={folder}")
    return str(folder)


@pytest.fixture(scope="module")
def without(mistakes, embedded):
    """The loss and BLEU without a mistake."""
    loss, bleu, _ = mistakes.main("none", embedded, updates=100)
    return SimpleNamespace(loss=loss, bleu=bleu)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", SHOWN)
def test_each_mistake_shows_its_symptom(mistake, mistakes, without, embedded, monkeypatch):
    monkeypatch.setattr(mistakes.minimal, "positions", mistakes.minimal.positions)  # which a mistake replaces
    loss, bleu, outputs = mistakes.main(mistake, embedded, updates=100)
    assert SHOWN[mistake](loss, bleu, outputs, without), (loss, bleu, without)


def test_every_mistake_is_tried(mistakes):
    assert SHOWN.keys() == mistakes.MISTAKES.keys() - {"none"}


def test_the_keys_that_replace_old_options_exist():
    named = re.findall(r"`([a-z_]+)\.([a-z_]+)[`=]", PAGE)
    assert len(named) > 20
    for section, name in named:
        if section in Recipe.model_fields:
            assert name in Recipe.model_fields[section].annotation.model_fields, f"{section}.{name}"

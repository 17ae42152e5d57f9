"""The log warns once of each symptom of a run that goes wrong."""

import math

import pytest
from conftest import ROOT, quick_run

from modeling_scratch.training.evaluation import find_symptom, warn_of_symptom

REFERENCES = [f"Satz {number} ist gut." for number in range(10)]
SOURCES = [f"Sentence {number} is good." for number in range(10)]
LOOPS = [f"Satz {number} ist ist ist ist ist ist" for number in range(10)]
CASES = {
    "blank-output": ["", " "] * 5,
    "one-output-for-all": ["Ein Satz."] * 8 + REFERENCES[:2],
    "the-source-is-copied": SOURCES,
    "one-word-repeated": LOOPS,
    "good-loss-and-bad-bleu": [f"Wort {number * 7}" for number in range(10)],
}


def found(outputs, loss=2.0, vocab_size=1000, bleu=0.5, sources=SOURCES, references=REFERENCES):
    symptom = find_symptom(loss, vocab_size, sources, outputs, references, bleu)
    return symptom and symptom[0]


@pytest.mark.parametrize(("name", "outputs"), CASES.items())
def test_each_symptom_is_found(name, outputs):
    assert found(outputs) == name


def test_a_loss_of_guessing_is_found_without_outputs():
    assert find_symptom(math.log(1000) - 0.1, 1000)[0] == "loss-stuck-at-ln-v"
    assert find_symptom(math.log(1000) / 2, 1000) is None


def test_outputs_that_should_be_like_that_are_no_symptoms():
    assert found(REFERENCES, bleu=100.0) is None
    assert found(SOURCES, references=SOURCES, bleu=100.0) is None  # a copy is right
    assert found(LOOPS, references=LOOPS, bleu=100.0) is None
    assert found(["yes"] * 10, references=["yes"] * 9 + ["no"], bleu=None) is None  # most inputs have one output
    assert found(CASES["good-loss-and-bad-bleu"], loss=4.0) is None  # not good
    assert found(["Ein Satz."] * 10, sources=["A sentence."] * 10, bleu=None) is None  # as there is one input


def test_every_symptom_has_a_section_and_is_logged_once(caplog):
    page = (ROOT / "docs" / "learn" / "symptoms.md").read_text(encoding="utf-8")
    headings = {line[3:].lower().replace(" ", "-") for line in page.splitlines() if line.startswith("## ")}
    known: list[str] = []
    for loss, outputs in [(6.9, []), *((2.0, each) for each in CASES.values())] * 2:
        warn_of_symptom(find_symptom(loss, 1000, SOURCES, outputs, REFERENCES, 0.5), known)
    assert len(caplog.messages) == len(known) == len(CASES) + 1
    assert set(known) <= headings


def test_a_run_that_learns_nothing_is_warned_of(tmp_path, capsys):
    quick_run(tmp_path / "stuck", "optimization.learning_rate=1e-6")
    assert capsys.readouterr().err.count("docs/learn/symptoms.md#loss-stuck-at-ln-v") == 1

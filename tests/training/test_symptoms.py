"""The log warns once of each symptom of a run that goes wrong."""

import math

import pytest
from conftest import ROOT, quick_run

from modeling_scratch.training.symptoms import find_symptoms, warn_of_symptoms

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
    return [name for name, _ in find_symptoms(loss, vocab_size, sources, outputs, references, bleu)]


@pytest.mark.parametrize(("name", "outputs"), CASES.items())
def test_each_symptom_is_found_alone(name, outputs):
    assert found(outputs) == [name]


def test_a_loss_of_guessing_is_found_without_outputs():
    assert [name for name, _ in find_symptoms(math.log(1000) - 0.1, 1000)] == ["loss-stuck-at-ln-v"]
    assert list(find_symptoms(math.log(1000) / 2, 1000)) == []


def test_outputs_that_should_be_like_that_are_no_symptoms():
    assert found(REFERENCES, bleu=100.0) == []
    assert found(SOURCES, references=SOURCES, bleu=100.0) == []  # a copy is right
    assert found(LOOPS, references=LOOPS, bleu=100.0) == []
    assert found(["yes"] * 10, references=["yes"] * 9 + ["no"], bleu=None) == []  # most inputs have one output
    assert found(CASES["good-loss-and-bad-bleu"], loss=4.0) == []  # not good
    assert found(["Ein Satz."] * 10, sources=["A sentence."] * 10, bleu=None) == []  # as there is one input


def test_every_symptom_has_a_section_and_is_logged_once(caplog):
    page = (ROOT / "docs" / "learn" / "symptoms.md").read_text(encoding="utf-8")
    headings = {line[3:].lower().replace(" ", "-") for line in page.splitlines() if line.startswith("## ")}
    known: list[str] = []
    for loss, outputs in [(6.9, []), *((2.0, each) for each in CASES.values())] * 2:
        warn_of_symptoms(find_symptoms(loss, 1000, SOURCES, outputs, REFERENCES, 0.5), known)
    assert len(caplog.messages) == len(known) == len(CASES) + 1
    assert set(known) <= headings


def test_a_run_that_learns_nothing_is_warned_of(tmp_path, capsys):
    quick_run(tmp_path / "stuck", "optimization.learning_rate=1e-6")
    assert capsys.readouterr().err.count("docs/learn/symptoms.md#loss-stuck-at-ln-v") == 1

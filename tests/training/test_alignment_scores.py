"""A run with evaluation.alignments saves the best heads and reports their alignment error rate."""

import json

import pytest
from conftest import SMALL_RUN, read_metrics, run_training

from modeling_scratch.data import sources
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.sources import source_of
from modeling_scratch.data.tokenizer import texts
from modeling_scratch.hub.card import build_card
from modeling_scratch.inference.alignments import Aligner, alignment_error_rate
from modeling_scratch.loading import load_tokenizers, load_translator
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.run.records import RunRecords

LIMITS = ["optimization.max_steps=2", "evaluation.every=2", "evaluation.num_beams=1", "evaluation.max_new_tokens=2"]
# The only decoder layer has two heads; None is the mean of both.
CHOICES = [None, [[0, 0]], [[0, 1]]]


@pytest.fixture(scope="module", autouse=True)
def short_splits():
    """Shorten the validation and test splits of the embedded corpus, which has gold links, to 100 sentences."""
    made = make_corpus(600, 100, 100, marked=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_corpus", lambda size, seed: made)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    overrides = "model.overrides={d_model: 32, encoder_layers: 1, decoder_layers: 1, decoder_attention_heads: 2}"
    options = [*LIMITS, overrides, "evaluation.alignments=true", "data.source_language=de", "data.target_language=en"]
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_training(*SMALL_RUN, f"output_dir={folder}", *options)
    return folder


def rate(run, split: str, heads) -> float:
    recipe = load_recipe(run / "recipe.yaml")
    source = source_of(split, recipe.data, recipe.seed)
    model = load_translator(str(run))
    if heads is not None:
        model.generation_config.alignment_heads = heads
    found = Aligner(model, *load_tokenizers(str(run))).align(*texts(source.load()))
    return alignment_error_rate(found, source.gold_links())


def chosen(run):
    return json.loads((run / "generation_config.json").read_text()).get("alignment_heads")


def test_the_saved_heads_are_the_best_on_validation(run):
    rates = [rate(run, "validation", heads) for heads in CHOICES]
    assert len(set(rates)) > 1
    assert rate(run, "validation", chosen(run)) == min(rates)


def test_the_recorded_rate_is_that_of_the_saved_heads_on_the_test_split(run):
    (record,) = read_metrics(run, "test")
    assert record["aer"] == pytest.approx(rate(run, "test", chosen(run)))
    assert record["alignment_heads"] == chosen(run)


def test_the_card_shows_the_rate_and_the_heads(run):
    (record,) = read_metrics(run, "test")
    text = str(build_card(run, "user/name", RunRecords(run), "mit"))
    assert "| AER | Sentences |" in text
    assert f"| {record['aer']:.2f} | 100 |" in text
    assert f"- alignment heads, [layer, head] from 0: {chosen(run) or 'all'}" in text

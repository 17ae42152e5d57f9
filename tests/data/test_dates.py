"""The dates: each source names the day of its target, by another parser; splits share no day; a model learns them."""

from datetime import date

import pytest
from conftest import read_metrics, run_training
from dateutil import parser

from modeling_scratch.data.corpus import make_dates
from modeling_scratch.data.sources import load_pairs
from modeling_scratch.data.streaming import open_stream
from modeling_scratch.errors import UserError
from modeling_scratch.recipe import shipped_recipes
from modeling_scratch.recipe.schema import DataSection


def test_sources_name_the_day_of_their_target():
    splits = make_dates(300, 50, 50, seed=3)
    assert [len(pairs) for pairs in splits.values()] == [300, 50, 50]
    pairs = [pair for pairs in splits.values() for pair in pairs]
    for source, target in pairs:
        day = date.fromisoformat(target)
        assert 1900 <= day.year <= 2099
        assert parser.parse(source.replace("the ", "").replace(" of", ""), dayfirst=True).date() == day
    assert len({target for _, target in pairs}) == 400
    assert make_dates(300, 50, 50, seed=3) == splits != make_dates(300, 50, 50, seed=4)


def test_they_are_in_no_language_whatever_a_recipe_says():
    assert DataSection(name="dates").languages is None
    pairs = load_pairs(DataSection(name="dates", embedded_size=10), seed=0)
    assert {split: len(rows) for split, rows in pairs.items()} == {"train": 10, "validation": 500, "test": 500}


@pytest.mark.parametrize(
    ("fields", "key"), [({"embedded_size": 80_000}, "embedded_size"), ({"streaming": True}, "streaming")]
)
def test_more_than_there_are_and_streams_are_refused(fields, key):
    data = DataSection(name="dates", **fields)
    with pytest.raises(UserError, match=rf"data\.{key}"):
        load_pairs(data, seed=0) if key == "embedded_size" else open_stream(data, 0)


@pytest.mark.slow
def test_a_minute_of_training_learns_them(tmp_path):
    run_training(f"output_dir={tmp_path / 'run'}", config=str(shipped_recipes()["dates"]))
    (scores,) = [record for record in read_metrics(tmp_path / "run", "test") if record.get("final")]
    assert scores["exact_match"] > 95

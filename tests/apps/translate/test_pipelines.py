"""The commands' pipeline with workers: the same translations in the same order, and what becomes of failures."""

import pytest
import torch
from translators import CORPUS, two_vocabularies

from modeling_scratch.apps.translate import pipeline as pipelines
from modeling_scratch.apps.translate.lines import workers_for
from modeling_scratch.apps.translate.pipeline import load_pipeline, load_pipeline_with_workers
from modeling_scratch.errors import UserError

MANY = ["", *([pair["en"] for pair in CORPUS if len(pair["en"]) < 50] * 2)[:150], "  "]


@pytest.fixture(scope="module")
def alone():
    return load_pipeline([str(two_vocabularies())])


@pytest.fixture
def shared(monkeypatch):
    threads = torch.get_num_threads()
    pipeline = load_pipeline_with_workers([str(two_vocabularies())], None, 2)
    assert torch.get_num_threads() == threads
    monkeypatch.setattr(pipeline.model, "generate", None)  # of this process; the workers have theirs
    yield pipeline
    for worker in pipeline.workers:
        worker.close()


@pytest.mark.parametrize(("part", "several"), [(512, 1), (20, 2)])
def test_workers_translate_as_one_process_does(part, several, alone, shared, monkeypatch):
    monkeypatch.setattr(pipelines, "_LARGEST_PART", part)
    options = {"num_beams": 3, "num_return_sequences": several, "return_scores": True, "max_new_tokens": 12}
    done, expected = [], alone(MANY, **options)
    for inputs in (list, iter):
        found = shared(inputs(MANY), progress=done.append, **options)
        for translations, others in zip(found, expected, strict=True):
            for one, other in zip(listed(translations), listed(others), strict=True):
                assert (one["translation_text"], one.get("cut")) == (other["translation_text"], other.get("cut"))
                assert one["score"] == pytest.approx(other["score"], abs=1e-4)
    assert sum(done) == 2 * len(MANY)


def listed(translations):
    return translations if isinstance(translations, list) else [translations]


def test_small_batches_go_to_workers_too(alone, shared):
    options = {"batch_size": 8, "max_new_tokens": 5}
    assert list(shared(iter(MANY), **options)) == list(alone(iter(MANY), **options))


def test_samples_are_drawn_in_one_process(alone, shared, monkeypatch):
    monkeypatch.undo()
    options = {"do_sample": True, "max_new_tokens": 5}
    found = []
    for pipeline in (alone, shared):
        torch.manual_seed(3)
        found.append(pipeline(MANY, **options))
    assert found[0] == found[1]


def test_a_few_sentences_stay_in_this_process(alone, shared, monkeypatch):
    monkeypatch.undo()
    for worker in shared.workers:
        worker.close()
    assert shared(MANY[:20]) == alone(MANY[:20])


def test_errors_are_those_of_one_process(alone, shared):
    wrong = {"num_beams": 2, "num_return_sequences": 3}
    said = []
    for pipeline in (alone, shared):
        with pytest.raises(ValueError, match="num_return_sequences") as error:
            pipeline(MANY, **wrong)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert not any(worker.process.is_alive() for worker in shared.workers)


def test_a_sentence_that_is_too_long_is_numbered_as_in_the_input(shared):
    with pytest.raises(ValueError, match="input 140 has"):
        shared([*MANY[:140], "cat " * 3_000, *MANY[140:]])


def test_a_worker_that_is_killed(shared):
    shared.workers[1].process.kill()
    with pytest.raises(UserError, match="has ended; if it ran out of memory, --workers 0 needs less"):
        shared(MANY)


def test_workers_are_for_large_files(tmp_path, monkeypatch):
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_text("A few words.\n")
    large.write_text("Many words.\n" * 2_000)
    assert [workers_for(path) for path in (small, large, tmp_path, tmp_path / "none")] == [0, None, 0, 0]
    for path in (small, large):
        with path.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert workers_for(None) == workers_for(path)
    monkeypatch.setattr("sys.stdin", None)
    assert workers_for(None) == 0

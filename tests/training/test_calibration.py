"""Calibrating confidence when a run ends, and where it shows: pipeline, translate, evaluate, the card."""

import json
import random
import re
import shutil
from itertools import compress
from unittest.mock import patch

import pytest
import torch
from conftest import SMALL_RUN, read_metrics, run_training
from services import post, running
from transformers import GenerationMixin
from translators import lines, load, run_translate, sure_of
from waiting import LONGEST

from modeling_scratch import ScratchForConditionalGeneration, ScratchTranslationPipeline
from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.commands import evaluate
from modeling_scratch.data.sources import load_split
from modeling_scratch.hub.card import updated_card
from modeling_scratch.inference.translate import Translator
from modeling_scratch.model.confidence import Confidence
from modeling_scratch.model.configuration_scratch import TEXT2TEXT, pipelines_for
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.run.records import run_of
from modeling_scratch.training import calibration
from modeling_scratch.training.calibration import guessed, ngram_set


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """
    A run of a few seconds whose validation split is large enough. It guesses all its translations; what is tested is
    what a model with good ones does.
    """
    folder = tmp_path_factory.mktemp("runs") / "calibrated"
    with patch.object(calibration, "guessed", lambda *_: 0.0):
        # With copied words, so short a run writes little but outputs that are cut, and CTranslate2 prefers others.
        run_training(*SMALL_RUN, "data.kept_words=false", "tokenizer.vocab_size=400", f"output_dir={folder}")
    return folder


def sources(folder, split):
    recipe = load_recipe(folder / "recipe.yaml")
    return load_split(recipe.data, recipe.seed, split)["source"][:]


@torch.no_grad()
def mean_log_probabilities(translator, texts):
    """Of each translation, by teacher forcing."""
    inputs = translator.source_tokenizer(texts, padding=True, return_tensors="pt")
    found = translator.model.generate(**inputs, num_beams=2)[:, 1:]
    starts = torch.full((len(texts), 1), translator.model.generation_config.decoder_start_token_id)
    logits = translator.model(**inputs, decoder_input_ids=torch.cat([starts, found[:, :-1]], dim=1)).logits
    log_probabilities = logits.log_softmax(-1).gather(2, found[..., None])[..., 0]
    is_written = found != translator.model.config.pad_token_id  # after the end token there is padding
    return ((log_probabilities * is_written).sum(dim=1) / is_written.sum(dim=1)).tolist()


def test_thresholds_make_few_validation_sentences_doubtful(calibrated):
    confidence = Confidence.load(str(calibrated))
    translator = Translator.load([str(calibrated)])
    tokenize, known = translator.source_tokenizer, set()
    for ids in tokenize(sources(calibrated, "train")).input_ids:
        known |= {*zip([-1, *ids], ids, strict=False), *zip([-1, -1, *ids], [-1, *ids], ids, strict=False)}
    texts = sources(calibrated, "validation")
    means, shares = mean_log_probabilities(translator, texts), []
    for ids in tokenize(texts).input_ids:
        ngrams = [*zip([-1, *ids], ids, strict=False), *zip([-1, -1, *ids], [-1, *ids], ids, strict=False)]
        shares.append((sum(ngram in known for ngram in ngrams) / 2 + 3) / (len(ids) + 3))
    assert len(texts) > 100
    assert confidence.signals.keys() == {"mean_log_probability", "known_ngrams", "length_ratio", "target_ratio"}
    lengths = [row[0].length for row in translator.translate(texts)]
    rows = zip(lengths, tokenize(texts).input_ids, strict=True)
    ratios = [(length + 3) / (len(ids) + 3) for length, ids in rows if len(ids) <= 64]
    for name, values in (("mean_log_probability", means), ("known_ngrams", shares), ("target_ratio", ratios)):
        threshold, scale = confidence.signals[name]
        values = torch.tensor(values, dtype=torch.float64)
        quantiles = [float(values.quantile(share)) for share in (0.01, 0.005, 0.0025)]
        assert min(abs(threshold - quantile) for quantile in quantiles) < 0.02  # a few n-grams only seem known
        assert scale == pytest.approx(max(1e-3, float(values.std())), rel=0.05)
    assert confidence.measured["doubtful"].keys() - {"glued"} == {"validation", "shuffled", "corrupted", "foreign"}
    assert confidence.measured["doubtful"]["foreign"] == 1  # German has other n-grams


def test_all_outputs_of_a_model_that_guesses_are_doubtful(tmp_path, capsys):
    """However usual its own guesses are to it."""
    run_training(*SMALL_RUN, f"output_dir={tmp_path / 'run'}", "optimization.max_steps=2", "data.embedded_size=1500")
    assert "its confidence means nothing" in capsys.readouterr().err
    for split in ("validation", "test"):
        found = Translator.load([str(tmp_path / "run")]).translate(sources(tmp_path / "run", split), scores=True)
        assert all(row[0].confidence < 0.5 for row in found)
    record = next(each for each in read_metrics(tmp_path / "run") if "confidence" in each)
    assert record["confidence"]["doubtful"] == 1


def test_the_share_of_guesses_is_that_of_outputs_for_other_sources():
    chance = random.Random(0)
    letters = "aeioubcdfghlmnprst"
    references = ["".join(chance.choices(letters, k=30)) for _ in range(400)]
    outputs = [*references[:100], *chance.sample(references[100:], 300)]
    assert guessed(outputs, references) == pytest.approx(0.75, abs=0.1)
    assert guessed(references, references) == 0
    assert guessed([f"{text[:20]}xyzxyzxyz" for text in references], references) < 0.02  # bad, but no guesses
    # Not one of these is more like another reference, and yet they are hardly like their own.
    poor = [text[:6] + "".join(chance.choices(letters, k=24)) for text in references]
    assert guessed(poor, references) == 1
    assert guessed([""] * 400, references) == guessed(["the the the"] * 400, references) == 1
    assert guessed(["yes"] * 4, ["yes"] * 4) == 0  # nothing to tell apart


@pytest.mark.parametrize(
    ("text", "by_translator", "otherwise"), [("", 0, 0), (" ", 0, 0), (". ?", 0, None), ("a.", None, None)]
)
def test_an_output_that_says_nothing_is_doubtful(text, by_translator, otherwise, calibrated, monkeypatch):
    """However probable it is. Other outputs than translations may be marks, such as Morse code."""
    translator, (source,) = Translator.load([str(calibrated)]), sources(calibrated, "test")[:1]
    pipe = ScratchTranslationPipeline(translator.model, translator.source_tokenizer)
    monkeypatch.setattr(type(translator.target_tokenizer), "decode", lambda *_, **__: text)
    (usual,) = translator.translate([source], scores=True)
    expected = usual[0].confidence if by_translator is None else by_translator
    assert pipe(source, return_confidence=True)[0]["confidence"] == pytest.approx(expected)
    assert usual[0].confidence == pytest.approx(expected)
    assert by_translator is not None or expected > 0
    translator.model.config.custom_pipelines = pipelines_for(TEXT2TEXT)
    (other,) = translator.translate([source], scores=True)
    assert (other[0].confidence == 0) == (otherwise == 0)


def test_pipeline_translate_and_translator_agree(calibrated, tmp_path, monkeypatch):
    texts = [*sources(calibrated, "test")[:4], "Zwei ganz andere Sprachen sind dies."]
    translator = Translator.load([str(calibrated)])
    expected = [row[0].confidence for row in translator.translate(texts, scores=True)]
    assert expected[-1] < 0.5 <= min(expected[:2])
    pipe = ScratchTranslationPipeline(translator.model, translator.source_tokenizer)
    found = pipe([*texts, ""], return_confidence=True)
    assert [each["confidence"] for each in found] == pytest.approx([*expected, 1.0])
    assert "score" not in found[0]
    several = pipe(texts[0], return_confidence=True, num_return_sequences=2)
    assert [each.keys() for each in several] == [{"translation_text", "score", "confidence"}] * 2
    pipe.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "confidence.json").read_text() == (calibrated / "confidence.json").read_text()
    with monkeypatch.context() as patch:  # the model's own code, from before it saved the file
        patch.delattr(ScratchForConditionalGeneration, "save_pretrained")
        pipe.save_pretrained(tmp_path / "older")
    assert (tmp_path / "older" / "confidence.json").read_text() == (calibrated / "confidence.json").read_text()
    del pipe.confidence
    pipe.model.name_or_path = ""
    with pytest.raises(ValueError, match=r"return_confidence: the model has no confidence\.json"):
        pipe(texts, return_confidence=True)


def test_every_way_in_gives_the_same_translations_scores_and_confidences(calibrated, tmp_path, monkeypatch):
    """Command, pipeline, and service by both engines, for the sentences that rounding does not decide."""
    ctranslate2_engine = pytest.importorskip("modeling_scratch.inference.ctranslate2_engine")
    from modeling_scratch.apps.convert.ctranslate2 import write_ctranslate2

    texts = [*sources(calibrated, "test")[:20], "Zwei ganz andere Sprachen sind dies."]
    sure, texts = [*sure_of(calibrated, texts, rounding=1e-4), True], [*texts, "..."]
    keys = ("translation_text", "score", "confidence")
    found = load(calibrated)(texts, return_scores=True, return_confidence=True)
    expected = [[each[key] for key in keys] for each in found]
    assert expected[-1] == ["...", 0.0, 1.0]
    output = run_translate(monkeypatch, calibrated, lines(*texts), scores=True, confidence=True)[1].decode()
    rows = [line.split("\t") for line in output.splitlines()]
    ways = {"command": [[text, float(score), float(confidence)] for score, confidence, text in rows]}
    write_ctranslate2(str(calibrated), tmp_path / "converted")
    engines = {"torch": load_torch_engine, "ctranslate2": ctranslate2_engine.CTranslate2Engine}
    beams = Translator.load([str(calibrated)]).num_beams
    for name, folder in (("torch", calibrated), ("ctranslate2", tmp_path / "converted")):
        directions = Directions([load_direction(f"en:de={folder}", engines[name])])
        with running(Service(directions, Limits(seconds=LONGEST))) as url:
            asked = {"sentences": texts, "numBeams": beams, "source": "en", "target": "de"}
            bests = [row[0] for row in post(f"{url}/page/translate", asked)[1]["translations"]]
        ways[name] = [[best["text"], best["score"], best.get("confidence", 1.0)] for best in bests]
    for rows in ways.values():
        for row, other in compress(zip(rows, expected, strict=True), sure):
            assert row[0] == other[0]
            assert row[1:] == pytest.approx(other[1:], abs=1e-4)


def test_translate_writes_confidences_and_warns_of_doubtful_lines(calibrated, monkeypatch):
    (sure,) = sources(calibrated, "test")[:1]
    text = lines(sure, "", "Zwei ganz andere Sprachen sind dies.", "? !")
    code, output, warnings = run_translate(monkeypatch, calibrated, text, confidence=True)
    rows = [line.split("\t") for line in output.decode().splitlines()]
    assert code == 0
    assert [float(row[0]) >= 0.5 for row in rows] == [True, True, False, True]
    assert rows[1:4:2] == [["1.0000", ""], ["1.0000", "? !"]]
    assert "line 3: the output is doubtful" in warnings
    assert "line 1" not in warnings
    code, plain, told = run_translate(monkeypatch, calibrated, text)
    assert plain.decode().splitlines() == [row[1] for row in rows]
    assert told == warnings
    ranked = run_translate(monkeypatch, calibrated, lines(sure), confidence=True, n_best=2)[1].decode().splitlines()
    assert [len(row.split("\t")) for row in ranked] == [5, 5]


def test_an_output_that_is_short_for_its_source_is_doubtful_for_that_reason(calibrated, tmp_path, monkeypatch):
    folder, (source,) = shutil.copytree(calibrated, tmp_path / "model"), sources(calibrated, "test")[:1]
    (folder / "confidence.json").write_text(Confidence({"target_ratio": (9.0, 1.0)}, None, ngram_set([])).text())
    warnings = run_translate(monkeypatch, folder, lines(source, "..."))[2]
    assert re.search(r"line 1: .*doubtful.*: the output is short for its source: a part may be missing", warnings)
    with running(Service(Directions([load_direction(f"en:de={folder}", load_torch_engine)]), Limits())) as url:
        assert post(f"{url}/translate", {"q": source, "source": "en", "target": "de"})[1]["doubt"] == "short"


def test_validation_sentences_are_glued_together_two_by_two(calibrated):
    recipe, text = load_recipe(calibrated / "recipe.yaml"), sources(calibrated, "validation")
    pairs = load_split(recipe.data, recipe.seed, "validation")
    kinds = calibration._kinds(recipe, pairs)
    assert kinds["glued"] == ([f"{one} {two}" for one, two in zip(text[:200:2], text[1:200:2], strict=True)], None)


def test_confidences_that_are_not_there_are_refused_in_one_line(calibrated, tmp_path, monkeypatch):
    without = shutil.copytree(calibrated, tmp_path / "without", ignore=shutil.ignore_patterns("confidence.json"))
    message = f"error: --confidence: {without} has no confidence.json, which scratch train writes"
    assert run_translate(monkeypatch, without, lines("a"), confidence=True)[2].startswith(message)
    together = run_translate(monkeypatch, calibrated, lines("a"), confidence=True, others=[str(without)])[2]
    assert "an ensemble has no confidence" in together
    (without / "confidence.json").write_text("{}")
    damaged = run_translate(monkeypatch, without, lines("a"))[2]
    assert "confidence.json is not a file of confidences" in damaged
    assert "Traceback" not in damaged


def test_evaluation_shows_and_draws_what_the_best_outputs_score(calibrated, tmp_path, capsys):
    evaluate.main(str(calibrated), curve=tmp_path / "curve.png")
    shown = capsys.readouterr().out
    (record,) = read_metrics(calibrated, "test")
    found = record["confidence"]
    shares, scores = zip(*found["kept"], strict=True)
    assert (found["metric"], shares) == ("chrf", (1.0, 0.9, 0.8, 0.7, 0.6, 0.5))
    assert scores[0] == pytest.approx(record["chrf"])
    assert f"100 % {scores[0]:.2f}, 90 % {scores[1]:.2f}" in shown
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_card_says_what_was_measured(calibrated):
    card = updated_card(calibrated, "user/name", run_of(calibrated))
    measured = json.loads((calibrated / "confidence.json").read_text())["measured"]
    assert "return_confidence=True" in card
    assert f"precision {measured['precision']:.2f}, recall {measured['recall']:.2f}" in card


def test_a_model_that_a_trainer_has_saved_since_is_to_be_calibrated_again(calibrated, tmp_path, monkeypatch):
    folder = shutil.copytree(calibrated, tmp_path / "model")
    assert "calibrate" not in run_translate(monkeypatch, folder, lines("a"))[2]
    (folder / "training_args.bin").touch()  # as Trainer.save_model does
    warnings = run_translate(monkeypatch, folder, lines("a"))[2]
    assert f"{folder}: confidence.json was calibrated before the model was trained" in warnings


def test_few_validation_sentences_calibrate_nothing(trained):
    assert not (trained / "confidence.json").exists()
    assert "confidence" not in read_metrics(trained, "test")[0]


def test_a_search_without_scores_translates_without_confidence(calibrated, monkeypatch):
    """As that of sharded models, which run Transformers' own loops."""
    monkeypatch.setattr(ScratchForConditionalGeneration, "generate", GenerationMixin.generate)
    code, output, warnings = run_translate(monkeypatch, calibrated, lines("Zwei ganz andere Sprachen sind dies."))
    assert (code, warnings, output.count(b"\n")) == (0, "", 1)
    assert "return_scores" in run_translate(monkeypatch, calibrated, lines("a"), confidence=True)[2]

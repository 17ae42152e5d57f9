"""The precision in which evaluation translates, and `scratch evaluate`."""

import copy
import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import sacrebleu
import torch
from accelerate import Accelerator
from conftest import SHALLOW, SMALL_MODEL, few_sentences, quick_run, read_metrics
from datasets import Dataset
from sacrebleu.metrics import CHRF
from translators import best, widened

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.commands import evaluate
from modeling_scratch.data.augmentation import NOISES
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.inference.translate import Translator
from modeling_scratch.model.cache import SearchCache
from modeling_scratch.model.stacks import CACHE_NAME, ScratchDecoder
from modeling_scratch.model.translations import Translation, best_texts
from modeling_scratch.recipe.schema import DataSection, EvaluationSection, OptimizationSection, Recipe
from modeling_scratch.training import scoring
from modeling_scratch.training.preparation import generation_settings
from modeling_scratch.training.scoring import translate_and_score, translate_on_processes

SENTENCES = [pair["en"] for pair in make_corpus(36, 1, 1, seed=5)["train"]]


@pytest.fixture(scope="module")
def translator():
    """A model in float64 with large random weights, so that translations differ and some end early."""
    tokenizer = train_tokenizer(iter([[*pair.values()] for pair in make_corpus(200, 1, 1)["train"]]), 300)
    fields = {"vocab_size": len(tokenizer), "tie_word_embeddings": False, "lm_head_bias": True, "init_std": 0.5}
    torch.manual_seed(0)
    model = ScratchForConditionalGeneration(ScratchConfig(**(SMALL_MODEL | SHALLOW | fields))).double().eval()
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] = 5
    section = EvaluationSection(num_beams=2, length_penalty=1.0, max_new_tokens=8)
    model.generation_config = generation_settings(model, section)
    return model, tokenizer, tokenizer


@pytest.mark.parametrize(("device", "autocast"), [("cpu", False), ("cuda", True)])
def test_evaluation_translates_in_float32_on_a_cpu_and_in_training_precision_on_a_gpu(
    device, autocast, translator, monkeypatch
):
    """With our own search, although Accelerate has prepared the model, which stays prepared."""
    model, accelerator = copy.deepcopy(translator[0]).float(), Accelerator(cpu=True)
    bf16 = partial(torch.autocast, "cpu", torch.bfloat16)
    monkeypatch.setattr(accelerator, "autocast", bf16)
    monkeypatch.setattr(Accelerator, "device", torch.device(device))
    with bf16(enabled=autocast):
        expected = best(model, *translator[1:], SENTENCES)
    model._original_forward, model.forward = model.forward, bf16()(model.forward)
    prepared, forward, seen = model.forward, ScratchDecoder.forward, set()

    def watched(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        seen.add((torch.is_autocast_enabled("cpu"), type(getattr(output, CACHE_NAME))))
        return output

    monkeypatch.setattr(ScratchDecoder, "forward", watched)
    found = translate_on_processes(Translator(model, *translator[1:]), SENTENCES, accelerator)
    assert best_texts(found) == expected
    assert seen == {(autocast, SearchCache)}
    assert model.forward is prepared


def test_scratch_evaluate_follows_overrides(trained, tmp_path, capsys):
    scores, run = [], widened(trained, tmp_path / "run")
    for keys in ([], ["evaluation.max_new_tokens=1"], ["evaluation.batch_size=3"]):
        evaluate.main(str(run), keys)
        scores.append(float(re.search(r"chrF ([0-9.]+)", capsys.readouterr().out)[1]))
    whole, one_token, smaller_batches = scores
    # A model that has learned so little may have the higher score for its first token alone.
    assert one_token != whole == smaller_batches


def test_noise_costs_what_scores_on_changed_files_differ(tmp_path, capsys):
    """In a run's record, by `scratch evaluate`, and of files with sources in lower case or both sides in capitals."""
    run = quick_run(tmp_path / "run", "evaluation.noise=true", "evaluation.metrics=[chrf]", "evaluation.metric=chrf")
    (record,) = read_metrics(run, "test")
    noise = record["noise"]
    assert list(noise) == [name for name in NOISES if name != "drop_accents"]  # English has none
    evaluate.main(str(run), ["evaluation.noise=false"], noise=True)
    lines = capsys.readouterr().out.splitlines()
    for name, scores in noise.items():
        assert f"  {name}: chrF {scores['chrf']:.2f} ({scores['differences']['chrf']:+.2f})" in lines
    sides = [
        Path(f"{few_sentences()[2].partition('=')[2]}.{name}").read_text(encoding="utf-8") for name in ("en", "de")
    ]
    clean = (run / "translations" / "test.txt").read_text(encoding="utf-8").splitlines()
    chrf = CHRF()
    for name, changes, own in (
        ("lower_case", (str.lower, str), clean),
        ("upper_case", (str.upper, str.upper), [text.upper() for text in clean]),
    ):
        for ending, text, change in zip(("en", "de"), sides, changes, strict=True):
            (tmp_path / f"{name}.{ending}").write_text(change(text), encoding="utf-8")
        evaluate.main(str(run), [f"data.test_files={tmp_path / name}", "evaluation.noise=false"])
        score = float(re.search(r"chrF ([0-9.]+)", capsys.readouterr().out)[1])
        assert noise[name]["chrf"] == pytest.approx(score, abs=0.01)
        unharmed = chrf.corpus_score(own, [changes[1](sides[1]).splitlines()]).score
        assert noise[name]["differences"]["chrf"] == pytest.approx(score - unharmed, abs=0.02)


def test_scratch_evaluate_scores_several_outputs_of_the_beam(trained, tmp_path, capsys):
    """Against the outputs of `generate`; the references are outputs of other ranks."""
    run, sentences = widened(trained, tmp_path / "run"), SENTENCES[:6]
    translator = Translator.load([str(run)])
    found = translator.translate(sentences, num_beams=5, num_return_sequences=5, max_new_tokens=8)
    ranks = [0, 1, 2, 3, 4, None]
    references = [row[rank].text if rank is not None else "?" for row, rank in zip(found, ranks, strict=True)]
    for name, lines in (("en", sentences), ("de", references)):
        (tmp_path / f"test.{name}").write_text("".join(f"{line}\n" for line in lines))
    keys = [f"data.test_files={tmp_path / 'test'}", "evaluation.metrics=[exact_match, top_1]"]
    keys += ["evaluation.metric=loss", "evaluation.also=[top_3, top_5]", "evaluation.max_new_tokens=8"]
    evaluate.main(str(run), [*keys, "evaluation.num_beams=5"])
    shares = re.findall(r"(?:match|accuracy) ([0-9.]+) ±", capsys.readouterr().out)
    assert list(map(float, shares)) == pytest.approx([100 / 6, 100 / 6, 300 / 6, 500 / 6], abs=0.01)


def test_metrics_of_several_outputs_need_as_many_beams(trained, tmp_path, fails):
    """In a recipe, and of a model that was saved with fewer beams than a recipe has."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text((trained / "recipe.yaml").read_text().replace("num_beams: 2", "num_beams: 9"))
    for keys, said in (
        (["evaluation.metric=top_3"], "top_3 scores 3 .* has 1: .*evaluation.validation_beams=3"),
        (["evaluation.also=[top_10]"], "top_10 scores 10 .* has 9: set evaluation.num_beams=10"),
        (["evaluation.also=[top_3]"], "top_3 scores 3 .* has 2: set evaluation.num_beams=3"),
    ):
        assert re.search(said, fails(str(trained), keys, run=evaluate.main, config=str(recipe)))


def test_scratch_evaluate_scores_the_test_sets_that_there_are(trained, fails, capsys):
    other = few_sentences()[1].partition("=")[2]
    evaluate.main(str(trained), ["data.test_files=null", f"data.test_sets={{more: {other}}}"])
    assert re.findall(r"sentences of (\w+)", capsys.readouterr().out) == ["more"]
    assert "single keys" in fails(str(trained), ["evaluation={num_beams: 2}"], run=evaluate.main)


def test_scores_are_of_what_users_get_for_texts_without_letters(translator):
    data = DataSection(source_language="en", target_language="de", train_files="a.tsv")
    recipe = Recipe(output_dir="x", data=data, optimization=OptimizationSection(max_steps=1))
    pairs = Dataset.from_dict({"source": ["...", SENTENCES[0], " ?! "], "target": ["...", "x", "?!"]})
    outputs, _ = translate_and_score(recipe, Translator(*translator), pairs, Accelerator(cpu=True), nullcontext())
    assert outputs == ["...", *best(*translator, SENTENCES[:1]), "?!"]


WORDS = train_tokenizer(iter([["R O S O V E M"]]), 100, "words")


@pytest.fixture
def scores_of(translator, monkeypatch):
    """The scores of given outputs for pairs."""

    def scores(pairs: list[tuple[str, ...]], outputs: list[str], target_tokenizer=WORDS, languages=None, **section):
        found = [[Translation(text)] for text in outputs]
        monkeypatch.setattr(scoring, "translate_on_processes", lambda *_, **__: found)
        source, target = languages or (None, None)
        data = DataSection(source_language=source, target_language=target, train_files="a.tsv")
        settings = {"optimization": OptimizationSection(max_steps=1), "evaluation": EvaluationSection(**section)}
        recipe = Recipe(output_dir="x", data=data, **settings)
        columns = dict(zip(("source", "target", "features"), map(list, zip(*pairs, strict=True)), strict=False))
        given = (Dataset.from_dict(columns), Accelerator(cpu=True), nullcontext())
        return translate_and_score(recipe, Translator(*translator[:2], target_tokenizer), *given)[1]

    return scores


def test_white_space_of_targets_is_what_the_tokenizer_writes(scores_of):
    """Single spaces for whole words. Byte-level BPE keeps it."""
    pairs = [("roso", "R  O  S  O"), ("vemo", "V\tE\u00a0M\u3000O")]
    decoded = WORDS.batch_decode(WORDS([target for _, target in pairs]).input_ids, skip_special_tokens=True)
    metrics = {"metric": "wer", "metrics": ["wer", "exact_match", "cer", "token_error_rate"]}
    found = scores_of(pairs, decoded, **metrics)
    assert [found[key] for key in metrics["metrics"]] == [0, 100, 0, 0]
    keeping = train_tokenizer(iter([["R O S O"]]), 300)
    assert keeping.decode(keeping(pairs[0][1]).input_ids, skip_special_tokens=True) == pairs[0][1]
    assert scores_of(pairs, decoded, keeping, **metrics)["wer"] == 100


def test_each_source_is_right_if_its_output_is_one_of_its_references(scores_of):
    """As a dictionary with several pronunciations of a word."""
    pairs = [("tomato", "T AH"), ("tomato", "T AA"), ("either", "IY DH"), ("either", "AY DH"), ("the", "DH AH")]
    names = ["wer", "exact_match", "token_error_rate", "cer", "token_f1"]
    right = scores_of(pairs, ["T AA"] * 2 + ["IY DH"] * 2 + ["DH AH"], metric="wer", metrics=names)
    assert [right[name] for name in names] == [0, 100, 0, 0, 100]
    assert right["wer_signature"].endswith("|references:all of a source")
    wrong = scores_of(pairs, ["T AA"] * 2 + ["DH"] * 2 + ["DH AH"], metric="wer", metrics=names)
    assert wrong["wer"] == pytest.approx(100 / 3)
    assert wrong["token_error_rate"] == pytest.approx(100 * 1 / 6)
    featured = [("sleep", "slept", "PST"), ("sleep", "sleeping", "PTCP")]
    assert scores_of(featured, ["slept"] * 2, metric="wer", metrics=["wer"])["wer"] == 50


def test_bleu_of_translations_is_that_of_pairs_and_otherwise_of_several_references(scores_of):
    references = [("It rains.", "Es regnet heute sehr stark."), ("It rains.", "Heute regnet es sehr stark hier.")]
    outputs, targets = ["Heute regnet es sehr stark."] * 2, [target for _, target in references]
    names, single = {"metric": "bleu", "metrics": ["bleu", "chrf"]}, [[target] for target in targets]
    as_pairs = scores_of(references, outputs, languages=("en", "de"), **names)
    assert as_pairs["bleu"] == sacrebleu.corpus_bleu(outputs, [targets]).score
    assert as_pairs["bleu_signature"].startswith("nrefs:1|")
    grouped = scores_of(references, outputs, **names)
    assert grouped["bleu"] == sacrebleu.corpus_bleu(outputs[:1], single).score != as_pairs["bleu"]
    assert grouped["chrf"] == sacrebleu.corpus_chrf(outputs[:1], single).score
    assert grouped["bleu_signature"].startswith("nrefs:2|")
    whole = scores_of(references, targets[:1] * 2, languages=("en", "de"), metric="wer", metrics=["wer"])
    assert whole["wer"] == 0


def test_generation_settings_are_valid_for_one_beam_and_for_many(translator, tmp_path):
    for beams in (1, 4):
        section = EvaluationSection(num_beams=beams, length_penalty=0.6, max_new_tokens=33)
        settings = generation_settings(translator[0], section)
        settings.save_pretrained(tmp_path)
        assert settings.max_new_tokens == 33
        assert settings.num_beams == (None if beams == 1 else 4)
        assert settings.length_penalty == (None if beams == 1 else 0.6)

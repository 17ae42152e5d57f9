"""The precision in which evaluation translates, and `scratch evaluate`."""

import copy
import re
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from conftest import SHALLOW, SMALL_MODEL, few_sentences
from translators import best, widened

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.commands import evaluate
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.inference.translate import Translator
from modeling_scratch.inference.translations import best_texts
from modeling_scratch.model.cache import SearchCache
from modeling_scratch.model.pretrained import CACHE_NAME
from modeling_scratch.model.stacks import ScratchDecoder
from modeling_scratch.recipe.schema import EvaluationSection
from modeling_scratch.training.evaluation import translate_on_processes
from modeling_scratch.training.inputs import generation_settings

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
    assert one_token < whole == smaller_batches


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


def test_metrics_of_several_outputs_need_as_many_beams(trained, tmp_path, capsys):
    """In a recipe, and of a model that was saved with fewer beams than a recipe has."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text((trained / "recipe.yaml").read_text().replace("num_beams: 2", "num_beams: 9"))
    for keys, said in (
        (["evaluation.metric=top_3"], "top_3 scores 3 .* has 1: .*evaluation.validation_beams=3"),
        (["evaluation.also=[top_10]"], "top_10 scores 10 .* has 9: set evaluation.num_beams=10"),
        (["evaluation.also=[top_3]"], "top_3 scores 3 .* has 2: set evaluation.num_beams=3"),
    ):
        with pytest.raises(SystemExit) as stopped:
            evaluate.main(str(trained), keys, config=str(recipe))
        assert stopped.value.code == 2
        assert re.search(said, capsys.readouterr().err)


def test_scratch_evaluate_scores_the_test_sets_that_there_are(trained, capsys):
    other = few_sentences()[1].partition("=")[2]
    evaluate.main(str(trained), ["data.test_files=null", f"data.test_sets={{more: {other}}}"])
    assert re.findall(r"sentences of (\w+)", capsys.readouterr().out) == ["more"]
    with pytest.raises(SystemExit):
        evaluate.main(str(trained), ["evaluation={num_beams: 2}"])
    assert "single keys" in capsys.readouterr().err


def test_generation_settings_are_valid_for_one_beam_and_for_many(translator, tmp_path):
    for beams in (1, 4):
        section = EvaluationSection(num_beams=beams, length_penalty=0.6, max_new_tokens=33)
        settings = generation_settings(translator[0], section)
        settings.save_pretrained(tmp_path)
        assert settings.max_new_tokens == 33
        assert settings.num_beams == (None if beams == 1 else 4)
        assert settings.length_penalty == (None if beams == 1 else 0.6)

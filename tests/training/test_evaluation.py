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
    assert translate_on_processes(Translator(model, *translator[1:]), SENTENCES, accelerator) == expected
    assert seen == {(autocast, SearchCache)}
    assert model.forward is prepared


def test_scratch_evaluate_follows_overrides(trained, tmp_path, capsys):
    scores, run = [], widened(trained, tmp_path / "run")
    for keys in ([], ["evaluation.max_new_tokens=1"], ["evaluation.batch_size=3"]):
        evaluate.main(str(run), keys)
        scores.append(float(re.search(r"chrF ([0-9.]+)", capsys.readouterr().out)[1]))
    whole, one_token, smaller_batches = scores
    assert one_token < whole == smaller_batches


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

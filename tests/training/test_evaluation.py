"""Translations in order, each sentence once."""

import copy
import re
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from conftest import SHALLOW, SMALL_MODEL, few_sentences
from translators import widened

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.commands import evaluate
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.sources import load_split
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.model.cache import SearchCache
from modeling_scratch.model.pretrained import CACHE_NAME
from modeling_scratch.model.stacks import ScratchDecoder
from modeling_scratch.recipe.schema import DataSection, EvaluationSection
from modeling_scratch.training.evaluation import translate
from modeling_scratch.training.inputs import generation_settings

SENTENCES = [pair["en"] for pair in make_corpus(36, 1, 1, seed=5)["train"]]


@pytest.fixture(scope="module")
def translator():
    """An untrained model in float64, with weights so large that its translations differ and some end early."""
    tokenizer = train_tokenizer(iter([[*pair.values()] for pair in make_corpus(200, 1, 1)["train"]]), 300)
    fields = {"vocab_size": len(tokenizer), "tie_word_embeddings": False, "lm_head_bias": True, "init_std": 0.5}
    torch.manual_seed(0)
    model = ScratchForConditionalGeneration(ScratchConfig(**(SMALL_MODEL | SHALLOW | fields))).double().eval()
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] = 5
    section = EvaluationSection(num_beams=2, length_penalty=1.0, max_new_tokens=8)
    model.generation_config = generation_settings(model, section)
    return model, tokenizer, tokenizer


def test_order_and_batch_do_not_matter(translator):
    together = translate(*translator, SENTENCES)
    assert len(together) == 36
    assert len(set(together)) > 18
    assert translate(*translator, SENTENCES, batch_tokens=40) == together
    assert translate(*translator, SENTENCES[::-1], batch_size=7) == together[::-1]
    assert [translate(*translator, [sentence])[0] for sentence in SENTENCES[:5]] == together[:5]
    assert translate(*translator, []) == []


def test_equals_generate_one_by_one(translator):
    model, source, target = translator
    for sentence in SENTENCES[:3]:
        ids = model.generate(**source([sentence], return_tensors="pt"))
        assert translate(*translator, [sentence]) == target.batch_decode(ids, skip_special_tokens=True)


def test_sources_are_read_as_the_pipeline_reads_them(translator, make_model):
    together = translate(*translator, SENTENCES[:3])
    around = [f" {SENTENCES[0]}\n", " ", *SENTENCES[1:3], ""]
    assert translate(*translator, around) == [together[0], "", *together[1:], ""]


def test_a_source_that_is_too_long_is_named(translator, make_model):
    short = make_model(vocab_size=400, position_embedding_type="learned", max_position_embeddings=4)
    with pytest.raises(ValueError, match=r"input 1 has \d+ tokens, but the model takes 4"):
        translate(short, *translator[1:], ["a", SENTENCES[0]])


def test_training_mode_is_restored(translator):
    model = translator[0].train()
    translate(*translator, SENTENCES[:1])
    assert model.training
    model.eval()


@pytest.mark.parametrize(("device", "autocast"), [("cpu", False), ("cuda", True)])
def test_mixed_precision(device, autocast, translator, monkeypatch):
    """
    With a model as Accelerate prepares it: by the fast loops, on the CPU as the model will be used, elsewhere as it is
    trained; and prepared as before afterwards.
    """
    model, accelerator = copy.deepcopy(translator[0]).float(), Accelerator(cpu=True)
    bf16 = partial(torch.autocast, "cpu", torch.bfloat16)
    monkeypatch.setattr(accelerator, "autocast", bf16)
    monkeypatch.setattr(Accelerator, "device", torch.device(device))
    with bf16(enabled=autocast):
        expected = translate(model, *translator[1:], SENTENCES)
    model._original_forward, model.forward = model.forward, bf16()(model.forward)
    prepared, forward, seen = model.forward, ScratchDecoder.forward, set()

    def watched(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        seen.add((torch.is_autocast_enabled("cpu"), type(getattr(output, CACHE_NAME))))
        return output

    monkeypatch.setattr(ScratchDecoder, "forward", watched)
    assert translate(model, *translator[1:], SENTENCES, accelerator=accelerator) == expected
    assert seen == {(autocast, SearchCache)}
    assert model.forward is prepared


def test_scratch_evaluate_decodes_as_its_keys_say(finished, tmp_path, capsys):
    scores, run = [], widened(finished, tmp_path / "run")
    for keys in ([], ["evaluation.max_new_tokens=1"], ["evaluation.batch_size=3"]):
        evaluate.main(str(run), keys)
        scores.append(float(re.search(r"chrF ([0-9.]+)", capsys.readouterr().out)[1]))
    whole, one_token, smaller_batches = scores
    assert one_token < whole == smaller_batches


def test_scratch_evaluate_takes_the_sets_there_are(finished, capsys):
    other = few_sentences()[1].partition("=")[2]
    evaluate.main(str(finished), ["data.test_files=null", f"data.test_sets={{more: {other}}}"])
    assert re.findall(r"sentences of (\w+)", capsys.readouterr().out) == ["more"]
    with pytest.raises(SystemExit):
        evaluate.main(str(finished), ["evaluation={num_beams: 2}"])
    assert "name single keys, such as evaluation.num_beams=4" in capsys.readouterr().err


def test_what_is_held_out_is_not_trained_on():
    data = DataSection(train_files=few_sentences()[0].partition("=")[2], validation_files=None, validation_size=40)
    train, held_out = (load_split(data, 0, split) for split in ("train", "validation"))
    assert (len(train), len(held_out)) == (560, 40)


def test_settings_are_valid_for_one_beam_and_many(translator, tmp_path):
    for beams in (1, 4):
        section = EvaluationSection(num_beams=beams, length_penalty=0.6, max_new_tokens=33)
        settings = generation_settings(translator[0], section)
        settings.save_pretrained(tmp_path)
        assert settings.max_new_tokens == 33
        assert settings.num_beams == (None if beams == 1 else 4)
        assert settings.length_penalty == (None if beams == 1 else 0.6)

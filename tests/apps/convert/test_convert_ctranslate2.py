"""Conversion to CTranslate2: the same probabilities and translations, or an error."""

import json
import sys
from functools import partial
from itertools import compress, takewhile

import ctranslate2
import pytest
import torch
from conftest import CHOICES, SHALLOW, padded
from search_cases import decided
from test_convert_command import invoke, refusal
from transformers import AutoTokenizer, GenerationConfig

from modeling_scratch.apps.convert import checking
from modeling_scratch.apps.convert import ctranslate2 as convert_ctranslate2
from modeling_scratch.apps.convert.ctranslate2 import (
    CTranslate2Scorer,
    find_obstacles,
    read_vocabulary,
    to_ctranslate2,
    write_ctranslate2,
    write_settings,
)
from modeling_scratch.errors import UserError
from modeling_scratch.loading import load_tokenizers, load_translator

REFUSED = ("alibi", "shared layers, decoder's norm")
SENTENCES = ["the cat sees a house .", "two dogs run .", "a"]


def vocabularies(config) -> list[list[str]]:
    return [[f"token {row}" for row in range(size)] for size in (config.vocab_size, config.target_vocab_size)]


def randomise(model):
    """Randomise norms and biases, which are 1 and 0 in a new model."""
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.copy_(torch.randn(parameter.shape, generator=random))
    return model


@pytest.mark.parametrize(
    "fields",
    [
        *(fields for name, fields in CHOICES.items() if name not in REFUSED),
        {"norm_position": "post"},
        {"final_norm": "decoder"},
        {"final_norm": "decoder", "norm_position": "post", "norm_type": "rms_norm"},
        {"final_norm": False, "norm_eps": 0.1},
        {"norm_type": "rms_norm", "norm_eps": 0.1, "norm_position": "post"},
        {"gated_ffn": True, "activation_function": "gelu_new"},
        {
            "position_embedding_type": "rotary",
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        },
        {"eos_token_id": [2, 5]},
        {"unk_token_id": None, "bos_token_id": None, "decoder_start_token_id": 5},
        *({"activation_function": name} for name in convert_ctranslate2._ACTIVATIONS),
    ],
    ids=str,
)
def test_probabilities_are_equal(fields, make_model, tmp_path):
    """Of random targets after random sources of different lengths, in one batch."""
    model, random = randomise(make_model(**fields)), torch.Generator().manual_seed(1)
    names, config = vocabularies(model.config), model.config
    to_ctranslate2(model, *names).save(str(tmp_path))
    sources = [torch.randint(4, config.vocab_size, (n,), generator=random).tolist() for n in (5, 20, 1)]
    targets = [torch.randint(4, config.target_vocab_size, (n,), generator=random).tolist() for n in (9, 1, 14)]
    scores = CTranslate2Scorer(tmp_path, *names)(sources, targets)
    for source, target, found in zip(sources, targets, scores, strict=True):
        before = torch.tensor([[config.decoder_start_token_id, *target]])
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=before).logits[0]
        expected = logits.log_softmax(dim=-1)[torch.arange(len(found)), [*target, 2]]
        torch.testing.assert_close(torch.tensor(found), expected.detach(), rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_function": "mish"}, "activation_function is 'mish' and must be 'relu' or 'gelu'"),
        ({"eos_token_id": None}, "eos_token_id is None"),
        ({"decoder_start_token_id": None}, "decoder_start_token_id is None"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
        ({"share_layers": True}, "share_layers is True"),
        ({"d_model": 33, "encoder_attention_heads": 3, "decoder_attention_heads": 11}, "d_model is 33"),
    ],
)
def test_fields_that_ctranslate2_lacks_are_named(fields, message, make_model):
    model = make_model(**fields)
    with pytest.raises(UserError, match=message):
        to_ctranslate2(model, *vocabularies(model.config))
    assert len(find_obstacles(model.config)) == 1


def test_a_converted_run_translates_as_generate_does(trained, tmp_path):
    out, small = tmp_path / "out", tmp_path / "int8"
    invoke("ctranslate2", trained, out)
    invoke("ctranslate2", trained, small, "--quantization=int8")
    assert (small / "model.bin").stat().st_size < 0.7 * (out / "model.bin").stat().st_size
    assert sorted(tmp_path.iterdir()) == [small, out]
    settings = json.loads((out / "generation.json").read_text())
    assert (settings["beam_size"], settings["max_decoding_length"]) == (2, 8)  # of the run's evaluation
    tokenizer, model = AutoTokenizer.from_pretrained(out), load_translator(str(trained))
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(SENTENCES).input_ids]
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    greedily = partial(model.double().generate, **batch, num_beams=1, max_new_tokens=8)
    expected, sure = greedily(), decided(greedily, 1e-3).tolist()
    found = ctranslate2.Translator(str(out)).translate_batch(tokens, beam_size=1, max_decoding_length=8)
    found_ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in found]
    special = {model.config.pad_token_id, model.config.eos_token_id, model.config.decoder_start_token_id}
    for row, other in compress(zip(expected.tolist(), found_ids, strict=True), sure):
        assert [token for token in row if token not in special] == [token for token in other if token not in special]
    assert any(compress(found_ids, sure))
    translator = ctranslate2.Translator(str(small))
    translator.translate_batch(tokens, **settings)
    with pytest.raises(RuntimeError, match="position"):  # instead of truncating
        translator.translate_batch([tokens[0] * 200], **settings)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")  # that is tested here
@pytest.mark.parametrize(
    "settings",
    [
        {},  # ends at once, or after twenty tokens
        {"max_new_tokens": 12},
        {"max_length": 7},
        {"min_new_tokens": 4},
        {"min_length": 4},
        {"eos_token_id": [2, 34, 40]},
        {"bad_words_ids": [[2], [58], [34, 34]], "suppress_tokens": [54]},  # an end token is not banned
        {"no_repeat_ngram_size": 2},
        {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 1},
        {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "max_new_tokens": 12},
        {"num_beams": 4, "early_stopping": True, "suppress_tokens": [34], "renormalize_logits": True},
    ],
    ids=str,
)
def test_generation_settings_have_the_effect_that_they_have_in_generate(settings, make_model, tmp_path):
    """For two models, whose sentences end at different places."""
    lengths, compared = set(), 0
    ids, mask = padded([torch.tensor([7, 8, 9]), torch.tensor([30] * 9), torch.tensor([50, 4])], 9)
    for seed in range(2):
        model, folder = make_model(lm_head_bias=True), tmp_path / str(seed)
        torch.manual_seed(seed)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.35)
        model.lm_head.weight.data[2] *= 3.0
        names = vocabularies(model.config)
        model.generation_config = GenerationConfig(
            **{"eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1, "do_sample": False} | settings
        )
        folder.mkdir()
        to_ctranslate2(model, *names).save(str(folder))
        write_settings(model, names[1], folder)
        arguments = json.loads((folder / "generation.json").read_text())
        translator = ctranslate2.Translator(str(folder), compute_type="float32")
        sources = [[names[0][token] for token in row[keep]] for row, keep in zip(ids, mask == 1, strict=True)]
        results = translator.translate_batch(sources, **arguments)
        search = partial(model.double().generate, ids, attention_mask=mask)
        ends = model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else ends
        expected = [list(takewhile(lambda token: token not in ends, row[1:])) for row in search().tolist()]  # noqa: B023
        found = [hypothesis for result in results for hypothesis in result.hypotheses]
        for row, other in compress(zip(found, expected, strict=True), decided(search, 1e-3)):
            assert row == [names[1][token] for token in other]
            compared += 1
            lengths.add(len(row))
    assert compared > 3
    assert len(lengths) > 1 or settings.get("num_beams")


def test_settings_that_ctranslate2_lacks_are_named(make_model, tmp_path, caplog):
    model = make_model(position_embedding_type="learned", max_position_embeddings=16)
    names = vocabularies(model.config)[1]
    model.generation_config = GenerationConfig(max_length=99, num_beams=4, length_penalty=0.6)
    write_settings(model, names, tmp_path)
    settings = json.loads((tmp_path / "generation.json").read_text())
    assert (settings["max_decoding_length"], settings["beam_size"], settings["length_penalty"]) == (16, 4, 0.6)
    assert not caplog.text
    left_out = {"do_sample": True, "sequence_bias": {(5,): 1.0}, "stop_strings": "x", "max_time": 2.0}
    model.generation_config.update(**left_out, num_beams=1, num_return_sequences=3)
    write_settings(model, names, tmp_path)
    assert all(name in caplog.text for name in left_out)
    assert json.loads((tmp_path / "generation.json").read_text())["num_hypotheses"] == 1  # without sampling


SEARCH = {"num_beams": 4, "early_stopping": True, "max_new_tokens": 9}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length_penalty": 2.0}, []),
        ({"length_penalty": 2.0, "early_stopping": False}, ["early_stopping=False", "length_penalty of 2.0"]),
        ({"length_penalty": 1.0, "early_stopping": "never"}, ["early_stopping='never'"]),
        ({"length_penalty": 1.0, "early_stopping": False}, []),
        ({"length_penalty": 2.0, "early_stopping": False, "num_beams": 1}, []),
        ({"min_new_tokens": 5}, ["min_new_tokens before its softmax", "scores", "other translations may win"]),
        ({"min_length": 5, "no_repeat_ngram_size": 2}, ["min_length, no_repeat_ngram_size before its softmax"]),
        ({"repetition_penalty": 1.3}, ["repetition_penalty before"]),
        ({"bad_words_ids": [[7]], "suppress_tokens": [8], "num_beams": 1}, ["bad_words_ids, suppress_tokens before"]),
        ({"suppress_tokens": [8], "renormalize_logits": True}, []),
    ],
    ids=str,
)
def test_a_search_that_finds_other_translations_or_scores_is_announced(settings, words, make_model, tmp_path, caplog):
    """
    CTranslate2 4.8.5 and Transformers 5.24, for 200 sentences and four beams: all translations are the same with
    early_stopping=True, with early_stopping=False and a length penalty of 1, and with bans if generate() renormalizes;
    after noise on the weights, with a penalty of 2, 172 of them.
    """
    model = make_model(**SHALLOW)
    model.generation_config = GenerationConfig(**SEARCH | settings)
    write_settings(model, vocabularies(model.config)[1], tmp_path)
    found = [logged.getMessage() for logged in caplog.records if logged.name.startswith("modeling_scratch")]
    assert len(found) == bool(words)
    assert all(word in found[0] for word in words)
    assert any("may win" in message for message in found) == (bool(words) and settings.get("num_beams") != 1)


@pytest.mark.parametrize("quantization", ["int8", "int16", "bfloat16"])
def test_a_type_that_only_stores_weights_is_announced(quantization, trained, tmp_path, caplog):
    """CTranslate2 4.8 computes in int16 only with Intel's MKL, and in 16-bit floats on few CPUs."""
    write_ctranslate2(str(trained), tmp_path / "out", quantization)
    computes = ctranslate2.Translator(str(tmp_path / "out"), device="cpu").compute_type
    is_stored_only = not computes.startswith(quantization)
    assert (f"{quantization} is how the weights are stored" in caplog.text) == is_stored_only
    assert (computes in caplog.text) == is_stored_only


def test_quantizing_does_not_change_the_model(make_model):
    model = randomise(make_model())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    to_ctranslate2(model, *vocabularies(model.config)).optimize("int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_translations_may_be_longer_than_ctranslate2_s_own_table_of_positions(make_model, tmp_path):
    model = make_model(**SHALLOW)
    model.generation_config = GenerationConfig(max_new_tokens=1200, eos_token_id=2, decoder_start_token_id=1)
    to_ctranslate2(model, *vocabularies(model.config)).save(str(tmp_path))
    translator = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    options = {"beam_size": 1, "min_decoding_length": 1200, "max_decoding_length": 1200}
    assert len(translator.translate_batch([["token 7"]], **options)[0].hypotheses[0]) == 1200


def test_the_vocabulary_has_a_token_for_each_row(trained):
    tokenizer, _ = load_tokenizers(str(trained))
    size = len(tokenizer)
    vocabulary = read_vocabulary(tokenizer, size + 2, "source")
    assert vocabulary[:size] == tokenizer.convert_ids_to_tokens(range(size))
    assert len(set(vocabulary)) == size + 2
    with pytest.raises(UserError, match=f"target tokenizer has {size} ids"):
        read_vocabulary(tokenizer, size - 1, "target")


def test_models_that_cannot_be_converted_are_refused(make_model, trained, tmp_path, monkeypatch):
    make_model().save_pretrained(tmp_path / "plain")
    out = tmp_path / "out"
    assert str(tmp_path / "plain") in refusal(tmp_path, "ctranslate2", tmp_path / "plain", out)  # it has no tokenizer
    monkeypatch.setattr(checking, "LARGEST_DIFFERENCE", -1.0)
    assert "log-probabilities differ" in refusal(tmp_path, "ctranslate2", trained, out)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "modeling_scratch.apps.convert.ctranslate2")
    assert "pip install 'modeling-scratch[ctranslate2]'" in refusal(tmp_path, "ctranslate2", trained, out)
